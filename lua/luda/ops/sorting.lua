--- What follows from sorting: the largest few, medians and quantiles, bins. NaN is larger than all.

local args = require "luda.args"
local errors = require "luda.error"
local ops = require "luda.ops"
local tensors = require "luda.tensor"
local values = require "luda.values"
local arguments = require "luda.ops.arguments"

local methods, functions, is_tensor = tensors.methods, ops.functions, tensors.is_tensor
local where = functions.where
local define, flag = arguments.define, arguments.flag
local sort = functions.sort

--- Results along a dimension as 0-d tensors where `t` is one.
local function like_input(t, ...)
  if t.ndim > 0 then
    return ...
  end
  local list = { ... }
  for i, result in ipairs(list) do
    list[i] = methods.reshape(result, {})
  end
  return unpack(list)
end

local function sorted(op, t, dim, descending)
  descending = flag(op, "descending", descending)
  return sort(t, { dim = arguments.dim(op, t, dim), descending = descending })
end

--- The elements in order along a dimension, and their positions. PyTorch's `stable` is accepted: every sort here is.
define("sort", { "dim", "descending", "stable" }, function(t, dim, descending)
  return sorted("sort", t, dim, descending)
end)

--- The positions that sort a dimension.
define("argsort", { "dim", "descending", "stable" }, function(t, dim, descending)
  local _, positions = sorted("argsort", t, dim, descending)
  return positions
end)

--- The elements in order along the first dimension.
define("msort", {}, function(t)
  return (sorted("msort", t, 1, false))
end)

--- A number of elements of one dimension, checked.
local function check_count(op, k, low, size)
  k = args.integer(op, "k", k)
  if k < low or k > size then
    errors.raise("index", "%s: k is %d; the dimension has %d elements", op, k, size)
  end
  return k
end

--- The k largest elements along a dimension (or smallest), in order, and their positions.
define("topk", { "k", "dim", "largest", "sorted" }, function(t, k, dim, largest)
  local x = arguments.at_least_1d(t)
  dim = arguments.dim("topk", t, dim)
  k = check_count("topk", k, 0, methods.size(x, dim))
  local ordered, positions = sort(x, { dim = dim, descending = flag("topk", "largest", largest, true) })
  return like_input(t, methods.clone(methods.narrow(ordered, dim, 1, k)),
    methods.clone(methods.narrow(positions, dim, 1, k)))
end)

--- The k-th smallest element along a dimension and its position.
define("kthvalue", { "k", "dim", "keepdim" }, function(t, k, dim, keepdim)
  local x = arguments.at_least_1d(t)
  dim = arguments.dim("kthvalue", t, dim)
  k = check_count("kthvalue", k, 1, methods.size(x, dim))
  local ordered, positions = sort(x, { dim = dim })
  if flag("kthvalue", "keepdim", keepdim) and t.ndim > 0 then
    return methods.clone(methods.narrow(ordered, dim, k, 1)), methods.clone(methods.narrow(positions, dim, k, 1))
  end
  return methods.clone(methods.select(ordered, dim, k)), methods.clone(methods.select(positions, dim, k))
end)

local function need_elements(op, size)
  if size == 0 then
    errors.raise("shape", "%s: an empty dimension has no middle", op)
  end
end

--- The lower of two middle elements and its position; where there are NaN, the first of them, or of the others (skip).
local function middle(x, dim, keepdim, skip)
  local ordered, positions = sort(x, { dim = dim })
  local size = methods.size(x, dim)
  local missing = methods.sum(methods.isnan(x), { dim = dim, keepdim = keepdim })
  local at
  if skip then
    at = functions.clamp_min(functions.floor_divide(methods.neg(missing) + (size + 1), 2), 1)
  else
    at = where(methods.eq(missing, 0), math.floor((size + 1) / 2), methods.neg(missing) + (size + 1))
  end
  local options = { dim = dim, keepdim = keepdim }
  return functions.take_along(ordered, at, options), functions.take_along(positions, at, options)
end

--- median: The middle element, of two the lower, and with a dimension its position; NaN where there is one.
--- nanmedian: The median of the elements that are not NaN.
for name, skip in pairs { median = false, nanmedian = true } do
  define(name, { "dim", "keepdim" }, function(t, dim, keepdim)
    keepdim = flag(name, "keepdim", keepdim)
    if dim == nil then
      need_elements(name, t.numel)
      return (middle(methods.reshape(t, { -1 }), 1, false, skip))
    end
    local x = arguments.at_least_1d(t)
    dim = arguments.dim(name, t, dim)
    need_elements(name, methods.size(x, dim))
    return middle(x, dim, keepdim and t.ndim > 0, skip)
  end)
end

--- The place between two neighbours that a quantile falls on, from 0, as where to read and how to mix.
local interpolations = {
  linear = function(place)
    return functions.floor(place), functions.ceil(place), place - functions.floor(place)
  end,
  lower = function(place) return functions.floor(place) end,
  higher = function(place) return functions.ceil(place) end,
  nearest = function(place) return functions.round(place) end,
  midpoint = function(place)
    return functions.floor(place), functions.ceil(place), 0.5
  end,
}

--- One quantile of sorted lines, of which `last` elements (less one) count.
local function quantile_of(op, ordered, q, last, between)
  q = args.number(op, "q", q)
  if not (q >= 0 and q <= 1) then
    errors.raise("invalid", "%s: q is %s; it must lie in 0 .. 1", op, tostring(q))
  end
  local low, high, part = between(last * q)
  local function read(place)
    return functions.take_along(ordered, methods.to(place, "i64") + 1, { dim = -1 })
  end
  local below = read(low)
  if not high then
    return below
  end
  local mixed = functions.lerp(below, read(high), is_tensor(part) and methods.to(part, ordered.dtype) or part)
  return where(methods.eq(low, high), below, mixed)
end

--- quantile: The value below which the part q of the elements lies; interpolation between two neighbours "linear", "lower",
-- "higher", "midpoint" or "nearest".
--- nanquantile: The quantile of the elements that are not NaN.
for name, skip in pairs { quantile = false, nanquantile = true } do
  define(name, { "q", "dim", "keepdim", "interpolation" }, function(t, q, dim, keepdim, interpolation)
    local between = interpolations[interpolation or "linear"]
    if not between then
      errors.raise("invalid", "%s: interpolation is one of higher, linear, lower, midpoint, nearest, not %s", name,
        args.describe(interpolation))
    end
    local wide, options, count = arguments.floating(name, t), arguments.over(name, t, dim, keepdim)
    need_elements(name, count)
    local joined, shape = arguments.join(wide, options, count)
    local missing = methods.sum(methods.isnan(joined), -1)
    local present = skip and functions.clamp_min(methods.neg(missing) + count, 1) or methods.eq(missing, missing) * count
    local last, ordered = methods.to(present - 1, "f64"), sort(joined, { dim = -1 })
    local function one(number)
      local result = quantile_of(name, ordered, number, last, between)
      if not skip then
        result = where(methods.eq(missing, 0), result, 0 / 0)
      end
      return arguments.rounded(methods.reshape(result, shape), t)
    end
    q = is_tensor(q) and methods.totable(q) or q
    if type(q) ~= "table" then
      return one(q)
    end
    local results = {}
    for i, number in ipairs(q) do
      results[i] = one(number)
    end
    return functions.stack(results, 1)
  end)
end

-- Bins.

--- Where each element would be put into sorted boundaries: searchsorted with the arguments exchanged.
values.define("bucketize", function(t, boundaries, options)
  if not is_tensor(boundaries) or boundaries.ndim ~= 1 then
    errors.raise("shape", "bucketize: the boundaries are a tensor of one dimension, not %s",
      is_tensor(boundaries) and args.shape_text(boundaries.shape) or args.describe(boundaries))
  end
  return functions.searchsorted(boundaries, t, options)
end)

--- How often each whole number base, base + 1, … occurs, or the sum of the weights there.
define("bincount", { "weights", "minlength", "base" }, function(t, weights, minlength, base)
  base = args.integer("bincount", "base", base or 1)
  minlength = args.integer("bincount", "minlength", minlength or 0)
  local whole = args.dtype_class(t.dtype) == "int"
  if t.ndim ~= 1 or not whole then
    errors.raise(whole and "shape" or "dtype", "bincount: one dimension of integers is needed, not %s %s", t.dtype,
      args.shape_text(t.shape))
  end
  local size = minlength
  if t.numel > 0 then
    if methods.item(methods.amin(t)) < base then
      errors.raise("index", "bincount: %s is less than the first number that is counted, %d%s",
        tostring(methods.item(methods.amin(t))), base, base == 1 and "; pass base = 0 to count from 0" or "")
    end
    size = math.max(size, methods.item(methods.amax(t)) - base + 1)
  end
  if weights ~= nil and (not is_tensor(weights) or args.shape_text(weights.shape) ~= args.shape_text(t.shape)) then
    errors.raise("shape", "bincount: there must be one weight for each of the numbers %s", args.shape_text(t.shape))
  end
  weights = weights or methods.expand(tensors.scalar("bincount", 1, methods.to(t, "i64")), t.shape)
  return functions.index_select_backward(weights, t, { dim = 1, size = size, base = base })
end)

--- Counts in bins of equal width; both ends belong to the outer bins. Without ends those of the values.
define("histc", { "bins", "min", "max" }, function(t, bins, low, high)
  local x = methods.reshape(methods.detach(arguments.floating("histc", t)), { t.numel })
  bins, low, high = args.integer("histc", "bins", bins or 100), args.number("histc", "min", low or 0),
    args.number("histc", "max", high or 0)
  if bins < 1 then
    errors.raise("invalid", "histc: %d bins; at least one is needed", bins)
  elseif low > high then
    errors.raise("invalid", "histc: min %g is larger than max %g", low, high)
  end
  if low == high and t.numel > 0 then
    low, high = methods.item(methods.amin(x)), methods.item(methods.amax(x))
  end
  if low == high then
    low, high = low - 1, high + 1
  end
  if high - low == math.huge or low ~= low or high ~= high then
    errors.raise("invalid", "histc: the range %g to %g is not finite", low, high)
  end
  local inside = methods.mul(methods.ge(x, low), methods.le(x, high))
  x = methods.masked_select(x, inside)
  local places = methods.to((methods.to(x, "f64") - low) * bins / (high - low), "i64")
  local counts = methods.bincount(functions.minimum(places, bins - 1), { minlength = bins, base = 0 })
  return methods.to(counts, t.dtype)
end)
