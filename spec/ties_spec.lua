--- Gradients at kinks: equal elements share, and every tie is an exact number.

local luda = require "luda"
local helper = require "spec.helper"

describe("at a tie", function()
  before_each(helper.before)
  after_each(helper.after)

  local function gradients(op)
    return luda.scope(function()
      local x = luda.tensor { 1, 5, -2, 7 }:requires_grad_()
      local y = luda.tensor { 1, 3, -2, 9 }:requires_grad_()
      local grads = (luda[op](x, y) * luda.tensor { 4, -3, 2, 5 }):sum():backward()
      return grads[x]:totable(), grads[y]:totable()
    end)
  end

  it("maximum gives each operand half", function()
    local dx, dy = gradients("maximum")
    assert.same({ 2, -3, 1, 0 }, dx)
    assert.same({ 2, 0, 1, 5 }, dy)
  end)

  it("minimum gives each operand half", function()
    local dx, dy = gradients("minimum")
    assert.same({ 2, 0, 1, 5 }, dx)
    assert.same({ 2, -3, 1, 0 }, dy)
  end)

  it("amax and amin share between equal elements", function()
    luda.scope(function()
      local x = luda.tensor { { 3, 1, 3, 3 }, { -1, -1, 4, 0 } }:requires_grad_()
      local g = luda.tensor { 6, -4 }
      assert.same({ { 2, 0, 2, 2 }, { 0, 0, -4, 0 } }, (luda.amax(x, 2) * g):sum():backward()[x]:totable())
      assert.same({ { 0, 6, 0, 0 }, { -2, -2, 0, 0 } }, (luda.amin(x, 2) * g):sum():backward()[x]:totable())
    end)
  end)

  it("relu and abs have slope 0 at 0", function()
    luda.scope(function()
      local x = luda.tensor { 0, -2, 3 }:requires_grad_()
      local g = luda.tensor { 5, 7, -11 }
      assert.same({ 0, 0, -11 }, (luda.relu(x) * g):sum():backward()[x]:totable())
      assert.same({ 0, -7, -11 }, (luda.abs(x) * g):sum():backward()[x]:totable())
    end)
  end)

  it("powers of zero have the slopes of the power rule", function()
    luda.scope(function()
      for exponent, slope in pairs { [0] = 0, [1] = 1, [2] = 0 } do
        local x = luda.tensor { 0, 2 }:requires_grad_()
        local grads = ((x ^ exponent) * luda.tensor { -3, 2 }):sum():backward()
        assert.same({ -3 * slope, 2 * exponent * 2 ^ (exponent - 1) }, grads[x]:totable())
      end
    end)
  end)
end)
