--- What a tensor holds, as Lua values; and its lifetime.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local scope = require "luda.scope"

local ffi, C = lib.ffi, lib.C
local methods, pointer, is_tensor = tensors.methods, memory.pointer, tensors.is_tensor

local M = {}

--- Makes a function a method and luda.<name>.
---@param name string
---@param fn function
function M.define(name, fn)
  methods[name], ops.functions[name] = fn, fn
end
local define = M.define

--- Raises unless `value` is a tensor, which is returned.
function M.need_tensor(op, value)
  if not is_tensor(value) then
    errors.raise("invalid", "%s: expected a tensor, got %s", op, args.describe(value))
  end
  return value
end
local need_tensor = M.need_tensor

--- The sizes, or that of one dimension.
define("size", function(t, dim)
  if dim == nil then
    return t.shape
  end
  local tensor = pointer(t)
  local ndim = C.luda_tensor_ndim(tensor)
  if type(dim) ~= "number" or dim ~= math.floor(dim) or dim == 0 or dim > ndim or dim < -ndim then
    errors.raise("index", "size: dimension %s of a tensor with %d", tostring(dim), ndim)
  end
  return tonumber(C.luda_tensor_shape(tensor)[dim > 0 and dim - 1 or dim + ndim])
end)

local number_cell, integer_cell = ffi.new("double[1]"), ffi.new("int64_t[1]")

--- Element `index` (row-major, from 0): a number, a boolean, or a boxed integer beyond 2^53.
function M.element(t, index)
  local class = args.dtype_class(t.dtype)
  if class == "int" then
    lib.check(C.luda_tensor_get_i64(pointer(t), index, integer_cell))
    return args.unbox(integer_cell[0])
  end
  lib.check(C.luda_tensor_get(pointer(t), index, number_cell))
  if class == "bool" then
    return number_cell[0] ~= 0
  end
  return number_cell[0]
end

--- The value of a tensor of one element; integers beyond 2^53 are boxed.
define("item", function(t)
  if need_tensor("item", t).numel ~= 1 then
    errors.raise("shape", "item: the tensor has %d elements %s, one is needed", t.numel, args.shape_text(t.shape))
  end
  return M.element(t, 0)
end)

--- All elements in row-major order as a C array, and how one of them becomes a Lua value.
function M.read(t)
  local class, count = args.dtype_class(t.dtype), t.numel
  local kind = class == "float" and "double[?]" or class == "int" and "int64_t[?]" or "uint8_t[?]"
  local dtype = class == "float" and C.LUDA_F64 or class == "int" and C.LUDA_I64 or C.LUDA_BOOL
  local values = ffi.new(kind, math.max(count, 1))
  lib.check(C.luda_tensor_read(pointer(t), dtype, values, count))
  return values, class
end

--- The elements as nested lists.
define("totable", function(t)
  local values, class = M.read(need_tensor("totable", t))
  local shape, next_index = t.shape, 0
  local function build(dim)
    if dim > #shape then
      local value = values[next_index]
      next_index = next_index + 1
      if class == "int" then
        return args.unbox(value)
      elseif class == "bool" then
        return value ~= 0
      end
      return value
    end
    local list = {}
    for i = 1, shape[dim] do
      list[i] = build(dim + 1)
    end
    return list
  end
  return build(1)
end)

--- Whether two tensors have the same shape and elements, as a Lua boolean.
define("equal", function(a, b)
  local first, second = need_tensor("equal", a).shape, need_tensor("equal", b).shape
  if #first ~= #second then
    return false
  end
  for i = 1, #first do
    if first[i] ~= second[i] then
      return false
    end
  end
  return methods.item(methods.sum(methods.ne(a, b))) == 0
end)

-- Lifetime.

define("keep", scope.keep)
define("release", scope.release)

--- The address of the first element of a contiguous CPU tensor, typed, valid while the tensor lives.
local stored = {
  f64 = "double *", f32 = "float *", f16 = "uint16_t *", bf16 = "uint16_t *", i64 = "int64_t *", i32 = "int32_t *",
  i16 = "int16_t *", i8 = "int8_t *", u8 = "uint8_t *", bool = "uint8_t *",
}
function methods.data(t) -- luda.data is the module
  local tensor = pointer(t)
  local elements = C.luda_tensor_elements(tensor)
  if elements == nil and not (t.device == "cpu" and methods.is_contiguous(t)) then -- no elements, no address
    errors.raise("invalid", "data: only contiguous CPU tensors have an address; call contiguous() or to(\"cpu\")")
  end
  return ffi.cast(stored[args.dtype_names[tonumber(C.luda_tensor_dtype(tensor))]], elements)
end

return M
