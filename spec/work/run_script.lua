--- What `luda run` starts in run_spec: the first argument says what this rank does.

local luda = require "luda"
local ffi = require "ffi"

ffi.cdef "int kill(int process, int number); int getpid(void); int sleep(unsigned seconds); int usleep(unsigned us);"

local comm = luda.dist.init { timeout = 20 }
local what, rank = arg[1], tonumber(arg[2])

if what == "sum" then
  local sum = comm:all_reduce(luda.full({ 3 }, comm.rank + 1), "sum")
  print(("rank %d of %d: sum %g, %s"):format(comm.rank, comm.size, sum[1]:item(), comm.transport))
elseif what == "exit" then
  comm:barrier()
  if comm.rank == rank then
    os.exit(7)
  end
  ffi.C.sleep(60)
elseif what == "late" then -- lost to the others well before it ends
  if comm.rank == rank then
    comm:close()
    ffi.C.usleep(400000)
    os.exit(7)
  end
  comm:barrier()
elseif what == "killed" then
  local _, err = pcall(function()
    comm:barrier()
    if comm.rank == rank then
      ffi.C.kill(ffi.C.getpid(), 9)
    end
    comm:all_reduce(luda.ones(4), "sum")
  end)
  print(("survivor %d: %s names %s"):format(comm.rank, err.code, table.concat(err.culprits, ",")))
elseif what == "wait" then
  comm:barrier()
  local file = assert(io.open(("%s.%d"):format(arg[2], comm.rank), "w"))
  file:write(tostring(ffi.C.getpid()))
  file:close()
  ffi.C.sleep(60)
elseif what == "differ" then
  assert(not pcall(comm.all_reduce, comm, luda.ones(comm.rank + 1), "sum"))
end
