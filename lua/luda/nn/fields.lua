--- The store behind a module's fields: what is registered, and walks over it.
--
-- Every field lives in a store beside the object, so that each assignment is seen. A leaf tensor that requires a
-- gradient is a parameter; any other tensor assigned in init is a buffer; a module, or a list of modules, is a part.
-- What is registered is kept: no scope releases it. Whatever else is assigned is an ordinary field.

local errors = require "luda.error"
local scope = require "luda.scope"
local tensors = require "luda.tensor"

local is_tensor = tensors.is_tensor

local M = {}

--- A fresh store, as the raw fields of an object that init is about to fill.
---@return table
function M.store()
  return { _fields = {}, _kinds = {}, _order = {}, _building = true }
end

--- Init is over: untracked tensors that are assigned from now on are no buffers.
function M.built(object)
  rawset(object, "_building", nil)
end

---@param value any
---@return boolean
function M.is_module(value)
  return type(value) == "table" and rawget(value, "_fields") ~= nil and rawget(value, "_kinds") ~= nil
end
local is_module = M.is_module

--- What a tensor assigned to a field is registered as, if at all.
local function kind_of(self, name, value)
  if not is_tensor(value) then
    return nil
  end
  local kind = rawget(self, "_kinds")[name]
  if not value.is_leaf then
    if kind then
      errors.raise("graph", "%s: field '%s' is a %s; a recorded result cannot take its place, detach it first",
        getmetatable(self).class_name, tostring(name), kind)
    end
    return nil
  end
  if value.requires_grad then
    return "parameter"
  end
  return kind or (rawget(self, "_building") and "buffer") or nil
end

--- The metamethod __newindex of every module.
function M.assign(self, name, value)
  local fields, order = rawget(self, "_fields"), rawget(self, "_order")
  local kind = kind_of(self, name, value)
  rawget(self, "_kinds")[name] = kind
  if type(fields[name]) == "nil" and type(value) ~= "nil" then
    order[#order + 1] = name
  elseif type(value) == "nil" then
    for i = #order, 1, -1 do
      if order[i] == name then
        table.remove(order, i)
      end
    end
  end
  fields[name] = kind and scope.keep(value) or value
end

--- Calls visit(name, value) for the fields that are modules, also in lists, and for registered tensors, in order.
local function each_field(self, visit)
  local fields, kinds = rawget(self, "_fields"), rawget(self, "_kinds")
  for _, name in ipairs(rawget(self, "_order")) do
    local value = fields[name]
    if kinds[name] or is_module(value) then
      visit(tostring(name), value, kinds[name])
    elseif type(value) == "table" and getmetatable(value) == nil then
      for i, item in ipairs(value) do
        if is_module(item) then
          visit(name .. "." .. i, item)
        end
      end
    end
  end
end

--- The parts of a module in order: names and modules.
function M.parts(self)
  local names, modules = {}, {}
  each_field(self, function(name, value)
    if is_module(value) then
      names[#names + 1], modules[#modules + 1] = name, value
    end
  end)
  return names, modules
end

--- Calls enter(module, path), then leaf(path, tensor, kind) and itself for what is in it; a module inside itself is
-- passed over.
local function walk(self, path, above, enter, leaf)
  if above[self] then
    return
  end
  above[self] = true
  enter(self, path)
  each_field(self, function(name, value, kind)
    local place = path == "" and name or path .. "." .. name
    if kind then
      leaf(place, value, kind)
    else
      walk(value, place, above, enter, leaf)
    end
  end)
  above[self] = nil
end
M.walk = walk

function M.nothing() end

---@class luda.nn.Entry
---@field path string where the tensor occurs first
---@field paths string[] all places
---@field tensor luda.Tensor
---@field kind "parameter"|"buffer"

--- Parameters and buffers in order of assignment, each once; a tensor that occurs again adds a path.
---@param self luda.nn.Module
---@return luda.nn.Entry[]
function M.entries(self)
  local list, by_id = {}, {}
  walk(self, "", {}, M.nothing, function(path, tensor, kind)
    local id = tensor.id
    local entry = by_id[id]
    if entry then
      entry.paths[#entry.paths + 1] = path
    else
      entry = { path = path, paths = { path }, tensor = tensor, kind = kind }
      by_id[id], list[#list + 1] = entry, entry
    end
  end)
  return list
end

return M
