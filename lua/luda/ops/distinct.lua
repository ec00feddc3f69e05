--- Distinct values and slices, how often they occur, and which is the most frequent.

local create = require "luda.create"
local errors = require "luda.error"
local ops = require "luda.ops"
local tensors = require "luda.tensor"
local arguments = require "luda.ops.arguments"

local methods, functions = tensors.methods, ops.functions
local define, flag = arguments.define, arguments.flag
local sort, where = functions.sort, functions.where

--- Where a run of equal neighbours begins along a dimension.
local function begins(x, dim)
  local size, shape = methods.size(x, dim), x.shape
  shape[dim] = math.min(size, 1)
  local first = create.full(shape, true, { device = x.device })
  if size < 2 then
    return first
  end
  return functions.cat({ first, methods.ne(methods.narrow(x, dim, 2, size - 1), methods.narrow(x, dim, 1, size - 1)) }, dim)
end

--- 1 … size along a dimension, shaped to broadcast against x.
local function counting(x, dim)
  local shape = {}
  for d = 1, x.ndim do
    shape[d] = d == dim and -1 or 1
  end
  return methods.reshape(create.arange(1, methods.size(x, dim) + 1, { dtype = "i64", device = x.device }), shape)
end

--- The number (from 1) of each element's value among the distinct values of its row, in ascending order.
local function ranks(rows)
  local ordered, places = sort(rows, { dim = 2 })
  return functions.scatter(places, 2, places, methods.cumsum(methods.to(begins(ordered, 2), "i64"), 2))
end

--- The same for whole columns in lexicographic order: ranks of two neighbouring rows are joined until one row is left.
local function column_ranks(rows)
  local height, width = unpack(rows.shape)
  if height == 0 or width == 0 then
    return create.ones(width, { dtype = "i64", device = rows.device })
  end
  local joined = ranks(rows)
  while height > 1 do
    local pairs_count = math.floor(height / 2)
    local upper = methods.narrow(joined, 1, 1, pairs_count, 2)
    local both = ranks(upper * (width + 1) + methods.narrow(joined, 1, 2, pairs_count, 2))
    if height % 2 == 1 then
      both = functions.cat({ both, methods.narrow(joined, 1, height, 1) }, 1)
    end
    joined, height = both, math.ceil(height / 2)
  end
  return methods.select(joined, 1, 1)
end

--- [slices, elements of one]: a dimension of t as rows. Slices without elements are all the same.
local function as_rows(t, dim)
  local size = methods.size(t, dim)
  if t.numel == 0 then
    return create.zeros(size, 1, { device = t.device })
  end
  return methods.reshape(functions.movedim(t, dim, 1), { size, t.numel / size })
end

--- The results from the group (from 1) of each position and one position of each group.
local function results_of(t, dim, group, representatives, shape, inverse, counts)
  local results = { methods.index_select(t, dim, representatives) }
  if inverse then
    results[#results + 1] = methods.reshape(group, shape)
  end
  if counts then
    results[#results + 1] = methods.bincount(group)
  end
  return unpack(results)
end

--- The tensor to take values from, its dimension, and the shape that an inverse has.
local function subject(op, t, dim)
  if dim == nil then
    return methods.reshape(t, { t.numel }), 1, t.shape
  end
  dim = arguments.dim(op, t, dim)
  t = arguments.at_least_1d(t)
  return t, dim, { methods.size(t, dim) }
end

--- The distinct values, or slices of a dimension, in ascending order; then, where asked, for each element or slice its place
-- among them, and how often each occurs.
define("unique", { "sorted", "return_inverse", "return_counts", "dim" }, function(t, _, inverse, counts, dim)
  inverse, counts = flag("unique", "return_inverse", inverse), flag("unique", "return_counts", counts)
  local whole = dim == nil
  local x, at, shape = subject("unique", t, dim)
  if whole then
    local ordered, places = sort(methods.detach(x), { dim = 1 })
    local new = begins(ordered, 1)
    local starts = methods.reshape(methods.nonzero(new), { -1 })
    local group = (inverse or counts) and functions.scatter(places, 1, places, methods.cumsum(methods.to(new, "i64"), 1))
    return results_of(x, 1, group, methods.index_select(places, 1, starts), shape, inverse, counts)
  end
  local group = column_ranks(functions.transpose(as_rows(methods.detach(x), at), 1, 2))
  local numbers = counting(group, 1)
  local last = group.numel > 0 and methods.amax(group):item() or 0
  local representatives = functions.scatter(create.zeros(last, { dtype = "i64", device = t.device }), 1, group, numbers)
  return results_of(x, at, group, representatives, shape, inverse, counts)
end)

--- Each run of equal neighbours (or equal neighbouring slices of a dimension) once; then, where asked, for each element or
-- slice the place of its run, and how long each run is.
define("unique_consecutive", { "return_inverse", "return_counts", "dim" }, function(t, inverse, counts, dim)
  inverse, counts = flag("unique_consecutive", "return_inverse", inverse),
    flag("unique_consecutive", "return_counts", counts)
  local x, at, shape = subject("unique_consecutive", t, dim)
  local seen = methods.detach(x)
  local new = dim == nil and begins(seen, 1) or methods.any(begins(as_rows(seen, at), 1), 2)
  local group = methods.cumsum(methods.to(new, "i64"), 1)
  return results_of(x, at, group, methods.reshape(methods.nonzero(new), { -1 }), shape, inverse, counts)
end)

--- The most frequent value along a dimension, of several the least, and its last position. Each NaN is a value of its own.
define("mode", { "dim", "keepdim" }, function(t, dim, keepdim)
  local x = arguments.at_least_1d(t)
  dim, keepdim = arguments.dim("mode", t, dim), flag("mode", "keepdim", keepdim) and t.ndim > 0
  if methods.size(x, dim) == 0 then
    errors.raise("shape", "mode: an empty dimension has no most frequent value")
  end
  local ordered, places = sort(x, { dim = dim })
  local numbers = counting(x, dim)
  local starts = functions.cummax(where(begins(ordered, dim), numbers, 1), dim)
  local options = { dim = dim, keepdim = keepdim }
  local _, at = functions.max(numbers - starts, options)
  return functions.take_along(ordered, at, options), functions.take_along(places, at, options)
end)
