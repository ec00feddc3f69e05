--- What PyTorch users expect of a tensor beyond the rows, composed from rows and core calls.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local values = require "luda.values"

local ffi, C, context = lib.ffi, lib.C, lib.context
local methods, rows, pointer, is_tensor = tensors.methods, ops.rows, memory.pointer, tensors.is_tensor
local define, need_tensor = values.define, values.need_tensor

local M = {}

-- The rows that the functions below extend under the same name.
local row = {}
for _, name in ipairs { "max", "min", "to" } do
  row[name] = assert(ops.functions[name], name)
end

local tensor_cell, shape_cell = ffi.new("luda_tensor *[1]"), ffi.new("int64_t[?]", C.LUDA_MAX_DIMS)

--- A core call that writes one tensor to `out`, its last argument, tried again after a collection where memory was short.
local function adopt_call(out, call, ...)
  C.luda_context_use(context)
  local status = call(...)
  if status ~= 0 then
    memory.retry_status(status, call, ...)
  end
  return memory.adopt(out[0])
end
M.adopt_call = adopt_call

--- A 1-based dimension as a positive number.
local function positive(op, t, dim)
  local ndim = t.ndim
  local position = args.dimension(op, "dim", dim)
  position = position < 0 and position + ndim or position
  if position < 0 or position >= ndim then
    errors.raise("index", "%s: dimension %d of a tensor with %d", op, dim, ndim)
  end
  return position + 1
end
M.positive = positive

-- Types, devices, memory layout.

--- The same values in another element type or on another device.
define("to", function(t, what, more)
  if is_tensor(what) then
    what = { dtype = what.dtype, device = what.device }
  elseif type(what) == "string" then
    local options = {}
    for _, name in ipairs { what, more } do
      options[args.dtype_numbers[name] and "dtype" or "device"] = name
    end
    what = options
  end
  return row.to(t, what)
end)

--- The tensor itself where its elements lie in row-major order, else a copy that does.
define("contiguous", function(t)
  if C.luda_tensor_is_contiguous(pointer(t)) ~= 0 then
    return t
  end
  return adopt_call(tensor_cell, C.luda_contiguous, pointer(t), tensor_cell)
end)

--- Whether the elements lie in row-major order without gaps.
define("is_contiguous", function(t)
  return C.luda_tensor_is_contiguous(pointer(t)) ~= 0
end)

-- Shapes.

--- Sizes given as a list or spread out.
local function spread(first, ...)
  if type(first) == "table" then
    return first
  end
  return { first, ... }
end
M.spread = spread

--- Another shape: a view where strides allow it, else a copy; -1 is inferred.
define("reshape", function(t, ...)
  local sizes = args.sizes("reshape", spread(...), true)
  for i = 1, #sizes do
    shape_cell[i - 1] = sizes[i]
  end
  return adopt_call(tensor_cell, C.luda_reshape, pointer(t), #sizes, shape_cell, tensor_cell)
end)

--- Neighbouring dimensions joined into one.
define("flatten", function(t, first, last)
  local shape = t.shape
  if #shape == 0 then
    return methods.reshape(t, { 1 })
  end
  first, last = positive("flatten", t, first or 1), positive("flatten", t, last or -1)
  local sizes, product = {}, 1
  for i = 1, #shape do
    if i < first or i > last then
      sizes[#sizes + 1] = shape[i]
    else
      product = product * shape[i]
      if i == last then
        sizes[#sizes + 1] = product
      end
    end
  end
  return methods.reshape(t, sizes)
end)

--- A matrix with its dimensions exchanged.
define("t", function(t)
  if t.ndim > 2 then
    errors.raise("shape", "t: %s has more than two dimensions; use transpose or permute", args.shape_text(t.shape))
  end
  return t.ndim < 2 and t or methods.transpose(t, 1, 2)
end)

--- Dimensions of size 1 repeated to the shape of another tensor.
define("expand_as", function(t, other)
  return methods.expand(t, other.shape)
end)

--- view with the shape of another tensor.
define("view_as", function(t, other)
  return methods.view(t, other.shape)
end)

-- Pieces.

--- Pieces of one size (the last may be smaller) or of the sizes listed.
define("split", function(t, sizes, dim)
  dim = positive("split", need_tensor("split", t), dim or 1)
  local total, pieces, start = methods.size(t, dim), {}, 1
  if type(sizes) == "number" then
    local size = args.integer("split", "the size", sizes)
    if size < 1 and not (size == 0 and total == 0) then
      errors.raise("invalid", "split: the size is %d; it must be positive", size)
    end
    sizes = {}
    for done = 0, math.max(total - 1, 0), math.max(size, 1) do
      sizes[#sizes + 1] = math.min(size, total - done)
    end
  end
  for i, size in ipairs(sizes) do
    pieces[i] = methods.narrow(t, dim, start, size)
    start = start + size
  end
  if start ~= total + 1 then
    errors.raise("shape", "split: the sizes add up to %d, dimension %d has %d", start - 1, dim, total)
  end
  return pieces
end)

--- A number of pieces of equal size; the last may be smaller, or missing.
define("chunk", function(t, count, dim)
  dim = positive("chunk", need_tensor("chunk", t), dim or 1)
  if args.integer("chunk", "the number of chunks", count) < 1 then
    errors.raise("invalid", "chunk: %d chunks; at least one is needed", count)
  end
  local total, empty = methods.size(t, dim), {}
  if total > 0 then
    return methods.split(t, math.ceil(total / count), dim)
  end
  for i = 1, count do
    empty[i] = 0
  end
  return methods.split(t, empty, dim)
end)

--- Every position of a dimension, which disappears.
define("unbind", function(t, dim)
  dim = positive("unbind", need_tensor("unbind", t), dim or 1)
  local pieces = {}
  for i = 1, methods.size(t, dim) do
    pieces[i] = methods.select(t, dim, i)
  end
  return pieces
end)

--- Tensors of one shape joined along a new dimension.
define("stack", function(list, dim)
  if type(list) ~= "table" then
    errors.raise("invalid", "stack: expected a list of tensors, got %s", args.describe(list))
  end
  if type(dim) == "table" then
    dim = args.options("stack", dim, { dim = 1 }).dim
  end
  local widened = {}
  for i, t in ipairs(list) do
    widened[i] = methods.unsqueeze(t, dim or 1)
  end
  return ops.functions.cat(widened, dim or 1)
end)

-- Extremes: with a dimension the value and its position, without one the value.

--- The dimension among the arguments of a reduction, positional or by name.
local function dim_of(options)
  if type(options) == "table" then
    return options.dim
  end
  return options
end

--- argmax, argmin: The position of the largest or smallest element, of all elements counted in row-major order.
for name, whole in pairs { max = "amax", min = "amin" } do
  define(name, function(t, options, keepdim)
    if dim_of(options) == nil then
      return methods[whole](t, options, keepdim)
    end
    return row[name](t, options, keepdim)
  end)
  define("arg" .. name, function(t, options, keepdim)
    if dim_of(options) == nil then
      t, options = methods.reshape(t, { -1 }), 1
    end
    local _, position = row[name](t, options, keepdim)
    return position
  end)
end

-- Writing in place.

--- A plain number that meets a tensor of bool and shall not widen it: true where it is not 0.
function M.for_bool(value, t)
  if type(value) == "number" and t.dtype == "bool" then
    return value ~= 0
  end
  return value
end

--- Writes a tensor (broadcast, of the same category) or a number into every element of `target`.
function M.assign(op, target, value)
  need_tensor(op, target)
  if not is_tensor(value) then
    value = tensors.scalar(op, M.for_bool(value, target), target)
  end
  if value.device ~= target.device then
    value = methods.to(value, target.device)
  end
  value = errors.speak_of(op, pcall(methods.expand, value, target.shape))
  return errors.speak_of(op, pcall(ops.write, "clone", target, value))
end

--- One value written into every element.
define("fill_", function(t, value)
  return M.assign("fill_", t, value)
end)

--- Zero written into every element.
define("zero_", function(t)
  return M.assign("zero_", t, t.dtype ~= "bool" and 0)
end)

--- The elements of another tensor, of any type and device.
define("copy_", function(t, source)
  return M.assign("copy_", t, methods.to(need_tensor("copy_", source), need_tensor("copy_", t)))
end)

-- Facts about rows.

--- True if the device has a kernel for the operator and element type.
---@param name string
---@param dtype string
---@param device? string
function M.supported(name, dtype, device)
  local kind, index = args.device("supported", device or "cpu")
  return C.luda_op_supported(rows[name].op, args.dtype("supported", dtype), ffi.new("luda_device", kind, index)) ~= 0
end

return M
