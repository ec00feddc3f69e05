--- Killed before every system call of a save, and half-way through every write: the newest complete record is the old one
-- or the new one, to the byte.

local luda = require "luda"
local folder = require "luda.folder"
local helper = require "spec.helper"

local build = os.getenv("LUDA_BUILD") or "build"
local preload = ((os.getenv("LD_PRELOAD") or "") .. " " .. build .. "/spec/libkill_at.so"):match("^%s*(.*)$")

local dir

local function read(path)
  local file = io.open(path, "rb")
  local bytes = file and file:read "*a"
  if file then
    file:close()
  end
  return bytes
end

--- Runs the saver with settings of the preloaded library; whether it lived.
local function run(what, settings)
  local command = ("LD_PRELOAD='%s' %s %s/luda spec/work/killed_save.lua '%s' '%s/records'"):format(preload, settings,
    build, what, dir)
  local status = os.execute(("exec 2>/dev/null; %s >'%s/out' 2>&1"):format(command, dir))
  assert.equal("", (read(dir .. "/out"):gsub("^Killed\n$", ""))) -- the shell says so
  return status == 0
end

local function begin(old)
  os.execute(("rm -rf '%s/records' && mkdir '%s/records'"):format(dir, dir))
  if old then
    local file = assert(io.open(dir .. "/records/run.safetensors", "wb"))
    file:write(old)
    file:close()
  end
end

--- The calls of one save, in order: names by number.
local function calls_of(what, number, old)
  begin(old)
  os.remove(dir .. "/log")
  assert.is_true(run(what, ("KILL_LOG='%s/log'"):format(dir)))
  local calls = {}
  for line in io.lines(dir .. "/log") do
    local save, call, name = line:match("^(%d+)%.(%d+) (%a+)$")
    if tonumber(save) == number then
      assert.equal(#calls + 1, tonumber(call))
      calls[#calls + 1] = name
    end
  end
  return calls
end

local function place_of(calls, name)
  for i, call in ipairs(calls) do
    if call == name then
      return i
    end
  end
end

describe("a save that is killed", function()
  before_each(function()
    dir = helper.new_folder()
    helper.before()
  end)
  after_each(helper.after)

  for _, what in ipairs { "plain", "async" } do
    it(what .. ", leaves the old file or the new one, whichever call it dies at", function()
      luda.manual_seed(1)
      luda.record.save(dir .. "/old", { state = { step = 1, big = luda.randn(400000) } })
      local old = read(dir .. "/old.safetensors")
      local calls = calls_of(what, 1, old)
      local new = read(dir .. "/records/run.safetensors")
      assert.not_equal(old, new)
      -- everything is flushed before the file gets its name, and the folder after that
      local rename = place_of(calls, "rename")
      assert.equal("open flock fchmod", table.concat(calls, " ", 1, 3))
      assert.equal("fsync rename open fsync close close", table.concat(calls, " ", rename - 1))
      local writes = 0
      for place, name in ipairs(calls) do
        for _, half in ipairs(name == "pwrite" and { "", "h" } or { "" }) do
          begin(old)
          assert.is_false(run(what, ("KILL_AT=1.%d%s"):format(place, half)))
          assert.is_true(read(dir .. "/records/run.safetensors") == (place <= rename and old or new), name .. place .. half)
          local state = luda.record.load(dir .. "/records/run"):restore {}
          assert.equal(place <= rename and 1 or 2, state.step)
        end
        writes = writes + (name == "pwrite" and 1 or 0)
      end
      assert.is_true(writes >= 4)
      -- the temporary files of the dead go with the next save of that name
      begin(old)
      run(what, ("KILL_AT=1.%d"):format(rename))
      assert.equal(2, #io.popen(("ls -A '%s/records'"):format(dir)):read("*a"):gsub("[^\n]", ""))
      assert.is_true(run(what, ""))
      assert.equal("run.safetensors\n", io.popen(("ls -A '%s/records'"):format(dir)):read("*a"))
    end)
  end

  for _, what in ipairs { "manager", "async manager" } do
    it("with a " .. what .. " that keeps one record, leaves the newest that was complete", function()
      local calls = calls_of(what, 3)
      local whole = { [3] = read(dir .. "/records/step-3.safetensors") }
      assert.same({ "step-3.safetensors" }, folder.list(dir .. "/records"))
      local rename = place_of(calls, "rename")
      for place in ipairs(calls) do
        begin()
        assert.is_false(run(what, "KILL_AT=3." .. place))
        local newest = luda.record.Manager({ dir = dir .. "/records" }):newest()
        local step = place <= rename and 2 or 3
        assert.equal(("%s/records/step-%d.safetensors"):format(dir, step), newest)
        whole[step] = whole[step] or read(newest)
        assert.is_true(read(newest) == whole[step])
      end
    end)
  end
end)
