--- Nothing that ranks start outlives the launcher, whatever ends it.

local helper = require "spec.helper"
local runs = require "spec.runs"

-- Each way, in shell: $launcher is the process that was started, $keeper the parent of the ranks, $rank the first of them.
local WAYS = {
  { "the launcher is killed", "kill -9 $launcher" },
  { "the parent of the ranks is killed", "kill -9 $keeper" },
  { "a rank is killed", "kill -9 $rank" },
  { "the launcher is asked to stop", "kill $launcher" },
  { "the terminal hangs up", "kill -HUP $launcher" },
  { "the launcher is stopped, then killed", "kill -STOP $launcher; sleep 0.1; kill -9 $launcher" },
  { "all are stopped, then the launcher is killed", "kill -STOP $launcher $keeper $rank; sleep 0.1; kill -9 $launcher" },
  { "the launcher's whole process group is killed", "kill -s KILL -- -$launcher" },
}

describe("orphans", function()
  for _, way in ipairs(WAYS) do
    it("are not left when " .. way[1], function()
      local mark, place = runs.mark(), helper.new_folder() .. "/rank"
      local text = runs.output(runs.SHELL .. ([[
        export LUDA_SPEC_MARK=%s
        setsid %s run -n 2 spec/work/run_stops.lua children %s > /dev/null 2>&1 & launcher=$!
        await %s.0 %s.1
        rank=$(cat %s.0); keeper=$(awk '/^PPid/ { print $2 }' /proc/$rank/status)
        echo "ranks $rank $keeper $launcher"
        %s]]):format(mark, runs.program, place, place, place, place, way[2]))
      assert.truthy(text:find("ranks %d+ %d+ %d+"), text)
      assert.truthy(runs.wait_for(function()
        return runs.count(mark) == 0
      end), "processes are left")
    end)
  end

  it("are no ranks, also when all that watch them are killed at once", function()
    local mark, place = runs.mark(), helper.new_folder() .. "/rank"
    runs.output(runs.SHELL .. ([[
      export LUDA_SPEC_MARK=%s
      %s run -n 2 spec/work/run_stops.lua deaf %s > /dev/null 2>&1 & launcher=$!
      await %s.0 %s.1
      keeper=$(awk '/^PPid/ { print $2 }' /proc/$(cat %s.0)/status)
      kill -STOP $keeper; kill -9 $launcher $keeper]]):format(mark, runs.program, place, place, place, place))
    assert.truthy(runs.wait_for(function()
      return runs.count(mark) == 0
    end), "ranks are left")
  end)

  it("are counted by the word in their environment", function()
    local mark = runs.mark()
    os.execute(("LUDA_SPEC_MARK=%s sleep 1 &"):format(mark))
    assert.truthy(runs.wait_for(function()
      return runs.count(mark) == 1
    end, 1))
  end)

  it("are not left behind a terminal that is closed, nor under timeout", function()
    local mark, place = runs.mark(), helper.new_folder() .. "/rank"
    runs.output(("LUDA_SPEC_MARK=%s timeout -s KILL 1 %s run -n 2 spec/work/run_stops.lua children %s"):format(mark, runs.program,
      place))
    if os.execute("command -v script > /dev/null") == 0 then
      runs.output(runs.SHELL .. ([[
        export LUDA_SPEC_MARK=%s
        script -qc "%s run -n 2 spec/work/run_stops.lua children %s.tty" /dev/null < /dev/null > /dev/null & terminal=$!
        await %s.tty.0 %s.tty.1
        kill -9 $terminal]]):format(mark, runs.program, place, place, place))
    end
    assert.truthy(runs.wait_for(function()
      return runs.count(mark) == 0
    end), "processes are left")
  end)
end)
