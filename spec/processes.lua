--- Groups of rank processes for specs of faults: each runs spec/work/fault_rank.lua and writes down what happens to it.
-- Moments are seconds of the monotonic clock, which all processes of a host share.

local ffi = require "ffi"
local helper = require "spec.helper"
local json = require "luda.json"
local luda = require "luda"

ffi.cdef [[
  int kill(int process, int number);
  int waitpid(int process, int *status, int options);
  int usleep(unsigned int microseconds);
  int posix_spawnp(int *process, const char *file, const void *actions, const void *attributes, const char *const *arguments,
    const char *const *environment);
  extern char **environ;
  int clock_gettime(int clock, struct luda_spec_time *time);
  struct luda_spec_time { long seconds, nanoseconds; };
  int prctl(int option, unsigned long value, unsigned long a, unsigned long b, unsigned long c);
]]

local M = { KILL = 9, STOP = 19, CONTINUE = 18 }

local PROGRAM = (os.getenv("LUDA_BUILD") or "build") .. "/luda"
local time = ffi.new("struct luda_spec_time")

--- Seconds of the monotonic clock.
function M.now()
  ffi.C.clock_gettime(1, time)
  return tonumber(time.seconds) + tonumber(time.nanoseconds) * 1e-9
end

function M.sleep(seconds)
  ffi.C.usleep(math.floor(seconds * 1e6))
end

--- This process is killed when the one that started it ends.
function M.die_with_parent()
  ffi.C.prctl(1, M.KILL, 0, 0, 0)
end

--- Starts a shell command in the background; it should `exec`.
---@return integer pid
function M.spawn(command)
  local arguments = ffi.new("const char *[4]", { "sh", "-c", command })
  local pid = ffi.new("int[1]")
  assert(ffi.C.posix_spawnp(pid, "sh", nil, nil, arguments, ffi.cast("const char *const *", ffi.C.environ)) == 0)
  return pid[0]
end

--- Waits for a process that was started here: its exit status, or minus the signal that ended it; nil when it still runs.
function M.wait(pid, seconds)
  local status, ends = ffi.new("int[1]"), M.now() + seconds
  repeat
    if ffi.C.waitpid(pid, status, 1) == pid then
      local signal = status[0] % 128
      return signal == 0 and math.floor(status[0] / 256) or -signal
    end
    M.sleep(0.005)
  until M.now() > ends
end

--- Prints how long it took until the last rank knew, where scripts/faults.lua asks for it.
function M.measured(fault, seconds)
  if os.getenv "LUDA_FAULTS_MEASURED" then
    io.write(("\nmeasured %s: %.4f s\n"):format(fault, seconds))
  end
end

local Group = {}
Group.__index = Group

local open_groups = {}

--- Starts the ranks of a job. Besides what the ranks read there, `job` may have `prefix` (a command that the ranks' command
-- goes through) and `environment` (set in front of it); `homes` are meetings {address, session}, made here where missing.
---@param job table size = ranks, survivors = ranks of the second meeting
function M.start(job)
  local group = setmetatable({ dir = helper.new_folder(), size = job.size, pids = {}, statuses = {}, homes = {} }, Group)
  if not job.homes then
    job.homes = {}
    for i, size in ipairs { job.size, job.survivors } do
      group.homes[i] = luda.dist.rendezvous { size = size }
      job.homes[i] = { address = group.homes[i].address, session = group.homes[i].session }
    end
  end
  open_groups[#open_groups + 1] = group
  helper.write(group.dir .. "/job.json", json.encode(job))
  for rank = 0, job.size - 1 do
    group.pids[rank] = M.spawn(("export LUDA_THREADS=1 %s; exec %s %s spec/work/fault_rank.lua %s %d >%s/out.%d 2>&1"):format(
      job.environment or "", job.prefix or "", PROGRAM, group.dir, rank, group.dir, rank))
  end
  return group
end

--- What a rank has written down so far, oldest first.
function Group:events(rank)
  local rows = {}
  local file = io.open(("%s/events.%d"):format(self.dir, rank))
  if file then
    for line in file:read("*a"):gmatch("([^\n]*)\n") do -- the last one may still be growing
      rows[#rows + 1] = json.decode(line)
    end
    file:close()
  end
  return rows
end

--- Everything a rank printed; for messages of failed specs.
function Group:output(rank)
  return helper.read(("%s/out.%d"):format(self.dir, rank))
end

--- Waits for an event of a rank and returns it.
function Group:expect(rank, name, seconds)
  local ends = M.now() + (seconds or 20)
  repeat
    for _, row in ipairs(self:events(rank)) do
      if row.event == name then
        return row
      end
    end
    M.sleep(0.005)
  until M.now() > ends
  error(("rank %d: no event '%s' in %d events; it printed: %s"):format(rank, name, #self:events(rank), self:output(rank)), 2)
end

--- What a rank's task returned.
function Group:result(rank)
  return self:expect(rank, "done").result
end

--- From here on the calls of a patient job have its short deadline, and a job that was told to hold goes on.
---@return number moment
function Group:go()
  helper.write(self.dir .. "/armed", "")
  return M.now()
end

--- The same, and all ranks have heard of it.
function Group:arm()
  self:go()
  for rank = 0, self.size - 1 do
    self:expect(rank, "armed")
  end
end

--- Sends a signal; a rank that is to stop has stopped, with all its threads, when this returns.
function Group:signal(rank, number)
  ffi.C.kill(self.pids[rank], number)
  if number == M.STOP then
    ffi.C.waitpid(self.pids[rank], nil, 2)
  end
  return M.now()
end

--- Whether a shell command succeeds; its output goes nowhere.
function M.works(command)
  return os.execute(command .. " >/dev/null 2>&1") == 0
end

--- The exit status of a rank, as M.wait has it; fails after a while.
function Group:status(rank)
  if not self.statuses[rank] then
    self.statuses[rank] = M.wait(self.pids[rank], 30) or error(("rank %d still runs; it printed: %s"):format(rank,
      self:output(rank)), 2)
  end
  return self.statuses[rank]
end

--- After every test: nothing that was started lives on.
function M.finish()
  for _, group in ipairs(open_groups) do
    for rank, pid in pairs(group.pids) do
      if not group.statuses[rank] then
        ffi.C.kill(pid, M.KILL)
        M.wait(pid, 10)
      end
    end
    for _, home in ipairs(group.homes) do
      home:close()
    end
  end
  open_groups = {}
end

return M
