--- Indexing, assignment, shapes and pieces, all 1-based.

local luda = require "luda"
local helper = require "spec.helper"

local function grid()
  return luda.arange(12):reshape(3, 4) -- row i, column j: 4 (i - 1) + j - 1
end

describe("indexing", function()
  before_each(helper.before)
  after_each(helper.after)

  it("selects positions from 1 or from the end", function()
    local x = grid()
    assert.same({ 0, 1, 2, 3 }, x[1]:totable())
    assert.same({ 8, 9, 10, 11 }, x[-1]:totable())
    assert.equal(6, x[2][3]:item())
    assert.equal(6, x[{ 2, 3 }]:item())
    assert.raises("index", "position 4 of dimension 1, which has 3", function() return x[4] end)
    assert.raises("index", "count from 1", function() return x[0] end)
    assert.raises("index", "position %-4 of dimension 1, which has 3", function() return x[-4] end)
    assert.raises("shape", "0%-d", function() return luda.tensor(1)[1] end)
  end)

  it("takes inclusive ranges and steps", function()
    local x = grid()
    assert.same({ { 4, 5, 6, 7 }, { 8, 9, 10, 11 } }, x[{ { 2, 3 } }]:totable())
    assert.same({ { 1, 2 }, { 5, 6 }, { 9, 10 } }, x[{ {}, { 2, 3 } }]:totable())
    assert.same({ 4, 8 }, x[{ { 2, 3 }, 1 }]:totable())
    assert.same({ { 0, 2 }, { 8, 10 } }, x[{ { 1, 3, 2 }, { 1, 4, 2 } }]:totable())
    assert.same({ { 10, 11 } }, x[{ { -1, -1 }, { -2, -1 } }]:totable())
    assert.same({ { 4, 5, 6, 7 } }, x[{ { 2 } }]:totable())
    assert.same({ 0, 4 }, x[{ { 3, 2 } }].shape)
    assert.same({ 9, 7, 5 }, luda.tensor({ 9, 8, 7, 6, 5, 4 })[{ { 1, 6, 2 } }]:totable())
    assert.raises("index", "{2, 5} of dimension 2, which has 4 positions", function() return x[{ {}, { 2, 5 } }] end)
    assert.raises("index", "3 entries for a tensor %[3, 4%]", function() return x[{ 1, 1, 1 }] end)
    assert.raises("invalid", "step is 0", function() return x[{ { 1, 2, 0 } }] end)
    assert.raises("invalid", "cannot index", function() return x[true] end)
  end)

  it("takes index tensors", function()
    local x = grid()
    assert.same({ { 8, 9, 10, 11 }, { 0, 1, 2, 3 }, { 8, 9, 10, 11 } }, x[luda.tensor { 3LL, 1LL, 3LL }]:totable())
    assert.same({ { 3, 0 }, { 7, 4 }, { 11, 8 } }, x[{ {}, luda.tensor { 4LL, 1LL } }]:totable())
    assert.raises("index", "", function() return x[luda.tensor { 4LL }] end)
    assert.raises("index", "", function() return x[luda.tensor { 0LL }] end)
    assert.raises("dtype", "index tensor of type f32", function() return x[luda.tensor { 1 }] end)
  end)

  it("takes masks", function()
    local x = grid()
    assert.same({ 5, 6, 7, 8, 9, 10, 11 }, x[x:gt(4)]:totable())
    assert.same({ { 4, 5, 6, 7 } }, x[luda.tensor { false, true, false }]:totable())
    assert.same({ { 1, 3 }, { 5, 7 }, { 9, 11 } }, x[{ {}, luda.tensor { false, true, false, true } }]:totable())
    assert.same({}, x[x:gt(100)]:totable())
    assert.raises("shape", "a mask %[2%] over a tensor %[3, 4%]", function() return x[luda.tensor { true, false }] end)
  end)

  it("assigns through all of these", function()
    local x = grid()
    x[1] = 7
    x[{ { 2, 3 }, 2 }] = luda.tensor { -1, -2 }
    assert.same({ { 7, 7, 7, 7 }, { 4, -1, 6, 7 }, { 8, -2, 10, 11 } }, x:totable())
    x[{ {}, { 3, 4 } }] = luda.tensor { 0, 1 }
    assert.same({ { 7, 7, 0, 1 }, { 4, -1, 0, 1 }, { 8, -2, 0, 1 } }, x:totable())
    x[x:lt(0)] = 50
    assert.same({ { 7, 7, 0, 1 }, { 4, 50, 0, 1 }, { 8, 50, 0, 1 } }, x:totable())
    x[luda.tensor { true, false, true }] = luda.tensor { 1, 2, 3, 4 }
    assert.same({ { 1, 2, 3, 4 }, { 4, 50, 0, 1 }, { 1, 2, 3, 4 } }, x:totable())
    x[luda.tensor { 3LL, 1LL }] = luda.tensor { { 9, 9, 9, 9 }, { 8, 8, 8, 8 } }
    assert.same({ { 8, 8, 8, 8 }, { 4, 50, 0, 1 }, { 9, 9, 9, 9 } }, x:totable())
    x[luda.tensor { 2LL }] = 0
    assert.same({ 0, 0, 0, 0 }, x[2]:totable())
    x[x:eq(9)] = luda.tensor { 1, 2, 3, 4 }
    assert.same({ 1, 2, 3, 4 }, x[3]:totable())
    assert.raises("shape", "index: shape %[3%] cannot become %[4%]", function() x[1] = luda.zeros(3) end)
    x[{ {}, luda.tensor { 4LL, 1LL } }] = luda.tensor { -1, -2 }
    assert.same({ { -2, 8, 8, -1 }, { -2, 0, 0, -1 }, { -2, 2, 3, -1 } }, x:totable())
    x[{ luda.tensor { true, false, true }, { 2, 3 } }] = 7
    assert.same({ { -2, 7, 7, -1 }, { -2, 0, 0, -1 }, { -2, 7, 7, -1 } }, x:totable())
    local turned = x:t()
    turned[{ luda.tensor { { 1LL, 2LL } }, 3 }] = luda.tensor { { 5, 6 } }
    assert.same({ 5, 6, 7, -1 }, x[3]:totable())
    assert.raises("shape", "index: shape %[3%] cannot become %[3, 2%]", function()
      x[{ {}, luda.tensor { 4LL, 1LL } }] = luda.zeros(3)
    end)
    assert.raises("index", "position 5", function() x[{ {}, luda.tensor { 5LL } }] = 0 end)
  end)
end)

describe("shapes", function()
  before_each(helper.before)
  after_each(helper.after)

  it("change by view, reshape, flatten and friends", function()
    local x = grid()
    assert.same({ 2, 6 }, x:view(2, -1).shape)
    assert.same({ 12 }, x:flatten().shape)
    assert.same({ 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11 }, x:t():reshape(-1):totable())
    assert.raises("shape", "", function() return x:t():view(12) end)
    assert.same({ 2, 12, 5 }, luda.zeros(2, 3, 4, 5):flatten(2, 3).shape)
    assert.same({ 1 }, luda.tensor(3):flatten().shape)
    assert.same({ 3, 1, 4 }, x:unsqueeze(2).shape)
    assert.same({ 3, 4, 1 }, x:unsqueeze(-1).shape)
    assert.same({ 3, 4 }, x:unsqueeze(1):squeeze().shape)
    assert.same({ 3, 4, 1 }, luda.zeros(1, 3, 4, 1):squeeze(1).shape)
    assert.same({ 4, 3 }, x:transpose(1, 2).shape)
    assert.same({ 4, 2, 3 }, luda.zeros(2, 3, 4):permute(3, 1, 2).shape)
    assert.same({ 5, 3, 4 }, x:expand(5, 3, 4).shape)
    assert.same({ 3, 4 }, luda.zeros(4):expand_as(x).shape)
    assert.same({}, luda.tensor({ 1 }):view({}).shape)
    assert.is_true(x:is_contiguous())
    assert.is_false(x:t():is_contiguous())
    assert.is_true(x:t():contiguous():is_contiguous())
    assert.is_true(x:contiguous() == x)
  end)

  it("share storage in views and not in copies", function()
    local x = grid()
    x:view(12)[1] = 99
    assert.equal(99, x[{ 1, 1 }]:item())
    x:clone()[1] = 5
    assert.equal(99, x[{ 1, 1 }]:item())
    x:detach()[{ 1, 1 }] = 1
    assert.equal(1, x[{ 1, 1 }]:item())
  end)

  it("come apart and together", function()
    local x = grid()
    local parts = x:split(3, 2)
    assert.same({ { 0, 1, 2 }, { 4, 5, 6 }, { 8, 9, 10 } }, parts[1]:totable())
    assert.same({ { 3 }, { 7 }, { 11 } }, parts[2]:totable())
    assert.same({ 8, 9, 10, 11 }, x:split({ 2, 1 })[2][1]:totable())
    assert.equal(2, #x:chunk(2))
    assert.same({ 2, 4 }, x:chunk(2)[1].shape)
    assert.equal(4, #x:unbind(2))
    assert.same({ 1, 5, 9 }, x:unbind(2)[2]:totable())
    assert.same(x:totable(), luda.cat(x:split(1), 1):totable())
    assert.same(x:totable(), luda.cat({ x[{ {}, { 1, 3 } }], x[{ {}, { 4, 4 } }] }, { dim = 2 }):totable())
    assert.same(x:t():totable(), luda.stack({ x[1], x[2], x[3] }, 2):totable())
    assert.same({ 2, 3 }, luda.stack({ luda.zeros(3), luda.ones(3) }).shape)
    assert.raises("shape", "add up to 2, dimension 1 has 3", x.split, x, { 1, 1 })
    assert.raises("invalid", "at least one tensor", luda.cat, {})
    assert.raises("invalid", "entry 2 must be a tensor", luda.cat, { x, 3 })
  end)

  it("give extremes with their positions", function()
    local x = luda.tensor { { 3, 9, 2 }, { 8, 1, 8 } }
    assert.equal(9, x:max():item())
    assert.equal(1, x:min():item())
    local values, positions = x:max(2)
    assert.same({ 9, 8 }, values:totable())
    assert.same({ 2, 1 }, positions:totable())
    values, positions = luda.min(x, { dim = 1, keepdim = true })
    assert.same({ { 3, 1, 2 } }, values:totable())
    assert.same({ { 1, 2, 1 } }, positions:totable())
    assert.equal(2, x:argmax():item())
    assert.same({ 2, 2, 1 }, x:argmin(1):add(luda.tensor { 0LL, 0LL, 0LL }):sub(luda.tensor { -1LL, 0LL, 0LL }):totable())
    values, positions = x:max { dim = 2, base = 0 }
    assert.same({ 9, 8 }, values:totable())
    assert.same({ 1, 0 }, positions:totable())
  end)

  it("tell whether tensors are equal", function()
    assert.is_true(grid():equal(grid()))
    assert.is_false(grid():equal(grid() + 1))
    assert.is_false(grid():equal(luda.zeros(3)))
  end)
end)
