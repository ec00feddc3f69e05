--- Elements at positions and under masks, and the parts of matrices that positions decide; composed from rows.

local args = require "luda.args"
local errors = require "luda.error"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local tensors = require "luda.tensor"
local values = require "luda.values"
local arguments = require "luda.ops.arguments"
local into = require "luda.ops.into"

local methods, functions, is_tensor = tensors.methods, ops.functions, tensors.is_tensor
local where = functions.where
local define = values.define
local need_tensor = values.need_tensor

local M = {}

local row = { nonzero = functions.nonzero, scatter = functions.scatter, scatter_add = functions.scatter_add }
M.row = row

-- Masks.

--- The coordinates of the elements that are not zero, [count, ndim].
local function nonzero(t)
  local places, count = row.nonzero(t)
  return methods.narrow(places, 1, 1, methods.item(count))
end

--- The positions where a mask is true, counted over the flattened mask.
function M.of_mask(mask)
  return methods.select(nonzero(methods.reshape(mask, { mask.numel })), 2, 1)
end

--- The coordinates of the elements that are not zero, one row each.
define("argwhere", function(t)
  return methods.clone(nonzero(need_tensor("argwhere", t)))
end)

--- The coordinates of the elements that are not zero, one row each; as_tuple gives a list, one tensor a dimension.
arguments.define("nonzero", { "as_tuple" }, function(t, as_tuple)
  if not arguments.flag("nonzero", "as_tuple", as_tuple) then
    return methods.clone(nonzero(t))
  end
  return methods.unbind(methods.clone(nonzero(arguments.at_least_1d(t))), 2)
end)

local function check_mask(op, mask)
  if not is_tensor(mask) or mask.dtype ~= "bool" then
    errors.raise("dtype", "%s: the mask must be a tensor of bool, not %s; compare first, as in x:ne(0)", op,
      is_tensor(mask) and mask.dtype or args.describe(mask))
  end
end

--- The elements where the mask, broadcast with the tensor, is true.
define("masked_select", function(t, mask)
  check_mask("masked_select", mask)
  local shape = functions.eq(need_tensor("masked_select", t), mask).shape
  local flat = methods.reshape(methods.expand(t, shape), { -1 })
  return methods.index_select(flat, 1, M.of_mask(methods.expand(mask, shape)))
end)

local function plain(op, value)
  if is_tensor(value) and value.ndim > 0 then
    errors.raise("shape", "%s: the value is a number or a 0-d tensor, not %s", op, args.shape_text(value.shape))
  end
  return value
end

--- masked_fill, masked_fill_: The tensor with a number where the mask, broadcast, is true.
define("masked_fill", function(t, mask, value)
  check_mask("masked_fill", mask)
  return where(mask, sugar.for_bool(plain("masked_fill", value), need_tensor("masked_fill", t)), t)
end)

define("masked_fill_", function(t, mask, value)
  check_mask("masked_fill_", mask)
  t = need_tensor("masked_fill_", t)
  return ops.write("where", t, mask, sugar.for_bool(plain("masked_fill_", value), t), t)
end)

--- The tensor with the first elements of the source where the mask is true.
define("masked_scatter", function(t, mask, source)
  check_mask("masked_scatter", mask)
  mask = methods.expand(mask, need_tensor("masked_scatter", t).shape)
  local places = M.of_mask(mask)
  local count = places.numel
  if need_tensor("masked_scatter", source).numel < count then
    errors.raise("shape", "masked_scatter: %d elements given for %d places", source.numel, count)
  end
  local taken = methods.narrow(methods.reshape(source, { -1 }), 1, 1, count)
  return methods.reshape(row.scatter(methods.reshape(t, { -1 }), places, taken, { dim = 1 }), t.shape)
end)

-- Positions along a dimension.

--- The part of the source that the positions cover; a number is repeated.
local function cover(op, t, index, source)
  if not is_tensor(source) then
    source = tensors.scalar(op, source, t)
  end
  if source.ndim == 0 then
    return methods.expand(source, index.shape)
  end
  if source.ndim ~= index.ndim then
    return source
  end
  local sizes, have = index.shape, source.shape
  for dim = 1, #sizes do
    if sizes[dim] < have[dim] then
      source = methods.narrow(source, dim, 1, sizes[dim])
    end
  end
  return source
end
M.cover = cover

for name, call in pairs { scatter = row.scatter, scatter_add = row.scatter_add } do
  define(name, function(t, dim, index, source, options)
    if is_tensor(dim) then -- the row's own order: index, source, {dim =}
      return call(t, dim, index, source)
    end
    need_tensor(name, index)
    options = args.options(name, options, { base = 1 })
    return call(need_tensor(name, t), index, cover(name, t, index, source), { dim = dim, base = options.base })
  end)
end

--- A list of positions for whole slices as positions of every element; the source in that shape.
local function slices(op, t, dim, index, source)
  dim = arguments.dim(op, need_tensor(op, t), dim)
  need_tensor(op, index)
  if index.ndim > 1 then
    errors.raise("shape", "%s: the positions have one dimension, not %s", op, args.shape_text(index.shape))
  end
  local shape, lone = arguments.at_least_1d(t).shape, {}
  for i = 1, #shape do
    lone[i] = 1
  end
  shape[dim], lone[dim] = index.numel, index.numel
  source = is_tensor(source) and source or tensors.scalar(op, source, t)
  if source.ndim > 0 and args.shape_text(source.shape) ~= args.shape_text(shape) then
    errors.raise("shape", "%s: the source is %s; %d positions of dimension %d of %s need %s", op,
      args.shape_text(source.shape), index.numel, dim, args.shape_text(t.shape), args.shape_text(shape))
  end
  return dim, methods.expand(methods.reshape(index, lone), shape), methods.expand(source, shape)
end

local function put(call, t, dim, index, source, base)
  local result = call(arguments.at_least_1d(t), index, source, { dim = dim, base = base })
  return methods.reshape(result, t.shape)
end

--- Slices added at positions of a dimension; alpha scales them.
define("index_add", function(t, dim, index, source, options)
  options = args.options("index_add", options, { alpha = 1, base = 1 })
  if options.alpha ~= 1 then
    source = source * options.alpha
  end
  local at, places, spread = slices("index_add", t, dim, index, source)
  return put(row.scatter_add, t, at, places, spread, options.base)
end)

--- Slices (or one number) written at positions of a dimension.
for _, name in ipairs { "index_copy", "index_fill" } do
  define(name, function(t, dim, index, source, options)
    options = args.options(name, options, { base = 1 })
    if name == "index_fill" then
      source = sugar.for_bool(plain(name, source), need_tensor(name, t))
    end
    local at, places, spread = slices(name, t, dim, index, source)
    return put(row.scatter, t, at, places, spread, options.base)
  end)
end
into.in_place "scatter scatter_add index_add index_copy index_fill masked_scatter"

--- Elements of the flattened tensor.
define("take", function(t, index, options)
  return methods.index_select(methods.reshape(need_tensor("take", t), { -1 }), 1, need_tensor("take", index), options)
end)

--- A row of classes for each label, one of them 1. Labels count from base, 1 where it is not given.
define("one_hot", function(t, classes, options)
  if type(classes) == "table" then
    classes, options = classes.num_classes, { base = classes.base }
  end
  options = args.options("one_hot", options, { base = 1 })
  if args.dtype_class(need_tensor("one_hot", t).dtype) ~= "int" then
    errors.raise("dtype", "one_hot: labels are integers, not %s; convert with :to(\"i64\")", t.dtype)
  end
  local base = options.base
  if classes == nil or classes == -1 then
    if t.numel == 0 then
      errors.raise("invalid", "one_hot: the number of classes is needed where there is no label")
    end
    classes = methods.item(methods.amax(t)) - base + 1
  end
  classes = args.integer("one_hot", "the number of classes", classes)
  if t.numel > 0 then
    local low, high = methods.item(methods.amin(t)), methods.item(methods.amax(t))
    if low < base or high > base + classes - 1 then
      errors.raise("index", "one_hot: label %s is outside %d .. %d (base %d)%s", tostring(low < base and low or high), base,
        base + classes - 1, base, low == 0 and base == 1 and "; are these 0-based labels? pass base = 0" or "")
    end
  end
  local all = functions.arange { shape = { classes }, dtype = "i64", device = t.device, low = base, high = 1 }
  return methods.to(methods.eq(methods.unsqueeze(t, -1), all), "i64")
end)

-- Matrices.

local function need_matrix(op, t)
  if need_tensor(op, t).ndim < 2 then
    errors.raise("shape", "%s: %s is not a matrix; two dimensions are needed", op, args.shape_text(t.shape))
  end
end

--- Where column - row is at least (or at most) `diagonal`.
local function triangle(name, compare)
  define(name, function(t, diagonal)
    need_matrix(name, t)
    if type(diagonal) == "table" then
      diagonal = args.options(name, diagonal, { diagonal = 0 }).diagonal
    end
    diagonal = args.integer(name, "diagonal", diagonal or 0)
    local function count(size)
      return functions.arange { shape = { size }, dtype = "i64", device = t.device, low = 0, high = 1 }
    end
    local distance = count(methods.size(t, -1)) - methods.unsqueeze(count(methods.size(t, -2)), 2)
    return where(compare(distance, diagonal), t, tensors.scalar(name, t.dtype ~= "bool" and 0, t))
  end)
end

--- tril: The elements at and below a diagonal of the last two dimensions, zeros above.
triangle("tril", methods.le)
--- triu: The elements at and above a diagonal of the last two dimensions, zeros below.
triangle("triu", methods.ge)
into.in_place "tril triu"

--- Where a diagonal lies in a flattened matrix: the first element (from 1), its length, the step.
local function diagonal_of(height, width, offset)
  local down, right = math.max(-offset, 0), math.max(offset, 0)
  return down * width + right + 1, math.max(math.min(height - down, width - right), 0), width + 1
end

local function read_diagonal(t, offset)
  local height, width = methods.size(t, 1), methods.size(t, 2)
  local first, length, step = diagonal_of(height, width, offset)
  if length == 0 then
    return methods.narrow(methods.reshape(t, { height * width }), 1, 1, 0)
  end
  return methods.narrow(methods.reshape(t, { height * width }), 1, first, length, step)
end

--- The diagonal of a matrix, or the matrix of a diagonal.
define("diag", function(t, offset)
  offset = args.integer("diag", "the diagonal", offset or 0)
  if need_tensor("diag", t).ndim == 2 then
    return methods.clone(read_diagonal(t, offset))
  elseif t.ndim ~= 1 then
    errors.raise("shape", "diag: %s has neither one dimension nor two", args.shape_text(t.shape))
  end
  local size = t.numel + math.abs(offset)
  local first = diagonal_of(size, size, offset)
  local flat = functions.narrow_backward(t, { dim = 1, start = t.numel > 0 and first or 1, size = size * size,
    step = size + 1 })
  return methods.reshape(flat, { size, size })
end)

--- The sum of the diagonal of a matrix.
define("trace", function(t)
  if need_tensor("trace", t).ndim ~= 2 then
    errors.raise("shape", "trace: %s is not a matrix; two dimensions are needed", args.shape_text(t.shape))
  end
  return methods.sum(read_diagonal(t, 0))
end)

return M
