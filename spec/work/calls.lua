--- Tasks of ranks about the flight record and the failure log: job.what names one of these.

local luda = require "luda"
local lib = require "luda.ffi"
local memory = require "luda.memory"
local processes = require "spec.processes"

local ffi, C = lib.ffi, lib.C

local tasks = {}

--- The states that the row of one call goes through while rank 0 looks at it; the other ranks come later.
function tasks.states(comm)
  local x, seen = luda.full({ 16777216 }, comm.rank + 1), {}
  comm:barrier()
  if comm.rank ~= 0 then
    processes.sleep(0.2)
    comm:all_reduce(x, "sum")
  else
    local settings = ffi.new("luda_comm_options", { size = ffi.sizeof("luda_comm_options"), site = "here.lua:1" })
    local work = ffi.new("luda_work *[1]")
    lib.check(C.luda_comm_start(comm.pointer, C.LUDA_CALL_ALL_REDUCE, memory.pointer(x), C.LUDA_REDUCE_SUM, 0, 0, settings, work))
    repeat
      local rows = comm:flight_record()
      local row = rows[#rows]
      if row.op == "all_reduce" and row.state ~= (seen[#seen] or {}).state then
        seen[#seen + 1] = row
      end
    until C.luda_work_done(work[0]) ~= 0 and #seen > 0 and seen[#seen].state == "done"
    C.luda_work_release(work[0])
  end
  return seen
end

--- A call that ranks disagree about; what the error says, and the record's last row.
function tasks.mismatch(comm)
  comm:barrier()
  comm:broadcast(luda.ones(2), 0)
  local fine, problem = pcall(comm.all_reduce, comm, luda.ones(comm.rank + 1), "sum")
  local rows = comm:flight_record()
  comm:barrier()
  return { fine = fine, code = problem.code, message = tostring(problem), row = rows[#rows] }
end

--- Rank 2 broadcasts before it reduces, the others after it.
function tasks.wrong_order(comm)
  local x, seen = luda.full({ 2 }, comm.rank + 1), { codes = {}, culprits = {}, messages = {} }
  local names = comm.rank == 2 and { "broadcast", "all_reduce" } or { "all_reduce", "broadcast" }
  for i, name in ipairs(names) do
    local _, problem = pcall(comm[name], comm, x, name == "broadcast" and 0 or "sum")
    seen.codes[i], seen.culprits[i], seen.messages[i] = problem.code, problem.culprits, tostring(problem)
  end
  seen.sum = comm:all_reduce(x, "sum"):totable()
  return seen
end

--- Only rank 1 has the tensors.
function tasks.unknown(comm)
  local mine = comm.rank == 1
  local pieces = comm:scatter(mine and luda.tensor({ 1, 2, 3, 4, 5, 6 }, { dtype = "i16" }) or nil, 1)
  local told = comm:broadcast(mine and luda.tensor { 1, -2, 3 } or nil, 1)
  return { pieces = pieces:totable(), dtype = pieces.dtype, told = told:totable() }
end

return function(comm, job)
  return tasks[job.what](comm)
end
