--- A small GPT learns to write like the King James Bible, character by character, on one rank or on many.
--
--   luda examples/char_gpt.lua                          one rank
--   luda run -n 2 examples/char_gpt.lua                 two processes, the same global batch
--   luda run -n 2 --threads examples/char_gpt.lua       two threads of one process
--   luda examples/char_gpt.lua --dir DIR --resume       goes on from the newest record in DIR, also after SIGTERM

local luda = require "luda"
local nn, optim, data, dist = luda.nn, luda.optim, luda.data, luda.dist

local options = require("luda.options").parse({ ... }, {
  { "text", "", "file to learn from (default: the Bible of Debian's package bible-kjv)" },
  { "steps", 1000, "updates" },
  { "batch", 16, "sequences of a step, of all ranks together" },
  { "context", 128, "characters of a sequence" },
  { "layers", 4, "transformer blocks" },
  { "heads", 4, "heads of a block" },
  { "width", 128, "numbers a character becomes" },
  { "dropout", 0, "probability of dropping" },
  { "rate", 2e-3, "highest learning rate" },
  { "warmup", 50, "steps up to it; from there a cosine falls to a tenth" },
  { "clip", 1, "largest norm of all gradients together" },
  { "valid-every", 250, "steps between validations" },
  { "valid-batches", 20, "batches of a validation" },
  { "dir", "", "folder of records (default: none are written)" },
  { "every", 100, "steps between records" },
  { "resume", false, "go on from the newest record" },
  { "log", "", "file that gets the loss of every step" },
  { "sample", 300, "characters to write at the end" },
  { "seed", 1, "of weights, order and samples" },
})
if not options then
  return
end

local comm = dist.init {}
local first = comm.rank == 0

-- Text.

local function read_bible()
  local pipe = io.popen("bible -f gen1:1-rev22:21 2>/dev/null")
  local text = pipe:read("*a")
  pipe:close()
  if #text == 0 then
    error("there is no text: install Debian's package bible-kjv, or name a file with --text", 0)
  end
  return text
end

local text = data.text(options.text ~= "" and options.text or read_bible(), { split = 0.1 })

local function batches(tokens, shuffle)
  return data.batches(tokens, {
    batch = options.batch, length = options.context, shuffle = shuffle, seed = options.seed, rank = comm.rank, size = comm.size,
  })
end

-- Model and what trains it. The weights of rank 0 go to all; then each rank draws its own dropout.

luda.manual_seed(options.seed)
local model = nn.GPT {
  vocab = #text.vocab, context = options.context, layers = options.layers, heads = options.heads, width = options.width,
  dropout = options.dropout,
}
local parallel = dist.DataParallel(comm, model)
luda.manual_seed(options.seed + 1 + comm.rank)

local optimizer = optim.AdamW(model, {
  betas = { 0.9, 0.99 }, weight_decay = 0.1, max_grad_norm = options.clip,
  groups = { { match = "bias$", weight_decay = 0 }, { match = "norm", weight_decay = 0 } },
})
local schedule = optim.lr.Warmup {
  steps = options.warmup,
  after = optim.lr.Cosine {
    lr = options.rate, min = options.rate / 10, steps = math.max(options.steps - options.warmup, 1), restart = false,
  },
}
local loader = batches(text.train, true)

-- Records: a file where there is one rank, a set with one file a rank where there are several.

local parts = { model = model, optimizer = optimizer, scheduler = schedule, loader = loader }
local manager = options.dir ~= "" and luda.record.Manager { dir = options.dir, every = options.every } or nil

local function save(step)
  parts.state = { step = step }
  if comm.size == 1 then
    manager:save(step, parts, { now = true })
  else
    dist.record.save(options.dir, step, comm, parts)
  end
  parts.state = nil
end

--- The step of the newest record, after putting it into the live objects; 0 where there is none.
local function restore()
  if not manager or not options.resume then
    return 0
  end
  if comm.size > 1 then
    local state = dist.record.restore(options.dir, comm, parts)
    return state and state.step or 0
  end
  local path = manager:newest()
  local state = path and luda.record.load(path):restore(parts)
  return state and state.step or 0
end

-- One update; the mean loss over all ranks.

local function train_step()
  local x, y = loader:next()
  local tokens = y.numel
  local loss = model(x, y)
  local gradients, all_tokens = parallel:reduce((loss * tokens):backward(), tokens)
  local rate = schedule:step()
  optimizer:step(rate, gradients)
  local sum = comm:all_reduce(loss:detach():to("f64") * tokens, "sum")
  return sum:item() / all_tokens, rate, all_tokens
end

local function validate()
  if text.valid:size(1) <= options.context * options.batch then
    return nil
  end
  local valid, sum, tokens = batches(text.valid, false), 0, 0
  model:eval()
  for _ = 1, math.min(options.valid_batches, valid.batches) do
    luda.scope(luda.no_grad, function()
      local x, y = valid:next()
      sum, tokens = sum + model(x, y):item() * y.numel, tokens + y.numel
    end)
  end
  model:train()
  local both = luda.scope(function()
    return comm:all_reduce(luda.tensor({ sum, tokens }, { dtype = "f64" }), "sum"):totable()
  end)
  return both[1] / both[2]
end

--- Opens the log behind the line of step `done`.
local function open_log(done)
  local lines = {}
  local old = done > 0 and io.open(options.log, "r")
  for line in old and old:lines() or function() end do
    if #lines < done then
      lines[#lines + 1] = line .. "\n"
    end
  end
  if old then
    old:close()
  end
  local log = assert(io.open(options.log, "w"))
  log:write(table.concat(lines))
  return log
end

local start = restore()
local log = first and options.log ~= "" and open_log(start) or nil
local bar = require "luda.progress" {
  total = options.steps, start = start, rank = comm.rank, unit = "tokens",
}
bar:note(("%d parameters, %d characters of %d kinds, %d rank%s%s"):format(model:count(), text.train:size(1), #text.vocab,
  comm.size, comm.size == 1 and "" or "s", start > 0 and ", from step " .. start or ""))

-- SIGTERM or Ctrl-C, to the launcher or to any rank, stops all ranks after the same step.
local stopped = luda.stop_requested(comm)
for step = start + 1, options.steps do
  local loss, rate, tokens = luda.scope(train_step)
  if log then
    log:write(("%d %.9g\n"):format(step, loss))
    log:flush()
  end
  bar:update(step, { loss = loss, rate = rate, count = tokens })
  stopped = luda.stop_requested(comm)
  if manager and (stopped or step % options.every == 0) then
    save(step)
  end
  if stopped then
    bar:note(("asked to stop: %s step %d"):format(manager and "saved and ended after" or "ended after", step))
    break
  end
  if step % options.valid_every == 0 or step == options.steps then
    local valid = validate()
    if valid then
      bar:note(("step %d: training loss %.4f, validation loss %.4f"):format(step, loss, valid))
    end
  end
end
bar:finish()
if log then
  log:close()
end

if first and options.sample > 0 and not stopped then
  local prompt = text.train:narrow(1, 1, math.min(16, options.context))
  local ids = model:generate(prompt, options.sample, { temperature = 0.8, generator = luda.generator(options.seed) })
  print(text.vocab:decode(ids))
end
comm:close()
