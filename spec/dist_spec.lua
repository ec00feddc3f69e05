--- Rank threads: agreement, deadlines, names of culprits, gradients, replicas, records, results and errors that come back.

local luda = require "luda"
local helper = require "spec.helper"

local dist = luda.dist

local function ranks(count, job)
  return dist.spawn(count, "spec/work/ranks.lua", job, { timeout = 20 })
end

local function temporary_folder()
  local path = os.tmpname()
  os.remove(path)
  return path
end

describe("ranks that disagree about", function()
  for _, field in ipairs { "shape", "dtype", "operation", "reduction", "root" } do
    for odd = 0, 2 do
      it(("the %s, rank %d alone, all learn it and go on"):format(field, odd), function()
        for rank, seen in ipairs(ranks(3, { task = "disagree", field = field, odd = odd })) do
          assert.is_false(seen.ok)
          assert.equal("mismatch", seen.code)
          assert.equal(rank - 1, seen.rank)
          assert.same({ odd }, seen.culprits)
          assert.equal(3, #seen.asked)
          assert.equal(seen.asked[(odd + 1) % 3 + 1]:gsub(" at .*", ""), (seen.asked[(odd + 2) % 3 + 1]:gsub(" at .*", "")))
          assert.not_equal(seen.asked[odd + 1]:gsub(" at .*", ""), (seen.asked[(odd + 1) % 3 + 1]:gsub(" at .*", "")))
          assert.equal(field, seen.field)
          assert.same({ 6, 6, 6 }, seen.next_sum)
        end
      end)
    end
  end

  it("their source line only do not disagree", function()
    for _, values in ipairs(ranks(3, { task = "two_lines" })) do
      assert.same({ 1, -2, 3 }, values)
    end
  end)
end)

describe("a rank that comes late", function()
  for sleeper = 0, 2 do
    it(("is named by both others (rank %d)"):format(sleeper), function()
      for rank, seen in ipairs(ranks(3, { task = "late", sleeper = sleeper })) do
        assert.is_false(seen.ok)
        if rank - 1 ~= sleeper then
          assert.equal("timeout", seen.code)
          assert.same({ sleeper }, seen.culprits)
          assert.is_true(seen.seconds <= 2)
        end
      end
    end)
  end
end)

describe("an error in a rank", function()
  it("ends the others and is raised with its rank, line and traceback", function()
    local err = assert.raises("shape", "inner sizes 3 and 2 differ", ranks, 3, { task = "fails", rank = 1 })
    assert.equal(1, err.rank)
    assert.truthy(err.message:find("spec/work/ranks.lua:%d+"))
    assert.truthy(err.traceback:find("ranks.lua"))
  end)

  it("is clear where the work does not exist", function()
    assert.raises("io", "neither a file nor a module 'spec/nothing.lua'", dist.spawn, 2, "spec/nothing.lua")
    assert.raises("invalid", "functions cannot pass", dist.spawn, 2, function() end)
    assert.raises("invalid", "a function cannot pass", dist.spawn, 2, "spec/work/ranks.lua", { f = print })
  end)
end)

describe("arguments and results", function()
  it("are copied in and moved out", function()
    luda.scope(function()
      local mine = luda.tensor { 1, 2 }
      local results = ranks(2, { task = "echo", tensor = mine, list = { "a", { true, 2.5 } } })
      assert.same({ 1, 2 }, mine:totable())
      for rank = 0, 1 do
        assert.same({ 2, 3 }, results[rank + 1].tensor:totable())
        assert.same({ "a", { true, 2.5 } }, results[rank + 1].list)
        assert.equal(rank, results[rank + 1].rank)
      end
    end)
  end)
end)

describe("gradients through collectives", function()
  -- Rank r holds x (r + 1), and its result meets g = (r + 1, -3 r - 1, 2): the objective is the sum over ranks.
  local total = { 1 + 2 + 3, -1 - 4 - 7, 6 }

  it("of a sum are the sum of all ranks' gradients", function()
    for _, seen in ipairs(ranks(3, { task = "gradient", call = "sum" })) do
      assert.same({ 6, -12, 3 }, seen.y)
      assert.same(total, seen.dx)
    end
  end)

  it("of a mean are their mean", function()
    for _, seen in ipairs(ranks(3, { task = "gradient", call = "mean" })) do
      assert.same({ 2, -4, 1 }, seen.y)
      assert.same({ 2, -4, 2 }, seen.dx)
    end
  end)

  it("of a broadcast go to the root alone", function()
    for rank, seen in ipairs(ranks(3, { task = "gradient", call = "broadcast" })) do
      assert.same({ 2, -4, 1 }, seen.y)
      assert.same(rank == 2 and total or { 0, 0, 0 }, seen.dx)
    end
  end)
end)

describe("replicas", function()
  local job = { task = "replicas", weight = { { 0.25 }, { -0.5 } }, bias = { 0.125 }, x = { { 1, 2 }, { -1, 0.5 }, { 0.5, -1 } },
    y = { { 1 }, { 0 }, { -2 } } }

  --- Plain float64: gradient descent on the mean over all three samples.
  local function alone()
    local w, b = { 0.25, -0.5 }, 0.125
    for _ = 1, 3 do
      local dw, db = { 0, 0 }, 0
      for i = 1, 3 do
        local x = job.x[i]
        local r = 2 * (x[1] * w[1] + x[2] * w[2] + b - job.y[i][1]) / 3
        dw[1], dw[2], db = dw[1] + r * x[1], dw[2] + r * x[2], db + r
      end
      w[1], w[2], b = w[1] - 0.05 * dw[1], w[2] - 0.05 * dw[2], b - 0.05 * db
    end
    return w, { b }
  end

  it("with unequal parts train as one process does", function()
    local w, b = alone()
    local seen = ranks(2, job)
    for rank = 1, 2 do
      assert.tensor_near(w, seen[rank][1], 1e-6, 1e-7)
      assert.tensor_near(b, seen[rank][2], 1e-6, 1e-7)
    end
    assert.same(seen[1], seen[2])
  end)
end)

describe("records of several ranks", function()
  it("are restored from the newest set that is whole on all ranks", function()
    local dir = temporary_folder()
    local saved = {}
    for step = 1, 3 do
      saved[step] = ranks(2, { task = "record", save = true, dir = dir, step = step })
    end
    local function restored()
      return ranks(2, { task = "record", dir = dir })
    end
    assert.equal(3, restored()[1].step)
    os.remove(dir .. "/step-3/complete.json")
    local file = assert(io.open(dir .. "/step-2/rank-1.safetensors", "r+b"))
    file:seek("set", 200)
    file:write("x")
    file:close()
    for rank, seen in ipairs(restored()) do
      assert.equal(1, seen.step)
      assert.equal(saved[1][rank], seen.sum)
      assert.same({ step = 1, rank = rank - 1 }, seen.state)
      assert.truthy(table.concat(seen.warnings, "; "):find("step%-2/rank%-1.safetensors is missing or damaged"))
    end
    os.remove(dir .. "/step-1/rank-0.safetensors")
    for _, seen in ipairs(restored()) do
      assert.equal("corrupt", seen.code)
      assert.truthy(seen.message:find("rank 0: .*step%-1/rank%-0"))
    end
    os.execute("rm -r " .. dir)
    assert.is_nil(restored()[1].step)
  end)
end)

describe("one rank alone", function()
  it("needs no set-up", function()
    luda.scope(function()
      local comm = dist.init {}
      assert.equal(0, comm.rank)
      assert.equal(1, comm.size)
      assert.same({ 1, 2 }, comm:all_reduce(luda.tensor { 1, 2 }, "mean"):totable())
      comm:barrier()
      comm:close()
      assert.raises("closed", "was closed", comm.barrier, comm)
    end)
  end)

  it("tells what is wrong with an argument", function()
    local comm = dist.init {}
    assert.raises("invalid", "no reduction 'average'; sum, mean", comm.all_reduce, comm, luda.ones(2), "average")
    assert.raises("invalid", "unknown option 'algorithms'", comm.all_reduce, comm, luda.ones(2), "sum", { algorithms = "ring" })
    assert.raises("invalid", "a tensor is needed", comm.all_reduce, comm, 3, "sum")
    assert.raises("index", "rank 1 does not exist", comm.broadcast, comm, luda.ones(2), 1)
    comm:close()
  end)
end)

it("ranks leave no tensors behind", function()
  helper.no_leak(ranks, 2, { task = "two_lines" })
end)
