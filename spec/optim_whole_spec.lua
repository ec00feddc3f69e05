--- Muon, LAMB and Adafactor: what they make of whole parameters.

local luda = require "luda"
local helper = require "spec.helper"
local twin = require "spec.optim_twin"

local optim = luda.optim

local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype or "f64" }):requires_grad_()
end

local gradients, random = helper.gradients, twin.matrix

describe("rules over whole parameters", function()
  before_each(helper.before)
  after_each(helper.after)

  it("give the same bits for any number of threads, and renew what autocast reads", function()
    local threads = luda.threads()
    for _, name in ipairs { "Muon", "LAMB", "Adafactor" } do
      local results = {}
      for i, count in ipairs { 1, 3 } do
        luda.set_threads(count)
        luda.manual_seed(5)
        local p, x = luda.randn(190, 310):requires_grad_(), luda.randn(4, 190)
        local opt = optim[name] { p }
        for _ = 1, 3 do
          luda.scope(function()
            local y = luda.autocast(x.matmul, x, p)
            local rounded = x:to("bf16"):to("f32"):matmul(p:detach():to("bf16"):to("f32"))
            assert.tensor_near(rounded, y:to("f32"), 1e-2, 1e-2)
            opt:step(0.5, y:to("f32"):square():sum():backward())
          end)
        end
        results[i] = p:detach():clone()
      end
      assert.is_true(results[1]:equal(results[2]), name)
    end
    luda.set_threads(threads)
  end)

  it("see a stack of matrices as matrices, each with rows and columns of its own", function()
    local p, q = random(3, 5):reshape(1, 3, 5):requires_grad_(), random(3, 5):clone():requires_grad_()
    local one, two = optim.Adafactor { p }, optim.Adafactor { q }
    for _ = 1, 3 do
      one:step(0.1, gradients { p, random(5, 3):reshape(1, 3, 5) })
      two:step(0.1, gradients { q, random(5, 3):reshape(3, 5) })
    end
    assert.tensor_near(q, p:reshape(3, 5), 1e-12, 0)
    assert.same({ { 1, 3, 1 }, { 1, 1, 5 } }, { one:state().row_var["1"].shape, one:state().col_var["1"].shape })
    local stack, g = luda.ones(2, 3, 4), luda.stack({ luda.ones(3, 4), luda.ones(3, 4) * 100 }, 1)
    stack:requires_grad_()
    optim.Adafactor({ stack }):step(0.1, gradients { stack, g })
    -- each matrix is divided by its own size: both move alike
    assert.is_true(stack:detach():std():item() < 1e-6)
  end)

  it("LAMB moves by the size of the parameter, or by the rate where there is none", function()
    local p, zero = leaf { { 3, 4 } }, leaf { 0, 0 }
    optim.LAMB({ p, zero }, { weight_decay = 0 }):step(0.1, gradients { p, { { 1, -2 } }, zero, { 1, -2 } })
    -- the first direction is the sign: (1, -1), of norm sqrt(2); the parameter's norm is 5
    assert.tensor_near({ { 3 - 0.5 / math.sqrt(2), 4 + 0.5 / math.sqrt(2) } }, p, 1e-5, 0)
    assert.tensor_near({ -0.1, 0.1 }, zero, 1e-5, 0)
  end)
end)
