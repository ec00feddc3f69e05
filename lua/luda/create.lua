--- Making tensors: from Lua values, filled, ranges and random numbers.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
require "luda.sugar"

local ffi, C, context = lib.ffi, lib.C, lib.context
local methods, is_tensor, absent = tensors.methods, tensors.is_tensor, args.absent

local M = {}

---@class luda.CreateOptions
---@field dtype? string default "f32"
---@field device? string default "cpu"
---@field requires_grad? boolean

--- Options that every function here takes.
local function options(op, given, dtype, more)
  local known = { dtype = dtype or "f32", device = "cpu", requires_grad = false }
  for name, default in pairs(more or {}) do
    known[name] = default
  end
  return args.options(op, given, known)
end

local function finish(t, given)
  return given.requires_grad and methods.requires_grad_(t) or t
end

--- (2, 3, {…}) or ({2, 3}, {…}) as sizes and options.
local function shape_and_options(op, ...)
  local list = { n = select("#", ...), ... }
  local given = args.take_options(list)
  if list.n == 1 and type(list[1]) == "table" then
    return args.sizes(op, list[1]), given
  end
  list.n = nil
  return args.sizes(op, list), given
end

local function filled(op, value, shape, given)
  given = options(op, given)
  args.fit(op, value, given.dtype)
  local t = ops.functions.full { shape = shape, dtype = given.dtype, device = given.device, low = value }
  return finish(t, given)
end

--- zeros: A tensor of zeros.
---@param ... integer|integer[]|luda.CreateOptions sizes, or a list of them; then options
---@return luda.Tensor
function M.zeros(...)
  local shape, given = shape_and_options("zeros", ...)
  return filled("zeros", 0, shape, given)
end

--- ones: A tensor of ones.
---@param ... integer|integer[]|luda.CreateOptions
---@return luda.Tensor
function M.ones(...)
  local shape, given = shape_and_options("ones", ...)
  return filled("ones", 1, shape, given)
end

--- full: A tensor of one value; a boolean makes it bool.
---@param shape integer[]
---@param value number|boolean|any a boxed integer makes i64, exactly
---@param given? luda.CreateOptions
---@return luda.Tensor
function M.full(shape, value, given)
  if type(value) == "boolean" then
    value, given = value and 1 or 0, args.options("full", given, {
      dtype = "bool", device = absent, requires_grad = absent,
    })
  end
  if args.is_boxed(value) then
    given = options("full", given, "i64")
    args.fit("full", value, given.dtype)
    return finish(methods.fill_(M.empty(shape, { dtype = given.dtype, device = given.device }), value), given)
  end
  return filled("full", args.number("full", "the value", value), args.sizes("full", shape), given)
end

--- Memory as it comes: the values are whatever was there.
---@param ... integer|integer[]|luda.CreateOptions
---@return luda.Tensor
function M.empty(...)
  local shape, given = shape_and_options("empty", ...)
  given = options("empty", given)
  local dtype = args.dtype("empty", given.dtype)
  local device = ffi.new("luda_device", args.device("empty", given.device))
  local cell, sizes = ffi.new("luda_tensor *[1]"), ffi.new("int64_t[?]", C.LUDA_MAX_DIMS)
  for i = 1, #shape do
    sizes[i - 1] = shape[i]
  end
  C.luda_context_use(context)
  local status = C.luda_tensor_new(dtype, device, #shape, sizes, cell)
  if status ~= 0 then
    memory.retry_status(status, C.luda_tensor_new, dtype, device, #shape, sizes, cell)
  end
  return finish(memory.adopt(cell[0]), given)
end

-- From Lua values.

--- Sizes of a nested list, which must not be ragged.
local function nested_shape(value)
  local shape = {}
  while type(value) == "table" do
    shape[#shape + 1] = #value
    value = value[1]
  end
  return shape
end

--- Element type of plain values: numbers are f32, booleans bool, boxed 64-bit integers i64.
local function plain_kind(value)
  local kind = type(value)
  if kind == "number" then
    return "f32"
  elseif kind == "boolean" then
    return "bool"
  elseif args.is_boxed(value) then
    return "i64"
  end
  return errors.raise("invalid", "tensor: %s among the values; numbers, booleans and 64-bit integers can be stored",
    args.describe(value))
end

--- Writes a nested list into `values`, for a tensor of `dtype`; returns the kind of its elements.
local function fill(values, nested, shape, dtype)
  local position, kind = 0, nil
  local function walk(value, dim)
    if dim <= #shape then
      if type(value) ~= "table" or #value ~= shape[dim] then
        errors.raise("shape", "tensor: ragged lists: %s where dimension %d has %d entries",
          type(value) == "table" and #value .. " entries" or args.describe(value), dim, shape[dim])
      end
      for i = 1, #value do
        walk(value[i], dim + 1)
      end
      return
    end
    local this = plain_kind(value)
    if kind ~= nil and this ~= kind then
      errors.raise("dtype", "tensor: %s and %s values in one tensor; name the dtype or convert them", kind, this)
    end
    kind = this
    if this == "bool" then
      value = value and 1 or 0
    else
      args.fit("tensor", value, dtype)
    end
    values[position] = value
    position = position + 1
  end
  walk(nested, 1)
  return kind or "f32"
end

--- The kind of the first plain value in a nested list.
local function first_kind(value)
  while type(value) == "table" do
    value = value[1]
  end
  return value == nil and "f32" or plain_kind(value)
end

--- A tensor of the values of a nested list, or of one value.
---@param nested any
---@param given? luda.CreateOptions
---@return luda.Tensor
function M.tensor(nested, given)
  if is_tensor(nested) then
    errors.raise("invalid", "tensor: the values are a tensor already; use clone(), detach() or to()")
  end
  local shape, kind = nested_shape(nested), first_kind(nested)
  given = options("tensor", given, kind)
  local count = 1
  for i = 1, #shape do
    count = count * shape[i]
  end
  local whole = kind == "i64"
  local values = ffi.new(whole and "int64_t[?]" or "double[?]", math.max(count, 1))
  fill(values, nested, shape, given.dtype)
  local t = M.empty(shape, { dtype = given.dtype })
  lib.check(C.luda_tensor_write(memory.pointer(t), whole and C.LUDA_I64 or C.LUDA_F64, values, count))
  if given.device ~= "cpu" then
    t = methods.to(t, given.device)
  end
  return finish(t, given)
end

-- Ranges.

--- arange(n): 0 … n-1; arange(low, high, step): low, low + step, … below high.
---@return luda.Tensor
function M.arange(...)
  local list = { n = select("#", ...), ... }
  local given = options("arange", args.take_options(list))
  local low, high, step = list[1], list[2], list[3] or 1
  if high == nil then
    low, high = 0, low
  end
  low, high = args.number("arange", "low", low), args.number("arange", "high", high)
  step = args.number("arange", "step", step)
  if step == 0 then
    errors.raise("invalid", "arange: the step is 0")
  elseif low ~= low or high ~= high or step ~= step then
    errors.raise("invalid", "arange: from %g to %g by %g; a bound is not a number", low, high, step)
  end
  local count = math.max(math.ceil((high - low) / step), 0)
  if count > 0 then
    args.fit("arange", low, given.dtype)
    args.fit("arange", low + (count - 1) * step, given.dtype)
  end
  return finish(ops.functions.arange {
    shape = { count }, dtype = given.dtype, device = given.device, low = low, high = step,
  }, given)
end

--- `count` values from first to last, both included, evenly spaced.
---@param first number
---@param last number
---@param count integer
---@param given? luda.CreateOptions
---@return luda.Tensor
function M.linspace(first, last, count, given)
  given = options("linspace", given)
  count = args.integer("linspace", "the count", count)
  local step = count > 1 and (args.number("linspace", "last", last) - first) / (count - 1) or 0
  args.fit("linspace", first, given.dtype)
  args.fit("linspace", last, given.dtype)
  return finish(ops.functions.arange {
    shape = args.sizes("linspace", { count }), dtype = given.dtype, device = given.device,
    low = args.number("linspace", "first", first), high = step,
  }, given)
end

--- Ones on the diagonal of a matrix of zeros.
---@param height integer
---@param width? integer
---@param given? luda.CreateOptions
---@return luda.Tensor
function M.eye(height, width, given)
  if type(width) == "table" then
    width, given = nil, width
  end
  given = options("eye", given)
  local where = { dtype = "i64", device = given.device }
  local same = methods.eq(methods.unsqueeze(M.arange(height, where), 2), M.arange(width or height, where))
  return finish(methods.to(same, given.dtype), given)
end

for name, draw in pairs(require("luda.draw")(options, shape_and_options)) do
  M[name] = draw
end

-- Like another tensor.

local function like(make)
  return function(t, ...)
    local list = { n = select("#", ...), ... }
    local given = args.take_options(list) or {}
    local merged = { dtype = t.dtype, device = t.device }
    for name, value in pairs(given) do
      merged[name] = value
    end
    list[list.n + 1] = merged
    return make(t.shape, unpack(list, 1, list.n + 1))
  end
end

--- zeros_like, ones_like, full_like, empty_like, rand_like, randn_like: The same with the shape, type and device of another
-- tensor.
for _, name in ipairs { "zeros", "ones", "full", "empty", "rand", "randn" } do
  M[name .. "_like"] = like(M[name])
end

return M
