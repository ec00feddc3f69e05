--- Dynamic scaling of losses: gradients of half types keep clear of zero, and a step whose gradients overflowed is left out.
--
-- A cycle is scale(loss) for each micro-batch, step(optimizer, rate, grads) once, and update(): a scaler serves one
-- optimizer. The optimizer divides by the scale before it clips; who clips by hand calls unscale_(grads) in between. Where
-- ranks reduce their gradients before the step, all skip what one of them would.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local manifest = require "luda.manifest"
local tensors = require "luda.tensor"
local Gradients = require "luda.autograd.gradients"

local C, context = lib.C, lib.context

---@class luda.GradScaler
---@field factor number the scale now
---@field good integer steps since the scale changed
---@field options table
---@field phase string a key of `cycle`
local GradScaler = class("luda.GradScaler")

local STEP = "step(optimizer, rate, grads)"
local TEXT = "the cycle is scale(loss) for each micro-batch, " .. STEP .. " once, update()"

-- What may come in each part of the cycle, and what is missing where something else comes.
local cycle = {
  between = { missing = "scale(loss)", scale = true, state = true },
  scaled = { missing = STEP, scale = true, unscale_ = true, step = true },
  unscaled = { missing = STEP, step = true },
  stepped = { missing = "update()", update = true },
}

local function expect(self, op)
  local part = cycle[self.phase]
  if not part[op] then
    errors.raise("invalid", "%s: %s was skipped; %s", op, part.missing, TEXT)
  end
end

-- Options.

-- Scales and their inverses are normal float32 numbers.
local LOWEST, HIGHEST = 2 ^ -126, 2 ^ 126

local needs = {
  init_scale = { "between 2^-126 and 2^126", function(x) return x >= LOWEST and x <= HIGHEST end },
  growth_factor = { "finite and greater than 1", function(x) return x > 1 and x < math.huge end },
  backoff_factor = { "greater than 0 and less than 1", function(x) return x > 0 and x < 1 end },
  growth_interval = { "a whole number of at least 1", function(x) return x >= 1 and x < 2 ^ 53 and x == math.floor(x) end },
  min = { "between 2^-126 and init_scale", function(x, o) return x >= LOWEST and x <= o.init_scale end },
  max = { "between init_scale and 2^126", function(x, o) return x >= o.init_scale and x <= HIGHEST end },
}

local known = {
  init_scale = 65536, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2000, enabled = true,
  min = args.absent, max = args.absent,
}

--- Begins at init_scale; doubles after growth_interval steps that went well, halves after one that was skipped, and stays
-- between min and max (2^-24 and 2^24, or init_scale where that is beyond). enabled = false: the scale is 1, always.
---@param given? table init_scale, growth_factor, backoff_factor, growth_interval, min, max, enabled
function GradScaler:init(given)
  local options = args.options("optim.GradScaler", given, known)
  if not options.enabled then
    options.init_scale = 1
  end
  local start = args.number("optim.GradScaler", "init_scale", options.init_scale)
  options.min, options.max = options.min or math.min(2 ^ -24, start), options.max or math.max(2 ^ 24, start)
  for _, name in ipairs(manifest.keys_of(needs)) do
    if not needs[name][2](args.number("optim.GradScaler", name, options[name]), options) then
      errors.raise("invalid", "optim.GradScaler: %s is %.14g, it must be %s", name, options[name], needs[name][1])
    end
  end
  self.options, self.factor, self.good, self.phase = options, start, 0, "between"
end

function GradScaler:__tostring()
  return ("luda.optim.GradScaler(scale %g, %d good steps)"):format(self.factor, self.good)
end

---@return number
function GradScaler:get_scale()
  return self.factor
end

-- The cycle.

--- The loss times the scale, for backward; any number of times before a step.
---@param loss luda.Tensor one element, not a half: a scaled half overflows
---@return luda.Tensor
function GradScaler:scale(loss)
  expect(self, "scale")
  if not tensors.is_tensor(loss) or loss.numel ~= 1 then
    errors.raise("invalid", "scale: expected a loss of one element, got %s",
      tensors.is_tensor(loss) and "a tensor of shape " .. args.shape_text(loss.shape) or args.describe(loss))
  elseif loss.dtype ~= "f32" and loss.dtype ~= "f64" then
    errors.raise("dtype", "scale: the loss is %s, it must be f32 (or f64); convert it first: loss:to(\"f32\")", loss.dtype)
  end
  local scaled = self.options.enabled and tensors.methods.mul(loss, self.factor) or loss
  self.phase = "scaled"
  return scaled
end

local function container(op, grads)
  if type(grads) == "function" then
    errors.raise("unsupported", "%s: closures have no scaled step; call backward on the scaled loss and pass its gradients", op)
  elseif getmetatable(grads) ~= Gradients or not rawget(grads, "pointer") then
    errors.raise("invalid", "%s: expected gradients, as backward returns them, got %s", op, args.describe(grads))
  elseif grads:len() == 0 then
    errors.raise("invalid", "%s: there are no gradients; call backward on what scale(loss) returned", op)
  end
end

--- Divides the gradients of a whole window by the scale, for clipping or looking at them by hand; those of halves become
-- float32, where small ones survive. The step that follows must get this container.
---@param grads luda.Gradients
---@return luda.Gradients grads the same
function GradScaler:unscale_(grads)
  expect(self, "unscale_")
  container("unscale_", grads)
  C.luda_context_use(context)
  lib.check(C.luda_gradients_scale(grads.pointer, 1 / self.factor))
  self.phase, self.unscaled = "unscaled", grads
  return grads
end

--- The optimizer's step over gradients of the scaled loss; a gradient that is not finite leaves everything as it is.
---@param optimizer luda.Optimizer
---@param lr number
---@param grads luda.Gradients
---@param given? {only: string?}
---@return luda.OptimizerReport report with the scale that the gradients had
function GradScaler:step(optimizer, lr, grads, given)
  expect(self, "step")
  if type(optimizer) ~= "table" or not optimizer.set_gradient_scale then
    errors.raise("invalid", "step: expected an optimizer that takes scaled gradients, got %s", args.describe(optimizer))
  end
  container("step", grads)
  if self.unscaled and self.unscaled ~= grads then
    errors.raise("invalid", "step: these are not the gradients that unscale_ was called with; unscale the sum of a window, once")
  end
  local own = optimizer:gradient_scale()
  optimizer:set_gradient_scale(self.unscaled and own or own * self.factor)
  local ok, report = pcall(optimizer.step, optimizer, lr, grads, given)
  optimizer:set_gradient_scale(own)
  if not ok then
    error(report, 0)
  end
  self.phase, self.unscaled, self.overflowed = "stepped", nil, report.skipped
  report.scale = self.factor
  return report
end

--- Ends a cycle: the scale for the next one.
---@return number
function GradScaler:update()
  expect(self, "update")
  local o = self.options
  self.phase = "between"
  if not o.enabled then
    return self.factor
  elseif self.overflowed then
    self.factor, self.good = math.max(self.factor * o.backoff_factor, o.min), 0
  elseif self.good + 1 >= o.growth_interval then
    self.factor, self.good = math.min(self.factor * o.growth_factor, o.max), 0
  else
    self.good = self.good + 1
  end
  return self.factor
end

-- State: between cycles only, because the gradients of an open one are with the caller.

---@return table
function GradScaler:state()
  expect(self, "state")
  return { scale = self.factor, good = self.good }
end

---@param state table
---@return string[] found
function GradScaler:check_state(state)
  local o = self.options
  if not cycle[self.phase].state then
    return { ("scaler: a cycle is open here, %s was skipped"):format(cycle[self.phase].missing) }
  elseif type(state) ~= "table" or type(state.scale) ~= "number" or type(state.good) ~= "number" then
    return { "scaler: the state is not one of a scaler" }
  elseif not (state.scale >= o.min and state.scale <= o.max) then
    return { ("scaler: the scale is %.14g in the file, it must be between %.14g and %.14g here"):format(state.scale, o.min,
      o.max) }
  elseif not (state.good >= 0 and state.good < o.growth_interval and state.good == math.floor(state.good)) then
    return { ("scaler: %.14g good steps in the file, the scale grows after %d here"):format(state.good, o.growth_interval) }
  end
  return {}
end

---@param state table
---@return luda.GradScaler self
function GradScaler:load_state(state)
  manifest.refuse("load_state", "the state and the scaler", self:check_state(state))
  self.factor, self.good = state.scale, state.good
  return self
end

---@return table configuration
---@return table defaults
function GradScaler:configuration()
  local configuration, defaults = { kind = "GradScaler" }, { min = 2 ^ -24, max = 2 ^ 24 }
  for _, name in ipairs { "growth_factor", "backoff_factor", "growth_interval", "min", "max", "enabled" } do
    configuration[name] = self.options[name]
    defaults[name] = defaults[name] or known[name]
  end
  return configuration, defaults
end

return GradScaler
