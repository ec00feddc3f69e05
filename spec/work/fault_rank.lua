--- One rank of spec.processes: joins, does what the job says, and writes down what it saw.
-- usage: luda fault_rank.lua FOLDER RANK

local luda = require "luda"
local lib = require "luda.ffi"
local folder = require "luda.folder"
local json = require "luda.json"
local memory = require "luda.memory"
local processes = require "spec.processes"

local ffi, C, dist, now = lib.ffi, lib.C, luda.dist, processes.now

ffi.cdef [[
  int getpid(void);
  int setsockopt(int socket, int level, int name, const void *value, unsigned size);
]]
processes.die_with_parent()

local dir, rank = arg[1], tonumber(arg[2])
local file = assert(io.open(dir .. "/job.json"))
local job = json.decode(file:read("*a"))
file:close()
local diary = assert(io.open(("%s/events.%d"):format(dir, rank), "w"))

local function note(event, row)
  row = row or {}
  row.event, row.at = event, now()
  diary:write(json.encode(row), "\n")
  diary:flush()
end

--- Numbers of open files, and of threads.
local function open_things()
  return #folder.list("/proc/self/fd"), #folder.list("/proc/self/task")
end

local function is_victim(r)
  for _, victim in ipairs(job.victims or {}) do
    if victim == r then
      return true
    end
  end
  return false
end

local function join(home, as, size)
  return dist.connect { address = home.address, session = home.session, rank = as, size = size, timeout = 20 }
end

local function die()
  note("leaving")
  ffi.C.kill(ffi.C.getpid(), processes.KILL)
end

local armed = not job.patient

local function look_whether_armed()
  local flag = not armed and io.open(dir .. "/armed")
  if flag then
    flag:close()
    armed = true
    note("armed")
  end
end

--- Options of a call. A patient job has its short deadline once the spec has armed it, just before something happens.
local function settings()
  look_whether_armed()
  return { timeout = armed and job.deadline or 60, algorithm = job.algorithm }
end

--- Sums over all ranks until a call fails; the failure.
local function sum_until_failure(comm, x, limit)
  local expected = comm.size * (comm.size + 1) / 2
  for call = 1, limit or math.huge do
    local started = now()
    local fine, problem = pcall(function()
      luda.scope(function()
        local y = comm:all_reduce(x, "sum", settings())
        assert(y:min():item() == expected and y:max():item() == expected, "a wrong sum")
      end)
    end)
    if not fine then
      return problem, now() - started, call
    end
    processes.sleep(job.pause or 0)
  end
end

--- Three calls at once, until the first of them fails: the status words of all three.
local function queue_until_failure(comm, x)
  local options = ffi.new("luda_comm_options", { size = ffi.sizeof("luda_comm_options") })
  local words
  repeat
    local works = ffi.new("luda_work *[3]")
    options.timeout = settings().timeout
    words = {}
    for i = 0, 2 do
      lib.check(C.luda_comm_start(comm.pointer, C.LUDA_CALL_ALL_REDUCE, memory.pointer(x), C.LUDA_REDUCE_SUM, 0, 0, options,
        works + i))
    end
    for i = 0, 2 do
      words[i + 1] = ffi.string(C.luda_status_word(C.luda_work_wait(works[i], 60, nil)))
      C.luda_work_release(works[i])
    end
  until words[1] ~= "ok" or words[2] ~= "ok" or words[3] ~= "ok"
  return words
end

--- Share of a core that this process uses while its rank waits for nothing.
local function idle_share()
  local clock, started = os.clock(), now()
  processes.sleep(0.1)
  return (os.clock() - clock) / (now() - started)
end

--- The survivors meet again, in their order, and sum up.
local function meet_again()
  local as, count = 0, 0
  for r = 0, job.size - 1 do
    if not is_victim(r) then
      as, count = r < rank and as + 1 or as, count + 1
    end
  end
  local comm = join(job.homes[2], as, count)
  local sum = comm:all_reduce(luda.full({ 5 }, rank + 1), "sum"):totable()
  comm:barrier()
  comm:close()
  return sum
end

local function note_failure(problem, seconds, call, words)
  note("failed", { code = problem.code, culprits = problem.culprits, message = tostring(problem), seconds = seconds, call = call,
    words = words })
end

local function fail(comm)
  local x = luda.full({ job.count or 1000 }, rank + 1)
  local words = job.queued and queue_until_failure(comm, x) or nil
  local problem, seconds, call = sum_until_failure(comm, x)
  note_failure(problem, seconds, call, words)
end

local acts = {}

--- What every rank does that nothing happens to. One that is lost right after the barrier may fail it.
function acts.loop(comm)
  local fine, problem = job.cold, nil
  if not fine then
    fine, problem = pcall(comm.barrier, comm)
  end
  note("ready")
  while job.hold and not armed do
    processes.sleep(0.005)
    look_whether_armed()
  end
  if fine then
    fail(comm)
  else
    note_failure(problem, 0, 0)
  end
end

function acts.die_at_once()
  die()
end

function acts.die_between(comm)
  comm:barrier()
  note("ready")
  sum_until_failure(comm, luda.full({ job.count or 1000 }, rank + 1), 2)
  die()
end

--- Reset connections instead of closed ones.
function acts.die_with_reset(comm)
  comm:barrier()
  note("ready")
  for _, fd in ipairs(folder.list("/proc/self/fd")) do
    ffi.C.setsockopt(tonumber(fd), 1, 13, ffi.new("int[2]", 1, 0), 8) -- SO_LINGER of zero seconds
  end
  die()
end

function acts.exit(comm)
  comm:barrier()
  note("ready")
  processes.sleep(0.1)
  note("leaving")
  os.exit(0)
end

function acts.close(comm)
  comm:barrier()
  note("ready")
  note("leaving")
  comm:close()
  processes.sleep(0.5)
end

--- The main thread computes, the network thread answers.
function acts.busy(comm)
  comm:barrier()
  note("ready")
  local ends = now() + job.busy
  repeat until now() > ends
  fail(comm)
end

local function go_on(comm, before)
  local row = { idle = idle_share() }
  if job.usable then -- by all ranks, also the one that was named
    row.sum = comm:all_reduce(luda.full({ 5 }, rank + 1), "sum", { timeout = 10 }):totable()
  end
  local started = now()
  comm:close()
  row.close_seconds = now() - started
  if job.survivors then
    row.sum = meet_again()
  end
  local ends = now() + 3
  repeat
    processes.sleep(0.02)
    row.files, row.threads = open_things()
    row.files, row.threads = row.files - before.files, row.threads - before.threads
  until row.files + row.threads <= 0 or now() > ends
  note("after", row)
end

local function main()
  dist.rendezvous({ size = 2 }):close() -- starts the network thread
  local before = {}
  before.files, before.threads = open_things()
  local comm = join(job.homes[1], rank, job.size)
  note("joined", { pid = ffi.C.getpid() })
  if job.task then
    note("done", { result = require("spec.work." .. job.task)(comm, job) })
    comm:close()
  else
    local act = is_victim(rank) and acts[job.act] or acts.loop
    act(comm)
    if job.usable or not is_victim(rank) then
      go_on(comm, before)
    end
  end
end

main()
