--- Rank threads over a transport: in process, or over TCP as ranks in processes of their own are.

local luda = require "luda"

local M = {}

--- Runs the work on `count` rank threads; over "tcp" they meet at a rendezvous.
function M.run(transport, count, work, job)
  job.meeting = nil
  if transport ~= "tcp" then
    return luda.dist.spawn(count, work, job, { timeout = 30 })
  end
  local meeting = luda.dist.rendezvous { size = count }
  job.meeting = { address = meeting.address, session = meeting.session }
  local results = luda.dist.spawn(count, work, job, { timeout = 30 })
  meeting:close()
  return results
end

--- In the work: the communicator to use.
function M.comm(comm, job)
  local meeting = job.meeting
  return meeting and luda.dist.connect { address = meeting.address, session = meeting.session, rank = comm.rank,
    size = comm.size, timeout = 30 } or comm
end

return M
