--- Training that goes on as if it had not stopped: a small GPT in bfloat16 with float32 masters, dropout, noisy inputs,
-- shuffled batches, accumulated gradients, a warm-up and a cosine, and an average of the weights. A record every few
-- micro-batches, also between two updates, holds all of it; running it again with the same folder goes on from the newest.
--
--   luda examples/resume_check.lua --dir DIR                       run, or go on
--   luda examples/resume_check.lua --dir DIR --forget PART         go on without one part of the state: ends elsewhere
--   scripts/resume_kills.sh                                        kills it many times and compares the final records

local luda = require "luda"
local nn, optim, data = luda.nn, luda.optim, luda.data

local ACCUMULATE, CONTEXT, ROWS = 4, 16, 4

local options = require("luda.options").parse({ ... }, {
  { "dir", "", "folder of records" },
  { "updates", 100, "updates, each of four micro-batches" },
  { "every", 5, "micro-batches between records" },
  { "keep", 3, "records that stay" },
  { "async", false, "save in the background" },
  { "seed", 1, "of weights, order and noise" },
  { "forget", "", "a part to leave out when going on" },
})
if not options then
  return
elseif options.dir == "" then
  error("name a folder of records with --dir", 0)
end

-- Sums in words: a text that needs no file.

local function sums()
  local words = { "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve" }
  local lines = {}
  for a = 1, 6 do
    for b = 1, 6 do
      lines[#lines + 1] = ("%s and %s is %s.\n"):format(words[a], words[b], words[a + b])
    end
  end
  return table.concat(lines)
end

local text = data.text(sums(), { split = 0 })

-- The model, and everything that changes while it learns.

luda.manual_seed(options.seed)
local model = nn.GPT { vocab = #text.vocab, context = CONTEXT, layers = 2, heads = 2, width = 32, dropout = 0.1 }
model:to_dtype("bf16")
local optimizer = optim.AdamW(model, {
  fp32_master = true, max_grad_norm = 1, groups = { { match = "bias$", weight_decay = 0 } },
})
local scheduler = optim.lr.Warmup {
  steps = 8, after = optim.lr.Cosine { lr = 4e-3, min = 4e-4, steps = math.max(options.updates - 8, 1), restart = false },
}
local accumulator = optim.Accumulator(model)
local ema = optim.EMA(model, 0.9)
local noise = luda.generator(options.seed + 1)
local loader = data.batches(text.train, { batch = ROWS, length = CONTEXT, seed = options.seed })
local progress = { micro_batches = 0, loss = 0 } -- done so far; the mean loss of the last ones

local function parts()
  return {
    model = model, optimizer = optimizer, scheduler = scheduler, accumulator = accumulator, ema = ema, loader = loader,
    generators = { noise = noise }, state = progress,
  }
end

--- A tenth of the characters becomes another one.
local function noisy(ids)
  local other = luda.randint(1, #text.vocab + 1, ids.shape, { generator = noise })
  return luda.where(luda.rand(ids.shape, { generator = noise }):lt(0.1), other, ids)
end

local function micro_batch()
  local x, y = loader:next()
  local loss = model(noisy(x), y)
  accumulator:accumulate(loss:backward(), { dtype = "f32" })
  if accumulator:count() == ACCUMULATE then
    optimizer:step(scheduler:step(), accumulator:grads { mean = true })
    ema:update()
  end
  return loss:item()
end

-- Going on. What --forget leaves out is what a careless restore would lose: each of these ends in another record.

local forget = {}

for _, part in ipairs { "model", "optimizer", "scheduler", "accumulator", "ema", "loader", "generators" } do
  forget[part] = function(record)
    local kept = parts()
    kept[part] = nil
    return record:restore(kept)
  end
end

forget["default generator"] = function(record)
  local before = luda.generator():state()
  local state = record:restore(parts())
  luda.generator():set_state(before)
  return state
end

--- The optimizer's state with a part of it changed by edit(state).
local function forget_of_optimizer(edit)
  return function(record)
    local state = record:restore(parts())
    local changed = optimizer:state()
    edit(changed)
    optimizer:load_state(changed)
    return state
  end
end

forget.masters = forget_of_optimizer(function(state)
  for name, parameter in model:named_parameters() do
    state.master[name] = parameter:detach():to("f32")
  end
end)

forget.moments = forget_of_optimizer(function(state)
  for _, moment in ipairs { "exp_avg", "exp_avg_sq" } do
    for name, tensor in pairs(state[moment]) do
      state[moment][name] = tensor * 0
    end
  end
end)

forget["update counts"] = forget_of_optimizer(function(state)
  for name in pairs(state.steps) do
    state.steps[name] = 1
  end
end)

forget.state = function(record)
  record:restore(parts())
  return progress
end

if options.forget ~= "" and not forget[options.forget] then
  local names = require("luda.manifest").keys_of(forget)
  error(("--forget %s: the parts are %s"):format(options.forget, table.concat(names, ", ")), 0)
end

local manager = luda.record.Manager { dir = options.dir, every = options.every, keep = options.keep, async = options.async }
local path = manager:newest()
if path then
  local record = luda.record.load(path)
  progress = forget[options.forget] and forget[options.forget](record) or record:restore(parts())
  print(("going on from %s, %d of %d micro-batches"):format(path, progress.micro_batches, options.updates * ACCUMULATE))
end

for count = progress.micro_batches + 1, options.updates * ACCUMULATE do
  local loss = luda.scope(micro_batch)
  progress = { micro_batches = count, loss = count == 1 and loss or 0.9 * progress.loss + 0.1 * loss }
  manager:save(count, parts())
end
manager:wait()
print(("%d micro-batches, mean loss %.4f"):format(progress.micro_batches, progress.loss))
