--- The launcher: output, exit status, the first failure, a killed rank, a killed launcher.

local program = (os.getenv("LUDA_BUILD") or "build") .. "/luda"
local SCRIPT = "spec/work/run_script.lua"

--- Everything that a command prints, and its exit status.
local function output(command)
  local pipe = assert(io.popen(command .. " 2>&1; echo status $?"))
  local text = pipe:read("*a")
  pipe:close()
  return text, tonumber(text:match("status (%d+)\n$"))
end

local function run(options, arguments)
  return output(("%s run %s %s %s"):format(program, options, SCRIPT, arguments))
end

describe("luda run", function()
  for _, kind in ipairs { { "", "tcp" }, { "--threads", "local" } } do
    it(("joins ranks (%s)"):format(kind[2]), function()
      local text, status = run("-n 3 " .. kind[1], "sum")
      assert.equal(0, status)
      for rank = 0, 2 do
        assert.truthy(text:find(("rank %d of 3: sum 6, %s"):format(rank, kind[2]), 1, true), text)
      end
    end)
  end

  it("puts ranks in front of lines", function()
    assert.truthy(run("-n 2", "sum"):find("%[1%] rank 1 of 2"))
    assert.is_nil(run("-n 2 --no-prefix", "sum"):find("[1]", 1, true))
  end)

  it("stops the others at the first failure and returns its status", function()
    local started = os.time()
    local text, status = run("-n 3", "exit 1")
    assert.equal(7, status, text)
    assert.truthy(text:find("rank 1 ended with status 7; the others were stopped", 1, true), text)
    assert.is_true(os.time() - started < 30)
  end)

  it("names the rank that failed, not one that was left alone and ended sooner", function()
    local text, status = run("-n 3", "late 2")
    assert.equal(7, status, text)
    assert.truthy(text:find("rank 2 ended with status 7; the others were stopped", 1, true), text)
  end)

  it("lets survivors of a killed rank name it", function()
    local text, status = run("-n 3 --grace 10", "killed 1")
    assert.equal(137, status, text)
    assert.truthy(text:find("survivor 0: peer names 1", 1, true), text)
    assert.truthy(text:find("survivor 2: peer names 1", 1, true), text)
    assert.truthy(text:find("rank 1 was killed by signal 9", 1, true), text)
  end)

  it("leaves no rank behind when it is killed itself", function()
    local mark = os.tmpname()
    local text = output(([[
      %s run -n 2 %s wait %s & launcher=$!
      for i in $(seq 200); do [ -s %s.0 ] && [ -s %s.1 ] && break; sleep 0.1; done
      kill -9 $launcher
      for i in $(seq 50); do
        left=0; for rank in 0 1; do kill -0 $(cat %s.$rank) 2>/dev/null && left=1; done
        [ $left = 0 ] && break; sleep 0.1
      done
      echo left $left]]):format(program, SCRIPT, mark, mark, mark, mark))
    assert.truthy(text:find("left 0", 1, true), text)
    os.execute(("rm -f %s %s.0 %s.1"):format(mark, mark, mark))
  end)

  it("explains itself", function()
    local text, status = output(program .. " run -n nine " .. SCRIPT)
    assert.equal(2, status)
    assert.truthy(text:find("ranks must be a positive number, not 'nine'", 1, true), text)
    text, status = output(program .. " run -n 2 nothing.lua")
    assert.equal(2, status)
    assert.truthy(text:find("there is no script nothing.lua", 1, true), text)
  end)
end)

describe("luda", function()
  it("runs code and scripts, and reports the user's line", function()
    assert.truthy(output(program .. " -e 'print(1 + 1)'"):find("^2\n"))
    local text, status = output(program .. [[ -e 'local luda = require "luda"; luda.ones(2, 3):matmul(luda.ones(2, 3))']])
    assert.equal(1, status)
    assert.truthy(text:find("(command line):1: matmul: shapes [2, 3] and [2, 3] do not fit", 1, true), text)
    assert.truthy(output("echo 'print(select(\"#\", ...), 6 * 7)' | " .. program):find("^0\t42\n"))
    text, status = output(program .. " nothing.lua")
    assert.equal(1, status)
    assert.truthy(text:find("cannot open nothing.lua", 1, true), text)
  end)
end)
