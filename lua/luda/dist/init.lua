--- Collectives: joining a group of ranks, rank threads, replicated training.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local spans = require "luda.spans"
local Comm = require "luda.dist.comm"
local environment = require "luda.dist.environment"
local fault_log = require "luda.dist.fault_log"

local ffi, C = lib.ffi, lib.C

local M = { Comm = Comm }

spans.watch(Comm, "comm", "collective", {
  "all_reduce", "all_reduce_", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send",
  "recv", "barrier",
})

--- Sets the fields of a fresh luda_comm_options.
local function comm_options(timeout)
  local options = ffi.new("luda_comm_options")
  options.size = ffi.sizeof(options)
  options.timeout = timeout or 0
  return options
end

local function alone(timeout, place)
  local out = ffi.new("luda_comm *[1]")
  lib.check(C.luda_comm_new_local_group(1, comm_options(timeout), out))
  return Comm(out[0], place)
end

--- The communicator of this rank thread; nil outside of one. A file that spawns itself tells its two parts apart by it.
---@return luda.Comm?
function M.thread_comm()
  return debug.getregistry()["luda.dist.thread"]
end

--- Joins the group that the launcher made: `luda run`, torchrun, mpirun or srun; alone without one. The transport "mpi" (also
-- LUDA_TRANSPORT=mpi) uses the MPI that started the processes. The secret of the group is `secret`, or stands in the file
-- LUDA_SECRET_FILE; `encrypt` hides what ranks exchange; `connections` is the number of TCP connections between two ranks.
-- log_dir: the folder where a call that fails leaves this rank's last calls, as rank-R.calls.txt (else LUDA_LOG_DIR).
---@param options? {timeout: number?, device: string?, transport: string?, secret: string?, encrypt: boolean?,
---connections: integer?, log_dir: string?}
---@return luda.Comm
function M.init(options)
  options = args.options("init", options, { timeout = tonumber(os.getenv("LUDA_TIMEOUT")) or 300, device = args.absent,
    transport = args.absent, secret = args.absent, encrypt = false, connections = args.absent, log_dir = args.absent })
  fault_log.folder = options.log_dir or fault_log.folder
  local ours, transport = M.thread_comm(), options.transport or os.getenv("LUDA_TRANSPORT")
  if ours and options.transport and ours.transport ~= transport then
    errors.raise("unsupported", "init: rank threads use the transport '%s'; '%s' is for processes", ours.transport, transport)
  elseif ours then
    return ours
  end
  local place = environment.place()
  fault_log.rank = place.size > 1 and place.rank or nil
  place.device = options.device or os.getenv("LUDA_DEVICE") or "cpu"
  if transport and transport ~= "tcp" then
    local known = place.launcher and place or { device = place.device }
    known.address, known.session = os.getenv("LUDA_RENDEZVOUS"), os.getenv("LUDA_SESSION")
    return require("luda.dist.transport").open(transport, known, options)
  elseif place.size == 1 then
    return alone(options.timeout, place)
  end
  return require("luda.dist.rendezvous").join(place, options)
end

local LAZY = {
  spawn = "luda.dist.spawn", DataParallel = "luda.dist.parallel", record = "luda.dist.record",
  rendezvous = "luda.dist.rendezvous", connect = "luda.dist.rendezvous", group = "luda.dist.group",
  orchestrator = "luda.dist.orchestrator", load_transport = "luda.dist.transport",
  register = "luda.dist.peers", reset = "luda.dist.peers", Peer = "luda.dist.peers", Config = "luda.dist.peers",
}

return setmetatable(M, {
  __index = function(self, name)
    local module = LAZY[name]
    if module then
      local loaded = require(module)
      self[name] = type(loaded) == "table" and loaded[name] or loaded
      return rawget(self, name)
    end
  end,
})
