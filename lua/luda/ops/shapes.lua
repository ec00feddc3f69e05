--- Shapes composed from rows: dimensions moved, split and joined, diagonals, windows, grids. All are differentiable.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local values = require "luda.values"

local functions, methods, is_tensor = ops.functions, tensors.methods, tensors.is_tensor
local define, need_tensor, positive, spread = values.define, values.need_tensor, sugar.positive, sugar.spread

--- Whole numbers from low, `step` apart, on the device of `t`.
local function counting(t, low, count, step)
  step = step or 1
  return create.arange(low, low + count * step, step, { dtype = "i64", device = t.device })
end

--- A list of tensors, given as one or spread out.
local function tensor_list(op, ...)
  local list = is_tensor((...)) and { ... } or (...)
  if type(list) ~= "table" or #list == 0 then
    errors.raise("invalid", "%s: expected tensors, got %s", op, args.describe(list))
  end
  for _, t in ipairs(list) do
    need_tensor(op, t)
  end
  return list
end

-- Dimensions.

--- All elements in one dimension.
define("ravel", function(t)
  return methods.reshape(t, { -1 })
end)

--- A dimension cut into several; one size may be -1.
define("unflatten", function(t, dim, sizes)
  dim = positive("unflatten", need_tensor("unflatten", t), dim)
  local shape, result, known, unknown = t.shape, {}, 1, nil
  for i, size in ipairs(args.sizes("unflatten", sizes, true)) do
    result[i] = size
    if size == -1 then
      if unknown then
        errors.raise("shape", "unflatten: only one size may be -1, not those of %s", args.shape_text(sizes))
      end
      unknown = i
    else
      known = known * size
    end
  end
  if unknown and known > 0 and shape[dim] % known == 0 then
    result[unknown], known = shape[dim] / known, shape[dim]
  end
  if known ~= shape[dim] then
    errors.raise("shape", "unflatten: the sizes %s do not multiply to %d, which dimension %d has", args.shape_text(sizes),
      shape[dim], dim)
  end
  for i = dim - 1, 1, -1 do
    table.insert(result, 1, shape[i])
  end
  for i = dim + 1, #shape do
    result[#result + 1] = shape[i]
  end
  return methods.reshape(t, result)
end)

--- Two dimensions exchanged: transpose by its other names.
for _, name in ipairs { "swapaxes", "swapdims" } do
  define(name, function(t, first, second)
    return functions.transpose(t, first, second)
  end)
end

local function moved(op, t, source, destination)
  need_tensor(op, t)
  source = type(source) == "table" and source or { source }
  destination = type(destination) == "table" and destination or { destination }
  if #source ~= #destination then
    errors.raise("invalid", "%s: %d dimensions to %d places", op, #source, #destination)
  end
  local order, taken, next_free = {}, {}, 1
  for i = 1, #source do
    local from, to = positive(op, t, source[i]), positive(op, t, destination[i])
    if taken[from] or order[to] then
      errors.raise("invalid", "%s: a dimension is given twice", op)
    end
    order[to], taken[from] = from, true
  end
  for i = 1, t.ndim do
    if not order[i] then
      while taken[next_free] do
        next_free = next_free + 1
      end
      order[i], taken[next_free] = next_free, true
    end
  end
  return t.ndim == 0 and t or functions.permute(t, order)
end

--- Dimensions moved to other places; the rest keep their order. Numbers, or lists of equal length.
for _, name in ipairs { "movedim", "moveaxis" } do
  define(name, function(t, source, destination)
    return moved(name, t, source, destination)
  end)
end

--- atleast_1d, atleast_2d, atleast_3d: Dimensions of size 1 added where there are fewer; a list gives a list.
for wanted = 1, 3 do
  local name = ("atleast_%dd"):format(wanted)
  define(name, function(...)
    if not is_tensor((...)) then
      local list = {}
      for i, t in ipairs(tensor_list(name, ...)) do
        list[i] = functions[name](t)
      end
      return list
    end
    local t = ...
    while t.ndim < wanted do
      t = methods.unsqueeze(t, t.ndim == 2 and 3 or 1)
    end
    return t
  end)
end

--- Rows beside each other, below each other, behind each other.
for name, how in pairs { hstack = { 1, 2 }, vstack = { 2, 1 }, dstack = { 3, 3 } } do
  define(name, function(...)
    local list = functions[("atleast_%dd"):format(how[1])](tensor_list(name, ...))
    return functions.cat(list, math.min(how[2], list[1].ndim))
  end)
end

--- The common shape of a list of tensors, each expanded to it.
define("broadcast_tensors", function(...)
  local list = tensor_list("broadcast_tensors", ...)
  local shape, result = {}, {}
  for _, t in ipairs(list) do
    local own = t.shape
    for i = 0, #own - 1 do
      local size = own[#own - i]
      local so_far = shape[i + 1] or 1
      if size ~= 1 and so_far ~= 1 and size ~= so_far then
        local texts = {}
        for k, other in ipairs(list) do
          texts[k] = args.shape_text(other.shape)
        end
        errors.raise("shape", "broadcast_tensors: shapes %s do not broadcast", table.concat(texts, " and "))
      end
      shape[i + 1] = size == 1 and so_far or size
    end
  end
  local sizes = {}
  for i = 1, #shape do
    sizes[i] = shape[#shape + 1 - i]
  end
  for i, t in ipairs(list) do
    result[i] = methods.expand(t, sizes)
  end
  return result
end)

--- expand by its other name: dimensions of size 1 repeated without a copy.
define("broadcast_to", function(t, ...)
  return methods.expand(need_tensor("broadcast_to", t), spread(...))
end)

-- Diagonals.

--- The diagonal of two dimensions, which takes their place at the end; offset counts upwards.
define("diagonal", function(t, ...)
  local given = args.named("diagonal", { "offset", "dim1", "dim2" }, { offset = 0, dim1 = 1, dim2 = 2 }, ...)
  local offset = args.integer("diagonal", "offset", given.offset)
  t = moved("diagonal", t, { given.dim1, given.dim2 }, { -2, -1 })
  local shape = t.shape
  local rows, columns = shape[#shape - 1], table.remove(shape)
  local length = math.max(math.min(rows + math.min(offset, 0), columns - math.max(offset, 0)), 0)
  local start = length == 0 and 0 or offset > 0 and offset or -offset * columns
  shape[#shape] = rows * columns
  return methods.narrow(methods.reshape(t, shape), -1, start + 1, length, columns + 1)
end)

--- Matrices, in two new dimensions, with t's last dimension on their diagonal and zeros elsewhere.
define("diag_embed", function(t, ...)
  local given = args.named("diag_embed", { "offset", "dim1", "dim2" }, { offset = 0, dim1 = -2, dim2 = -1 }, ...)
  local offset, count = args.integer("diag_embed", "offset", given.offset), methods.size(need_tensor("diag_embed", t), -1)
  local size = count + math.abs(offset)
  local wide = functions.pad(t, { 0, size - count })
  local rows, columns = counting(t, 0, size), counting(t, 0, size)
  local mask = functions.eq(methods.unsqueeze(rows + offset, 2), columns)
  local filled = functions.where(mask, methods.unsqueeze(wide, offset >= 0 and -1 or -2),
    create.zeros({}, { dtype = t.dtype, device = t.device }))
  return moved("diag_embed", filled, { -2, -1 }, { given.dim1, given.dim2 })
end)

-- Windows.

--- Windows of `size`, `step` apart, along a dimension: their number takes its place, a last dimension holds them. A copy.
define("unfold", function(t, dim, size, step)
  dim = positive("unfold", need_tensor("unfold", t), dim)
  local total = methods.size(t, dim)
  size, step = args.integer("unfold", "the size", size), args.integer("unfold", "the step", step or 1)
  if size < 0 or size > total or step < 1 then
    errors.raise("shape", "unfold: windows of %d, %d apart, in dimension %d of %s", size, step, dim, args.shape_text(t.shape))
  end
  local starts = counting(t, 1, math.floor((total - size) / step) + 1, step)
  local positions = methods.unsqueeze(starts, 2) + counting(t, 0, size)
  return moved("unfold", functions.index_select(t, dim, positions), dim + 1, -1)
end)

--- Elements of t in row-major order, by strides from an offset (0 is the first); what is met twice counts twice. A copy.
define("as_strided", function(t, size, stride, offset)
  need_tensor("as_strided", t)
  size, stride = args.sizes("as_strided", size), args.sizes("as_strided", stride)
  offset = args.integer("as_strided", "the offset", offset or 0)
  if #size ~= #stride then
    errors.raise("shape", "as_strided: %d sizes and %d strides", #size, #stride)
  end
  local positions, last, count = counting(t, offset + 1, 1), offset, 1
  for i = 1, #size do
    positions = methods.unsqueeze(positions, -1) + counting(t, 0, size[i]) * stride[i]
    last, count = last + (size[i] - 1) * stride[i], count * size[i]
  end
  if count > 0 and (offset < 0 or last >= t.numel) then
    errors.raise("shape", "as_strided: sizes %s, strides %s and offset %d reach element %d of %d", args.shape_text(size),
      args.shape_text(stride), offset, last + 1, t.numel)
  end
  return methods.reshape(functions.index_select(methods.reshape(t, { -1 }), 1, methods.reshape(positions, { -1 })), size)
end)

-- Grids.

--- Coordinates of a grid from one-dimensional tensors: the first counts along the first dimension, with indexing "xy" along
-- the second.
define("meshgrid", function(...)
  local count = select("#", ...)
  local last = select(count, ...)
  local options = count > 1 and not is_tensor(last) and last or nil
  local indexing = args.options("meshgrid", options, { indexing = "ij" }).indexing
  if indexing ~= "ij" and indexing ~= "xy" then
    errors.raise("invalid", "meshgrid: indexing is \"ij\" or \"xy\", not %s", args.describe(indexing))
  end
  local list, grid = tensor_list("meshgrid", unpack({ ... }, 1, options and count - 1 or count)), {}
  for i, t in ipairs(list) do
    if t.ndim > 1 then
      errors.raise("shape", "meshgrid: tensor %d has the shape %s; one dimension is needed", i, args.shape_text(t.shape))
    end
    local place = indexing == "xy" and i <= 2 and #list > 1 and 3 - i or i
    local shape = {}
    for d = 1, #list do
      shape[d] = d == place and -1 or 1
    end
    grid[i] = methods.reshape(t, shape)
  end
  return functions.broadcast_tensors(grid)
end)

--- Ones at and below a diagonal, zeros above.
---@param rows integer
---@param columns? integer
---@param diagonal? integer
function create.tri(rows, columns, diagonal, given)
  if type(columns) == "table" then
    columns, given = nil, columns
  elseif type(diagonal) == "table" then
    diagonal, given = nil, diagonal
  end
  given = args.options("tri", given, { dtype = "f32", device = "cpu" })
  local whole = { dtype = "i64", device = given.device }
  local down, along = create.arange(rows, whole), create.arange(columns or rows, whole)
  local limit = methods.unsqueeze(down + args.integer("tri", "the diagonal", diagonal or 0), 2)
  return methods.to(functions.le(along, limit), given.dtype)
end

--- base to the power of `count` evenly spaced exponents.
---@param first number
---@param last number
---@param count integer
function create.logspace(first, last, count, given)
  local options = {}
  for name, value in pairs(given or {}) do
    options[name] = value
  end
  local base, dtype = args.number("logspace", "base", options.base or 10), options.dtype or "f32"
  options.base, options.dtype = nil, "f64"
  local exponents = create.linspace(first, last, count, options)
  return methods.to(functions.pow(base, exponents), dtype)
end
