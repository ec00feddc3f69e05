--- What follows from sorting: the largest few, medians and quantiles, bins, distinct values. NaN is larger than all.

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

--- The lower of two middle elements and its position; where there are NaN, the first of them.
local function median(x, dim, keepdim)
  local ordered, positions = sort(x, { dim = dim })
  local size = methods.size(x, dim)
  local missing = methods.sum(methods.isnan(x), { dim = dim, keepdim = keepdim })
  local at = where(methods.eq(missing, 0), math.floor((size + 1) / 2), methods.neg(missing) + (size + 1))
  local options = { dim = dim, keepdim = keepdim }
  return functions.take_along(ordered, at, options), functions.take_along(positions, at, options)
end

--- The middle element, of two the lower, and with a dimension its position; NaN where there is one.
define("median", { "dim", "keepdim" }, function(t, dim, keepdim)
  keepdim = flag("median", "keepdim", keepdim)
  if dim == nil then
    need_elements("median", t.numel)
    return (median(methods.reshape(t, { -1 }), 1, false))
  end
  local x = arguments.at_least_1d(t)
  dim = arguments.dim("median", t, dim)
  need_elements("median", methods.size(x, dim))
  local value, position = median(x, dim, keepdim and t.ndim > 0)
  return value, position
end)

local interpolations = {
  linear = function(low, high, part)
    return part < 0.5 and low + (high - low) * part or high - (high - low) * (1 - part)
  end,
  lower = function(low) return low end,
  higher = function(_, high) return high end,
  midpoint = function(low, high) return (low + high) / 2 end,
  nearest = function(low, high, part, position)
    return (part > 0.5 or (part == 0.5 and position % 2 == 1)) and high or low -- halves to the even position
  end,
}

--- One quantile of sorted lines.
local function quantile_of(ordered, q, between)
  local size = methods.size(ordered, -1)
  if not (q >= 0 and q <= 1) then
    errors.raise("invalid", "quantile: q is %s; it must lie in 0 .. 1", tostring(q))
  end
  local position = q * (size - 1)
  local below = math.floor(position)
  local low = methods.select(ordered, -1, below + 1)
  if position == below then
    return low
  end
  return between(low, methods.select(ordered, -1, below + 2), position - below, below)
end

--- The value below which the part q of the elements lies; interpolation between two neighbours "linear", "lower",
-- "higher", "midpoint" or "nearest".
define("quantile", { "q", "dim", "keepdim", "interpolation" }, function(t, q, dim, keepdim, interpolation)
  local between = interpolations[interpolation or "linear"]
  if not between then
    errors.raise("invalid", "quantile: interpolation is one of higher, linear, lower, midpoint, nearest, not %s",
      args.describe(interpolation))
  end
  local wide, options, count = arguments.floating("quantile", t), arguments.over("quantile", t, dim, keepdim)
  need_elements("quantile", count)
  local joined, shape = arguments.join(wide, options, count)
  local missing = methods.ne(methods.sum(methods.isnan(joined), -1), 0)
  local ordered = sort(joined, { dim = -1 })
  local function one(number)
    local result = quantile_of(ordered, args.number("quantile", "q", number), between)
    return arguments.rounded(methods.reshape(where(missing, 0 / 0, result), shape), t)
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

-- Distinct values.

--- The distinct values in ascending order; then, where asked, for each element the position of its value, and the counts.
define("unique", { "sorted", "return_inverse", "return_counts", "dim" }, function(t, _, inverse, counts, dim)
  if dim ~= nil then
    errors.raise("unsupported", "unique: only of all elements, not along a dimension")
  end
  inverse, counts = flag("unique", "return_inverse", inverse), flag("unique", "return_counts", counts)
  local size = t.numel
  local ordered, positions = sort(methods.reshape(methods.detach(t), { size }), { dim = 1 })
  local new = methods.eq(positions, positions)
  if size > 1 then
    local differs = methods.ne(methods.narrow(ordered, 1, 2, size - 1), methods.narrow(ordered, 1, 1, size - 1))
    new = functions.cat({ methods.narrow(new, 1, 1, 1), differs }, 1)
  end
  local starts = methods.reshape(methods.nonzero(new), { -1 })
  local results = { methods.index_select(ordered, 1, starts) }
  local group = (inverse or counts) and methods.cumsum(methods.to(new, "i64"), 1)
  if inverse then
    results[#results + 1] = methods.reshape(functions.scatter(positions, 1, positions, group), t.shape)
  end
  if counts then
    results[#results + 1] = methods.bincount(group)
  end
  return unpack(results)
end)
