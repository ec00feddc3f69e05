--- What rank threads of spawn_spec run.

local luda = require "luda"

local tasks = {}

function tasks.values(comm)
  local matrix = luda.arange(6):reshape(2, 3) * (comm.rank + 1)
  return {
    nested = { deep = { matrix:t(), luda.tensor({ 1, 0 }, { dtype = "bool" }) } }, view = matrix:select(1, 2),
    empty = luda.zeros({ 0, 4 }, { dtype = "i64" }), [3] = false, text = "a\0b", number = 0.1,
    tracked = luda.ones(2):requires_grad_(),
  }
end

function tasks.nothing() end

function tasks.denied(comm)
  if comm.rank == 0 then
    return false
  end
end

function tasks.plain(comm, job)
  if comm.rank == job.rank then
    error(job.value, 0)
  end
  comm:barrier()
end

function tasks.two(comm) -- rank 2 fails by itself, the others because of it
  if comm.rank == 2 then
    luda.ones(2, 3):reshape(7)
  end
  comm:barrier()
end

function tasks.unsendable()
  return { callback = print }
end

function tasks.mismatch(comm)
  comm:all_reduce(luda.ones(comm.rank + 1), "sum")
end

function tasks.slow(comm)
  if comm.rank == 1 then
    require("ffi").cdef "int usleep(unsigned us);"
    require("ffi").C.usleep(1500000)
  end
  comm:barrier()
end

return function(comm, job)
  return tasks[job.task](comm, job)
end
