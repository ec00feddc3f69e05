--- Averages of parameters over many updates.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"
local scope = require "luda.scope"
local manifest = require "luda.manifest"

local ffi, C, context = lib.ffi, lib.C, lib.context

---@class luda.EMA
---@field list luda.Named[]
---@field averages luda.Tensor[] float32 for halves
---@field decay number
local EMA = class("luda.EMA")

local function values_of(tensor)
  local wide = args.dtype_class(tensor.dtype) == "float" and tensor.dtype ~= "f64" and "f32" or tensor.dtype
  return scope.keep(tensor:detach():to(wide):clone())
end

--- Averages of parameters: after each update(), decay · average + (1 - decay) · parameter. They start as the parameters.
---@param source any
---@param decay? number default 0.999
function EMA:init(source, decay)
  self.decay = args.number("optim.EMA", "the decay", decay == nil and 0.999 or decay)
  if not (self.decay >= 0 and self.decay < 1) then
    errors.raise("invalid", "optim.EMA: the decay is %g, it must be in [0, 1)", self.decay)
  end
  self.list, self.averages = manifest.parameters("optim.EMA", source), {}
  for i, entry in ipairs(self.list) do
    self.averages[i] = values_of(entry.tensor)
  end
end

--- The float32 masters that an optimizer keeps, lent, by id of the parameter.
local function masters_of(optimizer)
  local found, pointer = {}, optimizer.pointer
  for i = 0, pointer and C.luda_optim_parameter_count(pointer) - 1 or -1 do
    for position = C.LUDA_OPTIM_MAX_STATES - 1, 0, -1 do
      local name = C.luda_optim_state_name(pointer, i, position)
      if name ~= nil then
        local master = ffi.string(name) == "master" and C.luda_optim_state(pointer, i, position) or nil
        if master ~= nil then
          found[tonumber(C.luda_tensor_id(C.luda_optim_parameter(pointer, i)))] = master
        end
        break -- masters come after all other states
      end
    end
  end
  return found
end

--- Takes the parameters as they are now into the averages; with the optimizer, its float32 masters for those that have one.
---@param optimizer? luda.Optimizer
---@return luda.EMA self
function EMA:update(optimizer)
  if optimizer ~= nil and (type(optimizer) ~= "table" or not optimizer.list) then
    errors.raise("invalid", "update: expected an optimizer, or nothing, got %s", args.describe(optimizer))
  end
  local count = #self.list
  local masters = optimizer and masters_of(optimizer) or {}
  local targets = ffi.new("luda_tensor *[?]", math.max(count, 1))
  local sources = ffi.new("luda_tensor *[?]", math.max(count, 1))
  for i, entry in ipairs(self.list) do
    targets[i - 1] = memory.pointer(self.averages[i])
    sources[i - 1] = masters[entry.tensor.id] or memory.pointer(entry.tensor)
  end
  C.luda_context_use(context)
  lib.check(C.luda_axpby(targets, sources, count, 1 - self.decay, self.decay))
  return self
end

local function assign(self, values)
  local mode = C.luda_set_grad_enabled(0)
  local ok, err = pcall(function()
    for i, entry in ipairs(self.list) do
      entry.tensor:copy_(values[i])
    end
  end)
  C.luda_set_grad_enabled(mode)
  if not ok then
    error(err, 0)
  end
end

--- Calls fn(…) while the parameters have the averages for values.
---@generic T
---@param fn fun(...): T
---@return T
function EMA:with(fn, ...)
  C.luda_context_use(context)
  local before = {}
  for i, entry in ipairs(self.list) do
    before[i] = scope.keep(entry.tensor:detach():clone())
  end
  assign(self, self.averages)
  return scope.sealed(function()
    assign(self, before)
    for _, tensor in ipairs(before) do
      tensor:release()
    end
  end, nil, fn, ...)
end

---@return table
function EMA:state()
  local state = { averages = {} }
  for i, entry in ipairs(self.list) do
    state.averages[entry.name] = self.averages[i]
  end
  return state
end

---@param state table
---@return string[] found
function EMA:check_state(state)
  if type(state) ~= "table" or type(state.averages) ~= "table" then
    return { "ema: the state is not one of an EMA" }
  end
  local found, here, there = {}, {}, {}
  for i, entry in ipairs(self.list) do
    here[i] = { name = entry.name, tensor = self.averages[i] }
  end
  for name, tensor in pairs(state.averages) do
    there[#there + 1] = { name = name, tensor = tensor }
  end
  manifest.compare_named(found, "ema", manifest.describe(there), manifest.describe(here))
  return found
end

---@param state table
---@return luda.EMA self
function EMA:load_state(state)
  manifest.refuse("load_state", "the state and the averages", self:check_state(state))
  local averages = {}
  for i, entry in ipairs(self.list) do
    averages[i] = scope.keep(state.averages[entry.name]:detach():to(entry.tensor.device):clone())
  end
  self.averages = averages
  return self
end

---@return table
function EMA:configuration()
  return { decay = self.decay }
end

return EMA
