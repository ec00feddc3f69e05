--- What comes back from rank threads: results, tensors, errors with their traceback.

local luda = require "luda"
local helper = require "spec.helper"
local runs = require "spec.runs"

local dist = luda.dist

local function spawn(count, task, more, options)
  local job = { task = task }
  for name, value in pairs(more or {}) do
    job[name] = value
  end
  return dist.spawn(count, "spec/work/spawned.lua", job, options)
end

describe("results of rank threads", function()
  it("are values and tensors of any depth, view and type", function()
    luda.scope(function()
      for rank, result in ipairs(spawn(2, "values")) do
        assert.tensor_near({ { 0, 3 * rank }, { rank, 4 * rank }, { 2 * rank, 5 * rank } }, result.nested.deep[1], 0, 0)
        assert.equal("bool", result.nested.deep[2].dtype)
        assert.tensor_near({ 3 * rank, 4 * rank, 5 * rank }, result.view, 0, 0)
        assert.same({ { 0, 4 }, "i64" }, { result.empty.shape, result.empty.dtype })
        assert.same({ false, "a\0b", 0.1 }, { result[3], result.text, result.number })
        assert.is_false(result.tracked.requires_grad) -- the graph stays where it was made
      end
    end)
  end)

  it("may be nil or false", function()
    assert.same({}, spawn(2, "nothing"))
    local results = spawn(2, "denied")
    assert.is_false(results[1])
    assert.is_nil(results[2])
  end)

  it("leave nothing behind", function()
    helper.no_leak(function()
      luda.scope(spawn, 2, "values")
      pcall(spawn, 3, "two")
    end)
  end)
end)

describe("errors of rank threads", function()
  it("that are no errors of LUDA come with their rank and traceback", function()
    local err = assert.raises("internal", "a plain text", spawn, 2, "plain", { rank = 1, value = "a plain text" })
    assert.equal(1, err.rank)
    assert.truthy(err.traceback:find("spawned.lua:%d+"), err.traceback)
  end)

  it("are that of the rank that failed first by itself", function()
    local err = assert.raises("shape", "reshape", spawn, 4, "two")
    assert.equal(2, err.rank)
    assert.truthy(err.traceback:find("spawned.lua:%d+"), err.traceback)
  end)

  it("keep what each rank asked for", function()
    local err = assert.raises("mismatch", "all_reduce", spawn, 2, "mismatch")
    assert.equal(2, #err.detail)
    assert.equal("shape", err.detail.field)
  end)

  it("say what cannot come back", function()
    assert.raises("invalid", "a function cannot pass between Lua states", spawn, 2, "unsendable")
    assert.raises("invalid", "0 ranks; 1 to 1024", spawn, 0, "nothing")
  end)

  it("come within the timeout that was asked for", function()
    local err = assert.raises("timeout", "rank 1", spawn, 2, "slow", nil, { timeout = 0.3 })
    assert.same({ 1 }, err.culprits)
  end)

  it("of luda run --threads are reported with rank and traceback", function()
    local script = helper.new_folder() .. "/script.lua"
    helper.write(script, [[
      local luda = require "luda"
      local comm = luda.dist.init {}
      comm:barrier()
      if comm.rank == 1 then
        luda.ones(2, 3):matmul(luda.ones(2, 3))
      end
      comm:barrier()]])
    local text, status = runs.output(("%s run -n 3 --threads %s"):format(runs.program, script))
    assert.equal(1, status, text)
    assert.truthy(text:find("luda: matmul: .*rank 1, .*script.lua:5%)\nstack traceback:\n.*script.lua:5:"), text)
    assert.truthy(text:find("luda run: rank 1 failed; the others were stopped\n", 1, true), text)
  end)
end)
