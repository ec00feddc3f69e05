--- The optimizer object: updates in place, reports, and the state that records keep.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"
local manifest = require "luda.manifest"
local options = require "luda.optim.options"
local Gradients = require "luda.autograd.gradients"

local ffi, C, context = lib.ffi, lib.C, lib.context

---@class luda.Optimizer
---@field row luda.OptimizerRow of the class
---@field pointer any luda_optim*
---@field list luda.Named[]
---@field given luda.OptimizerOptions
local Optimizer = class("luda.Optimizer")

---@class luda.OptimizerReport
---@field skipped boolean a gradient was not finite: nothing was changed
---@field updated integer parameters
---@field grad_norm number of all gradients together, before clipping
---@field clip_coef number what max_grad_norm multiplied them by

local function settings_of(read)
  return ffi.new("luda_optim_settings", read.settings)
end

--- An optimizer of a module's parameters, or of a list of tensors.
---@param source any
---@param given? table
function Optimizer:init(source, given)
  local op = "optim." .. self.class_name
  local from_model
  self.list, from_model = manifest.parameters(op, source)
  self.given = options.read(op, self.row, given, self.list)
  self:check_parameters(op)
  local parameters = ffi.new("luda_tensor *[?]", math.max(#self.list, 1))
  -- A tensor that was named one by one and never was a leaf is updated as it stands; one that a gradient could have
  -- reached is left alone while it is frozen.
  self.always = {}
  for i, entry in ipairs(self.list) do
    parameters[i - 1] = memory.pointer(entry.tensor)
    self.always[i] = not from_model and not entry.tensor.requires_grad
  end
  local values, group, ngroups = options.to_c(self.row, self.given, self.list)
  local out = ffi.new("luda_optim *[1]")
  lib.check(C.luda_optim_new(self.row.kind, parameters, #self.list, group, values, ngroups, settings_of(self.given), out))
  self.pointer = ffi.gc(out[0], C.luda_optim_release)
  self.report = ffi.new("luda_optim_report")
end

--- Raises where the rule cannot update a parameter.
function Optimizer.check_parameters() end

function Optimizer:__tostring()
  return ("luda.optim.%s(%d parameters)"):format(self.class_name, #self.list)
end

-- Updates.

--- True if parameter i is frozen now.
local function frozen(self, i)
  return not self.always[i] and C.luda_requires_grad(C.luda_optim_parameter(self.pointer, i - 1)) == 0
end

local function any_frozen(self)
  for i = 1, #self.list do
    if frozen(self, i) then
      return true
    end
  end
  return false
end

--- Only the gradients of parameters that are to be updated now.
local function choose(self, grads, only)
  local chosen, matched = Gradients(), only == nil
  for i, entry in ipairs(self.list) do
    local wanted = only == nil or options.matches("step", only, entry.name)
    matched = matched or wanted
    if wanted and not frozen(self, i) then
      local id = C.luda_tensor_id(C.luda_optim_parameter(self.pointer, i - 1))
      local gradient = C.luda_gradients_get(grads.pointer, id)
      if gradient ~= nil then
        lib.check(C.luda_gradients_set(chosen.pointer, id, gradient))
      end
    end
  end
  if not matched then
    errors.raise("invalid", "step: only = '%s' matches no parameter; they are %s", only, options.names_text(self.list))
  end
  return chosen
end

--- Gradients that belong to none of the parameters are a mistake: the model was made anew, or another one was meant.
local function check_belonging(self, grads)
  for i = 1, #self.list do
    if C.luda_gradients_get(grads.pointer, C.luda_tensor_id(C.luda_optim_parameter(self.pointer, i - 1))) ~= nil then
      return
    end
  end
  errors.raise("invalid", "step: none of the %d gradients belongs to a parameter of this optimizer; "
    .. "was it made for another model, or before the model was converted?", grads:len())
end

--- Updates every parameter that has a gradient and is not frozen; gradients are only read.
---@param lr number
---@param grads luda.Gradients
---@param given? {only: string?} a pattern for names: the others stay as they are
---@return luda.OptimizerReport
function Optimizer:step(lr, grads, given)
  if getmetatable(grads) ~= Gradients or not rawget(grads, "pointer") then
    errors.raise("invalid", "step: expected gradients, as backward returns them, got %s; call opt:step(rate, loss:backward())",
      args.describe(grads))
  end
  args.number("step", "the rate", lr)
  local only = given and args.options("step", given, { only = args.absent }).only
  local used = grads
  C.luda_context_use(context)
  if only ~= nil or any_frozen(self) then
    used = choose(self, grads, only)
  end
  local status = C.luda_optim_step(self.pointer, lr, used.pointer, self.report)
  if used ~= grads then
    used:release()
  end
  if status ~= 0 then
    memory.raise(status)
  end
  local report = self.report
  if report.updated == 0 and report.skipped == 0 and grads:len() > 0 then
    check_belonging(self, grads)
  end
  return {
    skipped = report.skipped ~= 0,
    updated = report.updated,
    grad_norm = report.grad_norm,
    clip_coef = report.clip_coef,
  }
end

--- Gradients are divided by this before anything else: the factor by which the loss was scaled. A scale that changes
-- while training belongs to whoever changes it: records compare the one that the optimizer was made with.
---@param scale number
function Optimizer:set_gradient_scale(scale)
  local settings = settings_of(self.given)
  settings.gradient_scale = args.number("set_gradient_scale", "the scale", scale)
  lib.check(C.luda_optim_set_settings(self.pointer, settings))
  self.scale = scale
end

--- What gradients are divided by now.
---@return number
function Optimizer:gradient_scale()
  return self.scale or self.given.settings.gradient_scale
end

-- State.

--- How many updates a parameter has had.
---@param name string
---@return integer
function Optimizer:steps(name)
  for i, entry in ipairs(self.list) do
    if entry.name == name then
      return tonumber(C.luda_optim_steps(self.pointer, i - 1))
    end
  end
  errors.raise("invalid", "steps: there is no parameter '%s'; they are %s", tostring(name), options.names_text(self.list))
end

--- The states of parameter i that are in use: position and name.
local function each_state(self, i)
  local position = -1
  return function()
    repeat
      position = position + 1
      if position == C.LUDA_OPTIM_MAX_STATES then
        return nil
      end
      local name = C.luda_optim_state_name(self.pointer, i - 1, position)
      if name ~= nil then
        return position, ffi.string(name)
      end
    until false
  end
end

--- What goes on where the optimizer stands: plain data with the tensors themselves, by parameter, not copies.
---@return table
function Optimizer:state()
  local state = { kind = self.row.name, parameters = manifest.describe(self.list), steps = {} }
  for i, entry in ipairs(self.list) do
    local steps = tonumber(C.luda_optim_steps(self.pointer, i - 1))
    if steps > 0 then
      state.steps[entry.name] = steps
      for position, name in each_state(self, i) do
        local tensor = C.luda_optim_state(self.pointer, i - 1, position)
        C.luda_tensor_retain(tensor)
        state[name] = state[name] or {}
        state[name][entry.name] = memory.adopt(tensor)
      end
    end
  end
  return state
end

local function check_tensor(self, i, position, name, tensor, found)
  local entry = self.list[i]
  local what = ("optimizer: %s of '%s'"):format(name, entry.name)
  if not tensor then
    found[#found + 1] = what .. " is missing in the file"
    return
  end
  local dtype = args.dtype_names[C.luda_optim_state_dtype(self.pointer, i - 1, position)]
  local sizes, shape = ffi.new("int64_t[8]"), {}
  for d = 1, C.luda_optim_state_shape(self.pointer, i - 1, position, sizes) do
    shape[d] = tonumber(sizes[d - 1])
  end
  local have, need = args.shape_text(tensor.shape), args.shape_text(shape)
  if tensor.dtype ~= dtype then
    found[#found + 1] = ("%s is %s in the file, %s here"):format(what, tensor.dtype, dtype)
  end
  if have ~= need then
    found[#found + 1] = ("%s has shape %s in the file, %s here"):format(what, have, need)
  end
end

--- One sentence for each thing that keeps a state from being loaded; none: it fits.
---@param state table
---@return string[]
function Optimizer:check_state(state)
  local found = {}
  if type(state) ~= "table" or type(state.parameters) ~= "table" or type(state.steps) ~= "table" then
    return { "optimizer: the state is not one of an optimizer" }
  elseif state.kind ~= self.row.name then
    return { ("optimizer: the state is of '%s', this is '%s'"):format(tostring(state.kind), self.row.name) }
  end
  manifest.compare_named(found, "optimizer", state.parameters, manifest.describe(self.list))
  for i, entry in ipairs(self.list) do
    if state.steps[entry.name] then
      for position, name in each_state(self, i) do
        check_tensor(self, i, position, name, state[name] and state[name][entry.name], found)
      end
    end
  end
  return found
end

--- Goes on where a state was taken; a state that does not fit changes nothing.
---@param state table
---@return luda.Optimizer self
function Optimizer:load_state(state)
  manifest.refuse("load_state", "the state and the optimizer", self:check_state(state))
  C.luda_context_use(context)
  for i, entry in ipairs(self.list) do
    local steps = state.steps[entry.name] or 0
    lib.check(C.luda_optim_set_steps(self.pointer, i - 1, 0))
    lib.check(C.luda_optim_set_steps(self.pointer, i - 1, steps))
    if steps > 0 then
      for position, name in each_state(self, i) do
        lib.check(C.luda_optim_set_state(self.pointer, i - 1, position, memory.pointer(state[name][entry.name])))
      end
    end
  end
  return self
end

--- What must be the same for a state to mean the same, and the values that options have where nobody names them.
---@return table configuration
---@return table defaults
function Optimizer:configuration()
  local given = self.given
  local defaults = { options = self.row.defaults, settings = options.setting_defaults, groups = {} }
  for index in ipairs(given.groups) do
    defaults.groups[index] = { options = self.row.defaults }
  end
  return {
    kind = self.row.name, options = given.options, settings = given.settings, groups = given.groups, members = given.members,
  }, defaults
end

return Optimizer
