--- Differences, integrals, covariances and what else is made of neighbours, pairs or powers.

local args = require "luda.args"
local errors = require "luda.error"
local ops = require "luda.ops"
local tensors = require "luda.tensor"
local arguments = require "luda.ops.arguments"

local methods, functions, is_tensor = tensors.methods, ops.functions, tensors.is_tensor
local define = arguments.define

--- The least and the largest element, of all or along dimensions.
define("aminmax", { "dim", "keepdim" }, function(t, dim, keepdim)
  local options = arguments.over("aminmax", t, dim, keepdim)
  return functions.amin(t, options), functions.amax(t, options)
end)

local function need_dimension(op, t)
  if t.ndim == 0 then
    errors.raise("shape", "%s: a 0-d tensor has no neighbours; at least one dimension is needed", op)
  end
end

--- All but the first and all but the last of a dimension.
local function neighbours(t, dim)
  local size = methods.size(t, dim)
  local count = math.max(size - 1, 0)
  return methods.narrow(t, dim, math.min(size, 1) + 1, count), methods.narrow(t, dim, 1, count)
end

--- Differences of neighbours, n times over, with tensors put before and behind first.
define("diff", { "n", "dim", "prepend", "append" }, function(t, n, dim, prepend, append)
  need_dimension("diff", t)
  n, dim = args.integer("diff", "n", n or 1), arguments.dim("diff", t, dim)
  if n < 0 then
    errors.raise("invalid", "diff: n is %d; it must not be negative", n)
  end
  if n > 0 and (prepend ~= nil or append ~= nil) then
    local list = {}
    for _, piece in ipairs { prepend or false, t, append or false } do
      list[#list + 1] = piece or nil
    end
    t = functions.cat(list, dim)
  end
  for _ = 1, math.min(n, methods.size(t, dim)) do
    local later, earlier = neighbours(t, dim)
    t = t.dtype == "bool" and methods.ne(later, earlier) or later - earlier
  end
  return t
end)

--- Half the sum of neighbours times their distance: dx, or the differences of x.
local function areas(op, y, x, dx, dim)
  need_dimension(op, y)
  local later, earlier = neighbours(y, dim)
  local sums = later + earlier
  if x == nil then
    return sums * (args.number(op, "dx", dx or 1) / 2)
  elseif not is_tensor(x) then
    errors.raise("invalid", "%s: x is a tensor of places, not %s", op, args.describe(x))
  end
  if x.ndim == 1 then
    local shape = {}
    for d = 1, y.ndim do
      shape[d] = d == dim and -1 or 1
    end
    x = methods.reshape(x, shape)
  end
  later, earlier = neighbours(x, dim)
  return sums * (later - earlier) / 2
end

--- The integral of y along a dimension by trapezoids, over places x or at distances dx.
define("trapezoid", { "x", "dx", "dim" }, function(y, x, dx, dim)
  dim = arguments.dim("trapezoid", y, dim)
  return methods.sum(areas("trapezoid", y, x, dx, dim), dim)
end)

--- The integral of y from the first place up to each of the others, by trapezoids.
define("cumulative_trapezoid", { "x", "dx", "dim" }, function(y, x, dx, dim)
  dim = arguments.dim("cumulative_trapezoid", y, dim)
  return methods.cumsum(areas("cumulative_trapezoid", y, x, dx, dim), dim)
end)

--- Covariances of the rows of a matrix, whose columns are observations; frequency and importance weights.
define("cov", { "correction", "fweights", "aweights" }, function(t, correction, fweights, aweights)
  if t.ndim > 2 then
    errors.raise("shape", "cov: %s has more than two dimensions", args.shape_text(t.shape))
  end
  local wide = arguments.floating("cov", t)
  local rows = methods.reshape(wide, t.ndim == 2 and t.shape or { 1, t.numel })
  local count = methods.size(rows, 2)
  correction = args.number("cov", "correction", correction or 1)
  local weights, total = nil, count
  for name, given in pairs { fweights = fweights or false, aweights = aweights or false } do
    if given and (not is_tensor(given) or given.ndim ~= 1 or given.numel ~= count) then
      errors.raise("shape", "cov: %s is a tensor of one weight for each of %d observations", name, count)
    end
    if given then
      weights = weights and weights * given or methods.to(given, rows.dtype)
    end
  end
  if weights then
    total = methods.item(methods.sum(weights))
  end
  local divisor = total - correction
  if aweights and correction ~= 0 then
    divisor = total - correction * methods.item(methods.sum(weights * aweights)) / total
  end
  local weighed = weights and rows * weights or rows
  local centred = rows - methods.sum(weighed, { dim = 2, keepdim = true }) / total
  weighed = weights and centred * weights or centred
  local result = functions.matmul(weighed, functions.transpose(centred, 1, 2)) / math.max(divisor, 0)
  return arguments.rounded(t.ndim == 2 and result or methods.reshape(result, {}), t)
end)

--- Correlations of the rows of a matrix: covariances divided by both deviations.
define("corrcoef", {}, function(t)
  local covariance = functions.cov(arguments.floating("corrcoef", t))
  if covariance.ndim == 0 then
    return arguments.rounded(covariance / covariance, t)
  end
  local deviation = methods.sqrt(functions.diag(covariance))
  return arguments.rounded(functions.clamp(covariance / methods.unsqueeze(deviation, 2) / deviation, -1, 1), t)
end)

--- Powers of the elements, one row each: from n - 1 down to 0, or increasing.
define("vander", { "n", "increasing" }, function(t, n, increasing)
  if t.ndim ~= 1 then
    errors.raise("shape", "vander: %s; one dimension is needed", args.shape_text(t.shape))
  end
  n = args.integer("vander", "n", n or t.numel)
  if n < 0 then
    errors.raise("invalid", "vander: %d columns", n)
  end
  local rows = methods.expand(methods.unsqueeze(t, 2), { t.numel, math.max(n - 1, 0) })
  local one = tensors.scalar("vander", 1, t)
  local factors = functions.cat({ methods.expand(one, { t.numel, math.min(n, 1) }), rows }, 2)
  local powers = n > 0 and methods.cumprod(factors, 2) or factors
  return arguments.flag("vander", "increasing", increasing) and powers or functions.flip(powers, 2)
end)
