--- A save streams: it needs no memory that grows with what is saved; one in the background one copy, which is kept.

require "spec.helper"
local program = (os.getenv("LUDA_BUILD") or "build") .. "/luda"

--- MiB by which the peak of a process grew in three saves of 128 MiB in 32 tensors.
local SCRIPT = [[
local luda = require "luda"
local function peak()
  for line in io.lines("/proc/self/status") do
    local kib = line:match("^VmHWM:%%s*(%%d+)")
    if kib then return tonumber(kib) / 1024 end
  end
end
local path, async = "%s", %s
local list = {}
for i = 1, 32 do list[i] = luda.full({ 2 ^ 20 }, i) end
luda.record.save(path, { state = { 1 } }, { async = async })
luda.record.wait()
local before = peak()
for _ = 1, 3 do
  luda.record.save(path, { state = list }, { async = async })
  luda.record.wait()
end
print(peak() - before)]]

describe("memory of a save", function()
  local text = os.getenv("LD_PRELOAD") or ""
  if not io.open("/proc/self/status") or text:find("asan", 1, true) then
    pending("is not measured: there is no /proc, or AddressSanitizer holds memory back", function() end)
    return
  end

  --- The growth that a process of its own prints.
  local function growth(async)
    local name = os.tmpname()
    local file = assert(io.open(name, "w"))
    file:write(SCRIPT:format(name, async))
    file:close()
    local pipe = io.popen(("%s %s"):format(program, name))
    local said = pipe:read("*a")
    pipe:close()
    os.remove(name)
    os.remove(name .. ".safetensors")
    return assert(tonumber(said), said)
  end

  it("is a few buffers, or one copy in the background", function()
    assert.is_true(growth("false") < 8)
    local copy = growth("true")
    assert.is_true(copy > 120 and copy < 144, copy)
  end)
end)
