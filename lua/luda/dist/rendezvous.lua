--- Ranks in processes of their own: the meeting place, and joining it.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local Comm = require "luda.dist.comm"
local transport = require "luda.dist.transport"

local ffi, C = lib.ffi, lib.C

local M = {}

---@class luda.Rendezvous
---@field address string host:port
---@field session string
local Rendezvous = class("luda.Rendezvous")

function Rendezvous:init(pointer)
  self.pointer = ffi.gc(pointer, C.luda_rendezvous_release)
  self.address = ffi.string(C.luda_rendezvous_address(pointer))
  self.session = ffi.string(C.luda_rendezvous_session(pointer))
end

--- Stops serving; ranks that have met go on without it. Twice is harmless.
function Rendezvous:close()
  if self.pointer then
    C.luda_rendezvous_release(ffi.gc(self.pointer, nil))
    self.pointer = nil
  end
end

--- The secret in a file, without the end of its last line.
---@param path string
---@return string
function M.read_secret(path)
  local file, why = io.open(path, "rb")
  local text = file and file:read("*a")
  if not text then
    errors.raise("io", "secret: cannot read %s", why or path)
  end
  file:close()
  return (text:gsub("[\r\n]+$", ""))
end

--- The ranks that have not joined, from 0, of at most 1024; none once all have met.
---@return integer[]
function Rendezvous:missing()
  if not self.pointer then
    errors.raise("closed", "rendezvous: %s was closed", self.address)
  end
  local ranks, list = ffi.new("int32_t[1024]"), {}
  for i = 1, C.luda_rendezvous_missing(self.pointer, ranks, 1024) do
    list[i] = ranks[i - 1]
  end
  return list
end

--- Serves on the network thread until closed. Port 0 takes a free one; see .address. Other than loopback addresses need a
--- secret.
---@param options {size: integer, bind: string?, session: string?, secret: string?}
---@return luda.Rendezvous
function M.rendezvous(options)
  options = args.options("rendezvous", options, { bind = "127.0.0.1:0", session = args.absent, size = args.absent,
    secret = args.absent })
  local out, size = ffi.new("luda_rendezvous *[1]"), args.integer("rendezvous", "size", options.size)
  lib.check(C.luda_rendezvous_new(options.bind, options.session, size, transport.settings("rendezvous", options), out))
  return Rendezvous(out[0])
end

--- Joins a meeting; returns when all ranks have come. encrypt, with a secret, must be the same on all of them. Another
-- transport than "tcp" takes of rank, size, address and session what it needs.
---@param options {address: string, session: string?, rank: integer, size: integer, timeout: number?, transport: string?,
---  secret: string?, encrypt: boolean?}
---@return luda.Comm
function M.connect(options, place)
  options = args.options("connect", options, { address = args.absent, session = args.absent, rank = args.absent,
    size = args.absent, timeout = 300, transport = "tcp", secret = args.absent, encrypt = false })
  if options.transport ~= "tcp" then
    return transport.open(options.transport, options, options)
  elseif type(options.address) ~= "string" then
    errors.raise("invalid", "connect: address must be \"host:port\", not %s", args.describe(options.address))
  end
  local out, rank, size = ffi.new("luda_comm *[1]"), args.integer("connect", "rank", options.rank),
    args.integer("connect", "size", options.size)
  lib.check(C.luda_comm_connect(options.address, options.session, rank, size, transport.settings("connect", options), out))
  return Comm(out[0], place)
end

--- Rank 0 serves at the first address that is free, the others look for it there. One where somebody else listens is left out.
local function meet(place, wanted)
  local meeting = require("luda.dist.environment").meeting(place)
  local server, problem
  for _, address in ipairs(meeting.addresses) do
    local ok, result = true, nil
    if place.rank == 0 then
      ok, result = pcall(M.rendezvous, { size = place.size, bind = address, session = meeting.session,
        secret = wanted.secret })
      server = ok and result
    end
    if ok then
      wanted.address, wanted.session = address, meeting.session
      ok, result = pcall(M.connect, wanted, place)
    end
    if server then
      server:close()
    end
    if ok then
      return result
    end
    problem = result
    local elsewhere = result.code == "peer" or tostring(result):find("another session", 1, true)
    if server or place.rank > 0 and not elsewhere then
      break
    end
  end
  error(problem, 0)
end

--- Joins as the environment says.
---@param place {rank: integer, size: integer, launcher: string}
---@param options {timeout: number, secret: string?, encrypt: boolean}
function M.join(place, options)
  local file = os.getenv("LUDA_SECRET_FILE")
  local wanted = { address = os.getenv("LUDA_RENDEZVOUS"), session = os.getenv("LUDA_SESSION"), rank = place.rank,
    size = place.size, timeout = options.timeout, secret = options.secret or file and M.read_secret(file) or nil,
    encrypt = options.encrypt }
  if not wanted.address then
    return meet(place, wanted)
  end
  return M.connect(wanted, place)
end

return M
