--- What the specs of the launcher share: running commands, waiting for things, counting what a run leaves behind.

local ffi = require "ffi"
local folder = require "luda.folder"

ffi.cdef "int usleep(unsigned microseconds);"

local M = { program = (os.getenv("LUDA_BUILD") or "build") .. "/luda" }

local marks = 0

--- Everything that shell commands print, and the exit status of the last.
function M.output(command)
  local pipe = assert(io.popen(("{ %s\n} 2>&1; echo status $?"):format(command)))
  local text = pipe:read("*a")
  pipe:close()
  return text, tonumber(text:match("status (%d+)\n$"))
end

--- A word that no other process has in its environment.
function M.mark()
  marks = marks + 1
  return ("%s-%d-%d"):format(os.tmpname():match("[^/]*$"), os.time(), marks)
end

--- Processes whose environment holds the word.
function M.count(mark)
  local count = 0
  for _, name in ipairs(folder.list("/proc")) do
    local file = name:match("^%d+$") and io.open(("/proc/%s/environ"):format(name), "rb")
    if file then
      local text = file:read("*a") or ""
      file:close()
      count = count + (text:find(mark, 1, true) and 1 or 0)
    end
  end
  return count
end

--- Asks every 20 ms; what the question answered in the end.
function M.wait_for(question, seconds)
  local tries = math.ceil((seconds or 30) / 0.02)
  for _ = 1, tries do
    local answer = question()
    if answer then
      return answer
    end
    ffi.C.usleep(20000)
  end
  return false
end

--- Shell: waits until all the files hold something.
M.SHELL = [[
await() {
  for i in $(seq 1500); do
    all=1; for f in "$@"; do [ -s "$f" ] || all=0; done
    [ $all = 1 ] && return
    sleep 0.02
  done
}
]]

return M
