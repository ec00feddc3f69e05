--- Reductions composed from rows: variance, norms, counts, products, and what passes over NaN.

local args = require "luda.args"
local errors = require "luda.error"
local ops = require "luda.ops"
local tensors = require "luda.tensor"
local arguments = require "luda.ops.arguments"

local methods, where = tensors.methods, ops.functions.where
local define, over, kept, floating, rounded = arguments.define, arguments.over, arguments.kept, arguments.floating,
  arguments.rounded

--- Square root whose slope at zero is taken as zero.
local function root(x)
  if not x.requires_grad then
    return methods.sqrt(x)
  end
  local zero = methods.eq(x, 0)
  return where(zero, 0, methods.sqrt(where(zero, 1, x)))
end

-- Truth and counts.

--- True where one element is true or nonzero.
define("any", { "dim", "keepdim" }, function(t, dim, keepdim)
  return methods.ne(methods.sum(methods.ne(t, 0), (over("any", t, dim, keepdim))), 0)
end)

--- True where no element is false or zero.
define("all", { "dim", "keepdim" }, function(t, dim, keepdim)
  return methods.eq(methods.sum(methods.eq(t, 0), (over("all", t, dim, keepdim))), 0)
end)

--- How many elements are not zero.
define("count_nonzero", { "dim", "keepdim" }, function(t, dim, keepdim)
  return methods.sum(methods.ne(t, 0), (over("count_nonzero", t, dim, keepdim)))
end)

-- NaN left out.

--- Sum of the elements that are not NaN.
define("nansum", { "dim", "keepdim" }, function(t, dim, keepdim)
  return methods.sum(where(methods.isnan(t), 0, t), (over("nansum", t, dim, keepdim)))
end)

--- Mean of the elements that are not NaN.
define("nanmean", { "dim", "keepdim" }, function(t, dim, keepdim)
  local wide, options = floating("nanmean", t), over("nanmean", t, dim, keepdim)
  local missing = methods.isnan(wide)
  local count = methods.to(methods.sum(methods.logical_not(missing), options), wide.dtype)
  return rounded(methods.sum(where(missing, 0, wide), options) / count, t)
end)

-- Variance: of the differences from the mean, so that a large mean does no harm.

--- How many observations the divisor lacks: a number, or PyTorch's older unbiased = true or false.
local function correction_of(op, correction)
  if correction == nil or correction == true then
    return 1
  elseif correction == false then
    return 0
  end
  return args.number(op, "correction", correction)
end

local function variance(op, t, dim, correction, keepdim)
  local wide, options, count = floating(op, t), over(op, t, dim, keepdim)
  local mean = methods.mean(wide, kept(options))
  local squares = methods.sum(methods.square(wide - mean), options)
  local divisor = math.max(count - correction_of(op, correction), 0)
  return squares / divisor, mean, options
end

local function mean_like(mean, result)
  return methods.reshape(mean, result.shape)
end

local names = { "dim", "correction", "keepdim" }

--- Variance; the divisor is the count less the correction.
define("var", names, function(t, dim, correction, keepdim)
  return rounded((variance("var", t, dim, correction, keepdim)), t)
end)

--- Standard deviation; its gradient where all elements are equal is zero.
define("std", names, function(t, dim, correction, keepdim)
  return rounded(root((variance("std", t, dim, correction, keepdim))), t)
end)

--- Variance and mean.
define("var_mean", names, function(t, dim, correction, keepdim)
  local result, mean = variance("var_mean", t, dim, correction, keepdim)
  return rounded(result, t), rounded(mean_like(mean, result), t)
end)

--- Standard deviation and mean.
define("std_mean", names, function(t, dim, correction, keepdim)
  local result, mean = variance("std_mean", t, dim, correction, keepdim)
  return rounded(root(result), t), rounded(mean_like(mean, result), t)
end)

-- Exponentials.

--- The largest elements as an untracked shift that is finite.
local function shift_of(x, options)
  local top = methods.amax(methods.detach(x), options)
  return where(methods.lt(methods.abs(top), math.huge), top, 0)
end

--- Logarithm of the sum of exp(t) without overflow; of elements that are all -inf the gradient is NaN.
define("logsumexp", { "dim", "keepdim" }, function(t, dim, keepdim)
  local wide, options = floating("logsumexp", t), over("logsumexp", t, dim, keepdim)
  if t.numel == 0 then
    return rounded(methods.log(methods.sum(methods.exp(wide), options)), t)
  end
  local shift = shift_of(wide, kept(options))
  local sum = methods.sum(methods.exp(wide - shift), options)
  return rounded(methods.log(sum) + methods.reshape(shift, sum.shape), t)
end)

-- Norms.

--- Sum of |x|^p, to the power 1/p; where the sum or an element is zero its slope is taken as zero.
local function power_norm(x, p, options)
  local zero = methods.eq(x, 0)
  local powers = where(zero, p < 0 and math.huge or 0, methods.pow(methods.abs(where(zero, 1, x)), p))
  local sum = methods.sum(powers, options)
  local none = methods.eq(sum, 0)
  return where(none, 0, methods.pow(where(none, 1, sum), 1 / p))
end

--- The p-norm: a number, infinity, -infinity, or "fro", which is 2; its gradient at zero is zero.
define("norm", { "p", "dim", "keepdim" }, function(t, p, dim, keepdim)
  local wide, options = floating("norm", t), over("norm", t, dim, keepdim)
  p = (p == nil or p == "fro") and 2 or p
  if type(p) ~= "number" or p ~= p then
    errors.raise("invalid", "norm: p is a number or \"fro\", not %s", args.describe(p))
  end
  local result
  if p == 2 then
    result = root(methods.sum(methods.square(wide), options))
  elseif p == 1 then
    result = methods.sum(methods.abs(wide), options)
  elseif p == math.huge then
    result = methods.amax(methods.abs(wide), options)
  elseif p == -math.huge then
    result = methods.amin(methods.abs(wide), options)
  elseif p == 0 then
    result = methods.to(methods.sum(methods.ne(wide, 0), options), wide.dtype)
  else
    result = power_norm(wide, p, options)
  end
  return rounded(result, t)
end)

-- Products.

--- The running product: y(i) = x(i) y(i - 1), begun by the first element.
local function running_product(x, dim)
  local size = methods.size(x, dim)
  if size < 2 then
    return methods.clone(x)
  end
  local first = methods.narrow(x, dim, 1, 1)
  local rest = methods.detach(methods.narrow(x, dim, 2, size - 1))
  -- Negative zeros keep the sign of what is added to them.
  local zeros = methods.expand(tensors.scalar("cumprod", -0.0, rest), rest.shape)
  return ops.functions.linear_scan(ops.functions.cat({ first, zeros }, dim), x, { dim = dim })
end

--- Product over dimensions; small integers and booleans give i64.
define("prod", { "dim", "keepdim" }, function(t, dim, keepdim)
  local options, count = over("prod", t, dim, keepdim)
  local joined, shape = arguments.join(arguments.widened(t), options, count)
  if count == 0 then
    return methods.reshape(methods.sum(joined, -1) + 1, shape) -- the sum is 0, and keeps the graph
  end
  local running = running_product(joined, joined.ndim)
  return methods.reshape(methods.select(running, -1, count), shape)
end)

-- Scans.

local function scan(name, fn)
  define(name, { "dim" }, function(t, dim)
    local x = arguments.at_least_1d(arguments.widened(t))
    if dim == nil then
      errors.raise("invalid", "%s: dim is missing, the dimension to go along", name)
    end
    return methods.reshape(fn(x, arguments.dim(name, t, dim)), t.shape)
  end)
end

--- Running sum along a dimension.
scan("cumsum", function(x, dim)
  local ones = methods.expand(tensors.scalar("cumsum", 1, methods.detach(x)), x.shape)
  return ops.functions.linear_scan(x, ones, { dim = dim })
end)

--- Running product along a dimension.
scan("cumprod", running_product)

--- Logarithm of the running sum of exp(t): sums of exp(x - m) under the running maximum m, rescaled where m grows.
scan("logcumsumexp", function(x, dim)
  local wide, size = floating("logcumsumexp", x), methods.size(x, dim)
  if size < 2 then
    return methods.clone(x)
  end
  local top = ops.functions.cummax(methods.detach(wide), dim)
  local shift = where(methods.lt(methods.abs(top), math.huge), top, 0)
  local function before(values)
    return ops.functions.cat({ methods.narrow(values, dim, 1, 1), methods.narrow(values, dim, 1, size - 1) }, dim)
  end
  local scale = where(methods.eq(before(top), -math.huge), 0, methods.exp(before(shift) - shift))
  local sums = ops.functions.linear_scan(methods.exp(wide - shift), scale, { dim = dim })
  return rounded(methods.log(sums) + shift, x)
end)
