--- Two ranks train one linear layer together, stop after a step, and go on from their records: every number is exact.
--
--   build/luda examples/collective_training.lua run DIR      one step, a record a rank, another step
--   build/luda examples/collective_training.lua resume DIR   from the records: the second step again
--
-- Linear 2 to 1, W = (0.5, -0.25), b = 0.25; rank 0 sees x = (1, 2), y = 1; rank 1 sees x = (-1, 1), y = 0; mean squared error,
-- gradients averaged, SGD with rate 0.125 and momentum 0.5. All values are sums of powers of two, so they are compared exactly.

local luda = require "luda"
local nn, optim, record = luda.nn, luda.optim, luda.record

local RATE = 0.125
local SAMPLES = { { x = { 1, 2 }, y = 1 }, { x = { -1, 1 }, y = 0 } }
-- By step and rank: loss, gradient of W and b; then the parameters after the step, the same on both ranks.
local EXPECTED = {
  { ranks = { { 0.5625, -1.5, -3, -1.5 }, { 0.25, 1, -1, -1 } }, after = { 0.53125, 0, 0.40625 } },
  { ranks = { { 0.00390625, -0.125, -0.25, -0.125 }, { 0.015625, 0.25, -0.25, -0.25 } },
    after = { 0.5390625, 0.15625, 0.5078125 } },
}

local function values(...)
  local list = {}
  for _, tensor in ipairs { ... } do
    local flat = tensor:reshape(-1):totable()
    for i = 1, #flat do
      list[#list + 1] = flat[i]
    end
  end
  return list
end

local function exact(what, got, expected)
  for i, value in ipairs(expected) do
    if got[i] ~= value then
      error(("%s: value %d is %.17g, not %.17g"):format(what, i, got[i], value), 0)
    end
  end
end

local function text(list)
  local parts = {}
  for i, value in ipairs(list) do
    parts[i] = ("%.17g"):format(value)
  end
  return table.concat(parts, ", ")
end

--- One step; returns what to print.
local function train_step(comm, model, optimizer, step)
  local sample = SAMPLES[comm.rank + 1]
  local x, y = luda.tensor { sample.x }, luda.tensor { { sample.y } }
  local loss = nn.mse_loss(model(x), y)
  local grads = loss:backward()
  local of_w, of_b = grads[model.weight], grads[model.bias]
  local seen = values(loss:detach(), of_w, of_b)
  exact("loss and gradients of step " .. step, seen, EXPECTED[step].ranks[comm.rank + 1])

  -- The order of registration does not matter: ranks walk gradients by parameter id.
  local mine = luda.autograd.Gradients()
  local order = comm.rank == 0 and { model.weight, model.bias } or { model.bias, model.weight }
  for _, parameter in ipairs(order) do
    mine:register(parameter, grads[parameter])
  end
  optimizer:step(RATE, mine:all_reduce(comm, "mean"))

  local after = values(model.weight:detach(), model.bias:detach())
  exact(("parameters after step %d"):format(step), after, EXPECTED[step].after)
  return ("rank %d step %d: loss %s, gradient %s, parameters %s"):format(comm.rank, step, text { seen[1] },
    text { seen[2], seen[3], seen[4] }, text(after))
end

local function rank_path(dir, rank)
  return ("%s/step-1-rank-%d-training"):format(dir, rank)
end

local function rank_work(comm, job)
  local model = nn.Linear(2, 1)
  luda.no_grad(function()
    model.weight:copy_(luda.tensor { { 0.5 }, { -0.25 } })
    model.bias:copy_(luda.tensor { 0.25 })
  end)
  local optimizer = optim.SGD(model, { momentum = 0.5 })
  local parts = { model = model, optimizer = optimizer }
  local lines = {}
  if job.mode == "run" then
    lines[1] = train_step(comm, model, optimizer, 1)
    record.save(rank_path(job.dir, comm.rank), parts)
  else
    record.load(rank_path(job.dir, comm.rank) .. ".safetensors"):restore(parts)
    exact("restored parameters", values(model.weight:detach(), model.bias:detach()), EXPECTED[1].after)
  end
  lines[#lines + 1] = train_step(comm, model, optimizer, 2)
  return table.concat(lines, "\n")
end

if luda.dist.thread_comm() then
  return rank_work
end

local mode, dir = arg[1], arg[2]
if (mode ~= "run" and mode ~= "resume") or not dir then
  io.stderr:write("usage: collective_training.lua run|resume DIR\n")
  os.exit(2)
end
local folder = require "luda.folder"
if mode == "run" then
  local there = io.open(dir)
  if there then
    there:close()
    io.stderr:write(("%s exists already; run makes it, resume goes on in it\n"):format(dir))
    os.exit(1)
  end
  folder.make(dir)
else
  for rank = 0, #SAMPLES - 1 do -- all of them before any rank could wait for another
    record.load(rank_path(dir, rank) .. ".safetensors")
  end
end
for _, lines in ipairs(luda.dist.spawn(#SAMPLES, arg[0], { mode = mode, dir = dir })) do
  print(lines)
end
print(("both ranks agree exactly after step 2 (%s)"):format(mode))
