--- Writing at positions: index tensors that belong together, positions of the flattened tensor, and reductions of what meets
-- at one place.

local args = require "luda.args"
local custom = require "luda.autograd.custom"
local errors = require "luda.error"
local ops = require "luda.ops"
local tensors = require "luda.tensor"
local values = require "luda.values"
local arguments = require "luda.ops.arguments"
local into = require "luda.ops.into"
local positions = require "luda.ops.positions"

local methods, functions, is_tensor = tensors.methods, ops.functions, tensors.is_tensor
local define, need_tensor = values.define, values.need_tensor
local where, gather = functions.where, functions.gather

-- Several index tensors.

--- The dimensions of `t` that a list of index tensors, masks and {} chooses, with their positions; whether they are neighbours.
local function chosen_dims(op, t, indices, base)
  local chosen, dim, shape = {}, 1, need_tensor(op, t).shape
  indices = is_tensor(indices) and { indices } or indices
  if type(indices) ~= "table" then
    errors.raise("invalid", "%s: expected a list of index tensors, got %s", op, args.describe(indices))
  end
  for i, entry in ipairs(indices) do
    if is_tensor(entry) and entry.dtype == "bool" then
      for d, size in ipairs(entry.shape) do
        if size ~= shape[dim + d - 1] then
          errors.raise("shape", "%s: a mask %s for dimension %d on of %s", op, args.shape_text(entry.shape), dim,
            args.shape_text(shape))
        end
      end
      for _, places in ipairs(methods.nonzero(entry, { as_tuple = true })) do
        chosen[#chosen + 1], dim = { dim = dim, index = places + (base - 1) }, dim + 1
      end
    elseif is_tensor(entry) then
      if args.dtype_class(entry.dtype) ~= "int" or entry.dtype == "u8" then
        errors.raise("dtype", "%s: index tensor %d is %s; masks are bool, positions are integers, convert it with :to(\"%s\")",
          op, i, entry.dtype, entry.dtype == "u8" and "bool" or "i64")
      end
      chosen[#chosen + 1], dim = { dim = dim, index = entry }, dim + 1
    elseif type(entry) == "table" and next(entry) == nil then
      dim = dim + 1
    else
      errors.raise("invalid", "%s: entry %d is %s; an index tensor, a mask, or {} for a whole dimension is needed", op, i,
        args.describe(entry))
    end
  end
  if dim - 1 > #shape then
    errors.raise("index", "%s: %d dimensions are indexed, the tensor %s has %d", op, dim - 1, args.shape_text(shape), #shape)
  elseif #chosen == 0 then
    errors.raise("invalid", "%s: there is no index tensor", op)
  end
  return chosen, chosen[#chosen].dim - chosen[1].dim == #chosen - 1
end

--- The positions in the chosen dimensions joined into one; each is checked against its own dimension.
local function joined_positions(op, t, chosen, base)
  if #chosen == 1 then
    return chosen[1].index
  end
  local step, sum = 1, nil
  for i = #chosen, 1, -1 do
    local size = methods.size(t, chosen[i].dim)
    local starts = functions.arange { shape = { size }, dtype = "i64", device = t.device, low = sum and 0 or base, high = step }
    local here = errors.speak_of(op, pcall(functions.index_select, starts, 1, chosen[i].index, { base = base }))
    sum = sum and errors.speak_of(op, pcall(functions.add, here, sum)) or here
    step = step * size
  end
  return sum
end

--- The dimensions of `t` with the chosen ones at the front.
local function front_order(t, chosen)
  local order, taken = {}, {}
  for i, entry in ipairs(chosen) do
    order[i], taken[entry.dim] = entry.dim, true
  end
  for dim = 1, t.ndim do
    if not taken[dim] then
      order[#order + 1] = dim
    end
  end
  return order
end

--- What is written, as [positions, rest]: broadcast to the shape that indexing has, where neighbouring index tensors stand in
-- their dimensions' place and others at the front.
local function written(op, t, value, chosen, together, places, rest)
  local lead = together and chosen[1].dim - 1 or 0
  local shape, order, spots = {}, {}, places.shape
  for i = 1, #rest + #spots do
    local spot = i - lead
    shape[i] = spot >= 1 and spots[spot] or rest[spot < 1 and i or i - #spots]
    order[i] = i <= #spots and lead + i or i <= #spots + lead and i - #spots or i
  end
  value = is_tensor(value) and value or tensors.scalar(op, value, t)
  value = errors.speak_of(op, pcall(methods.expand, value, shape))
  return methods.reshape(lead > 0 and #spots > 0 and methods.permute(value, order) or value, { places.numel, unpack(rest) })
end

--- The tensor with values written (or added) where the index tensors, broadcast against each other, point; {} in their list
-- stands for a whole dimension. Of equal places the last wins.
define("index_put", function(t, indices, value, ...)
  local given = args.named("index_put", { "accumulate", "base" }, { accumulate = false, base = 1 }, ...)
  local base = args.integer("index_put", "base", given.base)
  local chosen, together = chosen_dims("index_put", t, indices, base)
  local places = joined_positions("index_put", t, chosen, base)
  local order = front_order(t, chosen)
  local front = #order > 1 and methods.permute(t, order) or t
  local shape, rest, whole, lone = front.shape, {}, 1, { places.numel }
  for i, size in ipairs(shape) do
    if i <= #chosen then
      whole = whole * size
    else
      rest[#rest + 1], lone[#lone + 1] = size, 1
    end
  end
  local source = written("index_put", t, value, chosen, together, places, rest)
  local spread = methods.expand(methods.reshape(places, lone), source.shape)
  local call = arguments.flag("index_put", "accumulate", given.accumulate) and functions.scatter_add or functions.scatter
  local result = errors.speak_of("index_put", pcall(call, methods.reshape(front, { whole, unpack(rest) }), 1, spread, source,
    { base = base }))
  result = methods.reshape(result, shape)
  return #order > 1 and methods.permute(result, arguments.places(order)) or result
end)

--- The tensor with values written (or added) at positions of the flattened tensor.
define("put", function(t, index, source, ...)
  local given = args.named("put", { "accumulate", "base" }, { accumulate = false, base = 1 }, ...)
  local count = need_tensor("put", index).numel
  source = is_tensor(source) and source or methods.expand(tensors.scalar("put", source, need_tensor("put", t)), index.shape)
  if source.numel ~= count then
    errors.raise("shape", "put: %d elements given for %d positions", source.numel, count)
  end
  local flat = errors.speak_of("put", pcall(functions.index_put, methods.reshape(t, { -1 }), { methods.reshape(index, { -1 }) },
    methods.reshape(source, { -1 }), given))
  return methods.reshape(flat, t.shape)
end)

--- gather with the index broadcast against the tensor in the other dimensions; without a dimension, of flattened tensors.
define("take_along_dim", function(t, index, dim, options)
  if dim == nil then
    return gather(methods.reshape(need_tensor("take_along_dim", t), { -1 }), 1,
      methods.reshape(need_tensor("take_along_dim", index), { -1 }), options)
  end
  dim = arguments.dim("take_along_dim", need_tensor("take_along_dim", t), dim)
  local have, want = t.shape, need_tensor("take_along_dim", index).shape
  if #have ~= #want then
    errors.raise("shape", "take_along_dim: positions %s for a tensor %s; the number of dimensions must be the same",
      args.shape_text(want), args.shape_text(have))
  end
  for d = 1, #have do
    if d ~= dim then
      local size = have[d] == 1 and want[d] or have[d]
      have[d], want[d] = size, size
    end
  end
  return gather(methods.expand(t, have), dim, errors.speak_of("take_along_dim", pcall(methods.expand, index, want)), options)
end)

-- Reductions of what meets.

--- All of what a scatter_reduce works on: the tensor, positions, their values, {dim =, base =}.
---@alias luda.Meeting {t: luda.Tensor, index: luda.Tensor, source: luda.Tensor, at: table, include_self: boolean}

local scatter, scatter_add = positions.row.scatter, positions.row.scatter_add

--- `like` with a number where something is written.
local function marked(m, like, number)
  return scatter(like, m.index, methods.expand(tensors.scalar("scatter_reduce", number, like), m.index.shape), m.at)
end

local function filled(like, dtype, number)
  return functions.full { shape = like.shape, dtype = dtype, device = like.device, low = number }
end

local function untouched(m)
  return methods.logical_not(marked(m, filled(m.t, "bool", 0), true))
end

local reduce = {}

function reduce.sum(m)
  return scatter_add(m.include_self and m.t or marked(m, m.t, 0), m.index, m.source, m.at)
end

function reduce.mean(m)
  local count = m.include_self and filled(m.t, "i64", 1) or methods.to(untouched(m), "i64")
  count = scatter_add(count, m.index, filled(m.index, "i64", 1), m.at)
  if args.dtype_class(m.t.dtype) == "float" then
    return reduce.sum(m) / methods.to(count, m.t.dtype)
  end
  return methods.to(functions.floor_divide(reduce.sum(m), count), m.t.dtype)
end

-- In the order of the positions each element is multiplied by what lies 1, 2, 4, … before it and has the same position.
function reduce.prod(m)
  local dim, size = m.at.dim, methods.size(m.index, m.at.dim)
  local ordered, order = functions.sort(m.index, { dim = dim })
  local product, reach = gather(m.source, dim, order), 1
  while reach < size do
    local same = methods.eq(methods.narrow(ordered, dim, reach + 1, size - reach), methods.narrow(ordered, dim, 1, size - reach))
    if not methods.any(same):item() then
      break
    end
    local factor = where(same, methods.narrow(product, dim, 1, size - reach), 1)
    product = functions.cat({ methods.narrow(product, dim, 1, reach),
      methods.narrow(product, dim, reach + 1, size - reach) * factor }, dim)
    reach = reach * 2
  end
  local products = scatter(filled(m.t, m.t.dtype, 1), ordered, product, m.at)
  return m.include_self and m.t * products or where(untouched(m), m.t, products)
end

--- Written in ascending (for the least: descending) order, the last of equal places wins; NaN comes last either way.
local function extreme_values(m, least)
  local keys, descending = m.source, least
  if least and args.dtype_class(keys.dtype) == "float" then
    keys, descending = -keys, false
  end
  local _, order = functions.sort(keys, { dim = m.at.dim, descending = descending })
  local met = scatter(m.t, gather(m.index, m.at.dim, order), gather(m.source, m.at.dim, order), m.at)
  if not m.include_self then
    return met
  end
  return least and functions.minimum(m.t, met) or functions.maximum(m.t, met)
end

--- Equal extremes share the gradient.
local function extreme(least)
  local fn = custom.Function {
    name = least and "scatter_reduce_amin" or "scatter_reduce_amax",
    forward = function(ctx, t, index, source, at, include_self)
      ctx.at, ctx.include_self = at, include_self
      local result = extreme_values({ t = t, index = index, source = source, at = at, include_self = include_self }, least)
      ctx:save(t, index, source, result)
      return result
    end,
    backward = function(ctx, g)
      local t, index, source, result = unpack(ctx.saved)
      local m = { t = t, index = index, at = ctx.at }
      local mine = ctx.include_self and methods.eq(t, result) or untouched(m)
      local theirs = methods.eq(source, gather(result, ctx.at.dim, index, { base = ctx.at.base }))
      local count = scatter_add(methods.to(mine, g.dtype), index, methods.to(theirs, g.dtype), ctx.at)
      local share = g / functions.clamp_min(count, 1)
      return where(mine, share, 0), nil, where(theirs, gather(share, ctx.at.dim, index, { base = ctx.at.base }), 0)
    end,
  }
  return function(m)
    return fn(m.t, m.index, m.source, m.at, m.include_self)
  end
end
reduce.amax, reduce.amin = extreme(false), extreme(true)

--- The tensor with "sum", "prod" (not of bool), "mean", "amax" or "amin" of what the source has for each position along a
-- dimension, and unless include_self is false of what stood there.
define("scatter_reduce", function(t, dim, index, source, ...)
  local given = args.named("scatter_reduce", { "reduce", "include_self", "base" }, { include_self = true, base = 1 }, ...)
  local fn = reduce[given.reduce]
  if not fn then
    errors.raise("invalid", "scatter_reduce: reduce is one of amax, amin, mean, prod, sum, not %s", args.describe(given.reduce))
  end
  dim = arguments.dim("scatter_reduce", need_tensor("scatter_reduce", t), dim)
  source = positions.cover("scatter_reduce", t, need_tensor("scatter_reduce", index), source)
  local shape = t.shape
  t, index, source = arguments.at_least_1d(t), arguments.at_least_1d(index), arguments.at_least_1d(source)
  if index.numel == 0 then
    return methods.reshape(functions.clone(t), shape)
  elseif args.dtype_class(source.dtype) ~= args.dtype_class(t.dtype) then
    errors.raise("dtype", "scatter_reduce: a source of %s for a tensor of %s; convert one with :to", source.dtype, t.dtype)
  end
  local wide = (t.dtype == "f16" or t.dtype == "bf16") and "f32" or t.dtype
  local m = {
    t = methods.to(t, wide), index = methods.to(index, "i64"), source = methods.to(source, wide),
    at = { dim = dim, base = args.integer("scatter_reduce", "base", given.base) },
    include_self = arguments.flag("scatter_reduce", "include_self", given.include_self),
  }
  local result = methods.reshape(errors.speak_of("scatter_reduce", pcall(fn, m)), shape)
  return wide == t.dtype and result or methods.to(result, t.dtype)
end)

into.in_place "index_put put scatter_reduce"
