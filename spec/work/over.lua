--- Rank threads over a transport: in process, or joined as ranks in processes of their own are, with and without memory in
-- common.

local luda = require "luda"
local ffi = require "ffi"

ffi.cdef "int setenv(const char *name, const char *value, int overwrite); int unsetenv(const char *name);"

local M = {}

--- Runs the work on `count` rank threads; over "tcp" and "lane" they meet at a rendezvous.
function M.run(transport, count, work, job)
  job.meeting = nil
  if transport == "local" then
    return luda.dist.spawn(count, work, job, { timeout = 30 })
  end
  local meeting = luda.dist.rendezvous { size = count }
  job.meeting = { address = meeting.address, session = meeting.session }
  if transport == "tcp" then
    ffi.C.setenv("LUDA_LANE", "off", 1)
  end
  local ok, results = pcall(luda.dist.spawn, count, work, job, { timeout = 30 })
  ffi.C.unsetenv "LUDA_LANE"
  meeting:close()
  return ok and results or error(results, 0)
end

--- In the work: the communicator to use.
function M.comm(comm, job)
  local meeting = job.meeting
  return meeting and luda.dist.connect { address = meeting.address, session = meeting.session, rank = comm.rank,
    size = comm.size, timeout = 30 } or comm
end

return M
