--- Starting the ranks again after a failure.

local helper = require "spec.helper"
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

describe("training whose rank is killed", function()
  local SIZE = "--text CHANGELOG.md --steps 150 --batch 8 --context 16 --layers 1 --heads 2 --width 16 --sample 0 --warmup 2 "
    .. "--valid-every 1000 --every 20"

  it("goes on from its last record, to the same losses", function()
    local dir = helper.new_folder()
    local text, status = runs.output(("%s run -n 2 examples/char_gpt.lua %s --log %s/whole"):format(runs.program, SIZE, dir))
    assert.equal(0, status, text)
    local try, log = 0
    repeat -- on a busy machine a run may end before the kill
      try = try + 1
      log = ("%s/parts%d"):format(dir, try)
      text, status = runs.output(([[
        records=%s/records%d
        %s run -n 2 --max-restarts 2 examples/char_gpt.lua %s --log %s --dir $records --resume & launcher=$!
        for i in $(seq 3000); do [ -e $records/step-20/complete.json ] && break; sleep 0.005; done
        export LD_PRELOAD= # a preloaded sanitizer is not for pgrep
        kill -9 $(pgrep -P $(pgrep -P $launcher) | tail -n 1)
        wait $launcher]]):format(dir, try, runs.program, SIZE, log))
    until text:find("restart 1 of 2", 1, true) or try == 10
    assert.equal(0, status, text)
    assert.truthy(text:find("rank %d was killed by signal 9; restart 1 of 2"), text)
    assert.truthy(text:find("2 ranks, from step %d+"), text)
    assert.equal(helper.read(dir .. "/whole"), helper.read(log))
  end)
end)
