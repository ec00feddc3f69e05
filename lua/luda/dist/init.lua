--- Collectives: joining a group of ranks, rank threads, replicated training.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local spans = require "luda.spans"
local Comm = require "luda.dist.comm"

local ffi, C = lib.ffi, lib.C

local M = { Comm = Comm }

spans.watch(Comm, "comm", "collective", {
  "all_reduce", "all_reduce_", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send",
  "recv", "barrier",
})

--- Where rank, size and addresses stand, by launcher. The first whose rank variable is set counts.
local LAUNCHERS = {
  { name = "luda run", rank = "LUDA_RANK", size = "LUDA_WORLD_SIZE", local_rank = "LUDA_LOCAL_RANK", node = "LUDA_NODE" },
  { name = "torchrun", rank = "RANK", size = "WORLD_SIZE", local_rank = "LOCAL_RANK", node = "GROUP_RANK" },
  { name = "mpirun", rank = "OMPI_COMM_WORLD_RANK", size = "OMPI_COMM_WORLD_SIZE", local_rank = "OMPI_COMM_WORLD_LOCAL_RANK" },
  { name = "srun", rank = "SLURM_PROCID", size = "SLURM_NTASKS", local_rank = "SLURM_LOCALID", node = "SLURM_NODEID" },
}

local function number_of(variable, needed_by)
  local text = variable and os.getenv(variable)
  local value = tonumber(text)
  if not value and needed_by then
    errors.raise("invalid", "init: %s was started by %s, but %s is %s", "this rank", needed_by, variable,
      text and "'" .. text .. "'" or "not set")
  end
  return value
end

local function from_environment()
  for _, launcher in ipairs(LAUNCHERS) do
    if os.getenv(launcher.rank) then
      return {
        launcher = launcher.name,
        rank = number_of(launcher.rank, launcher.name),
        size = number_of(launcher.size, launcher.name),
        local_rank = number_of(launcher.local_rank),
        node = number_of(launcher.node),
      }
    end
  end
  return { rank = 0, size = 1 }
end

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
---@param options? {timeout: number?, device: string?, transport: string?, secret: string?, encrypt: boolean?,
---connections: integer?}
---@return luda.Comm
function M.init(options)
  options = args.options("init", options, { timeout = 300, device = args.absent, transport = args.absent, secret = args.absent,
    encrypt = false, connections = args.absent })
  local ours, transport = M.thread_comm(), options.transport or os.getenv("LUDA_TRANSPORT")
  if ours and options.transport and ours.transport ~= transport then
    errors.raise("unsupported", "init: rank threads use the transport '%s'; '%s' is for processes", ours.transport, transport)
  elseif ours then
    return ours
  end
  local place = from_environment()
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
  load_transport = "luda.dist.transport",
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
