--- The calls between the nodes of a group. Rank r of their communicator is the node with the r-th address.

local lib = require "luda.ffi"
local class = require "luda.class"
local errors = require "luda.error"
local Comm = require "luda.dist.comm"
local Config = require "luda.dist.config"
local describe = require "luda.dist.describe"

local ffi, C = lib.ffi, lib.C
local fail = Config.raise_global

---@class luda.dist.Node
---@field nodes {address: string, devices: integer}[]
---@field comm luda.Comm
local Node = class("luda.dist.Node")

--- Shares the communicator of the nodes.
---@param pointer any luda_comm*, with a reference for this object
---@param nodes {address: string, devices: integer}[]
---@param config luda.dist.Config
---@param algorithms table<string, string> by call
function Node:init(pointer, nodes, config, algorithms)
  self.comm, self.nodes, self.config, self.algorithms = Comm(pointer), nodes, config, algorithms
end

--- Gives up this object's share of the communicator.
function Node:release()
  C.luda_comm_release(ffi.gc(self.comm.pointer, nil))
  self.comm = nil
end

local function addresses(self)
  local list = {}
  for i, node in ipairs(self.nodes) do
    list[i] = node.address
  end
  return list
end

local INNER = { peer = "peer_lost", timeout = "timeout" }

--- A failure of the nodes' communicator in words of nodes. After a reset of this process it is not theirs.
local function translate(self, op, err, otherwise)
  if getmetatable(err) ~= errors.Error or (err.detail and err.detail.kind) then
    error(err, 0)
  elseif err.code == "closed" or err.code == "cancelled" then
    error(errors.new("cancelled", op .. ": the group was reset", { detail = { kind = "local_server_missing" } }), 0)
  end
  local lost, inner = {}, INNER[err.code] or otherwise
  for i, rank in ipairs(err.culprits or {}) do
    lost[i] = self.nodes[rank + 1].address
  end
  local named = #lost > 0 and ("%s %s"):format(inner, table.concat(lost, ", ")) or inner
  error(errors.new(err.code, ("%s: Global(%s): %s (ranks from 0 are nodes %s)"):format(op, named, err.message,
    table.concat(addresses(self), ", ")), { detail = { kind = "global", inner = inner, nodes = lost, field = err.detail and
    err.detail.field } }), 0)
end

local function sum_of(list, field)
  local sum = 0
  for _, description in ipairs(list) do
    sum = sum + (description[field] or 0)
  end
  return sum
end

--- The node, from 0, whose description has a field; nil when none has.
local function owner(list, field)
  for i, description in ipairs(list) do
    if description[field] and description[field] ~= 0 then
      return i - 1
    end
  end
end

local function check_agreed(self, all)
  local mine, names = all[self.comm.rank + 1], addresses(self)
  local op, field = mine.op, describe.difference(all)
  for i, theirs in ipairs(all) do
    if theirs.error and i ~= self.comm.rank + 1 then
      fail(theirs.error.inner, "mismatch", op, "node %s cannot: %s", names[i], theirs.error.text)
    end
  end
  if mine.error then
    return
  elseif field then
    fail("collective_params_mismatch", "mismatch", op, "nodes disagree about the %s: %s", field, describe.asked(all, names))
  elseif op == "reduce" and not owner(all, "has_root") then
    fail("unknown_root", "index", op, "the root, peer %d, is registered at no node", mine.root)
  elseif op == "broadcast" and sum_of(all, "senders") ~= 1 then
    local senders = sum_of(all, "senders")
    fail(senders == 0 and "broadcast_no_tensor" or "broadcast_multiple_tensors", "mismatch", op, "%d nodes pass a tensor",
      senders)
  elseif op == "all_reduce" and mine.strategy == "ring" and math.max(0, unpack(mine.shape)) < #self.nodes then
    fail("ring_reduce_impossible", "shape", op, "the largest dimension of [%s] is shorter than %d nodes; direct does it",
      table.concat(mine.shape, ", "), #self.nodes)
  end
end

--- Agrees with the other nodes about the next call; every node's description, or an error on all of them. A description with
--- an error tells the others why this node cannot.
---@param mine table
---@return table[]
function Node:begin(mine)
  if not self.comm then
    fail(mine.op == "all_reduce" and "all_reduce_before_register" or "collective_before_register", "closed", mine.op,
      "the node is not registered")
  end
  local fine, all = pcall(describe.exchange, self.comm, mine, self.config.timeout)
  if not fine then
    translate(self, mine.op, all, "collective_params_mismatch")
  end
  check_agreed(self, all)
  return all
end

local function strategy(self, op)
  return { algorithm = self.algorithms["global_" .. op], timeout = self.config.timeout }
end

local function move(self, op, ...)
  local fine, result = pcall(self.comm[op], self.comm, ...)
  if not fine then
    translate(self, op, result, result.code == "mismatch" and "peer_sent_incoherent_tensor" or "server")
  end
  return result
end

--- The reduction over all nodes; a mean is left a sum.
---@param mine table a description
---@param tensor luda.Tensor of this node
---@return luda.Tensor
---@return integer devices that took part
function Node:all_reduce(mine, tensor)
  local all = self:begin(mine)
  return move(self, "all_reduce", tensor, mine.how == "mean" and "sum" or mine.how, strategy(self, "all_reduce")),
    sum_of(all, "devices")
end

--- The same at the node with the root; nil at the others.
function Node:reduce(mine, tensor)
  local all = self:begin(mine)
  return move(self, "reduce", tensor, mine.how == "mean" and "sum" or mine.how, owner(all, "has_root"), strategy(self, "reduce")),
    sum_of(all, "devices")
end

--- The tensor of the one node that passes one.
function Node:broadcast(mine, tensor)
  local all = self:begin(mine)
  local root = owner(all, "senders")
  local result, sent = move(self, "broadcast", tensor, root, strategy(self, "broadcast")), all[root + 1]
  if result.dtype ~= sent.dtype or table.concat(result.shape, ",") ~= table.concat(sent.shape, ",") then
    fail("peer_sent_incoherent_tensor", "mismatch", "broadcast", "node %s announced %s [%s] and sent %s [%s]",
      self.nodes[root + 1].address, sent.dtype, table.concat(sent.shape, ", "), result.dtype, table.concat(result.shape, ", "))
  end
  return result
end

return Node
