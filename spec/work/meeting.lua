--- What rank threads of rendezvous_spec run: each applies for a place at a meeting, and sums with whoever is there.

local luda = require "luda"
local ffi = require "ffi"

ffi.cdef "int usleep(unsigned int microseconds);"

--- job[i] = { address, session, rank, size, timeout, after (seconds) } of the i-th.
return function(here, job)
  local place = job[here.rank + 1]
  ffi.C.usleep((place.after or 0) * 1e6)
  local ok, comm = pcall(luda.dist.connect, { address = place.address, session = place.session, rank = place.rank,
    size = place.size, timeout = place.timeout or 20 })
  if not ok then
    return { code = comm.code, message = comm.message }
  end
  return luda.scope(function()
    local sum = comm:all_reduce(luda.full({ 2 }, comm.rank + 1), "sum"):totable()
    comm:close()
    return { sum = sum }
  end)
end
