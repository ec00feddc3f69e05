--- In-process groups: one thread drives all ranks of a communicator and hands over one tensor a rank.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local create = require "luda.create"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local Comm = require "luda.dist.comm"
local ask = require "luda.dist.ask"

local ffi, C = lib.ffi, lib.C

---@class luda.Group
---@field size integer
---@field devices string[] of rank 0, 1, …
local Group = class("luda.Group")

local MOST, FOREVER = 1024, 1e9 -- every call has a deadline of its own

function Group:init(devices, options)
  options = args.options("group", options, { timeout = 300 })
  local count = type(devices) == "table" and #devices or 0
  if count < 1 or count > MOST then
    errors.raise("invalid", "group: a list of 1 to %d devices is needed, one a rank, such as { \"cpu\", \"cpu\" }", MOST)
  end
  local settings, comms = ffi.new("luda_comm_options"), ffi.new("luda_comm *[?]", count)
  settings.size, settings.timeout = ffi.sizeof(settings), args.number("group", "timeout", options.timeout)
  self.size, self.devices, self.ranks = count, {}, {}
  for i = 1, count do
    local kind, index = args.device("group", devices[i])
    self.devices[i] = args.device_name { type = kind, index = index }
  end
  lib.check(C.luda_comm_new_local_group(count, settings, comms))
  for i = 1, count do
    self.ranks[i] = Comm(comms[i - 1], { device = self.devices[i] })
  end
end

local function check_tensor(self, op, index, tensor)
  if not tensors.is_tensor(tensor) then
    errors.raise("invalid", "%s: rank %d brings %s, not a tensor", op, index - 1, args.describe(tensor))
  elseif tensor.device ~= self.devices[index] then
    errors.raise("device", "%s: the tensor of rank %d lies on %s, the rank on %s", op, index - 1, tensor.device,
      self.devices[index])
  elseif tensor.requires_grad and C.luda_grad_enabled() ~= 0 then
    errors.raise("graph", "%s: the tensor of rank %d is tracked, and a group has no gradients; detach it", op, index - 1)
  end
end

local function check_list(self, op, list)
  local count = type(list) == "table" and #list or 0
  if count ~= self.size then
    errors.raise("invalid", "%s: a list of %d tensors is needed, one a rank, not %s", op, self.size,
      type(list) == "table" and ("%d"):format(count) or args.describe(list))
  end
  for i = 1, count do
    check_tensor(self, op, i, list[i])
  end
  return list
end

--- Starts the call on every rank; on failure everything that waits for the rest is ended.
local function start(self, op, call, list, given)
  local works, out = {}, ffi.new("luda_work *[1]")
  for i, comm in ipairs(self.ranks) do
    local options = ask.call_options(comm, op, given.each and given.each[i] or given.options, given.each and ask.EXCHANGE
      or ask.GROUP)
    local status = C.luda_comm_start(comm.pointer, call, memory.pointer(list[i]), given.reduction or 0, given.root or 0,
      given.in_place and 1 or 0, options, out)
    if status ~= 0 then
      C.luda_comm_abort(comm.pointer, C.luda_last_error())
      ask.fail(comm, status)
    end
    works[i] = ffi.gc(out[0], C.luda_work_release)
  end
  return works
end

--- What each rank gets. Of several failures the one that is the reason for the others is raised.
local function finish(self, works)
  local results, reason, out = {}, nil, ffi.new("luda_tensor *[1]")
  for i, work in ipairs(works) do
    out[0] = nil
    local status = C.luda_work_wait(work, FOREVER, out)
    if status ~= 0 then
      reason = (not reason or (reason.status == C.LUDA_EMISMATCH and status ~= reason.status)) and { status = status, rank = i }
        or reason
    elseif out[0] ~= nil then
      results[i] = memory.adopt(out[0])
    end
  end
  if reason then
    C.luda_work_wait(works[reason.rank], FOREVER, out) -- says it again
    ask.fail(self.ranks[reason.rank], reason.status)
  end
  return results
end

local function run(self, op, call, list, given)
  if not self.ranks[1].pointer then
    errors.raise("closed", "%s: the group was closed", op)
  end
  return finish(self, start(self, op, call, list, given))
end

local function root_of(self, op, root)
  return ask.root_rank(self, op, root)
end

--- The root's tensor, and for the others something of its shape and type on their devices.
local function placeholders(self, op, tensor, root)
  check_tensor(self, op, root + 1, tensor)
  local list = {}
  for i = 1, self.size do
    list[i] = (i == root + 1 or self.devices[i] == tensor.device) and tensor
      or create.empty(tensor.shape, { dtype = tensor.dtype, device = self.devices[i] })
  end
  return list
end

--- The reduction of all ranks' tensors, a fresh one a rank.
---@param list luda.Tensor[]
---@param op string as for a communicator
---@param options? {algorithm: string?, timeout: number?}
---@return luda.Tensor[]
function Group:all_reduce(list, op, options)
  return run(self, "all_reduce", C.LUDA_CALL_ALL_REDUCE, check_list(self, "all_reduce", list),
    { reduction = ask.reduction("all_reduce", op), options = options })
end

--- The same in place.
function Group:all_reduce_(list, op, options)
  run(self, "all_reduce_", C.LUDA_CALL_ALL_REDUCE, check_list(self, "all_reduce_", list),
    { reduction = ask.reduction("all_reduce_", op), options = options, in_place = true })
  return list
end

--- The reduction, on the root's device.
---@return luda.Tensor
function Group:reduce(list, op, root, options)
  root = root_of(self, "reduce", root)
  return run(self, "reduce", C.LUDA_CALL_REDUCE, check_list(self, "reduce", list),
    { reduction = ask.reduction("reduce", op), root = root, options = options })[root + 1]
end

--- A copy of the root's tensor a rank.
---@param tensor luda.Tensor
---@return luda.Tensor[]
function Group:broadcast(tensor, root, options)
  root = root_of(self, "broadcast", root)
  return run(self, "broadcast", C.LUDA_CALL_BROADCAST, placeholders(self, "broadcast", tensor, root),
    { root = root, options = options })
end

--- All tensors joined along options.dim, a rank; of different lengths with options.sizes.
function Group:all_gather(list, options)
  return run(self, "all_gather", C.LUDA_CALL_ALL_GATHER, check_list(self, "all_gather", list), { options = options })
end

--- Rank r's slice of the reduction along options.dim.
function Group:reduce_scatter(list, op, options)
  return run(self, "reduce_scatter", C.LUDA_CALL_REDUCE_SCATTER, check_list(self, "reduce_scatter", list),
    { reduction = ask.reduction("reduce_scatter", op), options = options })
end

--- All tensors joined, on the root's device.
---@return luda.Tensor
function Group:gather(list, root, options)
  root = root_of(self, "gather", root)
  return run(self, "gather", C.LUDA_CALL_GATHER, check_list(self, "gather", list), { root = root, options = options })[root + 1]
end

--- Slices of the root's tensor, one a rank.
---@return luda.Tensor[]
function Group:scatter(tensor, root, options)
  root = root_of(self, "scatter", root)
  return run(self, "scatter", C.LUDA_CALL_SCATTER, placeholders(self, "scatter", tensor, root),
    { root = root, options = options })
end

--- Single messages between ranks; what arrived, in the order of the list, on the receivers' devices.
---@param list {from: integer, to: integer, tensor: luda.Tensor}[]
---@return luda.Tensor[]
function Group:transfer(list, options)
  local moves, results = {}, {}
  for i, move in ipairs(list) do
    local from, to = root_of(self, "transfer", move.from), root_of(self, "transfer", move.to)
    check_tensor(self, "transfer", from + 1, move.tensor)
    moves[i] = { from = from, to = to, tensor = move.tensor }
  end
  for _, move in ipairs(moves) do
    self.ranks[move.from + 1]:send(move.tensor, move.to, options)
  end
  for i, move in ipairs(moves) do
    results[i] = self.ranks[move.to + 1]:recv(move.from, options):to(self.devices[move.to + 1])
  end
  return results
end

--- Options of each rank for pieces of sizes[r + 1][q + 1] along dim that go from rank r to rank q.
local function exchange_options(self, list, options)
  local sizes, each = options.sizes, {}
  for r, tensor in ipairs(list) do
    local total, row = 0, type(sizes) == "table" and sizes[r] or {}
    for q = 1, self.size do
      total = total + args.size("all_to_all", "sizes", row[q] or -1)
    end
    if total ~= tensor:size(options.dim) or #row ~= self.size then
      errors.raise("shape", "all_to_all: the sizes of rank %d are { %s }; %d of them must sum to %d", r - 1,
        table.concat(row, ", "), self.size, tensor:size(options.dim))
    end
    each[r] = { sizes = row, received = {}, dim = options.dim, timeout = options.timeout, algorithm = options.algorithm }
  end
  for q = 1, self.size do
    for r = 1, self.size do
      each[q].received[r] = sizes[r][q]
    end
  end
  return each
end

--- Slice q of rank r becomes slice r of rank q; with options.sizes, a list of lists, slices have sizes[r + 1][q + 1].
---@param options? {sizes: integer[][]?, dim: integer?, timeout: number?}
---@return luda.Tensor[]
function Group:all_to_all(list, options)
  check_list(self, "all_to_all", list)
  if options and options.sizes then
    options = args.options("all_to_all", options, { sizes = args.absent, dim = 1, timeout = args.absent,
      algorithm = args.absent })
    return run(self, "all_to_all", C.LUDA_CALL_ALL_TO_ALL, list, { each = exchange_options(self, list, options) })
  end
  return run(self, "all_to_all", C.LUDA_CALL_ALL_TO_ALL, list, { options = options })
end

--- Ends the group; twice is harmless.
function Group:close()
  for _, comm in ipairs(self.ranks) do
    comm:close()
  end
end

function Group:__tostring()
  return ("luda.Group(%s)"):format(table.concat(self.devices, ", "))
end

--- A group of as many ranks as there are devices, driven from the calling thread.
---@param devices string[]
---@param options? {timeout: number?}
---@return luda.Group
local function group(devices, options)
  return Group(devices, options)
end

return { group = group, Group = Group }
