--- The run whose record spec/golden/record_1.safetensors is (format 1). Every value in it follows from a formula, so that
-- record_versions_spec can say what a later library must find. Written by `luajit spec/work/old_run.lua`, once.

local luda = require "luda"

local nn, optim = luda.nn, luda.optim

local M = {}

--- Element k of the tensor number `seed`: eighths, which every floating type holds.
function M.value(k, seed)
  return ((k * 7 + seed * 5) % 23 - 11) / 8
end

local function fill(tensor, seed)
  local list = {}
  for k = 0, tensor.numel - 1 do
    list[k + 1] = M.value(k, seed)
  end
  return luda.tensor(list, { dtype = tensor.dtype }):reshape(tensor.shape)
end
M.fill = fill

local Net = nn.module("Net")

function Net:init()
  self.first = nn.Linear(3, 3)
  self.second = nn.Linear(3, 3)
  self.second.weight = self.first.weight
  self.half = luda.ones(5):to("bf16"):requires_grad_()
  self.frozen = luda.ones(2):requires_grad_(false)
  self.norm = nn.BatchNorm1d(3)
end

function M.new()
  luda.manual_seed(1)
  local run = { model = Net() }
  run.optimizer = optim.AdamW(run.model, {
    amsgrad = true, fp32_master = true, weight_decay = 0.125, groups = { { match = "bias$", weight_decay = 0 } },
  })
  run.scheduler = optim.lr.Warmup { steps = 2, after = optim.lr.Step { lr = 0.05, size = 2, gamma = 0.5 } }
  run.accumulator = optim.Accumulator(run.model)
  run.loader = luda.data.batches(luda.arange(40, { dtype = "i64" }) + 1, { batch = 4, length = 3, seed = 5 })
  run.ema = optim.EMA(run.model, 0.875)
  run.generators = { noise = luda.generator(7) }
  return run
end

--- Puts the formula's values everywhere.
function M.prepare(run)
  local grads, seed = luda.autograd.Gradients(), 0
  for _, parameter in run.model:named_parameters() do
    if parameter.requires_grad then
      grads:register(parameter, luda.ones(unpack(parameter.shape)):to(parameter.dtype))
    end
  end
  run.optimizer:step(0, grads)
  run.accumulator:accumulate(grads)
  luda.no_grad(function()
    for _, tensor in pairs(run.model:state()) do
      if tensor.dtype ~= "i64" then
        seed = #tensor.shape * 3 + tensor.numel
        tensor:copy_(fill(tensor, seed))
      end
    end
  end)
  local state = run.optimizer:state()
  for place, name in ipairs { "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "master" } do
    for path, tensor in pairs(state[name] or {}) do
      state[name][path] = fill(tensor, place)
      state.steps[path] = 257
    end
  end
  run.optimizer:load_state(state)
  state = run.accumulator:state()
  for path, tensor in pairs(state.sums) do
    state.sums[path] = fill(tensor, 9)
  end
  state.count, state.weight = 3, 2.5
  run.accumulator:load_state(state)
  run.scheduler:load_state { count = 5 }
  run.loader:next()
  local averages = run.ema:state()
  for path, tensor in pairs(averages.averages) do
    averages.averages[path] = tensor.dtype == "i64" and tensor or fill(tensor, 11)
  end
  run.ema:load_state(averages)
  run.generators.noise:set_state { 7, 41 }
  luda.generator():set_state { 3, 2 ^ 40 }
  run.state = {
    epoch = 2, third = 1 / 3, name = "a \"b\"\n", flags = { true, false }, nested = { list = { 1.5, -2 } }, ["$x"] = "dollar",
    big = luda.tensor({ 9007199254740993LL, -1LL }), bits = luda.tensor({ true, false, true }),
    small = luda.tensor({ 0, 255 }, { dtype = "u8" }), wide = luda.tensor({ 0.1 }, { dtype = "f64" }), none = luda.zeros(0, 2),
  }
end

if arg and arg[0] and arg[0]:match("old_run%.lua$") then
  local run = M.new()
  M.prepare(run)
  luda.record.save("spec/golden/record_1", run)
end

return M
