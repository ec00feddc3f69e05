--- Transports by name: an installed MPI, and what libraries of others bring.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local Comm = require "luda.dist.comm"

local ffi, C = lib.ffi, lib.C

local M = {}

--- Opens a library of transports (see luda_transport.h); it stays open.
---@param path string
function M.load_transport(path)
  if type(path) ~= "string" then
    errors.raise("invalid", "load_transport: the path of a library is needed, not %s", args.describe(path))
  end
  lib.check(C.luda_transport_load(path))
end

--- This process's rank over a transport that knows who is who, or is told.
---@param name string
---@param place {address: string?, session: string?, rank: integer?, size: integer?}
---@return luda.Comm
function M.open(name, place, timeout)
  local settings, out = ffi.new("luda_comm_options"), ffi.new("luda_comm *[1]")
  settings.size, settings.timeout = ffi.sizeof(settings), timeout or 0
  lib.check(C.luda_comm_open(name, place.address, place.session, place.rank or -1, place.size or 0, settings, out))
  return Comm(out[0], place)
end

return M
