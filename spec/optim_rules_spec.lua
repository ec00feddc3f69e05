--- Every optimizer over fifty steps against plain Lua in double precision: odd shapes, absent gradients, halves with masters,
-- groups, gradients that are not finite.

local luda = require "luda"
local helper = require "spec.helper"
local twin = require "spec.optim_twin"
local matrix_twin = require "spec.optim_matrix_twin"

local optim = luda.optim
local Gradients = luda.autograd.Gradients
local STEPS = 50
local COEFFICIENTS = { 3.4445, -4.775, 2.0315 }

--- Name, options for the library and the twin, rate; rules over whole parameters are those of the second twin.
local rules = {
  { "SGD", { momentum = 0.7, dampening = 0.25, weight_decay = 0.03 } },
  { "Adam", { beta1 = 0.8, beta2 = 0.95, eps = 1e-3, weight_decay = 0.02, amsgrad = true } },
  { "AdamW", { beta1 = 0.85, beta2 = 0.97, eps = 1e-6, weight_decay = 0.3, cautious = true } },
  { "AdaGrad", { lr_decay = 0.1, eps = 1e-6, weight_decay = 0.01 } },
  { "RMSProp", { alpha = 0.9, eps = 1e-4, momentum = 0.8, centered = true, weight_decay = 0.02 } },
  { "Adan", { beta1 = 0.9, beta2 = 0.8, beta3 = 0.95, eps = 1e-6, weight_decay = 0.1 } },
  { "Lion", { beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1 } },
  { "Adamax", { beta1 = 0.8, beta2 = 0.95, eps = 1e-6, weight_decay = 0.02 } },
  { "NAdam", { beta1 = 0.9, beta2 = 0.98, eps = 1e-6, weight_decay = 0.02, momentum_decay = 0.05 } },
  { "RAdam", { beta1 = 0.9, beta2 = 0.9, eps = 1e-6, weight_decay = 0.02 } },
  { "RAdam", { beta1 = 0.9, beta2 = 0.999, eps = 1e-8 } },
  { "AdaDelta", { rho = 0.8, eps = 1e-5, weight_decay = 0.01 }, 1 },
  { "LAMB", { beta1 = 0.9, beta2 = 0.95, eps = 1e-6, weight_decay = 0.05 } },
  { "LAMB", { beta1 = 0.9, beta2 = 0.95, eps = 1e-6, weight_decay = 0 } },
  { "Adafactor", { beta2_decay = -0.8, eps1 = 1e-6, eps2 = 1e-3, d = 1, weight_decay = 0.1 } },
  { "Adafactor", { beta2_decay = -0.5, eps1 = 1e-3, eps2 = 0.5, d = 1.5 }, 0.3 }, -- above 1 over the root of the last steps
  { "Muon", { momentum = 0.95, dampening = 0, nesterov = true, weight_decay = 0, eps = 1e-7, ns_steps = 5 } },
  { "Muon", { momentum = 0.8, dampening = 0.3, nesterov = false, weight_decay = 0.1, eps = 1e-3, ns_steps = 3,
    layout = "input_output" } },
  { "Muon", { momentum = 0.9, dampening = 0, nesterov = true, weight_decay = 0.05, eps = 1e-7, ns_steps = 4,
    momentum_mode = "ema", adjust_lr_fn = "match_rms_adamw", stable_normalization = true } },
}
for _, rule in ipairs(rules) do
  rule.matrix = matrix_twin[rule[1]] ~= nil
  rule[2].ns_coefficients = rule[1] == "Muon" and COEFFICIENTS or nil
  rule.twin_options = setmetatable({}, { __index = rule[2] })
  rule.twin_options.weight_decay = rule[2].weight_decay or 0
  rule.rate = rule[3] or 0.05
end

local function numel_of(shape)
  local n = 1
  for _, size in ipairs(shape) do
    n = n * size
  end
  return n
end

local function noise(step, index, n)
  local list = {}
  for i = 1, n do
    list[i] = twin.noise(step, index * 1000 + i)
  end
  return list
end

--- A gradient of a parameter at a step, or nil: the second parameter has none in every third.
local function gradient_of(step, index, n)
  if not (index == 2 and step % 3 == 0) then
    return noise(step, index, n)
  end
end

--- One step of the plain implementation.
local function twin_step(rule, lr, values, g, shape, states)
  states.count = (states.count or 0) + 1
  if rule.matrix then
    local columns = #shape >= 2 and shape[#shape] or nil
    matrix_twin[rule[1]](rule.twin_options, lr, values, g, columns and #values / columns, columns, states, states.count)
    return
  end
  for i = 1, #values do
    states[i] = states[i] or {}
    values[i] = twin[rule[1]](rule.twin_options, lr, values[i], g[i], states[i], states.count)
  end
end

--- Parameters of some shapes; the first is a transposed view.
local function make(shapes, dtype)
  local parameters, values = {}, {}
  for k, shape in ipairs(shapes) do
    values[k] = noise(0, k, numel_of(shape))
    local data = luda.tensor(values[k], { dtype = dtype }):reshape(shape)
    if k == 1 then
      data = luda.empty(shape[2], shape[1], { dtype = dtype }):t():copy_(data)
    end
    parameters[k] = data:detach():requires_grad_()
    values[k] = data:reshape(-1):to("f64"):totable()
  end
  return parameters, values
end

--- Runs both; check(k, values, parameter) after every step. Gradients are those that `dtype` holds.
local function run(rule, shapes, dtype, given, check)
  local parameters, values = make(shapes, dtype)
  local states, options = {}, {}
  for name, value in pairs(rule[2]) do
    options[name] = value
  end
  for name, value in pairs(given) do
    options[name] = value
  end
  local opt = optim[rule[1]](parameters, options)
  for step = 1, STEPS do
    luda.scope(function()
      local grads = Gradients()
      for k, shape in ipairs(shapes) do
        local g = gradient_of(step, k, #values[k])
        if g then
          local tensor = luda.tensor(g, { dtype = dtype }):reshape(shape)
          grads:register(parameters[k], tensor)
          states[k] = states[k] or {}
          twin_step(rule, rule.rate, values[k], tensor:reshape(-1):to("f64"):totable(), shape, states[k])
        end
      end
      assert.is_false(opt:step(rule.rate, grads).skipped)
      for k in ipairs(shapes) do
        check(k, values[k], parameters[k], opt)
      end
    end)
  end
  return opt, parameters
end

describe("fifty steps", function()
  before_each(helper.before)
  after_each(helper.after)

  local free, matrices = { { 5, 7 }, {}, { 0, 4 }, { 3 }, { 6, 1 } }, { { 5, 7 }, { 6, 3 }, { 1, 4 } }

  for number, rule in ipairs(rules) do
    local shapes = rule[1] == "Muon" and matrices or free

    it(("%d: %s go where plain Lua goes"):format(number, rule[1]), function()
      run(rule, shapes, "f64", {}, function(_, want, parameter)
        assert.tensor_near(want, parameter:reshape(-1), 1e-9, 1e-10)
      end)
    end)

    it(("%d: %s in float32, and halves beside their masters"):format(number, rule[1]), function()
      for _, dtype in ipairs { "f32", "f16", "bf16" } do
        run(rule, shapes, dtype, { fp32_master = true }, function(k, want, parameter, opt)
          local value = parameter
          if dtype ~= "f32" and opt:steps(tostring(k)) > 0 then
            value = opt:state().master[tostring(k)]
            assert.equal("f32", value.dtype)
            assert.is_true(value:to(dtype):equal(parameter:detach()))
          end
          assert.tensor_near(want, value:to("f32"):reshape(-1), 1e-4, 1e-4)
        end)
      end
    end)
  end
end)
