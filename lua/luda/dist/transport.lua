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

--- What C gets. It points into the secret: nothing may be allocated between this and the call.
---@param options {timeout: number?, secret: string?, encrypt: boolean?, connections: integer?}
function M.settings(op, options)
  local settings, secret = ffi.new("luda_comm_options"), options.secret
  if secret ~= nil and type(secret) ~= "string" then
    errors.raise("invalid", "%s: secret must be a string, not a %s", op, type(secret))
  end
  settings.size, settings.timeout = ffi.sizeof(settings), args.number(op, "timeout", options.timeout or 0)
  settings.encrypt = options.encrypt and 1 or 0
  if options.connections then
    settings.connections = args.integer(op, "connections", options.connections)
    if settings.connections < 1 then -- 0 would be C's default
      errors.raise("invalid", "%s: %d connections; 1 to 64 are possible", op, settings.connections)
    end
  end
  if secret then
    settings.secret, settings.secret_bytes = secret, #secret
  end
  return settings
end

--- This process's rank over a transport that knows who is who, or is told.
---@param name string
---@param place {address: string?, session: string?, rank: integer?, size: integer?}
---@param options {timeout: number?, secret: string?, encrypt: boolean?}
---@return luda.Comm
function M.open(name, place, options)
  local out = ffi.new("luda_comm *[1]")
  lib.check(C.luda_comm_open(name, place.address, place.session, place.rank or -1, place.size or 0,
    M.settings("connect", options), out))
  return Comm(out[0], place)
end

return M
