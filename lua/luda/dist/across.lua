--- Calls of registered peers over several nodes: inside each node, between the nodes, inside each node again. One peer of a
--- node, its leader, speaks with the other nodes, and every peer hears how that went.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local host = require "luda.host"
local json = require "luda.json"
local tensors = require "luda.tensor"
local Node = require "luda.dist.node"
local describe = require "luda.dist.describe"
local enrol = require "luda.dist.enrol"

local ffi, C = lib.ffi, lib.C

local M = {}

--- Longer than a leader can take: two calls between nodes, or joining.
local function patience(config)
  return 2 * config.timeout + config.connect_attempts * (config.connect_timeout + 5) + config.request_timeout + 10
end

local function plain(err)
  if getmetatable(err) ~= errors.Error then
    return { code = "internal", op = "peer", message = describe.words(err, 1000) }
  end
  return { code = err.code, op = err.op, message = describe.words(err.message, 2000), detail = err.detail }
end

--- What the leader found out, at every peer of the node: a value, or its error.
---@param outcome? {value: any, error: table?} the leader's
local function share(peer, op, comm, leader, outcome)
  local fine, heard = pcall(describe.tell, comm, outcome and json.encode(outcome), leader, patience(peer.config))
  if not fine then
    peer:complain(op, heard)
  end
  heard = json.decode(heard)
  if heard.error then
    local problem = heard.error
    peer:complain(op, errors.new(problem.code, ("%s: %s"):format(problem.op or op, problem.message), { detail = problem.detail }))
  end
  return heard.value
end

-- Registering -----------------------------------------------------------------------------------------------------------

local function join(peer)
  return enrol.join(peer.config, peer.peers, function(comm, post)
    if host.C.luda_peer_attach(peer.ticket[0], comm, post) ~= 0 then
      errors.raise_with("cancelled", "register: the group was reset", { detail = { kind = "local_server_missing" } })
    end
  end)
end

--- Nobody is registered afterwards, on all peers at once, so that each may try again.
local function dissolve(peer, comm)
  pcall(comm.barrier, comm) -- all have heard why
  if comm.rank == 0 then
    host.C.luda_peers_reset(peer.ticket[0])
  else
    pcall(comm.barrier, comm) -- the reset ends it
  end
end

--- The second half of registering: the peers of this node have met, and now the nodes do.
---@param peer luda.Peer
function M.register(peer)
  local fine, problem = pcall(function()
    local comm, outcome = peer:comm("register"), nil
    if comm.rank == 0 then
      local joined, nodes = pcall(join, peer)
      outcome = joined and { value = nodes } or { error = plain(nodes) }
    end
    local heard, nodes = pcall(share, peer, "register", comm, 0, outcome)
    if not heard then
      dissolve(peer, comm)
      error(nodes, 0)
    end
    local out = ffi.new("luda_comm *[1]")
    lib.check(host.C.luda_peer_nodes(peer.ticket[0], out))
    peer.node = Node(out[0], nodes, peer.config, peer.algorithms)
  end)
  if not fine then
    pcall(peer.finish, peer) -- where nothing has dissolved the group, such as a peer that was lost
    peer.ticket, peer.current = nil, nil
    peer:complain("register", problem)
  end
end

-- Calls -----------------------------------------------------------------------------------------------------------------

--- Why another peer of this node cannot, or how the peers differ; nil when they agree. The same at every peer.
local function disagreement(peer, mine, all)
  local names = {}
  for i, id in ipairs(peer.peers) do
    names[i] = "peer " .. id
  end
  for i, theirs in ipairs(all) do
    if theirs.error then
      return errors.new("mismatch", ("%s: %s cannot: %s"):format(mine.op, names[i], theirs.error.text), {
        culprits = { i - 1 } })
    end
  end
  local field = describe.difference(all)
  if field then
    return errors.new("mismatch", ("%s: peers disagree about the %s: %s"):format(mine.op, field, describe.asked(all, names)), {
      detail = { field = field } })
  end
  local senders = {}
  for i, theirs in ipairs(all) do
    senders[#senders + 1] = theirs.senders == 1 and i - 1 or nil
  end
  if #senders > 1 then
    return errors.new("mismatch", ("broadcast: %d peers of node %s pass a tensor each"):format(#senders,
      peer.config.node_address), { detail = { field = "sender" }, culprits = senders })
  end
end

--- Tells the other nodes that this one cannot make the call, so that nobody waits for it.
local function abandon(peer, comm, op, problem)
  if comm.rank ~= 0 then
    return
  end
  local inner = problem.code == "mismatch" and "collective_params_mismatch" or "server"
  if problem.detail and problem.detail.field == "sender" then
    inner = "broadcast_multiple_tensors"
  end
  pcall(peer.node.begin, peer.node, { op = op, error = { inner = inner, text = describe.words(problem.message, 300) } })
end

--- The descriptions of all peers of this node and their communicator. When a peer finishes meanwhile, those who remain
--- describe themselves again.
local function assemble(peer, mine)
  while true do
    local comm = peer:comm(mine.op)
    local fine, all = pcall(describe.exchange, comm, mine, peer.config.timeout)
    if fine then
      return comm, all
    elseif type(all) ~= "table" or all.code ~= "peer" or not peer:regrouped(comm) then
      abandon(peer, comm, mine.op, type(all) == "table" and all or { message = all })
      peer:complain(mine.op, all)
    end
  end
end

--- A call: stages.check raises what is wrong here, stages.inside brings the node's part to its leader, stages.between gets
--- the other nodes' part there, stages.back hands out the result.
local function call(peer, mine, stages)
  local able, wrong = pcall(stages.check)
  if not able then
    mine.error = { text = describe.words(plain(wrong).message, 300) }
  end
  local comm, all = assemble(peer, mine)
  local problem = disagreement(peer, mine, all)
  if problem or not able then
    abandon(peer, comm, mine.op, problem)
    peer:complain(mine.op, able and problem or wrong)
  end
  local leader = stages.leader(all)
  local fine, part = pcall(stages.inside, comm, leader)
  local outcome
  if comm.rank == leader then
    mine.devices, mine.strategy = comm.size, peer.config["global_" .. mine.op]
    if fine then
      fine, part = pcall(stages.between, part)
    else
      mine.error = { inner = "server", text = describe.words(plain(part).message, 300) }
      pcall(peer.node.begin, peer.node, mine)
    end
    outcome = fine and { value = true } or { error = plain(part) }
  end
  share(peer, mine.op, comm, leader, outcome)
  if not fine then
    peer:complain(mine.op, part)
  end
  return stages.back(comm, leader, part)
end

local EXACT = { min = true, max = true, ["and"] = true, ["or"] = true, xor = true }

local function check(op, peer, tensor, how)
  peer.check_reduction(op, tensor, how)
  if tensor.requires_grad and C.luda_grad_enabled() ~= 0 then
    errors.raise("graph", "%s: the tensor is tracked, and peers on several nodes have no gradients; detach it", op)
  elseif how == "mean" and args.dtype_class(tensor.dtype) ~= "float" then
    errors.raise("unsupported", "%s: no mean of %s; take the sum, or convert to a floating type", op, tensor.dtype)
  end
end

local function describe_tensor(op, tensor, how, root)
  local known = tensors.is_tensor(tensor)
  local peer = type(root) == "number" and root == math.floor(root) and math.abs(root) < 2 ^ 53
  return { op = op, how = how ~= nil and describe.words(how, 50) or nil, root = peer and root or nil,
    dtype = known and tensor.dtype or nil, shape = known and tensor.shape or nil }
end

--- Halves are added in f32 over all nodes, and rounded once.
local function widened(tensor, how)
  local half = tensor.dtype == "f16" or tensor.dtype == "bf16"
  return half and not EXACT[how] and tensor:to("f32") or tensor
end

local function narrowed(sum, devices, how, dtype)
  return (how == "mean" and sum / devices or sum):to(dtype)
end

--- Reduces inside the node to its leader. Where an algorithm has no root, everybody gets the result.
local function to_leader(comm, tensor, how, leader, algorithm)
  how = how == "mean" and "sum" or how
  tensor = widened(tensor, how)
  if algorithm == "ring" or algorithm == "halving" then
    return comm:all_reduce(tensor, how, { algorithm = algorithm })
  end
  return comm:reduce(tensor, how, leader, { algorithm = algorithm })
end

local function hand_out(peer, comm, leader, result)
  return comm:broadcast(comm.rank == leader and result or nil, leader, { algorithm = peer.algorithms.broadcast }):to(peer.device)
end

function M.all_reduce(peer, tensor, how)
  local mine = describe_tensor("all_reduce", tensor, how)
  return call(peer, mine, {
    check = function()
      check("all_reduce", peer, tensor, how)
    end,
    leader = function()
      return 0
    end,
    inside = function(comm, leader)
      return to_leader(comm, tensor, how, leader, peer.algorithms.all_reduce)
    end,
    between = function(part)
      local sum, devices = peer.node:all_reduce(mine, part)
      return narrowed(sum, devices, how, tensor.dtype)
    end,
    back = function(comm, leader, part)
      return hand_out(peer, comm, leader, part)
    end,
  })
end

function M.reduce(peer, tensor, how, root)
  local mine = describe_tensor("reduce", tensor, how, root)
  return call(peer, mine, {
    check = function()
      check("reduce", peer, tensor, how)
      args.integer("reduce", "the root", root)
    end,
    leader = function()
      for i, id in ipairs(peer.peers) do
        if id == root then
          mine.has_root = true
          return i - 1
        end
      end
      return 0
    end,
    inside = function(comm, leader)
      return to_leader(comm, tensor, how, leader, peer.algorithms.reduce)
    end,
    between = function(part)
      local sum, devices = peer.node:reduce(mine, part)
      return sum and narrowed(sum, devices, how, tensor.dtype)
    end,
    back = function(_, _, part)
      return peer.id == root and part:to(peer.device) or nil
    end,
  })
end

function M.broadcast(peer, tensor)
  local mine = describe_tensor("broadcast", tensor)
  mine.senders = tensor ~= nil and 1 or 0
  return call(peer, mine, {
    check = function()
      peer.check_sent(tensor)
    end,
    leader = function(all)
      for i, theirs in ipairs(all) do
        if theirs.senders == 1 then
          return i - 1
        end
      end
      return 0
    end,
    inside = function()
      return tensor
    end,
    between = function(part)
      return peer.node:broadcast(mine, part)
    end,
    back = function(comm, leader, part)
      return hand_out(peer, comm, leader, part)
    end,
  })
end

return M
