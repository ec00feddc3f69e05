--- Plain data and tensors on their way between two Lua states: a string in which a tensor is the address of a reference
-- that travels with it, or its place in a list that travels beside it.

local lib = require "luda.ffi"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local buffer = require "string.buffer"

local ffi, C = lib.ffi, lib.C

local M = {}

local TENSOR = "\0luda.tensor"

--- Replaces tensors by what `put(tensor)` returns, a number.
local function pack(op, value, put, depth)
  local kind = type(value)
  if tensors.is_tensor(value) then
    return { [TENSOR] = put(value) }
  elseif kind == "table" then
    if depth > 100 then
      errors.raise("invalid", "%s: tables nest more than 100 deep, or contain themselves", op)
    end
    local packed = {}
    for key, entry in pairs(value) do
      packed[pack(op, key, put, depth + 1)] = pack(op, entry, put, depth + 1)
    end
    return packed
  elseif kind == "function" or kind == "userdata" or kind == "thread" or (kind == "cdata" and not tonumber(value)) then
    errors.raise("invalid", "%s: a %s cannot pass between Lua states; send plain data, or the name of a module", op, kind)
  end
  return value
end

--- Tensors are what `get(number)` returns.
local function unpack_value(value, get)
  if type(value) ~= "table" then
    return value
  elseif value[TENSOR] then
    return get(value[TENSOR])
  end
  local result = {}
  for key, entry in pairs(value) do
    result[unpack_value(key, get)] = unpack_value(entry, get)
  end
  return result
end

local function send(tensor)
  local pointer = memory.pointer(tensor:detach())
  C.luda_tensor_retain(pointer)
  return tonumber(ffi.cast("uintptr_t", pointer))
end

local function send_copy(tensor)
  return send(tensor:detach():clone())
end

local function receive(address)
  return memory.adopt(ffi.cast("luda_tensor *", ffi.cast("uintptr_t", address)))
end

--- The string for a value; `copy` clones tensors, else they are moved. It must be decoded exactly once.
---@param op string
---@param value any
---@param copy? boolean
---@return string
function M.encode(op, value, copy)
  return buffer.encode(pack(op, value, copy and send_copy or send, 0))
end

---@param text string
function M.decode(text)
  return unpack_value(buffer.decode(text), receive)
end

--- The string for a value and the list of its tensors, for C to carry beside it.
---@param op string
---@param value any
---@return string
---@return luda.Tensor[]
function M.split(op, value)
  local list = {}
  local text = buffer.encode(pack(op, value, function(tensor)
    list[#list + 1] = tensor:detach()
    return #list
  end, 0))
  return text, list
end

--- The value that was split; `get(k)` returns tensor k of the list.
---@param text string
---@param get fun(k: integer): luda.Tensor
function M.join(text, get)
  return unpack_value(buffer.decode(text), get)
end

return M
