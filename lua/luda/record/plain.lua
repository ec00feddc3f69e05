--- Plain data with tensors in it, as JSON and a list of tensors: where one stood, {"$tensor": name} stands.

local args = require "luda.args"
local errors = require "luda.error"
local manifest = require "luda.manifest"
local tensors = require "luda.tensor"

local M = {}

local plain_types = { number = true, string = true, boolean = true }

local function refuse(where, problem)
  errors.raise("invalid", "record: %s: %s; records hold numbers, strings, booleans, tensors, and tables of those", where, problem)
end

--- Replaces tensors in a value; `put(name, tensor)` stores one and returns the name that it got.
---@param value any
---@param where string the value's place, the beginning of names
---@param put fun(name: string, tensor: luda.Tensor): string
---@param open? table<table, boolean> tables being packed
---@return any
function M.pack(value, where, put, open)
  if tensors.is_tensor(value) then
    return { ["$tensor"] = put(where, value) }
  elseif plain_types[type(value)] then
    return value
  elseif type(value) ~= "table" then
    refuse(where, args.describe(value) .. " has no place in a record")
  end
  open = open or {}
  if open[value] then
    refuse(where, "a table contains itself")
  end
  open[value] = true
  local packed = setmetatable({}, getmetatable(value))
  for _, key in ipairs(manifest.keys_of(value)) do
    local name = type(key) == "string" and key:gsub("^%$", "$$") or key
    if type(key) ~= "string" and type(key) ~= "number" then
      refuse(where, "a key is " .. args.describe(key))
    end
    packed[name] = M.pack(value[key], where .. "." .. tostring(key), put, open)
  end
  open[value] = nil
  return packed
end

--- The value that was packed; `get(name)` returns a tensor.
---@param packed any
---@param get fun(name: string): luda.Tensor
---@return any
function M.unpack(packed, get)
  if type(packed) ~= "table" then
    return packed
  elseif packed["$tensor"] then
    return get(packed["$tensor"])
  end
  local value = {}
  for key, item in pairs(packed) do
    value[type(key) == "string" and key:gsub("^%$%$", "$") or key] = M.unpack(item, get)
  end
  return value
end

local function kind_of(value)
  if type(value) == "string" and value:match("^0x%x+$") then
    return "number" -- a 64-bit word beyond 2^53
  end
  return tensors.is_tensor(value) and "tensor" or type(value)
end

--- Adds a sentence for each place where the file has something of another kind than is here. What is false is nothing yet.
---@param found string[]
---@param where string
---@param stored any
---@param live any
function M.compare_kinds(found, where, stored, live)
  local there, here = kind_of(stored), kind_of(live)
  if there == "table" and here == "table" then
    for _, key in ipairs(manifest.keys_of(live)) do
      M.compare_kinds(found, where .. "." .. tostring(key), stored[key], live[key])
    end
  elseif there ~= here and stored and live then
    found[#found + 1] = ("%s is a %s in the file, a %s here"):format(where, there, here)
  end
end

--- FNV-1a, 64 bits, as hexadecimal text.
---@param text string
---@return string
function M.fingerprint(text)
  local hash = 0xcbf29ce484222325ULL
  for i = 1, #text do
    local low = tonumber(hash % 256ULL)
    hash = (hash - low + bit.bxor(low, text:byte(i))) * 0x100000001b3ULL
  end
  return bit.tohex(tonumber(hash / 0x100000000ULL)) .. bit.tohex(tonumber(hash % 0x100000000ULL))
end

return M
