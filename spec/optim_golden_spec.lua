--- Fifty steps of every optimizer that PyTorch has too, in float64.

local luda = require "luda"
local helper = require "spec.helper"

local golden = helper.golden("optim")
local optim = luda.optim

local ELEMENTS = 4

--- The formulas of scripts/golden_optim.py.
local function start()
  local list = {}
  for i = 0, ELEMENTS - 1 do
    list[i + 1] = ((3 * i + 1) % 5 - 2) / 2
  end
  return luda.tensor(list, { dtype = "f64" }):requires_grad_()
end

local function gradient(p, step)
  local list, grads = {}, luda.autograd.Gradients()
  for i = 0, ELEMENTS - 1 do
    list[i + 1] = ((7 * step * step + 5 * i * step + 3 * i) % 23 - 11) / 8
  end
  grads:register(p, luda.tensor(list, { dtype = "f64" }))
  return grads
end

local losses = {
  rosenbrock = function(x, y, z)
    return (y - x * x) ^ 2 * 100 + (1 - x) ^ 2 + (z - x * y) ^ 2
  end,
  kinks = function(x, y, z)
    return (x * x + 1e-4):sqrt() + ((y - 1.5) ^ 2 + 1e-3):sqrt() * 10 + (z - x) ^ 2
  end,
}

describe("a linear layer", function()
  before_each(helper.before)
  after_each(helper.after)

  it("takes the step that is derived by hand", function()
    -- weights and biases of 0 for a target of (2, -3) at x = 1: loss (4 + 9) / 2, gradient (-2, 3)
    local layer = luda.nn.Linear(1, 2)
    layer.weight:detach():zero_()
    layer.bias:detach():zero_()
    local loss = luda.nn.mse_loss(layer(luda.ones(1, 1)), luda.tensor { { 2, -3 } })
    assert.equal(6.5, loss:item())
    optim.SGD(layer):step(0.1, loss:backward())
    assert.tensor_near({ { 0.2, -0.3 } }, layer.weight, 1e-6, 0)
    assert.tensor_near({ 0.2, -0.3 }, layer.bias, 1e-6, 0)
  end)
end)

describe("as in PyTorch", function()
  before_each(helper.before)
  after_each(helper.after)

  for number, case in ipairs(golden.cases) do
    it(("%d: %s"):format(number, case.name), function()
      local p = start()
      local opt = optim[case.name]({ p }, case.options)
      for step = 1, 50 do
        opt:step(0.05, gradient(p, step))
        local want = case.after[tostring(step)]
        if want then
          assert.tensor_near(want, p, 1e-11, 1e-12)
        end
      end
    end)
  end

  for number, case in ipairs(golden.closures) do
    it(("L-BFGS %d"):format(number), function()
      local w = luda.tensor({ -1.2, 1 }, { dtype = "f64" }):requires_grad_()
      local z = luda.tensor(0.5, { dtype = "f64" }):requires_grad_()
      local opt = optim.LBFGS({ w, z }, case.options)
      local iterations, evaluations = 0, 0
      for _, want in ipairs(case.after) do
        local report = opt:step(case.lr, function()
          local loss = losses[case["function"]](w[1], w[2], z)
          return loss, loss:backward()
        end)
        iterations, evaluations = iterations + report.iterations, evaluations + report.evaluations
        assert.near(want.loss, report.loss, 1e-7 * math.abs(want.loss) + 1e-12)
        assert.tensor_near(want.values, { w[1]:item(), w[2]:item(), z:item() }, 1e-6, 1e-8)
        assert.same({ want.iterations, want.evaluations }, { iterations, evaluations })
      end
    end)
  end
end)
