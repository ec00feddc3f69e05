--- What record_resume_spec runs in processes of its own: trains five updates of two micro-batches with dropout, straight, up
-- to a micro-batch in the middle of a window, or on from there.

local luda = require "luda"

local nn, optim, record = luda.nn, luda.optim, luda.record

local what, dir, checkpoint = arg[1], arg[2], arg[3] == "recompute"
local MICRO, SAVED = 10, 5

luda.manual_seed(what == "resume" and 99 or 3) -- a resumed run begins elsewhere
local Net = nn.module("Net")

function Net:init()
  self.inner = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.GELU())
  self.outer = nn.Linear(16, 2)
end

function Net:forward(x)
  local hidden = checkpoint and luda.autograd.checkpoint(function(t) return self.inner(t) end, x) or self.inner(x)
  return self.outer(hidden)
end

local model = Net()
local parts = {
  model = model,
  optimizer = optim.AdamW(model, { max_grad_norm = 1 }),
  scheduler = optim.lr.Warmup { steps = 2, after = optim.lr.Step { lr = 0.05, size = 2, gamma = 0.5 } },
  accumulator = optim.Accumulator(model),
  loader = luda.data.batches(luda.arange(400, { dtype = "i64" }), { batch = 4, length = 6, seed = 5 }),
}
local losses, first = {}, 1

local function micro(i)
  luda.scope(function()
    local x, y = parts.loader:next()
    local loss = ((model(x:to("f32") * 0.01) - y:narrow(2, 1, 2):to("f32") * 0.005) ^ 2):mean()
    losses[i] = loss:item()
    parts.accumulator:accumulate(loss:backward())
    if i % 2 == 0 then
      parts.optimizer:step(parts.scheduler:step(), parts.accumulator:grads { mean = true })
    end
  end)
end

if what == "resume" then
  local state, report = record.load(dir .. "/half"):restore(parts)
  losses, first = state.losses, state.micro + 1
  assert(#report.warnings == 0, report.warnings[1])
end
for i = first, what == "half" and SAVED or MICRO do
  micro(i)
end
parts.state = { losses = losses, micro = #losses }
record.save(dir .. "/" .. what, parts, { async = what == "half" })
