--- The tensor type: one metatype for ever, whose methods and fields live in tables that other files fill.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"

local registry = debug.getregistry()
if registry["luda.tensor"] then
  return registry["luda.tensor"]
end

local ffi, C, context, Tensor = lib.ffi, lib.C, lib.context, lib.Tensor
local istype, wrap, pointer = ffi.istype, memory.wrap, memory.pointer

---@class luda.Tensor
---@field shape integer[] a fresh list
---@field dtype string "f32", "i64", …
---@field device string "cpu", "cuda:0"
---@field ndim integer
---@field numel integer
---@field requires_grad boolean
---@field is_leaf boolean
---@field id integer
---@operator add(luda.Tensor|number): luda.Tensor
---@operator sub(luda.Tensor|number): luda.Tensor
---@operator mul(luda.Tensor|number): luda.Tensor
---@operator div(luda.Tensor|number): luda.Tensor
---@operator mod(luda.Tensor|number): luda.Tensor
---@operator pow(luda.Tensor|number): luda.Tensor
---@operator unm: luda.Tensor

local M = {
  Tensor = Tensor,
  ---@type table<string, function> x:name(…)
  methods = {},
  ---@type table<string, fun(t: luda.Tensor): any> x.name
  fields = {},
}
local methods, fields = M.methods, M.fields

---@param value any
---@return boolean
function M.is_tensor(value)
  return istype(Tensor, value)
end

--- A 0-d tensor of a plain value that does not widen `like` inside its category.
---@param op string
---@param value number|boolean|any
---@param like? luda.Tensor
function M.scalar(op, value, like)
  local dtype = like and like.dtype or type(value) == "boolean" and "bool" or "f32"
  local class = args.dtype_class(dtype)
  local out, status = ffi.new("luda_tensor *[1]"), nil
  C.luda_context_use(context)
  if args.is_boxed(value) then
    status = C.luda_tensor_scalar_i64(value, args.dtype_numbers[class == "bool" and "i64" or dtype], out)
  elseif type(value) == "boolean" then
    status = C.luda_tensor_scalar(value and 1 or 0, args.dtype_numbers[dtype], out)
  elseif type(value) == "number" then
    if class ~= "float" and value ~= math.floor(value) then
      dtype = "f32"
    elseif class == "bool" then
      dtype = "i64"
    end
    status = C.luda_tensor_scalar(value, args.dtype_numbers[dtype], out)
  else
    errors.raise("invalid", "%s: expected a tensor or a number, got %s%s", op, args.describe(value),
      type(value) == "table" and "; luda.tensor makes a tensor of a list" or "")
  end
  lib.check(status)
  local scalar = memory.adopt(out[0])
  if like and like.device ~= "cpu" then
    return methods.to(scalar, like.device)
  end
  return scalar
end

--- One operand is no tensor.
local function mixed(op, name, a, b)
  local reversed = not istype(Tensor, a)
  local tensor, other = a, b
  if reversed then
    tensor, other = b, a
  end
  if not istype(Tensor, tensor) then
    tensor = M.scalar(name, tensor)
  end
  if type(other) == "number" then
    local handle = C.luda_call_number(context, op, tensor.handle, other, reversed and 1 or 0)
    if handle == 0 then
      return memory.retry(C.luda_call_number, op, tensor.handle, other, reversed and 1 or 0)
    end
    return wrap(handle)
  end
  other = M.scalar(name, other, tensor)
  if reversed then
    tensor, other = other, tensor
  end
  return wrap(C.luda_call2(context, op, tensor.handle, other.handle))
end

--- The function of a row with one input and no attributes; `general` takes more arguments than that.
---@param op integer
---@param name string
---@param general? function
function M.unary(op, name, general)
  return function(a, more)
    if more ~= nil then
      return general(a, more)
    end
    if not istype(Tensor, a) then
      a = M.scalar(name, a)
    end
    local handle = C.luda_call1(context, op, a.handle)
    if handle == 0 then
      return memory.retry(C.luda_call1, op, a.handle)
    end
    return wrap(handle)
  end
end

--- The function of a row with two inputs and no attributes; either may be a number.
---@param op integer
---@param name string
---@param general? function
function M.binary(op, name, general)
  return function(a, b, more)
    if more ~= nil then
      return general(a, b, more)
    end
    if istype(Tensor, a) and istype(Tensor, b) then
      local handle = C.luda_call2(context, op, a.handle, b.handle)
      if handle == 0 then
        return memory.retry(C.luda_call2, op, a.handle, b.handle)
      end
      return wrap(handle)
    end
    return mixed(op, name, a, b)
  end
end

-- Fields.

function fields.shape(t)
  local tensor = pointer(t)
  local sizes, shape = C.luda_tensor_shape(tensor), {}
  for i = 1, C.luda_tensor_ndim(tensor) do
    shape[i] = tonumber(sizes[i - 1])
  end
  return shape
end

function fields.dtype(t)
  return args.dtype_names[tonumber(C.luda_tensor_dtype(pointer(t)))]
end

function fields.device(t)
  return args.device_name(C.luda_tensor_device(pointer(t)))
end

function fields.ndim(t)
  return C.luda_tensor_ndim(pointer(t))
end

function fields.numel(t)
  return tonumber(C.luda_tensor_numel(pointer(t)))
end

function fields.requires_grad(t)
  return C.luda_requires_grad(pointer(t)) ~= 0
end

function fields.is_leaf(t)
  return C.luda_is_leaf(pointer(t)) ~= 0
end

function fields.id(t)
  C.luda_context_use(context)
  return tonumber(C.luda_tensor_id(pointer(t)))
end

-- The metatype. Its functions are fixed for the life of the state; what they look up is not.

local meta = {}

function meta.__index(t, key)
  local method = methods[key]
  if method ~= nil then
    return method
  end
  local field = fields[key]
  if field ~= nil then
    return field(t)
  end
  if type(key) == "string" then
    errors.raise("invalid", "tensor: there is no field or method '%s'", key)
  end
  return M.get_index(t, key)
end

function meta.__newindex(t, key, value)
  if type(key) == "string" then
    errors.raise("invalid", "tensor: field '%s' cannot be set%s", key,
      key == "requires_grad" and "; call requires_grad_()" or "")
  end
  M.set_index(t, key, value)
end

function meta.__len(t)
  if t.ndim == 0 then
    errors.raise("shape", "len: a tensor of no dimension has no length")
  end
  return methods.size(t, 1)
end

function meta.__eq(a, b)
  return istype(Tensor, a) and istype(Tensor, b) and a.handle == b.handle
end

local function no_order()
  errors.raise("unsupported", "compare: tensors have no order; elementwise comparison is a:lt(b), a:le(b), a:gt(b), a:ge(b)")
end
meta.__lt, meta.__le = no_order, no_order

function meta.__tostring(t)
  return M.to_text(t)
end

function meta.__concat(a, b)
  return tostring(a) .. tostring(b)
end

-- LuaJIT passes the operand of a unary minus twice.
local negative = M.unary(C.LUDA_OP_neg, "neg")
function meta.__unm(t)
  return negative(t)
end

meta.__add = M.binary(C.LUDA_OP_add, "add")
meta.__sub = M.binary(C.LUDA_OP_sub, "sub")
meta.__mul = M.binary(C.LUDA_OP_mul, "mul")
meta.__div = M.binary(C.LUDA_OP_div, "div")
meta.__mod = M.binary(C.LUDA_OP_remainder, "remainder")
meta.__pow = M.binary(C.LUDA_OP_pow, "pow")

ffi.metatype(Tensor, meta)

registry["luda.tensor"] = M
return M
