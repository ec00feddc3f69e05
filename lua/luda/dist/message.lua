--- Plain data and tensors on their way between two Lua states: a string in which a tensor is the address of a reference
-- that travels with it.

local lib = require "luda.ffi"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local buffer = require "string.buffer"

local ffi, C = lib.ffi, lib.C

local M = {}

local TENSOR = "\0luda.tensor"

local function pack_tensor(tensor, copy)
  local pointer = memory.pointer(copy and tensor:detach():clone() or tensor:detach())
  C.luda_tensor_retain(pointer)
  return { [TENSOR] = tonumber(ffi.cast("uintptr_t", pointer)) }
end

local function pack(op, value, copy, depth)
  local kind = type(value)
  if tensors.is_tensor(value) then
    return pack_tensor(value, copy)
  elseif kind == "table" then
    if depth > 100 then
      errors.raise("invalid", "%s: tables nest more than 100 deep, or contain themselves", op)
    end
    local packed = {}
    for key, entry in pairs(value) do
      packed[pack(op, key, copy, depth + 1)] = pack(op, entry, copy, depth + 1)
    end
    return packed
  elseif kind == "function" or kind == "userdata" or kind == "thread" or (kind == "cdata" and not tonumber(value)) then
    errors.raise("invalid", "%s: a %s cannot pass between Lua states; send plain data, or the name of a module", op, kind)
  end
  return value
end

local function unpack_value(value)
  if type(value) ~= "table" then
    return value
  end
  local address = value[TENSOR]
  if address then
    return memory.adopt(ffi.cast("luda_tensor *", ffi.cast("uintptr_t", address)))
  end
  local result = {}
  for key, entry in pairs(value) do
    result[unpack_value(key)] = unpack_value(entry)
  end
  return result
end

--- The string for a value; `copy` clones tensors, else they are moved. It must be decoded exactly once.
---@param op string
---@param value any
---@param copy? boolean
---@return string
function M.encode(op, value, copy)
  return buffer.encode(pack(op, value, copy, 0))
end

---@param text string
function M.decode(text)
  return unpack_value(buffer.decode(text))
end

return M
