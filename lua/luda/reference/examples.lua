--- The examples of the reference, run as they stand, and with other types, devices and gradients: what is supported is asked of
-- the kernel tables and measured.

local luda = require "luda"
local lib = require "luda.ffi"
local args = require "luda.args"

local C = lib.C

local M = {}

local function text_of(value)
  if luda.is_tensor(value) then
    local dtype = value.dtype
    local text = text_of(value:totable())
    return (dtype == "f32" or dtype == "bool") and text or text .. " " .. dtype
  elseif type(value) == "table" then
    local parts = {}
    for i, item in ipairs(value) do
      parts[i] = text_of(item)
    end
    return "{" .. table.concat(parts, ", ") .. "}"
  elseif type(value) == "number" then
    return value ~= value and "nan" or ("%.5g"):format(value == 0 and 0 or value)
  end
  return tostring(value)
end

--- Runs an example; its values as text, one after the other, and in a list.
---@param example string
---@param environment? table
---@return string text
---@return any[] values
function M.run(example, environment)
  local chunk = assert(loadstring("return " .. example, "=example"))
  setfenv(chunk, environment or { luda = luda, math = math, require = require })
  local values, texts = { chunk() }, {}
  for i, value in ipairs(values) do
    texts[i] = text_of(value)
  end
  return #texts == 0 and "nothing" or table.concat(texts, "; "), values
end

-- Support.

--- Numbers that a type can hold, from nested lists; nil where they are not numbers.
local function fitting(values, dtype)
  if type(values) == "table" then
    local list = {}
    for i, value in ipairs(values) do
      list[i] = fitting(value, dtype)
    end
    return (#list > 0 or #values == 0) and list or nil
  elseif type(values) ~= "number" then
    return nil
  elseif args.dtype_class(dtype) ~= "float" and values - values ~= 0 then
    return 0 -- infinite, or no number
  end
  return dtype == "u8" and math.abs(values) or values
end

--- `luda` for an example whose numbers shall have another type, device, or a gradient: of the leaves that it lists.
local function variant(entry, dtype, device, leaves)
  local whole = entry.types:find("^INTEGER") or entry.types == "BITS"
  return setmetatable({
    tensor = function(values, options)
      local numbers = fitting(values, dtype)
      if not numbers or (options and not whole) then
        return luda.tensor(values, options):to(device)
      end
      local t = luda.tensor(numbers, { dtype = dtype }):to(device)
      if not leaves then
        return t
      end
      leaves[#leaves + 1] = t:requires_grad_()
      return t:clone() -- which may be changed in place
    end,
  }, { __index = luda })
end

local function try(entry, dtype, device, leaves)
  return pcall(function()
    local _, values = M.run(entry.example, { luda = variant(entry, dtype, device, leaves), math = math, require = require })
    return type(values[1]) == "table" and luda.is_tensor(values[1][1]) and values[1] or values
  end)
end

--- Runs an operator's example with numbers of a type on a device.
---@return boolean accepted
---@return any result the first, or the error
function M.try(entry, dtype, device)
  local fine, values = try(entry, dtype, device)
  return fine, fine and values[1] or values
end

--- What an operator's example does with the gradient: "yes", "zero" (none arrives) or "none" (refused).
function M.gradient(entry)
  local leaves = {}
  local fine, values = try(entry, "f64", "cpu", leaves)
  if not fine then
    return values.code == "graph" and "none" or tostring(values)
  end
  for _, value in ipairs(values) do
    if luda.is_tensor(value) and value.requires_grad then
      local gradients = value:sum():backward { retain = true }
      for _, leaf in ipairs(leaves) do
        if gradients[leaf] then
          return "yes"
        end
      end
    end
  end
  return "zero"
end

--- True where the example has a tensor whose type can be varied.
function M.varies(entry)
  return entry.example:find("luda.tensor", 1, true) ~= nil and entry.types ~= "CREATE"
end

--- "kernel" (of that type), "converted" (to another) or nil, for one operator on one device.
function M.support(entry, dtype, device)
  local row = entry.row
  if row then
    local kind, index = args.device("support", device)
    if C.luda_op_supported(row.op, args.dtype("support", dtype), lib.ffi.new("luda_device", kind, index)) ~= 0 then
      return "kernel"
    end
  end
  local accepted = M.varies(entry) and M.try(entry, dtype, device)
  if not M.varies(entry) and not row then
    for _, name in ipairs(entry.accepts) do
      accepted = accepted or name == dtype
    end
  end
  return accepted and (row and "converted" or "kernel") or nil
end

--- Devices of this machine: one of each type.
---@return string[]
function M.devices()
  return luda.has("cuda") and { "cpu", "cuda:0" } or { "cpu" }
end

return M
