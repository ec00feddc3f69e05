--- Losses. Classes count from 1 unless base says otherwise.

local args = require "luda.args"
local errors = require "luda.error"
local create = require "luda.create"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local reduction = require "luda.nn.reduction"
require "luda.sugar"

local methods, functions = tensors.methods, ops.functions
local need_tensors, need_pair, widened, reduce = reduction.need_tensors, reduction.need_pair, reduction.widened,
  reduction.reduce

local M = {}

--- Logits [..., classes] as [N, classes] and targets [...] as [N].
local function flatten(op, logits, targets)
  need_tensors(op, logits, targets)
  local shape, over = targets.shape, logits.shape
  local fits = #over == #shape + 1
  for i = 1, #shape do
    fits = fits and over[i] == shape[i]
  end
  if not fits then
    errors.raise("shape", "%s: classes %s and targets %s; the targets have the shape of the input without its last dimension, "
      .. "the classes", op, args.shape_text(over), args.shape_text(shape))
  end
  if args.dtype_class(targets.dtype) ~= "int" then
    errors.raise("dtype", "%s: the targets %s are %s; class labels are integers, convert them with to(\"i64\")", op,
      args.shape_text(shape), targets.dtype)
  end
  if #shape == 1 then
    return logits, targets, shape
  end
  local count = targets.numel
  return methods.reshape(logits, { count, methods.size(logits, -1) }), methods.reshape(targets, { count }), shape
end

--- Cross entropy with probabilities [..., classes]: the mean is over rows, whatever the weights are.
local function soft_cross_entropy(logits, targets, options)
  local rows, y = widened(logits), widened(targets)
  local classes = methods.size(rows, -1)
  if options.label_smoothing ~= 0 then
    y = y * (1 - options.label_smoothing) + options.label_smoothing / math.max(classes, 1)
  end
  -- a class of probability 0 counts for nothing even where its logit is -inf
  local some = methods.ne(y, 0)
  local losses = functions.where(some, methods.log_softmax(rows, -1), 0) * y
  if options.weight then
    losses = losses * options.weight
  end
  return reduce("cross_entropy", -methods.sum(losses, -1), options.reduction)
end

--- Negative log likelihood of class labels under the softmax of logits [..., classes]. Labels equal to ignore_index
-- count for nothing; the mean of nothing is 0. `weight` has one number a class. Targets of a floating type and of the
-- shape of the logits are probabilities.
---@param logits luda.Tensor
---@param targets luda.Tensor
---@param given? {reduction: string, ignore_index: integer, label_smoothing: number, weight: luda.Tensor, base: integer}
---@return luda.Tensor
function M.cross_entropy(logits, targets, given)
  local options = args.options("cross_entropy", given, {
    reduction = "mean", ignore_index = -100, label_smoothing = 0, weight = args.absent, base = 1,
  })
  need_tensors("cross_entropy", logits, targets)
  if logits.ndim == targets.ndim and args.dtype_class(targets.dtype) == "float" then
    need_pair("cross_entropy", logits, targets, "probabilities")
    return soft_cross_entropy(logits, targets, options)
  end
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
  need_pair("mse_loss", x, y)
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
  need_pair("l1_loss", x, y)
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
  need_pair("bce_with_logits", x, y)
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
