--- What rank threads of registering_spec run: job.task names one of these. Thread r is peer job.peers[r + 1].

local ffi = require "ffi"
local luda = require "luda"
local dist = luda.dist

ffi.cdef "int usleep(unsigned);"

local tasks = {}

--- Registers; what it said, when that failed.
local function attempt(comm, job, more)
  local options = {}
  for _, list in ipairs { job.config, more or {} } do
    for name, value in pairs(list) do
      options[name] = value
    end
  end
  local started = os.time()
  local fine, result = pcall(dist.register, { peer = job.peers[comm.rank + 1], config = dist.Config(options) })
  if fine then
    return result
  end
  return { kind = result.detail.kind, inner = result.detail.inner, took = os.time() - started }
end

--- Ranks above 0 wait for another node, or for an orchestrator; rank 0 resets.
function tasks.reset(comm, job)
  comm:barrier()
  if comm.rank == 0 then
    ffi.C.usleep(500000)
    dist.reset()
    return {}
  end
  return attempt(comm, job)
end

--- All are told why registering failed, and may try again at once.
function tasks.again(comm, job)
  local seen = { first = attempt(comm, job).inner, second = attempt(comm, job).inner }
  local peer = attempt(comm, job, { num_nodes = 1, timeout = 10 })
  seen.after = peer:all_reduce(luda.ones(1), "sum"):item()
  peer:finish()
  return seen
end

return function(comm, job)
  return tasks[job.task](comm, job)
end
