--- What a call of a communicator passes to C and what comes back: options, checked arguments, failures as errors.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local fault_log = require "luda.dist.fault_log"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local site = require "luda.dist.site"

local ffi, C, context = lib.ffi, lib.C, lib.context

local M = {}

local WORDS = { timeout = args.absent, algorithm = args.absent }

local function with(...)
  local known = {}
  for name, value in pairs(WORDS) do
    known[name] = value
  end
  for _, name in ipairs { ... } do
    known[name] = args.absent
  end
  return known
end

--- Options of calls: of all, of those along a dimension, of an exchange, of messages, of groups driven by one thread.
M.PLAIN, M.ALONG, M.TAGGED = with("arity", "async"), with("arity", "async", "dim", "sizes"), with("tag")
M.EXCHANGE, M.GROUP = with("async", "dim", "sizes", "received"), with("arity", "dim", "sizes")

--- Raises the last failure, of a communicator or of a work of it, with the ranks to blame and, after a mismatch, what each
--- rank asked for.
---@param self luda.Comm
---@param work? any luda_work*
function M.fail(self, status, work)
  local what, of = work or self.pointer, work and "luda_work_" or "luda_comm_"
  local ranks = ffi.new("int32_t[?]", self.size)
  local culprits = {}
  for i = 0, C[of .. "culprits"](what, ranks, self.size) - 1 do
    culprits[i + 1] = ranks[i]
  end
  local detail = {}
  local rank = ffi.new("int32_t[1]")
  for i = 0, self.size - 1 do
    local text = C[of .. "failure"](what, i, rank)
    if text == nil then
      break
    end
    detail[i + 1] = { rank = rank[0], asked = ffi.string(text) }
  end
  local field = C[of .. "difference"](what)
  if field ~= nil then
    detail.field = ffi.string(field)
  end
  local text, fields = ffi.string(C.luda_last_error()), { rank = self.rank, culprits = culprits,
    detail = next(detail) and detail or nil }
  local code, clause = fault_log.note(self, status, text, fields)
  errors.raise_with(code, text .. clause, fields)
end

function M.check(self, status)
  if status ~= 0 then
    M.fail(self, status)
  end
end

--- "tree(3)" is a tree of arity 3, as is { algorithm = "tree", arity = 3 }.
local function algorithm_of(op, options, given)
  local name, arity = tostring(given.algorithm or "default"):match("^(%a+)%((%-?%d+)%)$")
  name, arity = name or given.algorithm or "default", tonumber(arity) or given.arity
  options.algorithm = C.luda_algorithm_from_name(tostring(name))
  if options.algorithm < 0 then
    errors.raise("invalid",
      "%s: there is no algorithm '%s'; direct, ring, tree, tree(k), halving, centralized and auto are known", op, tostring(name))
  elseif arity and options.algorithm ~= C.LUDA_ALGORITHM_TREE then
    errors.raise("invalid", "%s: an arity belongs to the algorithm tree, not to %s", op, tostring(name))
  end
  options.arity = arity and args.integer(op, "the arity", arity) or 0
  if arity and options.arity < 1 then
    errors.raise("invalid", "%s: a tree of arity %d; it must be at least 1", op, tonumber(arity))
  end
end

--- A list of lengths as C reads it; kept until the next call.
local function lengths(self, op, name, list)
  if type(list) ~= "table" then
    errors.raise("invalid", "%s: %s is %s; a list of one length a rank is needed", op, name, args.describe(list))
  end
  local array = ffi.new("int64_t[?]", math.max(1, #list))
  for i, length in ipairs(list) do
    array[i - 1] = args.integer(op, name, length)
  end
  self["kept_" .. name] = array
  return array
end

local function set_sizes(self, op, options, given)
  options.sizes, options.pieces = lengths(self, op, "sizes", given.sizes), #given.sizes
  if given.received then
    options.received = lengths(self, op, "received", given.received)
    if #given.received ~= #given.sizes then
      errors.raise("invalid", "%s: %d sizes and %d received; one a rank is needed of both", op, #given.sizes, #given.received)
    end
  end
end

--- The C options of one call, and whether it is to go on by itself; names that `known` lacks raise.
function M.call_options(self, op, given, known)
  local options = self.options
  ffi.fill(options, ffi.sizeof(options))
  options.size = ffi.sizeof(options)
  site.write()
  options.site = site.text
  if given then
    given = args.options(op, given, known)
    if given.algorithm or given.arity then
      algorithm_of(op, options, given)
    end
    if given.sizes then
      set_sizes(self, op, options, given)
    elseif given.received then
      errors.raise("invalid", "%s: received= says how uneven pieces come in; it goes with sizes=", op)
    end
    options.timeout = given.timeout and args.number(op, "the timeout", given.timeout) or 0
    options.tag = given.tag and args.integer(op, "the tag", given.tag) or 0
  end
  options.dim = args.dimension(op, "dim", given and given.dim or 1)
  C.luda_context_use(context)
  return options, given and given.async or false
end

function M.reduction(op, name)
  local number = C.luda_reduction_from_name(tostring(name))
  if number < 0 then
    errors.raise("invalid", "%s: there is no reduction '%s'; sum, mean, min, max, prod, and, or, xor are known", op,
      tostring(name))
  end
  return number
end

function M.tensor_pointer(op, tensor)
  if not tensors.is_tensor(tensor) then
    errors.raise("invalid", "%s: a tensor is needed, not %s", op, args.describe(tensor))
  end
  return memory.pointer(tensor)
end

function M.result(self, status, out)
  M.check(self, status)
  if out[0] ~= nil then
    return memory.adopt(out[0])
  end
end

function M.open(self, op)
  if not self.pointer then
    errors.raise("closed", "%s: the communicator was closed", op)
  end
  return self.pointer
end

function M.root_rank(self, op, root)
  root = args.integer(op, "the root", root or 0)
  if root < 0 or root >= self.size then
    errors.raise("index", "%s: rank %d does not exist; ranks are 0 to %d", op, root, self.size - 1)
  end
  return root
end

return M
