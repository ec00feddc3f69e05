--- What a call of a communicator passes to C and what comes back: options, checked arguments, failures as errors.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
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

--- Options of calls: of all, of those along a dimension, of messages.
M.PLAIN, M.ALONG, M.TAGGED = with(), with("dim"), with("tag")

--- Raises the last failure with the ranks to blame and, after a mismatch, what each rank asked for.
function M.fail(self, status)
  local ranks = ffi.new("int32_t[?]", self.size)
  local culprits = {}
  for i = 0, C.luda_comm_culprits(self.pointer, ranks, self.size) - 1 do
    culprits[i + 1] = ranks[i]
  end
  local detail = {}
  local rank = ffi.new("int32_t[1]")
  for i = 0, self.size - 1 do
    local text = C.luda_comm_failure(self.pointer, i, rank)
    if text == nil then
      break
    end
    detail[i + 1] = { rank = rank[0], asked = ffi.string(text) }
  end
  local field = C.luda_comm_difference(self.pointer)
  if field ~= nil then
    detail.field = ffi.string(field)
  end
  lib.raise(status, { rank = self.rank, culprits = culprits, detail = next(detail) and detail or nil })
end

function M.check(self, status)
  if status ~= 0 then
    M.fail(self, status)
  end
end

--- The C options of one call; names that `known` lacks raise.
function M.call_options(self, op, given, known)
  local options = self.options
  ffi.fill(options, ffi.sizeof(options))
  options.size = ffi.sizeof(options)
  site.write()
  options.site = site.text
  if given then
    given = args.options(op, given, known)
    if given.algorithm then
      options.algorithm = C.luda_algorithm_from_name(given.algorithm)
      if options.algorithm < 0 then
        errors.raise("invalid", "%s: there is no algorithm '%s'; direct, ring, tree, halving, centralized and auto are known",
          op, tostring(given.algorithm))
      end
    end
    options.timeout = given.timeout and args.number(op, "the timeout", given.timeout) or 0
    options.tag = given.tag and args.integer(op, "the tag", given.tag) or 0
  end
  options.dim = args.dimension(op, "dim", given and given.dim or 1)
  C.luda_context_use(context)
  return options
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
