--- A communicator: the same calls, in the same order, on every rank.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local ask = require "luda.dist.ask"
local create = require "luda.create"
local errors = require "luda.error"
local scope = require "luda.scope"

local ffi, C = lib.ffi, lib.C
local PLAIN, ALONG, TAGGED, EXCHANGE = ask.PLAIN, ask.ALONG, ask.TAGGED, ask.EXCHANGE
local call_options, check, open, reduction, result = ask.call_options, ask.check, ask.open, ask.reduction, ask.result
local root_rank, tensor_pointer = ask.root_rank, ask.tensor_pointer
local start = require("luda.dist.handle").start

---@class luda.Comm
---@field rank integer from 0
---@field size integer
---@field local_rank integer rank among those of this host
---@field node integer
---@field device string
---@field transport string
local Comm = class("luda.Comm")

--- Takes over a reference to a communicator.
---@param pointer any luda_comm*
---@param place? {local_rank: integer?, node: integer?, device: string?}
function Comm:init(pointer, place)
  place = place or {}
  self.pointer = ffi.gc(pointer, C.luda_comm_release)
  self.rank, self.size = C.luda_comm_rank(pointer), C.luda_comm_size(pointer)
  self.transport = ffi.string(C.luda_comm_transport(pointer))
  self.local_rank, self.node = place.local_rank or self.rank, place.node or 0
  self.device = place.device or "cpu"
  self.options = ffi.new("luda_comm_options")
end

--- Every collective takes {timeout=, algorithm=, arity=, async=}. With async=true it returns a luda.Work at once: its
--- tensor must not be changed before the work is done, and calls run in the order in which they were started. Those along a
--- dimension also take {dim=, sizes=}: sizes is the length of each rank's piece, the same list on every rank.

--- The reduction of all ranks' tensors; differentiable.
---@param tensor luda.Tensor
---@param op string "sum" "mean" "min" "max" "prod" "and" "or" "xor"
---@param options? {algorithm: string?, arity: integer?, timeout: number?, async: boolean?}
---@return luda.Tensor|luda.Work
function Comm:all_reduce(tensor, op, options)
  local pointer, out = open(self, "all_reduce"), ffi.new("luda_tensor *[1]")
  local settings, async = call_options(self, "all_reduce", options, PLAIN)
  local given, how = tensor_pointer("all_reduce", tensor), reduction("all_reduce", op)
  if async then
    return start(self, C.LUDA_CALL_ALL_REDUCE, given, settings, { reduction = how })
  end
  return result(self, C.luda_comm_all_reduce(pointer, given, how, settings, out), out)
end

--- The same in place.
function Comm:all_reduce_(tensor, op, options)
  local pointer = open(self, "all_reduce_")
  local settings, async = call_options(self, "all_reduce_", options, PLAIN)
  local given, how = tensor_pointer("all_reduce_", tensor), reduction("all_reduce_", op)
  if async then
    return start(self, C.LUDA_CALL_ALL_REDUCE, given, settings, { reduction = how, in_place = tensor })
  end
  check(self, C.luda_comm_all_reduce_into(pointer, given, how, settings))
  return tensor
end

--- The root's tensor on every rank. Others pass a placeholder of the same shape and dtype, or nil.
---@param tensor? luda.Tensor
---@param root? integer
function Comm:broadcast(tensor, root, options)
  local pointer, out = open(self, "broadcast"), ffi.new("luda_tensor *[1]")
  local settings, async = call_options(self, "broadcast", options, PLAIN)
  local given, from = tensor and tensor_pointer("broadcast", tensor) or nil, root_rank(self, "broadcast", root)
  if async then
    return start(self, C.LUDA_CALL_BROADCAST, given, settings, { root = from })
  end
  return result(self, C.luda_comm_broadcast(pointer, given, from, settings, out), out)
end

--- The reduction at the root; nil elsewhere.
function Comm:reduce(tensor, op, root, options)
  local pointer, out = open(self, "reduce"), ffi.new("luda_tensor *[1]")
  local settings, async = call_options(self, "reduce", options, PLAIN)
  local given, how, to = tensor_pointer("reduce", tensor), reduction("reduce", op), root_rank(self, "reduce", root)
  if async then
    return start(self, C.LUDA_CALL_REDUCE, given, settings, { reduction = how, root = to })
  end
  return result(self, C.luda_comm_reduce(pointer, given, how, to, settings, out), out)
end

--- All ranks' tensors joined in rank order along a dimension; differentiable.
---@param options? {dim: integer?, sizes: integer[]?, algorithm: string?, timeout: number?, async: boolean?}
function Comm:all_gather(tensor, options)
  local pointer, out = open(self, "all_gather"), ffi.new("luda_tensor *[1]")
  local settings, async = call_options(self, "all_gather", options, ALONG)
  local given = tensor_pointer("all_gather", tensor)
  if async then
    return start(self, C.LUDA_CALL_ALL_GATHER, given, settings)
  end
  return result(self, C.luda_comm_all_gather(pointer, given, settings, out), out)
end

--- Rank r's slice of the reduction along a dimension; differentiable. Of sizes[r + 1], where sizes are given.
function Comm:reduce_scatter(tensor, op, options)
  local pointer, out = open(self, "reduce_scatter"), ffi.new("luda_tensor *[1]")
  local settings, async = call_options(self, "reduce_scatter", options, ALONG)
  local given, how = tensor_pointer("reduce_scatter", tensor), reduction("reduce_scatter", op)
  if async then
    return start(self, C.LUDA_CALL_REDUCE_SCATTER, given, settings, { reduction = how })
  end
  return result(self, C.luda_comm_reduce_scatter(pointer, given, how, settings, out), out)
end

--- All tensors joined at the root; nil elsewhere.
function Comm:gather(tensor, root, options)
  local pointer, out = open(self, "gather"), ffi.new("luda_tensor *[1]")
  local settings, async = call_options(self, "gather", options, ALONG)
  local given, to = tensor_pointer("gather", tensor), root_rank(self, "gather", root)
  if async then
    return start(self, C.LUDA_CALL_GATHER, given, settings, { root = to })
  end
  return result(self, C.luda_comm_gather(pointer, given, to, settings, out), out)
end

--- Rank r's slice of the root's tensor; other ranks pass nil, and the same sizes.
function Comm:scatter(tensor, root, options)
  local pointer, out = open(self, "scatter"), ffi.new("luda_tensor *[1]")
  local settings, async = call_options(self, "scatter", options, ALONG)
  local given, from = tensor and tensor_pointer("scatter", tensor) or nil, root_rank(self, "scatter", root)
  if async then
    return start(self, C.LUDA_CALL_SCATTER, given, settings, { root = from })
  end
  return result(self, C.luda_comm_scatter(pointer, given, from, settings, out), out)
end

--- Slice q of rank r becomes slice r of rank q; differentiable. With sizes, this rank sends sizes[q + 1] to rank q and gets
--- what the others send; received, on all ranks or none, says how much that is and saves a message in a row.
---@param options? {dim: integer?, sizes: integer[]?, received: integer[]?, timeout: number?, async: boolean?}
function Comm:all_to_all(tensor, options)
  local pointer, out = open(self, "all_to_all"), ffi.new("luda_tensor *[1]")
  local settings, async = call_options(self, "all_to_all", options, EXCHANGE)
  local given = tensor_pointer("all_to_all", tensor)
  if async then
    return start(self, C.LUDA_CALL_ALL_TO_ALL, given, settings)
  end
  return result(self, C.luda_comm_all_to_all(pointer, given, settings, out), out)
end

--- Returns before the receiver asks.
function Comm:send(tensor, to, options)
  local settings = call_options(self, "send", options, TAGGED)
  check(self, C.luda_comm_send(open(self, "send"), tensor_pointer("send", tensor), root_rank(self, "send", to), settings))
end

--- Shape and dtype come with the tensor.
function Comm:recv(from, options)
  local pointer, out = open(self, "recv"), ffi.new("luda_tensor *[1]")
  local settings = call_options(self, "recv", options, TAGGED)
  return result(self, C.luda_comm_recv(pointer, root_rank(self, "recv", from), settings, out), out)
end

--- Returns when all ranks have called it.
function Comm:barrier(options)
  local pointer = open(self, "barrier")
  local settings, async = call_options(self, "barrier", options, PLAIN)
  if async then
    return start(self, C.LUDA_CALL_BARRIER, nil, settings)
  end
  check(self, C.luda_comm_barrier(pointer, settings))
end

--- A new communicator of the ranks that pass the same color, in the order of their keys (then of their ranks); nil for a rank
-- that passes no color. Every rank takes part.
---@param color? integer from 0
---@param options? {key: integer?, timeout: number?}
---@return luda.Comm?
function Comm:split(color, options)
  local pointer, out = open(self, "split"), ffi.new("luda_comm *[1]")
  options = args.options("split", options, { key = 0, timeout = args.absent })
  color = color and args.integer("split", "the color", color) or -1
  if color < -1 then
    errors.raise("invalid", "split: a color is a whole number from 0, or nil for a rank of no part, not %d", color)
  end
  check(self, C.luda_comm_split(pointer, color, args.integer("split", "the key", options.key),
    call_options(self, "split", { timeout = options.timeout }, PLAIN), out))
  if out[0] ~= nil then
    return Comm(out[0], { device = self.device, node = self.node })
  end
end

--- A tensor in memory that the ranks of a host share, for what is reduced in place again and again: all_reduce_ needs no copy
--- of it. The same call on every rank; the values are undefined. It lives on after the communicator; after a call that
--- failed while data moved, take a new one.
---@param shape integer[]
---@param options? {dtype: string?, timeout: number?}
---@return luda.Tensor
function Comm:empty(shape, options)
  local pointer, out = open(self, "empty"), ffi.new("luda_tensor *[1]")
  local given = args.options("empty", options, { dtype = "f32", timeout = args.absent })
  local settings = call_options(self, "empty", given.timeout and { timeout = given.timeout }, PLAIN)
  shape = args.sizes("empty", shape)
  local sizes = ffi.new("int64_t[?]", C.LUDA_MAX_DIMS)
  for i = 1, #shape do
    sizes[i - 1] = shape[i]
  end
  return result(self, C.luda_comm_empty(pointer, args.dtype("empty", given.dtype), #shape, sizes, settings, out), out)
end

--- Every pending and later call of every rank fails with this text.
function Comm:abort(text)
  C.luda_comm_abort(open(self, "abort"), tostring(text or "aborted"))
end

--- Leaves; ranks that wait for this one learn of it. Twice is harmless.
function Comm:close()
  if self.pointer then
    C.luda_comm_close(self.pointer)
    C.luda_comm_release(ffi.gc(self.pointer, nil))
    self.pointer = nil
  end
end

local STATES = { [0] = "queued", "running", "done", "failed" }

--- The last calls, oldest first.
---@return {seq: integer, op: string, dtype: string?, shape: integer[]?, bytes: integer, state: string, started: number,
---finished: number, site: string}[]
function Comm:flight_record()
  local rows, flight = {}, ffi.new("luda_flight")
  for i = 0, C.luda_comm_flights(open(self, "flight_record")) - 1 do
    check(self, C.luda_comm_flight(self.pointer, i, flight))
    local shape = flight.ndim >= 0 and {} or nil
    for d = 1, flight.ndim do
      shape[d] = tonumber(flight.shape[d - 1])
    end
    rows[#rows + 1] = {
      seq = tonumber(flight.sequence), op = ffi.string(flight.operation), shape = shape, bytes = tonumber(flight.bytes),
      dtype = flight.dtype >= 0 and args.dtype_names[flight.dtype] or nil, state = STATES[flight.state],
      started = flight.started, finished = flight.finished, site = ffi.string(flight.site),
    }
  end
  return rows
end

local function bytes(text)
  local tensor = create.empty({ #text }, { dtype = "u8" })
  ffi.copy(tensor:data(), text, #text)
  return tensor
end

--- One string from each rank, in rank order, on every rank.
---@param text string
---@return string[]
function Comm:exchange(text)
  return scope.scope(function()
    local length = self:all_gather(create.tensor({ #text }, { dtype = "i64" })):totable()
    local longest = math.max(1, unpack(length))
    local all = self:all_gather(bytes(text .. ("\0"):rep(longest - #text)))
    local texts = {}
    for rank = 1, self.size do
      texts[rank] = ffi.string(all:data() + (rank - 1) * longest, length[rank])
    end
    return texts
  end)
end

function Comm:__tostring()
  return ("luda.Comm(rank %d of %d, %s)"):format(self.rank, self.size, self.transport)
end

return Comm
