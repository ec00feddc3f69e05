--- Functions of token sequences: rotary positions, sums of table rows in bags.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
require "luda.sugar"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

local M = {}

--- Rotary position embedding (Su et al. 2021): each pair of elements of the last dimension of x [..., T, D] is turned by
-- position * theta^(-2 (k - 1) / D). Pairs are k and k + D / 2; with `interleaved`, 2 k - 1 and 2 k. Positions count from
-- `offset`, or are the numbers of the tensor `positions` [T].
---@param x luda.Tensor
---@param given? {theta: number, offset: integer, positions: luda.Tensor, interleaved: boolean}
---@return luda.Tensor
function M.rope(x, given)
  local options = args.options("rope", given, { theta = 10000, offset = 0, positions = args.absent, interleaved = false })
  if not is_tensor(x) then
    errors.raise("invalid", "rope: expected a tensor, got %s", args.describe(x))
  end
  local shape = x.shape
  local count, width = shape[#shape - 1], shape[#shape]
  if #shape < 2 or width % 2 ~= 0 then
    errors.raise("shape", "rope: the input has shape %s; [..., T, D] with an even D is needed", args.shape_text(shape))
  end
  if args.dtype_class(x.dtype) ~= "float" then
    errors.raise("dtype", "rope: the input %s is %s; a floating type is needed, convert it with :to(\"f32\")",
      args.shape_text(shape), x.dtype)
  end
  local how = { dtype = "f64", device = x.device }
  local positions = options.positions
  if not positions then
    positions = create.arange(count, how) + args.number("rope", "offset", options.offset)
  elseif positions.ndim ~= 1 or positions.numel ~= count then
    errors.raise("shape", "rope: positions %s for an input %s; one for each of %d is needed", args.shape_text(positions.shape),
      args.shape_text(shape), count)
  end
  local rates = methods.exp(create.arange(width / 2, how) * (-2 * math.log(options.theta) / width))
  local angles = methods.unsqueeze(methods.to(positions, "f64"), 2) * rates
  local half = x.dtype == "bf16" or x.dtype == "f16"
  local dtype = half and "f32" or x.dtype
  local cos, sin = methods.to(methods.cos(angles), dtype), methods.to(methods.sin(angles), dtype)
  local y = half and methods.to(x, "f32") or x
  local a, b
  if options.interleaved then
    a = methods.narrow(y, -1, 1, width / 2, 2)
    b = methods.narrow(y, -1, 2, width / 2, 2)
  else
    a, b = methods.narrow(y, -1, 1, width / 2), methods.narrow(y, -1, width / 2 + 1, width / 2)
  end
  local first, second = a * cos - b * sin, b * cos + a * sin
  if options.interleaved then
    y = methods.reshape(functions.stack({ first, second }, -1), shape)
  else
    y = functions.cat({ first, second }, -1)
  end
  return half and methods.to(y, x.dtype) or y
end

--- Rows of a table [count, D] by id, in place of each id. Ids count from `base`; the row of padding_idx gets no gradient.
---@param ids luda.Tensor
---@param weight luda.Tensor
---@param given? {base: integer, padding_idx: integer}
---@return luda.Tensor
function M.embedding(ids, weight, given)
  local options = args.options("embedding", given, { base = 1, padding_idx = args.absent })
  if not (is_tensor(ids) and is_tensor(weight)) then
    errors.raise("invalid", "embedding: ids and table must be tensors, not %s and %s", args.describe(ids),
      args.describe(weight))
  elseif weight.ndim ~= 2 then
    errors.raise("shape", "embedding: ids %s and a table %s; the table is [count, D] and comes second",
      args.shape_text(ids.shape), args.shape_text(weight.shape))
  end
  local rows = methods.index_select(weight, ids, { dim = 1, base = options.base })
  if options.padding_idx == nil then
    return rows
  end
  local padding = methods.eq(ids, args.integer("embedding", "padding_idx", options.padding_idx))
  return functions.where(methods.unsqueeze(padding, -1), methods.detach(rows), rows)
end

--- The bag (from 1) of each id, when bag i begins at offsets[i].
local function bags_of(count, offsets)
  local list, bags, starts = {}, {}, methods.totable(offsets)
  for i, start in ipairs(starts) do
    local last = starts[i + 1] or count + 1
    if i == 1 and start ~= 1 or last < start or last > count + 1 then
      errors.raise("index", "embedding_bag: offset %d is %d, the next %d, of %d ids; offsets begin with 1 and ascend", i, start,
        last, count)
    end
    for k = start, last - 1 do
      list[k] = i
    end
    bags[i] = { start, last - start }
  end
  return list, bags
end

local function joined(rows, ids, offsets, mode)
  local list, bags = bags_of(ids.numel, offsets)
  if mode == "max" then
    local parts = {}
    for i, bag in ipairs(bags) do
      local part = methods.narrow(rows, 1, bag[1], bag[2])
      parts[i] = bag[2] > 0 and methods.amax(part, { dim = 1, keepdim = true })
        or create.zeros({ 1, methods.size(rows, 2) }, { dtype = rows.dtype, device = rows.device })
    end
    return functions.cat(parts, 1)
  end
  local where = create.tensor(list, { dtype = "i64", device = rows.device })
  local total = functions.index_select_backward(rows, where, { dim = 1, size = #bags })
  if mode == "sum" then
    return total
  end
  local counts = {}
  for i, bag in ipairs(bags) do
    counts[i] = { math.max(bag[2], 1) }
  end
  return total / create.tensor(counts, { dtype = rows.dtype, device = rows.device })
end

--- Sums, means or maxima of the rows of a table [count, D] in bags of ids: rows of a matrix of ids [B, n], or runs of a list
-- of ids that begin at `offsets` (positions from 1); an empty bag gives zeros. Ids count from `base`.
---@param ids luda.Tensor
---@param weight luda.Tensor
---@param offsets? luda.Tensor
---@param given? {mode: "mean"|"sum"|"max", base: integer, per_sample_weights: luda.Tensor}
---@return luda.Tensor
function M.embedding_bag(ids, weight, offsets, given)
  if type(offsets) == "table" and given == nil then
    offsets, given = nil, offsets
  end
  local options = args.options("embedding_bag", given, { mode = "mean", base = 1, per_sample_weights = args.absent })
  local mode, factors = options.mode, options.per_sample_weights
  if not (is_tensor(ids) and is_tensor(weight)) then
    errors.raise("invalid", "embedding_bag: ids and table must be tensors, not %s and %s", args.describe(ids),
      args.describe(weight))
  elseif mode ~= "mean" and mode ~= "sum" and mode ~= "max" then
    errors.raise("invalid", "embedding_bag: mode is mean, sum or max, not %s", args.describe(mode))
  elseif weight.ndim ~= 2 or ids.ndim ~= (offsets and 1 or 2) then
    errors.raise("shape", "embedding_bag: ids %s and a table %s; ids are [B, n], or [n] with offsets, the table is [count, D]",
      args.shape_text(ids.shape), args.shape_text(weight.shape))
  elseif factors and (mode ~= "sum" or args.shape_text(factors.shape) ~= args.shape_text(ids.shape)) then
    errors.raise("invalid", "embedding_bag: per_sample_weights go with mode \"sum\" and have the shape of the ids %s, not %s",
      args.shape_text(ids.shape), args.shape_text(factors.shape))
  end
  local rows = methods.index_select(weight, ids, { dim = 1, base = options.base })
  if factors then
    rows = rows * methods.unsqueeze(factors, -1)
  end
  if offsets then
    return joined(rows, ids, offsets, mode)
  elseif methods.size(ids, 2) == 0 then
    return create.zeros({ methods.size(ids, 1), methods.size(weight, 2) }, { dtype = weight.dtype, device = weight.device })
  end
  local reduce = mode == "max" and methods.amax or methods[mode]
  return reduce(rows, 2)
end

return M
