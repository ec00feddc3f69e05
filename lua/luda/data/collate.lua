--- A batch from a list of items.

local args = require "luda.args"
local create = require "luda.create"
local ops = require "luda.ops"
local tensors = require "luda.tensor"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

--- One value from a list: tensors are stacked, numbers and booleans become a tensor, tables are joined field by field.
local function join(list)
  local first = list[1]
  if is_tensor(first) then
    return functions.stack(list)
  elseif type(first) == "number" or type(first) == "boolean" or args.is_boxed(first) then
    return create.tensor(list)
  elseif type(first) ~= "table" then
    return list
  end
  local joined = {}
  for name in pairs(first) do
    local column = {}
    for i, item in ipairs(list) do
      column[i] = item[name]
    end
    joined[name] = join(column)
  end
  return joined
end

--- What was joined, without its rows.
local function emptied(value)
  if is_tensor(value) then
    return methods.narrow(value, 1, 1, 0)
  end
  local fields = {}
  for name, field in pairs(value) do
    if is_tensor(field) or type(field) == "table" then
      fields[name] = emptied(field)
    end
  end
  return fields
end

---@param list table items, or none and a `template` for what they would have been
---@return any
return function(list)
  if #list == 0 and list.template ~= nil then
    return emptied(join { list.template })
  end
  return join(list)
end
