--- Registered peers: callers, each on a thread of its own, who meet under numbers and reduce together.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local host = require "luda.host"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local Comm = require "luda.dist.comm"
local across = require "luda.dist.across"
local ask = require "luda.dist.ask"
local Config = require "luda.dist.config"
local enrol = require "luda.dist.enrol"

local ffi, C = lib.ffi, lib.C
local raise = Config.raise

---@class luda.Peer
---@field id integer
---@field device string
local Peer = class("luda.Peer")

local ids = ffi.new("int64_t[?]", 1024)
local lines, dropped = ffi.new("luda_post *[1]"), ffi.new("luda_post *[1]")

--- A peer that has not registered.
---@param id integer
function Peer:init(id)
  self.id = args.integer("Peer", "a peer's number", id)
end

--- Raises the calling thread's last failure as `kinds` names it.
local function fail(status, kinds)
  local code = ffi.string(C.luda_status_word(status))
  raise(kinds[code] or "other", code, "%s", ffi.string(C.luda_last_error()))
end

local REGISTER_KINDS = { invalid = "multiple_register", mismatch = "register_params_mismatch",
  cancelled = "local_server_missing" }

--- Waits until all peers have registered.
---@param device? string
---@param config? luda.dist.Config
function Peer:register(device, config)
  config = getmetatable(config) == Config and config or Config(config)
  local algorithms = config:check()
  local kind, index = args.device("register", device or "cpu")
  local ticket = ffi.new("uint64_t[1]")
  C.luda_context_use(lib.context)
  local status = host.C.luda_peer_register(self.id, config.num_devices, tostring(config), config.timeout, ticket)
  if status ~= 0 then
    fail(status, REGISTER_KINDS)
  end
  self.config, self.algorithms, self.device = config, algorithms, args.device_name { type = kind, index = index }
  self.ticket = ffi.gc(ticket, function(lost)
    host.C.luda_peer_finish(lost[0], 1, dropped)
  end)
  if config.num_nodes then
    across.register(self)
  end
  return self
end

--- The communicator of the peers that are registered now; its rank r is peer self.peers[r + 1].
---@param op string
---@return luda.Comm
function Peer:comm(op)
  local out = ffi.new("luda_comm *[1]")
  local status = host.C.luda_peer_comm(self.ticket and self.ticket[0] or 0, ids, out)
  if status == C.LUDA_ECLOSED then
    raise("register_not_first_operation", "closed", "%s: peer %d is not registered; register comes first", op, self.id)
  elseif status ~= 0 then
    fail(status, {})
  end
  if self.current and self.current.pointer == out[0] then
    C.luda_comm_release(out[0])
  else
    self.current, self.peers = Comm(out[0], { device = self.device }), {}
    for rank = 0, self.current.size - 1 do
      self.peers[rank + 1] = tonumber(ids[rank])
    end
  end
  return self.current
end

--- Whether another peer has finished, so that this one has another communicator.
function Peer:regrouped(comm)
  local ok, current = pcall(self.comm, self, "peer")
  return ok and current ~= comm
end

local FIELD_KINDS = { shape = "shape_mismatch", dtype = "shape_mismatch", reduction = "operation_mismatch",
  root = "root_mismatch" }
local NAMED = { all_reduce_shape_mismatch = true, all_reduce_operation_mismatch = true, reduce_shape_mismatch = true,
  reduce_operation_mismatch = true, reduce_root_mismatch = true }

--- What kind of error a call ended in.
function Peer.kind_of(op, err)
  local field = err.detail and err.detail.field
  if err.code == "cancelled" or err.code == "closed" then
    return "local_server_missing"
  elseif field == "sender" then
    return #err.culprits == 0 and "broadcast_no_tensor" or "broadcast_multiple_tensors"
  end
  local kind = field and FIELD_KINDS[field] and op .. "_" .. FIELD_KINDS[field]
  return NAMED[kind] and kind or "other"
end

--- Raises a failed call's error once more, with its kind and in the peers' numbers.
function Peer:complain(op, err)
  if getmetatable(err) ~= errors.Error then
    error(err, 0)
  end
  err.detail = err.detail or {}
  if not err.detail.kind then
    err.detail.kind = Peer.kind_of(op, err)
    err.detail.peers = {}
    for i, rank in ipairs(err.culprits or {}) do
      err.detail.peers[i] = self.peers[rank + 1]
    end
    err.message = ("%s (ranks from 0 are peers %s)"):format(err.message, table.concat(self.peers, ", "))
  end
  error(err, 0)
end

--- Tells the others that this peer cannot make the call, so that nobody waits for it.
local function refuse(comm, op, root)
  local out = ffi.new("luda_tensor *[1]")
  if op == "all_reduce" then
    C.luda_comm_all_reduce(comm.pointer, nil, 0, nil, out)
  elseif op == "reduce" then
    C.luda_comm_reduce(comm.pointer, nil, 0, root or -1, nil, out)
  else
    C.luda_comm_broadcast(comm.pointer, nil, comm.rank, nil, out)
  end
end

--- The rank of a registered peer.
function Peer:rank_of(op, peer)
  for i, id in ipairs(self.peers) do
    if id == peer then
      return i - 1
    end
  end
  raise("register_not_first_operation", "index", "%s: the root, peer %s, is not registered; registered are %s", op,
    tostring(peer), table.concat(self.peers, ", "))
end

--- Raises unless a tensor can be reduced so.
function Peer.check_reduction(op, tensor, how)
  if not tensors.is_tensor(tensor) then
    errors.raise("invalid", "%s: a tensor is needed, not %s", op, args.describe(tensor))
  end
  ask.reduction(op, how)
end

function Peer.check_sent(tensor)
  if tensor ~= nil and not tensors.is_tensor(tensor) then
    errors.raise("invalid", "broadcast: a tensor or nil is needed, not %s", args.describe(tensor))
  end
end

--- A call of all peers: `check` finds what is wrong here, `work` makes it. When a peer finishes meanwhile, the smaller group
--- makes it.
local function call(self, op, root, check, work)
  while true do
    local comm = self:comm(op)
    local fine, result = pcall(check, comm)
    if not fine then
      refuse(comm, op, root)
      self:complain(op, result)
    end
    fine, result = pcall(work, comm, result)
    if fine then
      return result and result:to(self.device)
    elseif type(result) ~= "table" or result.code ~= "peer" or not self:regrouped(comm) then
      self:complain(op, result)
    end
  end
end

--- The reduction of all peers' tensors, on this peer's device.
---@param tensor luda.Tensor
---@param how string "sum" or "mean", or another that a communicator knows
---@return luda.Tensor
function Peer:all_reduce(tensor, how)
  if self.node then
    return across.all_reduce(self, tensor, how)
  end
  return call(self, "all_reduce", nil, function()
    Peer.check_reduction("all_reduce", tensor, how)
  end, function(comm)
    return comm:all_reduce(tensor, how, { algorithm = self.algorithms.all_reduce })
  end)
end

--- The reduction at the peer `root`; nil at the others.
---@param tensor luda.Tensor
---@param how string
---@param root integer a peer's number
---@return luda.Tensor?
function Peer:reduce(tensor, how, root)
  if self.node then
    return across.reduce(self, tensor, how, root)
  end
  return call(self, "reduce", nil, function()
    Peer.check_reduction("reduce", tensor, how)
    return self:rank_of("reduce", root)
  end, function(comm, rank)
    return comm:reduce(tensor, how, rank, { algorithm = self.algorithms.reduce })
  end)
end

--- The tensor of the one peer that passes one, on every peer's device.
---@param tensor? luda.Tensor
---@return luda.Tensor
function Peer:broadcast(tensor)
  if self.node then
    return across.broadcast(self, tensor)
  end
  return call(self, "broadcast", nil, function()
    Peer.check_sent(tensor)
  end, function(comm)
    local out = ffi.new("luda_tensor *[1]")
    local options = ask.call_options(comm, "broadcast", { algorithm = self.algorithms.broadcast }, ask.ALONG)
    local status = C.luda_comm_broadcast(comm.pointer, tensor and memory.pointer(tensor) or nil, -1, options, out)
    if status ~= 0 then
      ask.fail(comm, status)
    end
    return memory.adopt(out[0])
  end)
end

--- Leaves the group. The others go on without this peer.
function Peer:finish()
  local ticket = self.ticket and self.ticket[0] or 0
  local status = host.C.luda_peer_finish(ticket, 0, lines)
  local line = lines[0]
  if self.ticket then
    ffi.gc(self.ticket, nil)
  end
  if self.node then
    self.node:release()
    self.node = nil
  end
  if status ~= 0 then
    fail(status, { invalid = "multiple_unregister", closed = "register_not_first_operation" })
  end
  self.current = nil
  if line ~= nil then -- this was the node's last peer
    enrol.finish(line, self.config)
  end
end

function Peer:__tostring()
  return ("luda.Peer(%d)"):format(self.id)
end

--- Registers a peer and waits until all have come.
---@param options {peer: integer, device: string?, config: luda.dist.Config?}
---@return luda.Peer
local function register(options)
  options = args.options("register", options, { peer = args.absent, device = "cpu", config = args.absent })
  return Peer(options.peer):register(options.device, options.config)
end

--- Forgets all registrations of this process; whoever waits, in register or in a call, is told.
local function reset()
  host.C.luda_peers_reset(0)
end

return { register = register, reset = reset, Peer = Peer, Config = Config }
