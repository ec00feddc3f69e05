--- Arguments: the one place where 1-based positions, names of types and devices, and option tables become C values.

local lib = require "luda.ffi"
local errors = require "luda.error"

local ffi, C = lib.ffi, lib.C
local floor = math.floor
local Integer, Unsigned = ffi.typeof("int64_t"), ffi.typeof("uint64_t")

local M = {}

M.dtype_numbers, M.dtype_names = {}, {}
for number = 0, tonumber(C.LUDA_DTYPE_COUNT) - 1 do
  local name = ffi.string(C.luda_dtype_name(number))
  M.dtype_numbers[name], M.dtype_names[number] = number, name
end

--- "float", "int" or "bool".
---@param name string
---@return string
function M.dtype_class(name)
  if name == "bool" then
    return "bool"
  end
  return (name:sub(1, 1) == "f" or name == "bf16") and "float" or "int"
end

---@param op string
---@param name string
---@return integer
function M.dtype(op, name)
  local number = M.dtype_numbers[name]
  if not number then
    local known = {}
    for i = 0, #M.dtype_names do
      known[#known + 1] = M.dtype_names[i]
    end
    errors.raise("dtype", "%s: unknown element type '%s'; the types are %s", op, tostring(name), table.concat(known, " "))
  end
  return number
end

--- Type and index of "cpu", "cuda" or "cuda:1".
---@param op string
---@param name string
---@return integer type
---@return integer index
function M.device(op, name)
  local kind, index = tostring(name):match("^(%a+):?(%d*)$")
  if kind == "cpu" and (index == "" or index == "0") then
    return C.LUDA_CPU, 0
  elseif kind == "cuda" then
    return C.LUDA_CUDA, tonumber(index) or 0
  end
  return errors.raise("device", "%s: unknown device '%s'; write \"cpu\" or \"cuda:0\"", op, tostring(name))
end

---@return string
function M.device_name(device)
  return device.type == C.LUDA_CPU and "cpu" or ("cuda:%d"):format(device.index)
end

--- True for a boxed 64-bit integer.
function M.is_boxed(value)
  return type(value) == "cdata" and (ffi.istype(Integer, value) or ffi.istype(Unsigned, value))
end

local ranges = {
  i64 = { -0x1p63, 0x1p63 - 1024 }, i32 = { -0x1p31, 0x1p31 - 1 }, i16 = { -32768, 32767 }, i8 = { -128, 127 }, u8 = { 0, 255 },
}

--- Raises unless an integer type, where `dtype` is one, can hold a number, a boxed integer included. Fractions are cut.
---@param op string
---@param value any
---@param dtype string
function M.fit(op, value, dtype)
  local range, number = ranges[dtype], tonumber(value)
  if not range or (dtype == "i64" and ffi.istype(Integer, value)) then
    return
  end
  if not (number >= range[1] and number <= range[2]) then
    errors.raise("invalid", "%s: %s does not fit %s", op, tostring(value), dtype)
  end
end

--- A 64-bit integer as a number where that is exact, else as it is.
function M.unbox(value)
  local number = tonumber(value)
  if number > -0x1p53 and number < 0x1p53 then
    return number
  end
  return value
end

---@param op string
---@param name string of the argument
---@param value any
---@return integer
function M.integer(op, name, value)
  if M.is_boxed(value) then
    value = M.unbox(value)
  end
  if type(value) ~= "number" or value ~= floor(value) or value >= 0x1p53 or value <= -0x1p53 then
    errors.raise("invalid", "%s: %s must be a whole number, not %s", op, name, M.describe(value))
  end
  return value
end

---@param op string
---@param name string
---@param value any
---@return number
function M.number(op, name, value)
  if M.is_boxed(value) then
    return tonumber(value)
  end
  if type(value) ~= "number" then
    errors.raise("invalid", "%s: %s must be a number, not %s", op, name, M.describe(value))
  end
  return value
end

--- A 1-based dimension or a negative one, as C counts.
---@param op string
---@param name string
---@param value any
---@return integer
function M.dimension(op, name, value)
  value = M.integer(op, name, value)
  if value == 0 then
    errors.raise("index", "%s: %s is 0; dimensions count from 1, or from -1 at the end", op, name)
  end
  return value > 0 and value - 1 or value
end

--- A 1-based position, or a negative one from the end, as C counts; with `size` the result is never negative in range.
---@param op string
---@param name string
---@param value any
---@param size? integer
---@return integer
function M.position(op, name, value, size)
  value = M.integer(op, name, value)
  if value == 0 then
    errors.raise("index", "%s: %s is 0; positions count from 1, or from -1 at the end", op, name)
  end
  return value > 0 and value - 1 or (size or 0) + value
end

--- A size; -1 stands for one that follows from the others.
---@param op string
---@param name string
---@param value any
---@return integer
function M.size(op, name, value)
  value = M.integer(op, name, value)
  if value < -1 then
    errors.raise("shape", "%s: a size of %s is %d", op, name, value)
  end
  return value
end

--- A list of sizes, checked; `unknown` allows -1.
---@param op string
---@param sizes integer[]
---@param unknown? boolean
---@return integer[]
function M.sizes(op, sizes, unknown)
  if type(sizes) ~= "table" then
    errors.raise("shape", "%s: a shape is a list of sizes, not %s", op, M.describe(sizes))
  end
  if #sizes > C.LUDA_MAX_DIMS then
    errors.raise("shape", "%s: %d dimensions; at most %d are possible", op, #sizes, tonumber(C.LUDA_MAX_DIMS))
  end
  for i = 1, #sizes do
    local size = M.integer(op, "a size", sizes[i])
    if size < (unknown and -1 or 0) then
      errors.raise("shape", "%s: size %d is %d", op, i, size)
    end
  end
  return sizes
end

--- "[2, 3]"
---@param sizes integer[]
---@return string
function M.shape_text(sizes)
  return "[" .. table.concat(sizes, ", ") .. "]"
end

--- What a value is, for messages.
function M.describe(value)
  local kind = type(value)
  if kind == "number" or kind == "boolean" or kind == "nil" then
    return tostring(value)
  elseif kind == "string" then
    return ("the string '%s'"):format(#value > 40 and value:sub(1, 37) .. "..." or value)
  elseif kind == "cdata" then
    return lib.Tensor and ffi.istype(lib.Tensor, value) and "a tensor" or "cdata"
  end
  return "a " .. kind
end

--- Raises unless a value can be called.
function M.callable(op, value)
  local meta = type(value) == "table" and getmetatable(value)
  if type(value) ~= "function" and not (meta and meta.__call) then
    errors.raise("invalid", "%s: the first argument must be a function, not %s", op, M.describe(value))
  end
end

--- Reads options: every key of `given` must be in `known`; a value of nil there is filled from `known` unless it is `M.absent`.
M.absent = {}

---@param op string
---@param given? table
---@param known table<string, any> name to default
---@return table
function M.options(op, given, known)
  local result = {}
  for name, default in pairs(known) do
    if default ~= M.absent then
      result[name] = default
    end
  end
  for name, value in pairs(M.check_options(op, given or {}, known)) do
    result[name] = value
  end
  return result
end

--- An error unless `given`, which is returned, is a table that has only names in `known` (as keys).
function M.check_options(op, given, known)
  if type(given) ~= "table" then
    errors.raise("invalid", "%s: options are a table, not %s", op, M.describe(given))
  end
  for name in pairs(given) do
    if known[name] == nil then
      M.unknown_option(op, name, known)
    end
  end
  return given
end

--- Raises about an option that `known` (names as keys) lacks.
function M.unknown_option(op, name, known)
  local names = {}
  for key in pairs(known) do
    names[#names + 1] = key
  end
  table.sort(names)
  local list = #names > 0 and "it knows " .. table.concat(names, ", ") or "it has none"
  errors.raise("invalid", "%s: unknown option '%s'; %s", op, tostring(name), list)
end

--- The values of `names`, given in that order or in a table of options at the end; `defaults` fill the rest.
---@param op string
---@param names string[]
---@param defaults table<string, any>
---@return table<string, any>
function M.named(op, names, defaults, ...)
  local result, count = {}, select("#", ...)
  for i = 1, count do
    local value = select(i, ...)
    if i == count and type(value) == "table" and getmetatable(value) == nil and value[1] == nil then
      local known = {}
      for _, name in ipairs(names) do
        known[name] = true
      end
      for name, option in pairs(M.check_options(op, value, known)) do
        result[name] = option
      end
    elseif names[i] then
      result[names[i]] = value
    elseif value ~= nil then
      errors.raise("invalid", "%s: unexpected argument %s", op, M.describe(value))
    end
  end
  for name, default in pairs(defaults) do
    if result[name] == nil then
      result[name] = default
    end
  end
  return result
end

--- Removes and returns the options table that ends an argument list, if one does.
---@param list table with field n
---@return table?
function M.take_options(list)
  local last = list[list.n]
  if list.n > 0 and type(last) == "table" and getmetatable(last) == nil and last[1] == nil
    and (next(last) ~= nil or list.n > 1) then
    list[list.n], list.n = nil, list.n - 1
    return last
  end
end

return M
