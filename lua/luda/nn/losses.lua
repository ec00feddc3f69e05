--- Losses. Classes count from 1 unless base says otherwise.

local args = require "luda.args"
local errors = require "luda.error"
local autocast = require "luda.autocast"
local create = require "luda.create"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
require "luda.sugar"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

local M = {}

local function need_tensors(op, ...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if not is_tensor(value) then
      errors.raise("invalid", "%s: input %d must be a tensor, not %s", op, i, args.describe(value))
    end
  end
end

--- Under autocast losses are computed in f32.
local function widened(x)
  return autocast.dtype() and (x.dtype == "bf16" or x.dtype == "f16") and methods.to(x, "f32") or x
end

--- Sum, mean or all of the elementwise losses.
local function reduce(op, losses, reduction)
  if reduction == "mean" then
    return methods.mean(losses)
  elseif reduction == "sum" then
    return methods.sum(losses)
  elseif reduction == "none" then
    return losses
  end
  return errors.raise("invalid", "%s: reduction is mean, sum or none, not %s", op, args.describe(reduction))
end

--- Logits [..., classes] as [N, classes] and targets [...] as [N].
local function flatten(op, logits, targets)
  need_tensors(op, logits, targets)
  local shape = targets.shape
  if logits.ndim ~= #shape + 1 then
    errors.raise("shape", "%s: classes %s and targets %s; the targets have one dimension less", op,
      args.shape_text(logits.shape), args.shape_text(shape))
  end
  if #shape == 1 then
    return logits, targets, shape
  end
  local count = targets.numel
  return methods.reshape(logits, { count, methods.size(logits, -1) }), methods.reshape(targets, { count }), shape
end

--- Negative log likelihood of class labels under the softmax of logits [..., classes]. Labels equal to ignore_index
-- count for nothing; the mean of nothing is 0. `weight` has one number a class.
---@param logits luda.Tensor
---@param targets luda.Tensor
---@param given? {reduction: string, ignore_index: integer, label_smoothing: number, weight: luda.Tensor, base: integer}
---@return luda.Tensor
function M.cross_entropy(logits, targets, given)
  local options = args.options("cross_entropy", given, {
    reduction = "mean", ignore_index = -100, label_smoothing = 0, weight = args.absent, base = 1,
  })
  local rows, labels, shape = flatten("cross_entropy", logits, targets)
  local weight = options.weight
  options.weight = nil
  local loss
  if weight then
    loss = functions.cross_entropy(rows, labels, weight, options)
  else
    loss = functions.cross_entropy(rows, labels, options)
  end
  if options.reduction == "none" and #shape ~= 1 then
    return methods.reshape(loss, shape)
  end
  return loss
end

--- Negative log likelihood of class labels from log probabilities [..., classes].
---@param log_probabilities luda.Tensor
---@param targets luda.Tensor
---@param given? {reduction: string, ignore_index: integer, weight: luda.Tensor, base: integer}
---@return luda.Tensor
function M.nll_loss(log_probabilities, targets, given)
  local options = args.options("nll_loss", given, {
    reduction = "mean", ignore_index = -100, weight = args.absent, base = 1,
  })
  local rows, labels, shape = flatten("nll_loss", log_probabilities, targets)
  rows = widened(rows)
  local counted = methods.ne(labels, options.ignore_index)
  local first = create.full({}, options.base, { dtype = labels.dtype, device = labels.device })
  local safe = functions.where(counted, labels, first)
  local factor = methods.to(counted, rows.dtype)
  if options.weight then
    factor = factor * methods.index_select(options.weight, 1, safe, { base = options.base })
  end
  local picked = methods.take_along(rows, safe, { dim = 2, base = options.base })
  local losses = -(functions.where(counted, picked, 0) * factor)
  if options.reduction == "mean" then
    local total = methods.sum(factor)
    return methods.sum(losses) / (total + methods.to(methods.eq(total, 0), total.dtype))
  end
  return methods.reshape(reduce("nll_loss", losses, options.reduction), options.reduction == "none" and shape or {})
end

--- Mean squared difference.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string}
---@return luda.Tensor
function M.mse_loss(x, y, given)
  local options = args.options("mse_loss", given, { reduction = "mean" })
  need_tensors("mse_loss", x, y)
  x, y = widened(x), widened(y)
  return reduce("mse_loss", methods.square(x - y), options.reduction)
end

--- Mean absolute difference.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string}
---@return luda.Tensor
function M.l1_loss(x, y, given)
  local options = args.options("l1_loss", given, { reduction = "mean" })
  need_tensors("l1_loss", x, y)
  x, y = widened(x), widened(y)
  return reduce("l1_loss", methods.abs(x - y), options.reduction)
end

--- Binary cross entropy of probabilities sigmoid(x) with targets between 0 and 1, without overflow. `weight` multiplies
-- each loss, `pos_weight` the part of the positive class.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string, weight: luda.Tensor, pos_weight: luda.Tensor}
---@return luda.Tensor
function M.bce_with_logits(x, y, given)
  local options = args.options("bce_with_logits", given, {
    reduction = "mean", weight = args.absent, pos_weight = args.absent,
  })
  need_tensors("bce_with_logits", x, y)
  x, y = widened(x), widened(y)
  -- log(1 + exp(-x)); the halves of maximum and the zero slope of abs make the slope at 0 right.
  local softplus = methods.maximum(-x, 0) + methods.log(methods.exp(-methods.abs(x)) + 1)
  local losses
  if options.pos_weight then
    losses = (1 - y) * x + ((options.pos_weight - 1) * y + 1) * softplus
  else
    losses = (1 - y) * x + softplus
  end
  if options.weight then
    losses = losses * options.weight
  end
  return reduce("bce_with_logits", losses, options.reduction)
end

return M
