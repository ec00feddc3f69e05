--- Sums of gradients over several backward passes, and averages of parameters over many updates.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"
local scope = require "luda.scope"
local manifest = require "luda.manifest"
local Gradients = require "luda.autograd.gradients"

local ffi, C, context = lib.ffi, lib.C, lib.context

---@class luda.Accumulator
---@field pointer any luda_accumulator*
---@field list luda.Named[]
local Accumulator = class("luda.Accumulator")

--- For a module's parameters, or a list of tensors; gradients of others are left out.
---@param source any
function Accumulator:init(source)
  self.list = manifest.parameters("optim.Accumulator", source)
  local parameters = ffi.new("luda_tensor *[?]", math.max(#self.list, 1))
  for i, entry in ipairs(self.list) do
    parameters[i - 1] = memory.pointer(entry.tensor)
  end
  local out = ffi.new("luda_accumulator *[1]")
  lib.check(C.luda_accumulator_new(parameters, #self.list, out))
  self.pointer = ffi.gc(out[0], C.luda_accumulator_release)
end

function Accumulator:__tostring()
  return ("luda.optim.Accumulator(%d parameters, %d additions)"):format(#self.list, self:count())
end

--- Adds weight · gradient. Without dtype a sum has the type of its first gradient; "f32" adds halves without rounding.
---@param grads luda.Gradients
---@param given? {dtype: string?, weight: number?}
---@return luda.Accumulator self
function Accumulator:accumulate(grads, given)
  local options = args.options("accumulate", given, { dtype = args.absent, weight = 1 })
  if getmetatable(grads) ~= Gradients or not rawget(grads, "pointer") then
    errors.raise("invalid", "accumulate: expected gradients, as backward returns them, got %s", args.describe(grads))
  end
  local dtype = options.dtype and args.dtype("accumulate", options.dtype) or -1
  C.luda_context_use(context)
  local status = C.luda_accumulator_add(self.pointer, grads.pointer, args.number("accumulate", "the weight", options.weight),
    dtype)
  if status ~= 0 then
    memory.raise(status)
  end
  return self
end

--- Takes the sums out; what comes is a new start. `mean` divides by the sum of the weights.
---@param given? {mean: boolean?}
---@return luda.Gradients
function Accumulator:grads(given)
  local options = args.options("grads", given, { mean = false })
  local out = ffi.new("luda_gradients *[1]")
  C.luda_context_use(context)
  lib.check(C.luda_accumulator_take(self.pointer, options.mean and 1 or 0, out))
  return Gradients.adopt(out[0])
end

--- Additions since the last grads().
---@return integer
function Accumulator:count()
  return tonumber(C.luda_accumulator_count(self.pointer))
end

--- The sum of their weights.
---@return number
function Accumulator:weight()
  return C.luda_accumulator_weight(self.pointer)
end

--- Plain data with the sums themselves.
---@return table
function Accumulator:state()
  local state = { count = self:count(), weight = self:weight(), sums = {} }
  for i, entry in ipairs(self.list) do
    local sum = C.luda_accumulator_sum(self.pointer, i - 1)
    if sum ~= nil then
      C.luda_tensor_retain(sum)
      state.sums[entry.name] = memory.adopt(sum)
    end
  end
  return state
end

---@param state table
---@return string[] found sentences about what does not fit
function Accumulator:check_state(state)
  if type(state) ~= "table" or type(state.sums) ~= "table" or type(state.count) ~= "number" then
    return { "accumulator: the state is not one of an accumulator" }
  end
  local found, here = {}, manifest.describe(self.list)
  for _, name in ipairs(manifest.keys_of(state.sums)) do
    local sum = state.sums[name]
    local shape = args.shape_text(sum.shape)
    if not here[name] then
      found[#found + 1] = ("accumulator: '%s' is in the file and not here"):format(name)
    elseif here[name].shape ~= shape or args.dtype_class(sum.dtype) ~= "float" then
      found[#found + 1] = ("accumulator: '%s': the sum is %s %s in the file, the parameter %s %s"):format(name, sum.dtype,
        shape, here[name].dtype, here[name].shape)
    end
  end
  return found
end

--- Goes on where a state was taken: what was pending here is replaced.
---@param state table
---@return luda.Accumulator self
function Accumulator:load_state(state)
  manifest.refuse("load_state", "the state and the accumulator", self:check_state(state))
  local sums = ffi.new("luda_tensor *[?]", math.max(#self.list, 1))
  for i, entry in ipairs(self.list) do
    local sum = state.sums[entry.name]
    sums[i - 1] = sum and memory.pointer(sum) or nil
  end
  C.luda_context_use(context)
  lib.check(C.luda_accumulator_set(self.pointer, sums, state.count, state.weight))
  return self
end

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

--- Takes the parameters as they are now into the averages.
---@return luda.EMA self
function EMA:update()
  local count = #self.list
  local targets = ffi.new("luda_tensor *[?]", math.max(count, 1))
  local sources = ffi.new("luda_tensor *[?]", math.max(count, 1))
  for i, entry in ipairs(self.list) do
    targets[i - 1], sources[i - 1] = memory.pointer(self.averages[i]), memory.pointer(entry.tensor)
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
  for i, entry in ipairs(self.list) do
    self.averages[i]:copy_(state.averages[entry.name])
  end
  return self
end

---@return table
function EMA:configuration()
  return { decay = self.decay }
end

return { Accumulator = Accumulator, EMA = EMA }
