--- Activations composed from rows. Where one has corners, its gradient there is PyTorch's unless its comment says otherwise.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local values = require "luda.values"

local functions, methods = ops.functions, tensors.methods
local define, need_tensor = values.define, values.need_tensor

--- A function of a tensor and numbers, which have names, an order and defaults.
local function activation(name, names, defaults, compute)
  define(name, function(t, ...)
    need_tensor(name, t)
    local given = args.named(name, names, defaults, ...)
    local numbers = {}
    for i, argument in ipairs(names) do
      if given[argument] ~= nil then
        numbers[i] = args.number(name, argument, given[argument])
      end
    end
    return compute(t, unpack(numbers, 1, #names))
  end)
end

--- expm1 at and below 0, without overflow above, where it is not wanted.
local function below(t, compute)
  return compute(functions.where(functions.gt(t, 0), 0, t))
end

--- t where positive, else negative_slope * t.
activation("leaky_relu", { "negative_slope" }, { negative_slope = 0.01 }, function(t, slope)
  return functions.where(functions.gt(t, 0), t, t * slope)
end)

local softplus = assert(functions.softplus)

--- log(1 + exp(beta t)) / beta, exact for any t; with a threshold, t itself where beta t is above.
activation("softplus", { "beta", "threshold" }, { beta = 1 }, function(t, beta, threshold)
  local result = beta == 1 and softplus(t) or softplus(t * beta) / beta
  if threshold then
    result = functions.where(functions.gt(t * beta, threshold), t, result)
  end
  return result
end)

--- Logarithm of sigmoid without overflow.
define("logsigmoid", function(t)
  return -softplus(-need_tensor("logsigmoid", t))
end)

--- t * tanh(softplus(t)).
define("mish", function(t)
  return t * functions.tanh(softplus(need_tensor("mish", t)))
end)

--- t where positive, else alpha * (exp(t) - 1).
activation("elu", { "alpha" }, { alpha = 1 }, function(t, alpha)
  return functions.where(functions.gt(t, 0), t, below(t, functions.expm1) * alpha)
end)

--- elu with the scale and alpha that keep mean 0 and variance 1.
define("selu", function(t)
  return functions.elu(t, 1.6732632423543772848) * 1.0507009873554804934
end)

--- t where positive, else alpha * (exp(t / alpha) - 1).
activation("celu", { "alpha" }, { alpha = 1 }, function(t, alpha)
  if alpha == 0 then
    errors.raise("invalid", "celu: alpha is 0; it divides")
  end
  return functions.where(functions.gt(t, 0), t, functions.expm1(below(t, function(low) return low / alpha end)) * alpha)
end)

--- t within min_val and max_val.
activation("hardtanh", { "min_val", "max_val" }, { min_val = -1, max_val = 1 }, function(t, low, high)
  if low > high then
    errors.raise("invalid", "hardtanh: min_val %g is above max_val %g", low, high)
  end
  return functions.clamp(t, low, high)
end)

--- t within 0 and 6.
define("relu6", function(t)
  return functions.clamp(need_tensor("relu6", t), 0, 6)
end)

--- Sigmoid by three lines: (t + 3) / 6 within 0 and 1.
define("hardsigmoid", function(t)
  return functions.clamp(need_tensor("hardsigmoid", t) + 3, 0, 6) / 6
end)

--- t * hardsigmoid(t).
define("hardswish", function(t)
  return t * functions.clamp(need_tensor("hardswish", t) + 3, 0, 6) / 6
end)

--- t / (1 + |t|).
define("softsign", function(t)
  return t / (functions.abs(need_tensor("softsign", t)) + 1)
end)

--- `value` where t is at most the threshold, else t.
define("threshold", function(t, ...)
  local given = args.named("threshold", { "threshold", "value" }, {}, ...)
  local limit = args.number("threshold", "threshold", given.threshold)
  return functions.where(functions.le(need_tensor("threshold", t), limit), args.number("threshold", "value", given.value), t)
end)

--- t where positive, else weight * t: one weight for all, or one for each position of dimension 2.
define("prelu", function(t, weight)
  local ndim, count = need_tensor("prelu", t).ndim, need_tensor("prelu", weight).numel
  local channels = ndim > 1 and methods.size(t, 2) or 1
  if weight.ndim > 1 or (count ~= 1 and count ~= channels) then
    errors.raise("shape", "prelu: a weight %s for a tensor %s; one number or one for each of %d channels is needed",
      args.shape_text(weight.shape), args.shape_text(t.shape), channels)
  end
  local shape = {}
  for i = 1, ndim do
    shape[i] = i == 2 and count or 1
  end
  return functions.where(functions.gt(t, 0), t, t * methods.reshape(weight, shape))
end)

--- The two halves of a dimension.
local function halves(name, t, ...)
  local dim = args.named(name, { "dim" }, { dim = -1 }, ...).dim
  dim = sugar.positive(name, need_tensor(name, t), dim)
  local size = methods.size(t, dim)
  if size % 2 ~= 0 then
    errors.raise("shape", "%s: dimension %d of %s has an odd size; it is cut in half", name, dim, args.shape_text(t.shape))
  end
  return methods.narrow(t, dim, 1, size / 2), methods.narrow(t, dim, size / 2 + 1, size / 2)
end

--- The first half of a dimension times the sigmoid of the second.
define("glu", function(t, ...)
  local first, second = halves("glu", t, ...)
  return first * functions.sigmoid(second)
end)

--- silu of the first half of a dimension times the second.
define("swiglu", function(t, ...)
  local first, second = halves("swiglu", t, ...)
  return functions.silu_mul(first, second)
end)
