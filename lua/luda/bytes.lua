--- Bytes as tensors: a storage as another element type, memory that something else owns, strings.

local lib = require "luda.ffi"
local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local memory = require "luda.memory"
local sugar = require "luda.sugar"
local tags = require "luda.autograd.tags"
local tensors = require "luda.tensor"
local values = require "luda.values"

local ffi, C, context = lib.ffi, lib.C, lib.context
local methods, is_tensor = tensors.methods, tensors.is_tensor
local define, need_tensor = values.define, values.need_tensor

--- The same bytes as another element type, without a copy; of another size the last dimension shrinks or grows.
---@param t luda.Tensor
---@param dtype string
---@return luda.Tensor
define("bitcast", function(t, dtype)
  local out = ffi.new("luda_tensor *[1]")
  return sugar.adopt_call(out, C.luda_tensor_bitcast, memory.pointer(need_tensor("bitcast", t)), args.dtype("bitcast", dtype),
    out)
end)
methods.view_as_dtype = methods.bitcast

--- A tensor in memory that the host and devices exchange fastest: on the CPU, which has one kind of memory, itself.
define("pin", function(t)
  if need_tensor("pin", t).device ~= "cpu" then
    errors.raise("device", "pin: the tensor lies on %s; only CPU memory is pinned, copy it with :to(\"cpu\") first", t.device)
  end
  return t
end)

-- How LuaJIT writes the types of C.
local element_types = {
  float = "f32", double = "f64", int64_t = "i64", int = "i32", short = "i16", char = "i8", ["signed char"] = "i8",
  ["unsigned char"] = "u8", bool = "bool",
}

--- Element type of what a cdata holds or points to, and the bytes it has (nil for a pointer).
local function describe_memory(op, source)
  if type(source) ~= "cdata" or is_tensor(source) then
    errors.raise("invalid", "%s: expected a pointer or an array of the FFI, got %s", op, args.describe(source))
  end
  local text = tostring(ffi.typeof(source)):match("^ctype<(.*)>$")
  local element = text:gsub("const ", ""):match("^([%w_ ]-) ?[%[%*]")
  return element_types[element], not text:find("%*") and ffi.sizeof(source) or nil
end

local function dtype_of(op, named, found)
  if not (named or found) then
    errors.raise("dtype", "%s: the memory's C type says no element type; name one, as in dtype = \"f32\"", op)
  end
  return args.dtype(op, named or found)
end

--- A CPU tensor over an address; `owner` stays alive as long as a tensor over it does.
local function over(op, address, shape, dtype, owner)
  local out, sizes = ffi.new("luda_tensor *[1]"), ffi.new("int64_t[?]", C.LUDA_MAX_DIMS)
  for i = 1, #shape do
    sizes[i - 1] = shape[i]
  end
  local tag = tags.new(owner)
  C.luda_context_use(context)
  local status = C.luda_tensor_wrap_lua(dtype, #shape, sizes, address, tag, out)
  if status ~= 0 then
    tags.forget(tag)
    errors.speak_of(op, pcall(lib.raise, status))
  end
  return memory.adopt(out[0])
end

--- A tensor over memory that something else owns, without a copy: an array of the FFI, which stays alive as long as the
-- tensor does, or a pointer; `owner` (any value) stays alive too.
---@param source any
---@param shape integer[]
---@param given? {dtype: string?, owner: any}
---@return luda.Tensor
function create.from_ptr(source, shape, given)
  given = args.options("from_ptr", given, { dtype = args.absent, owner = args.absent })
  local found, bytes = describe_memory("from_ptr", source)
  local dtype, count = dtype_of("from_ptr", given.dtype, found), 1
  for _, size in ipairs(args.sizes("from_ptr", shape)) do
    count = count * size
  end
  local needed = count * C.luda_dtype_size(dtype)
  if bytes and needed > bytes then
    errors.raise("shape", "from_ptr: %s of %s are %d bytes, the array has %d", args.shape_text(shape),
      args.dtype_names[dtype], needed, bytes)
  end
  return over("from_ptr", ffi.cast("void *", source), shape, dtype, { source, given.owner })
end

--- The bytes of a string, copied, or of an array of the FFI, shared, as a tensor of one dimension: `count` elements (all
-- where not given) after `offset` bytes.
---@param source string|any
---@param given? {dtype: string?, count: integer?, offset: integer?}
---@return luda.Tensor
function create.frombuffer(source, given)
  given = args.options("frombuffer", given, { dtype = args.absent, count = -1, offset = 0 })
  local found, bytes
  if type(source) == "string" then
    found, bytes = "u8", #source
  else
    found, bytes = describe_memory("frombuffer", source)
  end
  if not bytes then
    errors.raise("invalid", "frombuffer: a pointer does not say how many bytes there are; use from_ptr with a shape")
  end
  local dtype = dtype_of("frombuffer", given.dtype, found)
  local offset, count = args.integer("frombuffer", "offset", given.offset), args.integer("frombuffer", "count", given.count)
  local size, rest = C.luda_dtype_size(dtype), bytes - offset
  count = count == -1 and rest / size or count
  if offset < 0 or count < 0 or count ~= math.floor(count) or count * size > rest then
    errors.raise("shape", "frombuffer: %s elements of %s after byte %d of %d", tostring(count), args.dtype_names[dtype],
      offset, bytes)
  end
  if type(source) ~= "string" then
    return over("frombuffer", ffi.cast("char *", source) + offset, { count }, dtype, source)
  elseif dtype == C.LUDA_BOOL then
    return methods.ne(create.frombuffer(source, { dtype = "u8", count = count, offset = offset }), 0)
  end
  local t = create.empty({ count }, { dtype = args.dtype_names[dtype] })
  ffi.copy(methods.data(t), ffi.cast("const char *", source) + offset, count * size)
  return t
end
