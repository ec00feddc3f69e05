--- Modules: trees of named parameters and buffers, filled by assignment to fields.
--
-- Every field lives in a store beside the object, so that each assignment is seen. A leaf tensor that requires a
-- gradient is a parameter; any other tensor assigned in init is a buffer; a module, or a list of modules, is a part.
-- What is registered is kept: no scope releases it. Whatever else is assigned is an ordinary field.

local args = require "luda.args"
local autograd = require "luda.autograd"
local class = require "luda.class"
local errors = require "luda.error"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
require "luda.sugar"

local methods, is_tensor = tensors.methods, tensors.is_tensor

local M = {}

---@class luda.nn.Module
---@field training boolean
local Module = class("luda.nn.Module")
Module.training = true
M.Module = Module

--- A trainable leaf of a tensor's values, kept from scopes.
---@param values luda.Tensor
---@return luda.Tensor
function M.parameter(values)
  if not is_tensor(values) then
    errors.raise("invalid", "parameter: expected a tensor, got %s", args.describe(values))
  end
  return scope.keep(methods.requires_grad_(methods.detach(values)))
end

---@param value any
---@return boolean
function M.is_module(value)
  return type(value) == "table" and rawget(value, "_fields") ~= nil and rawget(value, "_kinds") ~= nil
end
local is_module = M.is_module

-- Classes and fields.

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

local function assign(self, name, value)
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

local function construct(made, ...)
  local object = setmetatable({ _fields = {}, _kinds = {}, _order = {}, _building = true }, made)
  object:init(...)
  rawset(object, "_building", nil)
  return object
end

local function forward(self, ...)
  return self:forward(...)
end

local function to_text(self)
  return require("luda.nn.tree").describe(self)
end

local function describe(made)
  return "class " .. made.class_name
end

--- Makes a class of modules: give it `init` and `forward`. Calling the class makes an object, calling that runs forward.
---@param name string
---@param parent? table a class of modules to extend
---@return table
function M.module(name, parent)
  if type(name) ~= "string" then
    errors.raise("invalid", "module: the name must be a string, not %s", args.describe(name))
  end
  local made = { class_name = name, __newindex = assign, __call = forward, __tostring = to_text }
  function made.__index(self, key)
    local value = rawget(self, "_fields")[key]
    if type(value) ~= "nil" then -- comparing a tensor with nil is a call
      return value
    end
    return made[key]
  end
  return setmetatable(made, { __index = parent or Module, __call = construct, __tostring = describe })
end

function Module.init() end

function Module:forward()
  errors.raise("invalid", "%s: the class has no forward", getmetatable(self).class_name)
end

-- Walking the tree.

--- The parts of a module in order: names and modules.
local function parts(self)
  local names, modules, fields = {}, {}, rawget(self, "_fields")
  for _, name in ipairs(rawget(self, "_order")) do
    local value = fields[name]
    if is_module(value) then
      names[#names + 1], modules[#modules + 1] = tostring(name), value
    elseif type(value) == "table" and getmetatable(value) == nil then
      for i, item in ipairs(value) do
        if is_module(item) then
          names[#names + 1], modules[#modules + 1] = name .. "." .. i, item
        end
      end
    end
  end
  return names, modules
end
M.parts = parts

--- Calls visit(module, path) for the module and everything in it, parents first; a module inside itself is passed over.
local function walk(self, path, above, visit)
  if above[self] then
    return
  end
  above[self] = true
  visit(self, path)
  local names, modules = parts(self)
  for i, part in ipairs(modules) do
    walk(part, path == "" and names[i] or path .. "." .. names[i], above, visit)
  end
  above[self] = nil
end

---@class luda.nn.Entry
---@field path string where the tensor occurs first
---@field paths string[] all places
---@field tensor luda.Tensor
---@field kind "parameter"|"buffer"

--- Parameters and buffers in order, each once; a tensor that occurs again adds a path.
---@param self luda.nn.Module
---@return luda.nn.Entry[]
function M.entries(self)
  local list, by_id = {}, {}
  walk(self, "", {}, function(module, path)
    local fields, kinds = rawget(module, "_fields"), rawget(module, "_kinds")
    for _, name in ipairs(rawget(module, "_order")) do
      if kinds[name] then
        local tensor, place = fields[name], path == "" and tostring(name) or path .. "." .. name
        local id = tensor.id
        local entry = by_id[id]
        if entry then
          entry.paths[#entry.paths + 1] = place
        else
          entry = { path = place, paths = { place }, tensor = tensor, kind = kinds[name] }
          by_id[id], list[#list + 1] = entry, entry
        end
      end
    end
  end)
  return list
end

--- An iterator over path and tensor of one kind.
local function each(self, kind)
  local list, i = M.entries(self), 0
  return function()
    repeat
      i = i + 1
    until not list[i] or list[i].kind == kind
    if list[i] then
      return list[i].path, list[i].tensor
    end
  end
end

--- Iterates over path and parameter, in order of assignment; tied parameters come once.
---@return fun(): string?, luda.Tensor?
function Module:named_parameters()
  return each(self, "parameter")
end

--- Iterates over path and buffer.
---@return fun(): string?, luda.Tensor?
function Module:named_buffers()
  return each(self, "buffer")
end

--- The parameters as a list; tied ones come once.
---@return luda.Tensor[]
function Module:parameters()
  local list = {}
  for _, parameter in each(self, "parameter") do
    list[#list + 1] = parameter
  end
  return list
end

--- Further paths of tied parameters and shared buffers, each with the first one.
---@return table<string, string>
function Module:aliases()
  local found = {}
  for _, entry in ipairs(M.entries(self)) do
    for i = 2, #entry.paths do
      found[entry.paths[i]] = entry.path
    end
  end
  return found
end

--- Iterates over path and module, this one first, with the path "".
---@return fun(): string?, luda.nn.Module?
function Module:named_modules()
  local list, i = {}, 0
  walk(self, "", {}, function(module, path)
    list[#list + 1] = { path, module }
  end)
  return function()
    i = i + 1
    if list[i] then
      return list[i][1], list[i][2]
    end
  end
end

--- How many numbers the parameters hold.
---@return integer
function Module:count()
  local total = 0
  for _, parameter in each(self, "parameter") do
    total = total + parameter.numel
  end
  return total
end

-- Modes and places.

--- Calls fn(module) for every part and then for the module itself.
---@param fn fun(module: luda.nn.Module)
---@return luda.nn.Module self
function Module:apply(fn)
  local _, modules = parts(self)
  for _, part in ipairs(modules) do
    part:apply(fn)
  end
  fn(self)
  return self
end

--- Training mode (or evaluation, with false): what dropout looks at.
---@param on? boolean
---@return luda.nn.Module self
function Module:train(on)
  for _, module in self:named_modules() do
    rawset(module, "training", on ~= false)
  end
  return self
end

---@return luda.nn.Module self
function Module:eval()
  return self:train(false)
end

local function set_trainable(self, trainable)
  for _, parameter in each(self, "parameter") do
    methods.requires_grad_(parameter, trainable)
  end
  return self
end

--- Frozen parameters stay parameters, but get no gradients.
---@return luda.nn.Module self
function Module:freeze()
  return set_trainable(self, false)
end

---@return luda.nn.Module self
function Module:unfreeze()
  return set_trainable(self, true)
end

--- Puts change(tensor) in the place of every tensor where it is another one; tied tensors stay tied.
local function replace(self, change)
  local changed = {}
  for _, entry in ipairs(M.entries(self)) do
    local tensor = entry.tensor
    local new = change(tensor)
    if new then
      new = scope.keep(new)
      changed[tensor.id] = tensor.requires_grad and methods.requires_grad_(new) or new
    end
  end
  for _, module in self:named_modules() do
    local fields = rawget(module, "_fields")
    for name in pairs(rawget(module, "_kinds")) do
      fields[name] = changed[fields[name].id] or fields[name]
    end
  end
  return self
end

--- Moves parameters and buffers to a device. They become other tensors: build the optimizer afterwards.
---@param device string
---@return luda.nn.Module self
function Module:to(device)
  args.device("to", device)
  return autograd.no_grad(replace, self, function(tensor)
    return tensor.device ~= device and methods.to(methods.detach(tensor), device) or nil
  end)
end

--- Converts parameters and buffers of floating types. They become other tensors: build the optimizer afterwards.
---@param dtype string
---@return luda.nn.Module self
function Module:to_dtype(dtype)
  if args.dtype_class(dtype) ~= "float" then
    errors.raise("dtype", "to_dtype: parameters cannot be %s; use f32, f64, f16 or bf16", tostring(dtype))
  end
  return autograd.no_grad(replace, self, function(tensor)
    local convert = tensor.dtype ~= dtype and args.dtype_class(tensor.dtype) == "float"
    return convert and methods.to(methods.detach(tensor), dtype) or nil
  end)
end

-- State.

--- Parameters and buffers by path. They share the module's memory; clone them to hold on to today's values.
---@return table<string, luda.Tensor>
function Module:state()
  local state = {}
  for _, entry in ipairs(M.entries(self)) do
    state[entry.path] = methods.detach(entry.tensor)
  end
  return state
end

local function same_shape(a, b)
  return args.shape_text(a.shape) == args.shape_text(b.shape)
end

--- Pairs of target and source that fit, the report, and sentences about what does not.
local function match(self, state)
  local pairs_found, sentences, expected = {}, {}, {}
  local report = { missing = {}, unexpected = {}, mismatched = {} }
  for _, entry in ipairs(M.entries(self)) do
    local source
    for _, path in ipairs(entry.paths) do
      expected[path] = true
      source = source or state[path]
    end
    if not source then
      report.missing[#report.missing + 1] = entry.path
      sentences[#sentences + 1] = entry.path .. " is missing"
    elseif not same_shape(source, entry.tensor) then
      report.mismatched[#report.mismatched + 1] = entry.path
      sentences[#sentences + 1] = ("%s has shape %s, the module's %s"):format(entry.path,
        args.shape_text(source.shape), args.shape_text(entry.tensor.shape))
    else
      pairs_found[#pairs_found + 1] = { entry.tensor, source }
    end
  end
  for path in pairs(state) do
    if not expected[path] then
      report.unexpected[#report.unexpected + 1] = path
    end
  end
  table.sort(report.unexpected)
  for _, path in ipairs(report.unexpected) do
    sentences[#sentences + 1] = path .. " is unexpected"
  end
  return pairs_found, report, sentences
end

--- Copies values by path into parameters and buffers. Strict: any difference raises and nothing is copied; else what
-- fits is copied. Returns lists of names.
---@param state table<string, luda.Tensor>
---@param given? {strict: boolean}
---@return {missing: string[], unexpected: string[], mismatched: string[]}
function Module:load_state(state, given)
  local options = args.options("load_state", given, { strict = true })
  if type(state) ~= "table" then
    errors.raise("invalid", "load_state: expected a table of tensors by path, got %s", args.describe(state))
  end
  for path, tensor in pairs(state) do
    if not is_tensor(tensor) then
      errors.raise("invalid", "load_state: entry '%s' must be a tensor, not %s", tostring(path), args.describe(tensor))
    end
  end
  local found, report, sentences = match(self, state)
  if options.strict and #sentences > 0 then
    errors.raise_with("mismatch", ("load_state: the state does not fit %s: %s; strict = false loads what fits"):format(
      getmetatable(self).class_name, table.concat(sentences, ", ")), { detail = report })
  end
  autograd.no_grad(function()
    for _, pair in ipairs(found) do
      methods.copy_(pair[1], pair[2])
    end
  end)
  return report
end

return M
