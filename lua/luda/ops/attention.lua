--- Attention beyond its row: with a mask, and with fewer heads of keys and values than of queries. Composed from rows.

local args = require "luda.args"
local errors = require "luda.error"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local tensors = require "luda.tensor"
local values = require "luda.values"
local arguments = require "luda.ops.arguments"

local methods, functions, is_tensor = tensors.methods, ops.functions, tensors.is_tensor
local OP = "scaled_dot_product_attention"
local row, known = assert(functions[OP]), { attn_mask = true, enable_gqa = true }
for name in pairs(ops.rows[OP].known) do
  known[name] = true
end

--- How many query heads share a head of keys and values, and the heads of the latter.
local function group_of(q, k, v)
  if q.ndim < 3 or k.ndim ~= q.ndim or v.ndim ~= q.ndim then
    errors.raise("shape", "%s: grouped heads need [..., heads, T, D], not queries %s, keys %s and values %s", OP,
      args.shape_text(q.shape), args.shape_text(k.shape), args.shape_text(v.shape))
  end
  local heads, few = methods.size(q, -3), methods.size(k, -3)
  if few == 0 or heads % few ~= 0 or methods.size(v, -3) ~= few then
    errors.raise("shape", "%s: %d heads of queries cannot share %d heads of keys and %d of values, evenly", OP, heads, few,
      methods.size(v, -3))
  end
  return heads / few, few
end

--- The sizes of `t` with those at the end replaced from dimension `first` (negative) on.
local function resized(t, first, ...)
  local sizes = t.shape
  for i = #sizes + first + 1, #sizes do
    sizes[i] = nil
  end
  for i = 1, select("#", ...) do
    sizes[#sizes + 1] = (select(i, ...))
  end
  return sizes
end

--- Queries of one group as further rows of their head; where rows see different keys, the keys stand once for each query
-- head, without a copy.
local function grouped(q, k, v, group, few, options)
  local rows, width = methods.size(q, -2), methods.size(q, -1)
  local out
  if options.is_causal and rows ~= 1 then
    local function spread(t)
      local keys, size = methods.size(t, -2), methods.size(t, -1)
      return methods.expand(methods.unsqueeze(t, -3), resized(t, -3, few, group, keys, size))
    end
    out = row(methods.reshape(q, resized(q, -3, few, group, rows, width)), spread(k), spread(v), options)
  else
    options.is_causal = nil -- one query sees every key
    out = row(methods.reshape(q, resized(q, -3, few, group * rows, width)), k, v, options)
  end
  return methods.reshape(out, resized(q, -1, methods.size(v, -1)))
end

--- Scores that the mask leaves; a query that sees no key gives 0, and no gradient, whatever comes from above.
local function masked(q, k, v, mask, options)
  if not is_tensor(mask) or (mask.dtype ~= "bool" and args.dtype_class(mask.dtype) ~= "float") then
    errors.raise("dtype", "%s: attn_mask is a tensor of bool (true where a query sees a key) or of what is added to the "
      .. "scores, not %s", OP, is_tensor(mask) and mask.dtype or args.describe(mask))
  elseif options.is_causal then
    errors.raise("invalid", "%s: attn_mask and is_causal are two masks; give one; causal is "
      .. "luda.ones(T, S, {dtype = \"bool\"}):tril(S - T)", OP)
  end
  local wide, keys = arguments.floating(OP, q), arguments.floating(OP, k)
  local scale = args.number(OP, "scale", options.scale or 0)
  scale = scale ~= 0 and scale or 1 / math.sqrt(methods.size(q, -1))
  local scores = functions.matmul(wide, methods.transpose(keys, -1, -2)) * scale
  mask = methods.expand(mask, scores.shape)
  if mask.dtype == "bool" then
    scores = functions.where(mask, scores, -math.huge)
  else
    scores = scores + mask
  end
  local unseen = methods.eq(methods.amax(methods.detach(scores), { dim = -1, keepdim = true }), -math.huge)
  local weights = methods.softmax(functions.where(unseen, 0, scores), -1)
  if options.dropout_p and options.dropout_p ~= 0 then
    weights = functions.dropout(weights, { p = options.dropout_p, generator = options.generator })
  end
  return arguments.rounded(functions.where(unseen, 0, functions.matmul(weights, arguments.floating(OP, v))), q)
end

--- softmax(q k^T scale) v of q [..., T, D], k [..., S, D], v [..., S, E]. `attn_mask` broadcasts to [..., T, S]: true where a
-- query sees a key, or numbers added to the scores; a query that sees no key gives 0. With `enable_gqa` keys and values may
-- have fewer heads (dimension -3) than queries: consecutive query heads share one, head i uses number ceil(i · few / heads).
values.define(OP, function(q, k, v, given, ...)
  if type(given) ~= "table" or (given.attn_mask == nil and given.enable_gqa == nil) then
    return row(q, k, v, given, ...)
  end
  local options = {}
  for name, value in pairs(given) do
    if not known[name] then
      args.unknown_option(OP, name, known)
    end
    options[name] = value
  end
  options.attn_mask, options.enable_gqa, options.out = nil, nil, nil
  values.need_tensor(OP, q)
  values.need_tensor(OP, k)
  values.need_tensor(OP, v)
  local group, few = 1, nil
  if arguments.flag(OP, "enable_gqa", given.enable_gqa) then
    group, few = group_of(q, k, v)
  end
  local result
  if given.attn_mask ~= nil and methods.size(k, -2) > 0 then
    if group > 1 then
      k, v = functions.repeat_interleave(k, group, -3), functions.repeat_interleave(v, group, -3)
    end
    result = masked(q, k, v, given.attn_mask, options)
  elseif group > 1 then
    result = grouped(q, k, v, group, few, options)
  else
    result = row(q, k, v, options)
  end
  return given.out and sugar.assign(OP, given.out, result) or result
end)
