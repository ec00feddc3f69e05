--- Modules: trees of named parameters and buffers, filled by assignment to fields (luda.nn.fields says how).

local args = require "luda.args"
local autograd = require "luda.autograd"
local class = require "luda.class"
local errors = require "luda.error"
local scope = require "luda.scope"
local spans = require "luda.spans"
local tensors = require "luda.tensor"
local fields = require "luda.nn.fields"
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

-- Classes and fields.

local function construct(made, ...)
  local object = setmetatable(fields.store(), made)
  object:init(...)
  fields.built(object)
  return object
end

local function forward(self, ...)
  if spans.active then
    return spans.run(getmetatable(self).class_name, "module", self.forward, self, ...)
  end
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
  local made = { class_name = name, __newindex = fields.assign, __call = forward, __tostring = to_text }
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

--- An iterator over path and tensor of one kind.
local function each(self, kind)
  local list, i = fields.entries(self), 0
  return function()
    repeat
      i = i + 1
    until not list[i] or list[i].kind == kind
    if list[i] then
      return list[i].path, list[i].tensor
    end
  end
end

--- Iterates over path and parameter, in the order of the fields; tied parameters come once.
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
  for _, entry in ipairs(fields.entries(self)) do
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
  fields.walk(self, "", {}, function(module, path)
    list[#list + 1] = { path, module }
  end, fields.nothing)
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
  local _, modules = fields.parts(self)
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
  for _, entry in ipairs(fields.entries(self)) do
    local tensor = entry.tensor
    local new = change(tensor)
    if new then
      new = scope.keep(new)
      changed[tensor.id] = tensor.requires_grad and methods.requires_grad_(new) or new
    end
  end
  for _, module in self:named_modules() do
    local values = rawget(module, "_fields")
    for name in pairs(rawget(module, "_kinds")) do
      values[name] = changed[values[name].id] or values[name]
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

return M
