--- Files with what ranks print, readers that go away, and two jobs at once.

local helper = require "spec.helper"
local runs = require "spec.runs"

describe("luda run --log-dir", function()
  it("writes what each rank prints, over restarts, and names the file of the one that failed", function()
    local dir = helper.new_folder() .. "/new/logs"
    local text, status = runs.output(("%s run -n 2 --max-restarts 1 --log-dir %s spec/work/run_stops.lua fail - 2"):format(
      runs.program, dir))
    assert.equal(137, status, text)
    local log = helper.read(dir .. "/rank-1.txt")
    assert.equal("rank 1 of 2, node 0, restart 0\nrank 1 of 2, node 0, restart 1\n", log)
    assert.truthy(helper.read(dir .. "/rank-0.txt"):find("barrier: lost rank 1", 1, true))
    assert.truthy(text:find("; see " .. dir .. "/rank-1.txt", 1, true), text)
    text, status = runs.output(("%s run -n 2 --log-dir %s spec/work/run_stops.lua sum"):format(runs.program, dir))
    assert.equal(0, status, text)
    assert.equal("rank 1 of 2: sum 3, local rank 1, node 0\n", helper.read(dir .. "/rank-1.txt")) -- another run begins anew
  end)

  it("goes on when the disk is full, and says so", function()
    local dir = helper.new_folder()
    os.execute(("ln -s /dev/full %s/rank-0.txt"):format(dir))
    local text, status = runs.output(("%s run -n 2 --log-dir %s spec/work/run_stops.lua sum"):format(runs.program, dir))
    assert.equal(0, status, text)
    assert.truthy(text:find(("luda run: %s/rank-0.txt ends here, the run goes on: No space left on device"):format(dir), 1, true),
      text)
    assert.truthy(text:find("[0] rank 0 of 2: sum 3", 1, true), text)
    assert.truthy(helper.read(dir .. "/rank-1.txt"):find("rank 1 of 2: sum 3", 1, true))
  end)
end)

describe("output", function()
  it("of many lines arrives whole, also at a slow reader", function()
    local script = helper.new_folder() .. "/many.lua"
    helper.write(script, [[
      local rank = os.getenv "LUDA_RANK"
      for line = 1, 20000 do
        io.write("\n", rank, ":", line)
      end
      io.write(("x"):rep(100000), "\n")
      io.stderr:write("no end of line")]])
    local text = runs.output(("{ %s run -n 2 %s; } 2>&1 | { sleep 0.3; sort | uniq -c | awk '{ print $1, $2, length($3) }' | "
      .. "sort | uniq -c; }"):format(runs.program, script))
    local lines = 0
    for count in text:gmatch("\n *(%d+) 1 %[[01]%]") do
      lines = lines + tonumber(count)
    end
    assert.is_true(lines >= 40000, text)
  end)

  it("without a reader does not end the run", function()
    local mark = helper.new_folder() .. "/end"
    local script = helper.new_folder() .. "/script.lua"
    helper.write(script, ([[
      for _ = 1, 20000 do print("line") end
      io.open(%q .. os.getenv "LUDA_RANK", "w"):write("end")]]):format(mark))
    runs.output(("{ %s run -n 2 %s; echo $? > %s; } | head -1"):format(runs.program, script, mark))
    assert.truthy(runs.wait_for(function()
      local file = io.open(mark)
      return file and file:read("*a") == "0\n" and file:close()
    end), "the launcher did not end well")
    assert.equal("end", helper.read(mark .. "0"))
  end)
end)

describe("two jobs on one host", function()
  it("do not meet", function()
    local job = ("%s run -n %%d spec/work/run_stops.lua sum &\n"):format(runs.program)
    local text = runs.output(job:format(2) .. job:format(3) .. "wait")
    for rank = 0, 2 do
      assert.truthy(text:find(("rank %d of 3: sum 6"):format(rank), 1, true), text)
    end
    assert.truthy(text:find("rank 1 of 2: sum 3", 1, true), text)
  end)
end)
