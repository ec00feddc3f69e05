--- Tensors turned over, moved around, repeated and padded: by joining pieces or picking positions. All are differentiable.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local values = require "luda.values"

local functions, methods, is_tensor = ops.functions, tensors.methods, tensors.is_tensor
local define, need_tensor, positive, spread = values.define, values.need_tensor, sugar.positive, sugar.spread

--- Distinct dimensions as positive numbers.
local function distinct_dims(op, t, dims)
  local list, seen = {}, {}
  for i, dim in ipairs(type(dims) == "table" and dims or { dims }) do
    list[i] = positive(op, t, dim)
    if seen[list[i]] then
      errors.raise("invalid", "%s: dimension %d is given twice", op, list[i])
    end
    seen[list[i]] = true
  end
  return list
end

-- Order.

--- Dimensions read backwards. A copy.
define("flip", function(t, ...)
  for _, dim in ipairs(distinct_dims("flip", need_tensor("flip", t), spread(...))) do
    local size = methods.size(t, dim)
    t = functions.index_select(t, dim, create.arange(size, 0, -1, { dtype = "i64", device = t.device }))
  end
  return t
end)

local function roll_one(t, shift, dim)
  local size = methods.size(t, dim)
  shift = size > 0 and args.integer("roll", "a shift", shift) % size or 0
  if shift == 0 then
    return t
  end
  return functions.cat({ methods.narrow(t, dim, size - shift + 1, shift), methods.narrow(t, dim, 1, size - shift) }, dim)
end

--- Elements moved along dimensions, what leaves at the end comes in at the start; without dimensions in row-major order.
define("roll", function(t, ...)
  need_tensor("roll", t)
  local given = args.named("roll", { "shifts", "dims" }, {}, ...)
  if given.dims == nil then
    return methods.reshape(roll_one(methods.reshape(t, { -1 }), given.shifts, 1), t.shape)
  end
  local shifts = type(given.shifts) == "table" and given.shifts or { given.shifts }
  local dims = type(given.dims) == "table" and given.dims or { given.dims }
  if #shifts ~= #dims then
    errors.raise("invalid", "roll: %d shifts for %d dimensions", #shifts, #dims)
  end
  for i, dim in ipairs(dims) do
    t = roll_one(t, shifts[i], positive("roll", t, dim))
  end
  return t
end)

--- Turned k quarters in the plane of two dimensions, from the first towards the second.
define("rot90", function(t, ...)
  need_tensor("rot90", t)
  local given = args.named("rot90", { "k", "dims" }, { k = 1, dims = { 1, 2 } }, ...)
  local dims = distinct_dims("rot90", t, given.dims)
  if #dims ~= 2 then
    errors.raise("invalid", "rot90: %d dimensions; a plane has two", #dims)
  end
  local quarters = args.integer("rot90", "k", given.k) % 4
  if quarters == 1 then
    return functions.transpose(functions.flip(t, dims[2]), dims[1], dims[2])
  elseif quarters == 2 then
    return functions.flip(t, dims)
  elseif quarters == 3 then
    return functions.flip(functions.transpose(t, dims[1], dims[2]), dims[2])
  end
  return functions.clone(t)
end)

-- Repetition.

--- Each of [before, size, after] as a whole, or each position, `count` times in a row.
local function repeated(t, dim, count, each)
  local shape, before, after = t.shape, 1, 1
  for i = 1, #shape do
    before = i < dim and before * shape[i] or before
    after = i > dim and after * shape[i] or after
  end
  local from = each and { before * shape[dim], 1, after } or { before, 1, shape[dim] * after }
  shape[dim] = shape[dim] * count
  return methods.reshape(methods.expand(methods.reshape(t, from), { from[1], count, from[3] }), shape)
end

--- The whole tensor repeated along each dimension; missing dimensions or counts at the front are 1.
define("tile", function(t, ...)
  local counts = args.sizes("tile", spread(...))
  while need_tensor("tile", t).ndim < #counts do
    t = methods.unsqueeze(t, 1)
  end
  local lead = t.ndim - #counts
  for i, count in ipairs(counts) do
    if count ~= 1 then
      t = repeated(t, lead + i, count, false)
    end
  end
  return t
end)

--- Each position of a dimension repeated: a count for all, or a list or tensor of counts; without dimension, each element.
define("repeat_interleave", function(t, repeats, dim)
  if type(dim) == "table" then
    dim = args.options("repeat_interleave", dim, { dim = args.absent }).dim
  end
  if dim == nil then
    t, dim = methods.reshape(need_tensor("repeat_interleave", t), { -1 }), 1
  end
  dim = positive("repeat_interleave", need_tensor("repeat_interleave", t), dim)
  local counts = is_tensor(repeats) and methods.reshape(repeats, { -1 }):totable() or repeats
  if type(counts) == "number" then
    counts = args.sizes("repeat_interleave", { counts })
    return repeated(t, dim, counts[1], true)
  end
  local size, positions = methods.size(t, dim), {}
  if #counts ~= size then
    errors.raise("shape", "repeat_interleave: %d counts for dimension %d of %s", #counts, dim, args.shape_text(t.shape))
  end
  for i, count in ipairs(counts) do
    if args.integer("repeat_interleave", "a count", count) < 0 then
      errors.raise("invalid", "repeat_interleave: count %d is %d", i, count)
    end
    for _ = 1, count do
      positions[#positions + 1] = i
    end
  end
  return functions.index_select(t, dim, create.tensor(positions, { dtype = "i64", device = t.device }))
end)

-- Padding.

--- The position read for place `i` (from 1 - before to size + after), by mode.
local source = {
  reflect = function(i, size)
    return i < 1 and 2 - i or i > size and 2 * size - i or i
  end,
  replicate = function(i, size)
    return math.min(math.max(i, 1), size)
  end,
  circular = function(i, size)
    return (i - 1) % size + 1
  end,
}

local function pad_by_position(t, dim, before, after, mode)
  local size, positions = methods.size(t, dim), {}
  local most = math.max(before, after)
  if before < 0 or after < 0 or size == 0 or (mode == "reflect" and most >= size) or (mode == "circular" and most > size) then
    errors.raise("shape", "pad: %d and %d elements by %s beside dimension %d of %s", before, after, mode, dim,
      args.shape_text(t.shape))
  end
  for i = 1 - before, size + after do
    positions[#positions + 1] = source[mode](i, size)
  end
  return functions.index_select(t, dim, create.tensor(positions, { dtype = "i64", device = t.device }))
end

local function pad_with(t, dim, before, after, value)
  local shape, pieces = t.shape, {}
  local start, stop = math.max(-before, 0), shape[dim] - math.max(-after, 0)
  if stop < start then
    errors.raise("shape", "pad: dimension %d of %s is cut by more than it has", dim, args.shape_text(shape))
  end
  local kept = stop - start == shape[dim] and t or methods.narrow(t, dim, math.min(start, shape[dim] - 1) + 1, stop - start)
  for _, count in ipairs { before, 0, after } do
    if count > 0 then
      shape[dim] = count
      pieces[#pieces + 1] = create.full(shape, value, { dtype = t.dtype, device = t.device })
    elseif count == 0 and pieces.kept == nil then
      pieces[#pieces + 1], pieces.kept = kept, true
    end
  end
  return #pieces == 1 and kept or functions.cat(pieces, dim)
end

--- Elements added before and after dimensions: sizes {before, after} of the last, then of the one before, and so on. Mode
-- "constant" with a value (negative sizes cut), "reflect", "replicate" or "circular".
define("pad", function(t, sizes, ...)
  local given = args.named("pad", { "mode", "value" }, { mode = "constant", value = 0 }, ...)
  local ndim = need_tensor("pad", t).ndim
  if type(sizes) ~= "table" or #sizes % 2 ~= 0 or #sizes > 2 * ndim then
    errors.raise("shape", "pad: the sizes are pairs {before, after} from the last dimension on, at most %d of them", ndim)
  elseif given.mode ~= "constant" and not source[given.mode] then
    errors.raise("invalid", "pad: the mode is \"constant\", \"reflect\", \"replicate\" or \"circular\", not %s",
      args.describe(given.mode))
  end
  local value = args.number("pad", "value", given.value)
  if args.dtype_class(t.dtype) == "int" and value ~= math.floor(value) then
    errors.raise("dtype", "pad: the value %g does not fit %s; convert with :to(\"f32\")", value, t.dtype)
  end
  for i = 1, #sizes, 2 do
    local before, after = args.integer("pad", "a size", sizes[i]), args.integer("pad", "a size", sizes[i + 1])
    local dim = ndim - (i - 1) / 2
    if before ~= 0 or after ~= 0 then
      if given.mode == "constant" then
        t = pad_with(t, dim, before, after, value)
      else
        t = pad_by_position(t, dim, before, after, given.mode)
      end
    end
  end
  return t
end)
