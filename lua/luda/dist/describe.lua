--- What those who make a call together tell each other before it: a short description each, and where these differ.

local lib = require "luda.ffi"
local create = require "luda.create"
local json = require "luda.json"
local scope = require "luda.scope"

local ffi = lib.ffi

local M = {}

local BYTES = 1024 -- of a description; all are as long, so that one exchange is enough

local function pad(text)
  local tensor = create.zeros({ BYTES }, { dtype = "u8" })
  ffi.copy(tensor:data(), text, #text)
  return tensor
end

--- The beginning of a text, in characters that need no room to be escaped.
function M.words(text, most)
  return (tostring(text):sub(1, most):gsub('[^ -~]', "?"):gsub('["\\]', "'"))
end

--- The descriptions of all ranks.
---@param comm luda.Comm
---@param description table
---@param timeout number
---@return table[]
function M.exchange(comm, description, timeout)
  return scope.scope(function()
    local all = comm:all_gather(pad(json.encode(description)), { timeout = timeout })
    local list = {}
    for rank = 1, comm.size do
      list[rank] = json.decode(ffi.string(ffi.cast("const char *", all:data()) + (rank - 1) * BYTES))
    end
    return list
  end)
end

--- A text of rank `root` on all ranks; the others pass nil.
---@param comm luda.Comm
---@param text? string
---@param root integer
---@param timeout number
---@return string
function M.tell(comm, text, root, timeout)
  return scope.scope(function()
    local tensor
    if text then
      tensor = create.empty({ #text }, { dtype = "u8" })
      ffi.copy(tensor:data(), text, #text)
    end
    local heard = comm:broadcast(tensor, root, { timeout = timeout })
    return ffi.string(heard:data(), heard.numel)
  end)
end

--- What someone asks for, as the communicators' errors say it.
---@return string
function M.text(description)
  local words = { description.op }
  for _, name in ipairs { "how", "dtype" } do
    words[#words + 1] = description[name]
  end
  if description.shape then
    words[#words + 1] = "[" .. table.concat(description.shape, ", ") .. "]"
  end
  if description.root then
    words[#words + 1] = "root " .. description.root
  end
  if description.strategy then
    words[#words + 1] = "by " .. description.strategy
  end
  return table.concat(words, " ")
end

local FIELDS = {
  { "op", "operation" }, { "how", "reduction" }, { "root", "root" }, { "strategy", "strategy" }, { "dtype", "dtype" },
  { "shape", "shape" },
}

local function value_of(description, field)
  local value = description[field]
  return type(value) == "table" and table.concat(value, ",") or value
end

--- The first field that differs, nil when none does. What someone does not know matches anything.
---@param list table[]
---@return string? field
function M.difference(list)
  for _, field in ipairs(FIELDS) do
    local known
    for _, description in ipairs(list) do
      local value = value_of(description, field[1])
      if known ~= nil and value ~= nil and value ~= known then
        return field[2]
      end
      known = known == nil and value or known
    end
  end
end

--- "NAME asks for …" of everybody.
---@param list table[]
---@param names (string|integer)[]
function M.asked(list, names)
  local parts = {}
  for i, description in ipairs(list) do
    parts[i] = ("%s asks for %s"):format(names[i], M.text(description))
  end
  return table.concat(parts, ", ")
end

return M
