--- Cross entropy of a linear layer in blocks of rows, so that the logits of all rows never exist at once.

local args = require "luda.args"
local autocast = require "luda.autocast"
local autograd = require "luda.autograd"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local reduction = require "luda.nn.reduction"
local scope = require("luda.scope").scope

local methods, functions = tensors.methods, ops.functions

local M = {}

local LOGITS = 2 ^ 22 -- of one block

--- The losses of a block: their sum, or each.
local function block_loss(how, rows, weight, bias, labels)
  local function compute()
    return functions.cross_entropy(functions.linear(rows, weight, bias), labels, how.row)
  end
  if how.autocast then
    return autocast.autocast({ dtype = how.autocast }, compute)
  end
  return compute()
end

--- First row and number of rows of each block.
local function blocks(how)
  local first = 1 - how.rows
  return function()
    first = first + how.rows
    if first <= how.total then
      return first, math.min(how.rows, how.total - first + 1)
    end
  end
end

local function forward(ctx, hidden, weight, bias, labels, how)
  ctx.how, ctx.has_bias = how, bias ~= nil
  if bias then
    ctx:save(hidden, weight, labels, bias)
  else
    ctx:save(hidden, weight, labels)
  end
  local parts = {}
  for first, count in blocks(how) do
    parts[#parts + 1] = scope(function() -- the logits go before the next block's come
      local loss = block_loss(how, methods.narrow(hidden, 1, first, count), weight, bias,
        methods.narrow(labels, 1, first, count))
      return loss.ndim == 0 and methods.unsqueeze(loss, 1) or loss
    end)
  end
  local losses = functions.cat(parts, 1)
  return how.row.reduction == "none" and losses or methods.sum(losses) * how.scale
end

--- The gradients of one block after the other; each makes its logits again. Where the pass is recorded they are those of
-- the tensors themselves, else of leaves that share their memory.
local function backward(ctx, gradient)
  local how, needs, recorded, saved = ctx.how, ctx.needs, autograd.is_enabled(), ctx.saved
  local function as_input(t, needed)
    return not recorded and needed and methods.requires_grad_(methods.detach(t)) or t
  end
  if how.row.reduction ~= "none" then
    gradient = gradient * how.scale
  end
  local weight, bias = as_input(saved[2], needs[2]), ctx.has_bias and as_input(saved[4], needs[3]) or nil
  local parts, totals = {}, {}
  local places = {}
  for i = 1, 3 do
    places[#places + 1] = needs[i] and i or nil
  end
  local function block_gradients(first, count)
    local rows = as_input(methods.narrow(saved[1], 1, first, count), needs[1])
    local all, wanted = { rows, weight, bias }, {}
    for k, i in ipairs(places) do
      wanted[k] = all[i]
    end
    local loss = block_loss(how, rows, weight, bias, methods.narrow(saved[3], 1, first, count))
    local upstream = loss.ndim == 0 and gradient or methods.narrow(gradient, 1, first, count)
    return autograd.grad(loss, wanted, { gradient = methods.to(upstream, loss.dtype), create_graph = recorded })
  end
  local function add_block(first, count)
    local grads = scope(block_gradients, first, count)
    for k, i in ipairs(places) do
      if i == 1 then
        parts[#parts + 1] = grads[k]
      elseif recorded or not totals[i] then
        totals[i] = totals[i] and totals[i] + grads[k] or grads[k]
      else
        methods.add_(totals[i], grads[k])
        methods.release(grads[k])
      end
    end
  end
  autograd.enable_grad(function()
    for first, count in blocks(how) do
      add_block(first, count)
    end
  end)
  return #parts > 0 and functions.cat(parts, 1) or nil, totals[2], totals[3]
end

local blockwise = autograd.Function { forward = forward, backward = backward, name = "linear_cross_entropy" }

--- cross_entropy(linear(hidden, weight, bias), labels) for hidden [..., D], a weight [D, V] (a table [V, D] is given as its
-- transpose, :t()) and labels [...], computed `rows` at a time in both directions: the memory is that of one block's logits.
---@class luda.LinearCrossEntropyOptions: {reduction: string?, ignore_index: integer?, label_smoothing: number?, base: integer?}
---@field bias? luda.Tensor
---@field rows? integer
---@param hidden luda.Tensor
---@param weight luda.Tensor
---@param labels luda.Tensor
---@param given? luda.LinearCrossEntropyOptions
---@return luda.Tensor
function M.linear_cross_entropy(hidden, weight, labels, given)
  local op = "linear_cross_entropy"
  local options = args.options(op, given, {
    bias = args.absent, rows = args.absent, reduction = "mean", ignore_index = -100, label_smoothing = 0, base = 1,
  })
  reduction.need_tensors(op, hidden, weight, labels)
  local shape, over, under = hidden.shape, weight.shape, labels.shape
  local fits = #over == 2 and #shape == #under + 1 and shape[#shape] == over[1]
  for i = 1, #under do
    fits = fits and under[i] == shape[i]
  end
  if not fits then
    errors.raise("shape", "%s: hidden %s, weight %s and labels %s; [..., D], [D, V] and [...] are needed%s", op,
      args.shape_text(shape), args.shape_text(over), args.shape_text(under),
      #over == 2 and #shape > 0 and over[2] == shape[#shape] and "; did you mean weight:t()?" or "")
  elseif args.dtype_class(labels.dtype) ~= "int" then
    errors.raise("dtype", "%s: the labels are %s; class labels are integers, convert them with to(\"i64\")", op, labels.dtype)
  elseif options.reduction ~= "mean" and options.reduction ~= "sum" and options.reduction ~= "none" then
    errors.raise("invalid", "%s: reduction is mean, sum or none, not %s", op, args.describe(options.reduction))
  end
  local total, scale = labels.numel, 1
  local rows = options.rows or math.max(math.floor(LOGITS / math.max(over[2], 1)), 1)
  if args.integer(op, "rows", rows) < 1 then
    errors.raise("invalid", "%s: rows is %d; it must be positive", op, rows)
  end
  local flat = methods.reshape(labels, { total })
  if options.reduction == "mean" then
    scale = 1 / math.max(methods.item(methods.sum(methods.ne(flat, options.ignore_index))), 1)
  end
  local how = {
    rows = rows, total = total, scale = scale, autocast = autocast.dtype(),
    row = {
      reduction = options.reduction == "none" and "none" or "sum", ignore_index = options.ignore_index,
      label_smoothing = options.label_smoothing, base = options.base,
    },
  }
  if total == 0 then
    local dtype = { dtype = hidden.dtype, device = hidden.device }
    return options.reduction == "none" and create.zeros(under, dtype) or methods.sum(hidden) * 0
  end
  local losses = blockwise(methods.reshape(hidden, { total, over[1] }), weight, options.bias, flat, how)
  return options.reduction == "none" and methods.reshape(losses, under) or losses
end

return M
