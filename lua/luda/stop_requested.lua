--- Stopping at a safe moment.

local host = require "luda.host"
local lib = require "luda.ffi"
local create = require "luda.create"
local scope = require "luda.scope"

local watched = false

local function any_rank(comm, own)
  return comm:all_reduce(create.tensor({ own and 1 or 0 }, { dtype = "u8" }), "max"):item() > 0
end

--- True once SIGTERM, SIGINT or SIGHUP has come; the first call begins to watch for them. With a communicator all its ranks
--- ask at the same place, and all get the same answer: true once a signal has come to any of them.
---@param comm? luda.Comm
---@return boolean
return function(comm)
  if not watched then
    lib.check(host.C.luda_stop_watch())
    watched = true
  end
  local own = host.C.luda_stop_requested() > 0
  if not comm or comm.size == 1 then
    return own
  end
  return scope.scope(any_rank, comm, own)
end
