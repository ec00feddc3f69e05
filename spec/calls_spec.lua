local luda = require "luda"
local helper = require "spec.helper"

-- Common calls share one struct of attributes an operator: nothing of a call may reach the next.
describe("calls with attributes by position", function()
  before_each(helper.before)
  after_each(helper.after)

  local x = luda.arange(24):reshape(2, 3, 4)

  it("start from the defaults each time", function()
    assert.same({ 2, 1, 4 }, x:sum(2, true).shape)
    assert.same({ 2, 4 }, x:sum(2).shape)
    assert.same({}, x:sum().shape)
    assert.same({ 2, 3, 1 }, x:amax(-1, true).shape)
    assert.same({ 2, 3 }, x:amax(-1).shape)
    assert.is_true(x:softmax(1):allclose(x:softmax { dim = 1 }))
    assert.is_true(x:softmax():allclose(x:softmax(-1)))
  end)

  it("take nothing from a call that failed", function()
    assert.raises("invalid", "keepdim is true or false", function() x:sum(1, 3) end)
    assert.raises("index", "dim is 0", function() x:sum(0, true) end)
    assert.same({}, x:sum().shape)
    assert.same({ 3, 4 }, x:sum(1).shape)
  end)

  it("take lists spread out, of changing lengths", function()
    assert.same({ 4, 3, 2, 1 }, x:view(4, 3, 2, 1).shape)
    assert.same({ 24 }, x:view(-1).shape)
    assert.same({ 6, 4 }, x:view(-1, 4).shape)
    assert.same({ 4, 2, 3 }, x:permute(3, 1, 2).shape)
    assert.same({ 3, 2 }, x:select(3, 1):permute(2, 1).shape)
    assert.same({ 2, 3, 4, 1, 1 }, x:view(2, 3, 4, 1, 1).shape) -- more than are taken without a table
    assert.raises("shape", "is %-2", function() x:view(-2, 4) end)
  end)

  it("write in place by tensors and numbers", function()
    local y = luda.tensor { 1, 2, 3 }
    assert.is_true(y:add_(2) == y and y:mul_(luda.tensor { 2, 0, -1 }) == y)
    assert.same({ 6, 0, -5 }, y:totable())
    assert.raises("dtype", "cannot be written", function() luda.tensor({ 1 }, { dtype = "i64" }):add_(0.5) end)
    assert.raises("shape", "cannot grow", function() luda.ones(2):add_(luda.ones(3, 2)) end)
  end)
end)
