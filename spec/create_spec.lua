--- Creation: filled tensors, ranges, random numbers and their generators.

local luda = require "luda"
local helper = require "spec.helper"

describe("creation", function()
  before_each(helper.before)
  after_each(helper.after)

  it("takes sizes spread out or in a list, then options", function()
    assert.same({ { 0, 0 }, { 0, 0 } }, luda.zeros(2, 2):totable())
    assert.same({ 1, 1, 1 }, luda.ones({ 3 }, { dtype = "i64" }):totable())
    assert.equal("i64", luda.ones(3, { dtype = "i64" }).dtype)
    assert.equal(0, luda.zeros():item())
    assert.same({ 0, 3 }, luda.zeros(0, 3).shape)
    assert.same({ 2, 5 }, luda.empty(2, 5).shape)
    assert.same({ 7, 7 }, luda.full({ 2 }, 7):totable())
    assert.same({ true, true }, luda.full({ 2 }, true):totable())
    assert.raises("shape", "size 2 is %-1", luda.zeros, 3, -1)
    assert.raises("shape", "9 dimensions", luda.zeros, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    assert.raises("invalid", "whole number", luda.zeros, 2.5)
    assert.raises("invalid", "unknown option 'dtpye'", luda.zeros, 2, { dtpye = "f32" })
  end)

  it("counts in ranges", function()
    assert.same({ 0, 1, 2, 3 }, luda.arange(4):totable())
    assert.same({ 2, 5, 8 }, luda.arange(2, 10, 3):totable())
    assert.same({ 1, 0.75, 0.5 }, luda.arange(1, 0.25, -0.25):totable())
    assert.same({}, luda.arange(0):totable())
    assert.same({ 0, 1, 2 }, luda.arange(3, { dtype = "i64" }):totable())
    assert.tensor_near({ 0, 0.25, 0.5, 0.75, 1 }, luda.linspace(0, 1, 5))
    assert.same({ 3 }, luda.linspace(3, 9, 1):totable())
    assert.same({ { 1, 0, 0 }, { 0, 1, 0 } }, luda.eye(2, 3):totable())
    assert.raises("invalid", "step is 0", luda.arange, 0, 1, 0)
  end)

  it("makes tensors like another", function()
    local x = luda.tensor({ { 1, 2 } }, { dtype = "f64" })
    assert.same({ { 0, 0 } }, luda.zeros_like(x):totable())
    assert.equal("f64", luda.ones_like(x).dtype)
    assert.same({ { 3, 3 } }, luda.full_like(x, 3):totable())
    assert.equal("f32", luda.rand_like(x, { dtype = "f32" }).dtype)
  end)

  it("marks leaves on request", function()
    assert.is_true(luda.zeros(2, { requires_grad = true }).requires_grad)
    assert.is_true(luda.tensor({ 1 }, { requires_grad = true }).requires_grad)
    assert.is_false(luda.randn(2).requires_grad)
  end)
end)

describe("random numbers", function()
  before_each(helper.before)
  after_each(helper.after)

  it("repeat with the seed, and go on otherwise", function()
    luda.manual_seed(7)
    local a, b = luda.rand(5):totable(), luda.rand(5):totable()
    luda.manual_seed(7)
    assert.same(a, luda.rand(5):totable())
    assert.same(b, luda.rand(5):totable())
    assert.not_same(a, b)
  end)

  it("have the moments of their distributions", function()
    local g = luda.generator(3)
    local u, n = luda.rand(20000, { generator = g }), luda.randn(20000, { generator = g })
    -- deviations of the mean: 1 / sqrt(12 n) and 1 / sqrt(n); five of them
    assert.near(0.5, u:mean():item(), 5 / math.sqrt(12 * 20000))
    assert.near(0, n:mean():item(), 5 / math.sqrt(20000))
    assert.near(1, (n * n):mean():item(), 5 * math.sqrt(2 / 20000))
    assert.is_true(u:amin():item() >= 0 and u:amax():item() < 1)
  end)

  it("stay inside the range of randint and hit all of it", function()
    local counts = {}
    for _, value in ipairs(luda.randint(-2, 3, { 2000 }, { generator = luda.generator(1) }):totable()) do
      counts[value] = (counts[value] or 0) + 1
    end
    for value = -2, 2 do
      assert.near(400, counts[value], 5 * math.sqrt(2000 * 0.2 * 0.8))
      counts[value] = nil
    end
    assert.is_nil(next(counts))
    assert.raises("invalid", "less than high", luda.randint, 3, 3, { 2 })
  end)

  it("permute positions from 1, or from the base", function()
    local list = luda.randperm(50, { generator = luda.generator(9) }):totable()
    table.sort(list)
    for i = 1, 50 do
      assert.equal(i, list[i])
    end
    list = luda.randperm(3, { base = 0 }):totable()
    table.sort(list)
    assert.same({ 0, 1, 2 }, list)
  end)

  it("come from generators with a state that can be taken and set", function()
    local g = luda.generator(42)
    luda.rand(3, { generator = g })
    local state = g:state()
    local a = luda.randn(4, { generator = g }):totable()
    assert.same(a, luda.randn(4, { generator = luda.generator(0):set_state(state) }):totable())
    local big = luda.generator(0xfedcba9876543210ULL)
    assert.same({ "0xfedcba9876543210", 1 }, big:state())
    assert.same(big:state(), luda.generator(1):set_state(big:state()):state())
    assert.raises("invalid", "what state", g.set_state, g, {})
    assert.raises("invalid", "must be a generator", luda.rand, 2, { generator = 3 })
  end)
end)
