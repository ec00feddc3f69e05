--- Started calls, waited for later; pieces of different lengths; trees of any arity.

local luda = require "luda"

local function ranks(count, task, flag)
  return luda.dist.spawn(count, "spec/work/collective_async.lua", { task = task, flag = flag }, { timeout = 30 })
end

describe("a started call", function()
  it("gives what every collective gives", function()
    local seen = ranks(2, "every")
    local shared = { { 3, 30 }, { 2, 20 }, { 2, 20 } }
    local expected = {
      { shared[1], shared[2], shared[3], { 2, 200 }, { 1, 10, 2, 20 }, { 100, 102 }, "nil", { 0, 1 }, { 0, 1, 100, 101 }, "nil" },
      { shared[1], shared[2], shared[3], "nil", { 1, 10, 2, 20 }, { 104, 106 }, { 1, 10, 2, 20 }, { 2, 3 }, { 2, 3, 102, 103 },
        "nil" },
    }
    for rank = 1, 2 do
      assert.same(expected[rank], seen[rank].results)
      assert.is_true(seen[rank].same)
      assert.same({ 3, 30 }, seen[rank].again)
      assert.equal("luda.Work(done)", seen[rank].text)
    end
  end)

  it("goes on after a wait that ended too early, and keeps its tensor", function()
    local flag = os.tmpname() -- rank 0 makes it again when its wait is over
    os.remove(flag)
    local seen = ranks(2, "patience", flag)
    os.remove(flag)
    assert.equal("timeout", seen[1].early[1].code)
    assert.matches("not done after 0.05 s of waiting; it goes on", seen[1].early[1].message, 1, true)
    assert.same({ {}, false }, { seen[1].early[1].culprits, seen[1].early[2] })
    assert.same({ 3, 3 }, { seen[1].sum, seen[2].sum })
    assert.matches("unknown option 'async'", seen[1].refused.message, 1, true)
  end)

  it("raises its failure with what each rank asked for, whatever was called in between", function()
    for _, seen in ipairs(ranks(3, "failures")) do
      assert.same({ "mismatch", { 1 }, "shape", true }, { seen.code, seen.culprits, seen.field, seen.twice })
      assert.matches("all_reduce sum f32 [3] at", seen.asked, 1, true)
      assert.matches("sizes= joins pieces of different lengths", seen.hint, 1, true)
    end
  end)

  it("ties its result to a tracked tensor where it is waited for", function()
    local seen = ranks(2, "gradients")
    -- 1 + 2 from the sum; element i of rank r's piece is weighed 2 r + i by rank 0 and twice that by rank 1
    assert.same({ { 3 + 0, 3 + 3 }, { 3 + 6, 3 + 9 } }, { seen[1].g, seen[2].g })
    for rank = 1, 2 do
      assert.same({ true, "graph", "graph" }, { seen[rank].tracked, seen[rank].inside, seen[rank].started })
    end
  end)
end)

describe("pieces of different lengths", function()
  it("are joined, cut and exchanged, or refused with the numbers", function()
    local seen = ranks(3, "uneven")
    local rows = { { 0, 1 }, { 2, 3 }, { 4, 5 }, { 200, 201 }, { 202, 203 }, { 204, 205 }, { 206, 207 }, { 208, 209 } }
    for rank = 1, 3 do
      local s = seen[rank]
      assert.same(rows, s.all)
      assert.same({ true, true }, { s.back, s.known })
      assert.equal(rank == 3 or nil, s.top)
      assert.same({ 2, ({ 1, 7, 0 })[rank] }, s.shape)
      assert.matches("sizes has 2 entries for 3 ranks", s.count, 1, true)
      assert.matches("sizes {3, 0, 6} sum to 9, and the tensor of rank " .. rank - 1 .. " has 8", s.sum, 1, true)
      assert.matches("sizes gives rank 1 a length of -1", s.negative, 1, true)
      assert.matches("a list of one length a rank is needed", s.kind, 1, true)
      assert.matches("it goes with sizes=", s.alone, 1, true)
      assert.matches("a tree of arity 0; it must be at least 1", s.arity, 1, true)
      assert.matches("an arity belongs to the algorithm tree, not to ring", s.other, 1, true)
      assert.matches("ranks disagree about the arity", s.odd, 1, true)
      assert.matches("by tree(5)", s.odd, 1, true)
    end
    assert.same({ { 0 }, { 2, 4, 200, 202, 204, 206, 208 }, "none" }, { seen[1].apart, seen[2].apart, seen[3].apart })
    local second, third = { { 2, 3 }, { 4, 5 }, { 200, 201 } }, { { 202, 203 }, { 204, 205 }, { 206, 207 }, { 208, 209 } }
    assert.same({ { { 0, 1 } }, second, third },
      { seen[1].swapped, seen[2].swapped, seen[3].swapped })
  end)

  it("go through a group driven by one thread", function()
    local group = luda.dist.group { "cpu", "cpu" }
    local list = { luda.tensor { 1, 2, 3 }, luda.tensor { 4 } }
    for _, joined in ipairs(group:all_gather(list, { sizes = { 3, 1 } })) do
      assert.same({ 1, 2, 3, 4 }, joined:totable())
    end
    assert.raises("invalid", "unknown option 'async'", group.all_gather, group, list, { async = true })
    group:close()
  end)
end)
