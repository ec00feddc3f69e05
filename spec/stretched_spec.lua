--- One element stretched over a shape, as a sum's gradient is: what elementwise operators make of it beside whole tensors.

local luda = require "luda"
local helper = require "spec.helper"

describe("a stretched element", function()
  before_each(helper.before)
  after_each(helper.after)

  it("stands on either side, alone, and twice", function()
    luda.scope(function()
      local x = luda.tensor { { 1, -2, 3 }, { 4, 0.5, -6 } }
      local seven = luda.tensor { 7 }:expand(2, 3)
      assert.same({ { -6, -9, -4 }, { -3, -6.5, -13 } }, (x - seven):totable())
      assert.same({ { 6, 9, 4 }, { 3, 6.5, 13 } }, (seven - x):totable())
      assert.same({ { -7, -7, -7 }, { -7, -7, -7 } }, (-seven):totable())
      assert.same({ { 49, 49, 49 }, { 49, 49, 49 } }, (seven * seven):totable())
      assert.same({ { true, true, true }, { true, true, true } }, x:lt(seven):totable())
      assert.same({ 2, 3 }, (seven * 1).shape)
    end)
  end)

  it("of another shape still broadcasts", function()
    luda.scope(function()
      local row = luda.tensor { 2, -3 }
      assert.same({ { 9, 4 }, { 9, 4 }, { 9, 4 } }, (luda.tensor(7):expand(3, 2) + row):totable())
      assert.same({ { 14, -21 } }, (luda.tensor { { 7 } }:expand(1, 2) * row):totable())
      assert.raises("shape", "", function() return luda.tensor(7):expand(3) + row end)
    end)
  end)

  it("of no elements gives none", function()
    luda.scope(function()
      assert.same({ 0, 3 }, (luda.empty { 0, 3 } * luda.tensor(2):expand(0, 3)).shape)
    end)
  end)

  it("of the tensor that is written is read before", function()
    luda.scope(function()
      local size = 100003 -- several slabs, also for several threads
      local x = luda.arange(3, size + 3)
      x:add_(x[1]:expand(size)):add_(x[2]:expand(size))
      local expected = luda.arange(3, size + 3) + 3 + 7
      assert.equal(0, (x - expected):abs():max():item())
    end)
  end)

  it("has a gradient of its own: the sum over its places", function()
    luda.scope(function()
      local one, x = luda.tensor(3):requires_grad_(), luda.tensor { 1, -2, 4 }
      local grads = (one:expand(3) * x * luda.tensor { 5, 1, -1 }):sum():backward()
      assert.equal(5 - 2 - 4, grads[one]:item())
    end)
  end)

  it("comes from the sum of a loss, also where a hook keeps it", function()
    luda.scope(function()
      local x = luda.tensor { 2, -1, 3 }:requires_grad_()
      local y, seen = x * x, nil
      y:register_hook(function(g) seen = g:clone() end)
      local grads = (y:sum() * -2):backward()
      assert.same({ -2, -2, -2 }, seen:totable())
      assert.same({ -8, 4, -12 }, grads[x]:totable())
      grads[x]:mul_(0) -- memory of its own
      assert.same({ 0, 0, 0 }, grads[x]:totable())
    end)
  end)

  it("is the gradient of a leaf that is summed at once, in memory of its own", function()
    luda.scope(function()
      local x = luda.zeros(4):requires_grad_()
      local grads = x:sum():backward()
      grads[x][2] = 5
      assert.same({ 1, 5, 1, 1 }, grads[x]:totable())
    end)
  end)
end)
