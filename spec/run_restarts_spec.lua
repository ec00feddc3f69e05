--- Starting the ranks again after a failure.

local runs = require "spec.runs"

local function failing(options, times)
  return runs.output(("%s run -n 3 %s spec/work/run_stops.lua fail - %d"):format(runs.program, options, times))
end

describe("luda run --max-restarts", function()
  it("starts all ranks again until they end well", function()
    local text, status = failing("--max-restarts 3", 2)
    assert.equal(0, status, text)
    assert.truthy(text:find("luda run: rank 1 was killed by signal 9; restart 1 of 3\n", 1, true), text)
    assert.truthy(text:find("luda run: rank 1 was killed by signal 9; restart 2 of 3\n", 1, true), text)
    assert.is_nil(text:find("restart 3", 1, true), text)
    for restart = 0, 2 do
      for rank = 0, 2 do
        assert.truthy(text:find(("rank %d of 3, node 0, restart %d"):format(rank, restart), 1, true), text)
      end
    end
  end)

  it("gives up after so many, with the rank's status", function()
    local text, status = failing("--max-restarts 1", 9)
    assert.equal(137, status, text)
    assert.truthy(text:find("rank 1 was killed by signal 9; the others were stopped; 1 of 1 restarts were made", 1, true), text)
  end)

  it("is 0 unless it is given", function()
    local text, status = failing("", 1)
    assert.equal(137, status, text)
    assert.is_nil(text:find("restart 1", 1, true), text)
  end)
end)
