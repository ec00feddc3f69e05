--- In-process groups: every operation against sums in plain float64, uneven pieces, messages, what is refused.

local luda = require "luda"
local helper = require "spec.helper"

local dist = luda.dist

local function devices(count)
  local list = {}
  for i = 1, count do
    list[i] = "cpu"
  end
  return list
end

--- count tensors of rows x columns in float64 with both signs, and their values as Lua tables.
local function samples(count, rows, columns)
  local list, values = {}, {}
  for rank = 1, count do
    values[rank] = {}
    for i = 1, rows do
      values[rank][i] = {}
      for j = 1, columns do
        values[rank][i][j] = math.sin(17 * rank + 5 * i + j) * 3
      end
    end
    list[rank] = luda.tensor(values[rank], { dtype = "f64" })
  end
  return list, values
end

local FOLDS = {
  sum = function(a, b) return a + b end, mean = function(a, b) return a + b end, prod = function(a, b) return a * b end,
  min = math.min, max = math.max,
}

local function folded(values, op)
  local result = {}
  for i, row in ipairs(values[1]) do
    result[i] = {}
    for j = 1, #row do
      local total = values[1][i][j]
      for rank = 2, #values do
        total = FOLDS[op](total, values[rank][i][j])
      end
      result[i][j] = op == "mean" and total / #values or total
    end
  end
  return result
end

local function with_group(count, fn)
  luda.scope(function()
    local group = dist.group(devices(count))
    fn(group)
    group:close()
  end)
end

describe("a group", function()
  for _, algorithm in ipairs { "direct", "ring", "tree", "halving", "centralized" } do
    it("reduces by " .. algorithm .. " as float64 sums do, on 1 to 5 ranks", function()
      for count = 1, 5 do
        with_group(count, function(group)
          local list, values = samples(count, 3, 7)
          for op in pairs(FOLDS) do
            local expected = folded(values, op)
            for rank, result in ipairs(group:all_reduce(list, op, { algorithm = algorithm })) do
              assert.tensor_near(expected, result, 1e-14, 1e-14)
              assert.tensor_near(values[rank], list[rank], 0, 0)
            end
          end
        end)
      end
    end)
  end

  it("cuts fewer elements than ranks, and lengths that do not divide", function()
    for _, elements in ipairs { 0, 1, 3, 5, 6, 7, 11, 13 } do
      for _, algorithm in ipairs { "direct", "ring" } do
        with_group(5, function(group)
          local list = {}
          for rank = 0, 4 do
            list[rank + 1] = luda.arange(elements) + rank
          end
          for _, sum in ipairs(group:all_reduce(list, "sum", { algorithm = algorithm })) do
            assert.same((luda.arange(elements) * 5 + 10):totable(), sum:totable())
          end
        end)
      end
    end
  end)

  it("reduces numbers without dimensions and transposed views", function()
    with_group(3, function(group)
      local list, values = samples(3, 4, 2)
      local scalars, views = {}, {}
      for rank = 1, 3 do
        scalars[rank], views[rank] = luda.tensor(rank - 2.5), list[rank]:t()
      end
      assert.equal(-1.5, group:all_reduce(scalars, "sum")[2]:item())
      assert.tensor_near(folded(values, "sum"), group:all_reduce(views, "sum")[3]:t(), 1e-14, 1e-14)
    end)
  end)

  it("keeps integers exact, and reduces bits and bools", function()
    with_group(2, function(group)
      local big = luda.tensor { 9007199254740993LL, -9007199254740993LL }
      local function int(op, other)
        return group:all_reduce({ big, luda.tensor(other, { dtype = "i64" }) }, op)[1]
      end
      assert.equal("9007199254740994LL", tostring(int("sum", { 1, 0 })[1]:item()))
      assert.equal("9007199254740993LL", tostring(int("max", { 0, 0 })[1]:item()))
      assert.equal("-9007199254740993LL", tostring(int("min", { 0, 0 })[2]:item()))
      assert.equal("9007199254740993LL", tostring(int("prod", { -1, -1 })[2]:item()))
      assert.equal("9007199254740992LL", tostring(int("xor", { 1, 0 })[1]:item()))
      local flags = group:all_reduce({ luda.tensor { true, false, true }, luda.tensor { true, false, false } }, "and")
      assert.same({ true, false, false }, flags[2]:totable())
    end)
  end)

  it("reduces in place, and to one root", function()
    with_group(3, function(group)
      local list, values = samples(3, 2, 3)
      local root = group:reduce(list, "mean", 2)
      assert.tensor_near(folded(values, "mean"), root, 1e-14, 1e-14)
      assert.equal(list, group:all_reduce_(list, "sum"))
      for rank = 1, 3 do
        assert.tensor_near(folded(values, "sum"), list[rank], 1e-14, 1e-14)
      end
    end)
  end)

  it("broadcasts, scatters, gathers and joins in rank order", function()
    with_group(3, function(group)
      local whole = luda.arange(6):reshape(3, 2)
      for _, copy in ipairs(group:broadcast(whole, 1)) do
        assert.same({ { 0, 1 }, { 2, 3 }, { 4, 5 } }, copy:totable())
      end
      local parts = group:scatter(whole, 2)
      assert.same({ { 2, 3 } }, parts[2]:totable())
      assert.same(whole:totable(), group:gather(parts, 1):totable())
      for _, joined in ipairs(group:all_gather(parts, { dim = 2 })) do
        assert.same({ { 0, 1, 2, 3, 4, 5 } }, joined:totable())
      end
    end)
  end)

  it("reduces and scatters, and exchanges slices", function()
    with_group(2, function(group)
      local list = { luda.tensor { 1, 2, 3, 4 }, luda.tensor { 10, 20, 30, 40 } }
      local parts = group:reduce_scatter(list, "sum")
      assert.same({ { 11, 22 }, { 33, 44 } }, { parts[1]:totable(), parts[2]:totable() })
      local swapped = group:all_to_all(list)
      assert.same({ { 1, 2, 10, 20 }, { 3, 4, 30, 40 } }, { swapped[1]:totable(), swapped[2]:totable() })
    end)
  end)

  it("exchanges pieces of uneven sizes, none among them", function()
    with_group(3, function(group)
      local list = { luda.tensor { 1, 2, 3 }, luda.tensor { 10 }, luda.tensor { 100, 200 } }
      local results = group:all_to_all(list, { sizes = { { 0, 2, 1 }, { 0, 0, 1 }, { 1, 1, 0 } } })
      assert.same({ { 100 }, { 1, 2, 200 }, { 3, 10 } }, { results[1]:totable(), results[2]:totable(), results[3]:totable() })
      assert.raises("shape", "sizes of rank 1 are { 1, 1, 0 }; 3 of them must sum to 1", group.all_to_all, group, list,
        { sizes = { { 0, 2, 1 }, { 1, 1, 0 }, { 1, 1, 0 } } })
    end)
  end)

  it("carries single messages in order, to the rank itself too", function()
    with_group(2, function(group)
      local arrived = group:transfer {
        { from = 0, to = 1, tensor = luda.tensor { 1, 2 } }, { from = 0, to = 1, tensor = luda.tensor { { 3 } } },
        { from = 1, to = 0, tensor = luda.tensor { 4 } }, { from = 1, to = 1, tensor = luda.tensor { 5 } },
      }
      assert.same({ { 1, 2 }, { { 3 } }, { 4 }, { 5 } }, { arrived[1]:totable(), arrived[2]:totable(), arrived[3]:totable(),
        arrived[4]:totable() })
    end)
  end)

  it("gives the same bits again and again", function()
    with_group(4, function(group)
      local list = samples(4, 5, 41)
      for i = 1, 4 do
        list[i] = list[i]:to("f16")
      end
      local first = group:all_reduce(list, "sum")[1]
      for _ = 1, 5 do
        for _, again in ipairs(group:all_reduce(list, "sum")) do
          assert.is_true(first:eq(again):all():item())
        end
      end
    end)
  end)
end)

describe("a group refuses", function()
  it("an empty world and unknown devices", function()
    assert.raises("invalid", "a list of 1 to 1024 devices", dist.group, {})
    assert.raises("invalid", "a list of 1 to 1024 devices", dist.group)
    assert.raises("device", "unknown device 'gpu'", dist.group, { "cpu", "gpu" })
  end)

  it("ranks that do not exist, missing tensors and tensors of another device", function()
    with_group(2, function(group)
      local one = luda.ones(2)
      assert.raises("index", "rank 2 does not exist; ranks are 0 to 1", group.broadcast, group, one, 2)
      assert.raises("index", "rank %-1 does not exist", group.transfer, group, { { from = 0, to = -1, tensor = one } })
      assert.raises("invalid", "a list of 2 tensors is needed, one a rank, not 1", group.all_reduce, group, { one }, "sum")
      assert.raises("invalid", "rank 1 brings 3, not a tensor", group.all_reduce, group, { one, 3 }, "sum")
      assert.raises("invalid", "no reduction 'average'", group.all_reduce, group, { one, one }, "average")
    end)
  end)

  it("shapes, types and slices that do not fit, and goes on", function()
    with_group(3, function(group)
      local list = { luda.ones(2, 3), luda.ones(2, 3), luda.ones(3, 2) }
      local err = assert.raises("mismatch", "disagree about the shape", group.all_reduce, group, list, "sum")
      assert.same({ 2 }, err.culprits)
      assert.equal(3, #err.detail)
      list[3] = luda.ones(2, 3, { dtype = "f64" })
      assert.raises("mismatch", "disagree about the dtype", group.all_reduce, group, list, "sum")
      list[3] = list[1]
      assert.raises("shape", "2 along the axis do not divide among 3 ranks", group.reduce_scatter, group, list, "sum")
      assert.raises("dtype", "no mean of i32", group.all_reduce, group, { luda.ones(1, { dtype = "i32" }),
        luda.ones(1, { dtype = "i32" }), luda.ones(1, { dtype = "i32" }) }, "mean")
      assert.same({ { 3, 3, 3 }, { 3, 3, 3 } }, group:all_reduce(list, "sum")[3]:totable())
    end)
  end)

  it("tracked tensors, and everything once closed", function()
    with_group(2, function(group)
      local tracked = luda.ones(2):requires_grad_()
      assert.raises("graph", "is tracked, and a group has no gradients", group.all_reduce, group, { tracked, tracked }, "sum")
      group:close()
      assert.raises("closed", "the group was closed", group.all_reduce, group, { luda.ones(2), luda.ones(2) }, "sum")
    end)
  end)
end)

it("groups leave no tensors behind", function()
  helper.no_leak(function()
    with_group(3, function(group)
      group:all_reduce(samples(3, 2, 2), "sum")
    end)
  end)
end)
