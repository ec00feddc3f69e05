--- What the specs of stopping, restarting and orphans start under `luda run`: the first argument says what a rank does, the
-- second is where it writes a file once it is under way: PLACE.RANK holds its process number.

local luda = require "luda"
local ffi = require "ffi"

ffi.cdef "int getpid(void); int kill(int process, int number); int usleep(unsigned us); int sleep(unsigned seconds);"

local what, place = arg[1], arg[2]
local number = os.getenv("LUDA_RANK")

local function under_way()
  local file = assert(io.open(("%s.%s"):format(place, number), "w"))
  file:write(tostring(ffi.C.getpid()))
  file:close()
end

if what == "children" then -- of all kinds: a wrapper's, one in a session of its own, one that outlives its parent
  os.execute("sleep 600 & setsid sleep 600 & sh -c 'sleep 600; true' & (sleep 600 &)")
  under_way()
  ffi.C.sleep(600)
elseif what == "steps" then
  local comm = luda.dist.init {}
  number = comm.rank
  luda.stop_requested(comm)
  for step = 1, 5000 do
    if step == 3 then
      under_way()
    end
    ffi.C.usleep(1000 + 3000 * ((comm.rank + step) % comm.size)) -- the ranks see the signal in different steps
    if luda.stop_requested(comm) then
      print(("rank %d stops at step %d"):format(comm.rank, step))
      break
    end
  end
  comm:close()
elseif what == "saving" then -- takes a while to end
  luda.stop_requested()
  under_way()
  while not luda.stop_requested() do
    ffi.C.usleep(1000)
  end
  ffi.C.usleep(600000)
  print(("rank %s has saved"):format(number))
elseif what == "deaf" then
  luda.stop_requested()
  under_way()
  while true do
    ffi.C.usleep(1000)
  end
elseif what == "fail" then -- rank 1, as often as the third argument says; the others lose it
  local comm, restart = luda.dist.init {}, tonumber(os.getenv("LUDA_RESTART"))
  print(("rank %d of %d, node %d, restart %d"):format(comm.rank, comm.size, comm.node, restart))
  comm:barrier()
  if comm.rank == tonumber(arg[4] or 1) and restart < tonumber(arg[3]) then
    ffi.C.kill(ffi.C.getpid(), 9)
  end
  comm:barrier()
  comm:close()
elseif what == "sum" then
  local comm = luda.dist.init {}
  local sum = comm:all_reduce(luda.full({ 3 }, comm.rank + 1), "sum")
  print(("rank %d of %d: sum %g, local rank %d, node %d"):format(comm.rank, comm.size, sum[1]:item(), comm.local_rank, comm.node))
  comm:close()
end
