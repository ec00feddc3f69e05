--- Collectives at their edges: fewer elements than ranks, none, whole numbers, halves, gradients of all ranks' losses.

local luda = require "luda"

local function ranks(count, job)
  return luda.dist.spawn(count, "spec/work/collective_edges.lua", job, { timeout = 30 })
end

describe("a collective", function()
  for _, size in ipairs { 1, 2, 3, 4, 5, 8 } do
    it(("of %d ranks takes any number of elements by every algorithm"):format(size), function()
      for _, seen in ipairs(ranks(size, { task = "counts", counts = { 0, 1, 2, 3, 5, 7, 257, 65537 } })) do
        assert.same({}, seen.wrong)
        assert.same({ 0, 3 }, seen.gathered)
        assert.is_truthy(seen.refused)
        assert.equal(size, seen.after)
      end
    end)
  end

  it("averages whole numbers never to 0, and halves in f32", function()
    for _, seen in ipairs(ranks(4, { task = "types" })) do
      for name, want in pairs { mean_i32 = 3, mean_i64 = 9007199254740993LL } do
        local have = seen[name]
        assert.is_true(have.value == want or (have.code == "dtype" and #have.message > 10), name .. ": " .. tostring(have.value))
      end
      assert.equal("9007199254740993LL", seen.max_i64)
      assert.equal("9007199254740993LL", seen.broadcast_i64)
      assert.equal("36028797018963972LL", seen.sum_i64)
      assert.same({ dtype = "f16", value = 40000 }, seen.mean_f16)
      assert.same({ dtype = "bf16", value = 260 }, seen.sum_bf16) -- 259 in f32, then rounded to even
    end
  end)

  it("has the gradient of the sum of all ranks' losses", function()
    local seen = ranks(2, { task = "gradients" })
    assert.same({ { 11 }, { 11 } }, { seen[1].sum, seen[2].sum })
    assert.same({ { 5.5 }, { 5.5 } }, { seen[1].mean, seen[2].mean })
    assert.same({ { 31 }, { 42 } }, { seen[1].gather, seen[2].gather })
    assert.same({ { 5, 7 }, { 5, 7 } }, { seen[1].scatter, seen[2].scatter })
  end)

  it("of gradients weighs tokens, counts absent ones as 0, and leaves absent what nobody has", function()
    for _, seen in ipairs(ranks(3, { task = "replicas" })) do
      assert.same({ common = 1.5, some = 2, unused = true, total = 4, kept = true }, seen)
    end
  end)
end)
