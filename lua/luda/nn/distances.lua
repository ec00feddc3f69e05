--- Distances, and the losses that are made of them: regression, distributions, margins.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local reduction = require "luda.nn.reduction"

local methods, functions = tensors.methods, ops.functions
local need_tensors, need_pair, widened, reduce = reduction.need_tensors, reduction.need_pair, reduction.widened,
  reduction.reduce

local M = {}

-- Distances.

--- The p-norm along a dimension; where it is 0 its gradient is 0.
local function norm(x, p, dim, keepdim)
  local how = { dim = dim, keepdim = keepdim }
  if p == 1 then
    return methods.sum(methods.abs(x), how)
  elseif p == math.huge then
    return methods.amax(methods.abs(x), how)
  end
  local total = methods.sum(p == 2 and methods.square(x) or methods.pow(methods.abs(x), p), how)
  local some = methods.gt(total, 0)
  local inner = functions.where(some, total, 1)
  local root = p == 2 and methods.sqrt(inner) or methods.pow(inner, 1 / p)
  -- a total of NaN is neither: it stays what it is
  return functions.where(some, root, functions.where(methods.eq(total, 0), 0, total))
end

local function order(op, p)
  if args.number(op, "p", p) <= 0 then
    errors.raise("invalid", "%s: p is %g; it must be positive", op, p)
  end
  return p
end

--- x divided by its p-norm along a dimension, but by no less than eps.
---@param x luda.Tensor
---@param given? {p: number, dim: integer, eps: number}
---@return luda.Tensor
function M.normalize(x, given)
  local options = args.options("normalize", given, { p = 2, dim = 2, eps = 1e-12 })
  need_tensors("normalize", x)
  return x / methods.maximum(norm(x, order("normalize", options.p), options.dim, true), options.eps)
end

--- The cosine of the angle between x and y along a dimension; lengths below eps count as eps.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {dim: integer, eps: number}
---@return luda.Tensor
function M.cosine_similarity(x, y, given)
  local options = args.options("cosine_similarity", given, { dim = 2, eps = 1e-8 })
  need_tensors("cosine_similarity", x, y)
  local dim, eps = options.dim, options.eps
  local function unit(t)
    return t / methods.maximum(norm(t, 2, dim, true), eps)
  end
  return methods.sum(unit(x) * unit(y), dim)
end

--- The p-norm of x - y + eps over the last dimension.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {p: number, eps: number, keepdim: boolean}
---@return luda.Tensor
function M.pairwise_distance(x, y, given)
  local options = args.options("pairwise_distance", given, { p = 2, eps = 1e-6, keepdim = false })
  need_tensors("pairwise_distance", x, y)
  return norm(x - y + options.eps, order("pairwise_distance", options.p), -1, options.keepdim)
end

-- Regression.

--- Half the squared difference divided by beta where it is below beta, else the absolute difference minus beta / 2.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string, beta: number}
---@return luda.Tensor
function M.smooth_l1_loss(x, y, given)
  local options = args.options("smooth_l1_loss", given, { reduction = "mean", beta = 1 })
  need_pair("smooth_l1_loss", x, y)
  local beta = args.number("smooth_l1_loss", "beta", options.beta)
  if beta < 0 then
    errors.raise("invalid", "smooth_l1_loss: beta is %g; it must not be negative", beta)
  end
  local difference = widened(x) - widened(y)
  local size = methods.abs(difference)
  if beta > 0 then
    size = functions.where(methods.lt(size, beta), methods.square(difference) * (0.5 / beta), size - 0.5 * beta)
  end
  return reduce("smooth_l1_loss", size, options.reduction)
end

--- Half the squared difference where it is at most delta, else delta * (absolute difference - delta / 2).
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string, delta: number}
---@return luda.Tensor
function M.huber_loss(x, y, given)
  local options = args.options("huber_loss", given, { reduction = "mean", delta = 1 })
  need_pair("huber_loss", x, y)
  local delta = args.number("huber_loss", "delta", options.delta)
  if delta <= 0 then
    errors.raise("invalid", "huber_loss: delta is %g; it must be positive", delta)
  end
  local difference = widened(x) - widened(y)
  local size = methods.abs(difference)
  local losses = functions.where(methods.le(size, delta), methods.square(difference) * 0.5, (size - 0.5 * delta) * delta)
  return reduce("huber_loss", losses, options.reduction)
end

--- Negative log likelihood of targets under normal distributions with mean x and a variance, which counts as eps where it
-- is less; `full` adds the constant.
---@param x luda.Tensor
---@param y luda.Tensor
---@param variance luda.Tensor of the shape of x, or 1 in its last dimension, or without it
---@param given? {reduction: string, full: boolean, eps: number}
---@return luda.Tensor
function M.gaussian_nll_loss(x, y, variance, given)
  local options = args.options("gaussian_nll_loss", given, { reduction = "mean", full = false, eps = 1e-6 })
  need_pair("gaussian_nll_loss", x, y)
  need_tensors("gaussian_nll_loss", x, y, variance)
  x, y, variance = widened(x), widened(y), widened(variance)
  local shape, have = x.shape, variance.shape
  if #have == #shape - 1 then
    variance, have = methods.unsqueeze(variance, -1), nil
  end
  have = have or variance.shape
  for i = 1, math.max(#shape, #have) do
    if have[i] ~= shape[i] and not (i == #shape and have[i] == 1) then
      errors.raise("shape", "gaussian_nll_loss: the input has shape %s, the variance %s; it has the same, or one number a row",
        args.shape_text(shape), args.shape_text(have))
    end
  end
  local floor = functions.detach(methods.maximum(variance, options.eps) - variance)
  variance = variance + floor -- the gradient passes the bound, as it does in PyTorch
  local losses = (methods.log(variance) + methods.square(x - y) / variance) * 0.5
  if options.full then
    losses = losses + 0.5 * math.log(2 * math.pi)
  end
  return reduce("gaussian_nll_loss", losses, options.reduction)
end

--- Negative log likelihood of counts under Poisson distributions whose rate is exp(x), or x with log_input = false; `full`
-- adds Stirling's approximation of the constant.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string, log_input: boolean, full: boolean, eps: number}
---@return luda.Tensor
function M.poisson_nll_loss(x, y, given)
  local options = args.options("poisson_nll_loss", given, {
    reduction = "mean", log_input = true, full = false, eps = 1e-8,
  })
  need_pair("poisson_nll_loss", x, y)
  x, y = widened(x), widened(y)
  local losses = options.log_input and methods.exp(x) - y * x or x - y * methods.log(x + options.eps)
  if options.full then
    local large = methods.gt(y, 1)
    local safe = functions.where(large, y, 1)
    local stirling = safe * methods.log(safe) - safe + methods.log(safe * (2 * math.pi)) * 0.5
    losses = losses + functions.where(large, stirling, 0)
  end
  return reduce("poisson_nll_loss", losses, options.reduction)
end

-- Distributions.

--- y * (log(y) - x) for log probabilities x and probabilities y (logarithms too with log_target). "batchmean" divides the
-- sum by the first dimension, which is the divergence of a batch.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: "mean"|"sum"|"none"|"batchmean", log_target: boolean}
---@return luda.Tensor
function M.kl_div(x, y, given)
  local options = args.options("kl_div", given, { reduction = "mean", log_target = false })
  need_pair("kl_div", x, y)
  x, y = widened(x), widened(y)
  local losses
  if options.log_target then
    losses = methods.exp(y) * (y - x)
  else
    local some = methods.ne(y, 0)
    losses = functions.where(some, y, 0) * (methods.log(functions.where(some, y, 1)) - functions.where(some, x, 0))
  end
  if options.reduction == "batchmean" then
    return methods.sum(losses) / math.max(x.ndim > 0 and methods.size(x, 1) or 1, 1)
  end
  return reduce("kl_div", losses, options.reduction)
end

--- Binary cross entropy of probabilities x and targets between 0 and 1; logarithms count as no less than
-- -100, where their gradient is 0.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string, weight: luda.Tensor}
---@return luda.Tensor
function M.binary_cross_entropy(x, y, given)
  local options = args.options("binary_cross_entropy", given, { reduction = "mean", weight = args.absent })
  need_pair("binary_cross_entropy", x, y)
  x, y = widened(x), widened(y)
  local function log(t)
    local low = methods.le(methods.abs(t), 3.7200759760208e-44) -- exp(-100)
    return functions.where(low, -100, methods.log(functions.where(low, 1, t)))
  end
  local losses = -(y * log(x) + (1 - y) * log(1 - x))
  if options.weight then
    losses = losses * options.weight
  end
  return reduce("binary_cross_entropy", losses, options.reduction)
end

-- Margins. The labels are 1 and -1.

--- x where the label is 1, what lacks to a margin where it is -1.
---@param x luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string, margin: number}
---@return luda.Tensor
function M.hinge_embedding_loss(x, y, given)
  local options = args.options("hinge_embedding_loss", given, { reduction = "mean", margin = 1 })
  need_pair("hinge_embedding_loss", x, y, "labels")
  x = widened(x)
  local losses = functions.where(methods.ne(y, 1), methods.relu(options.margin - x), 0)
    + functions.where(methods.ne(y, -1), x, 0)
  return reduce("hinge_embedding_loss", losses, options.reduction)
end

--- How far the first input is from being larger (label 1) or smaller (label -1) than the second, by a margin.
---@param first luda.Tensor
---@param second luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string, margin: number}
---@return luda.Tensor
function M.margin_ranking_loss(first, second, y, given)
  local options = args.options("margin_ranking_loss", given, { reduction = "mean", margin = 0 })
  need_pair("margin_ranking_loss", first, second, "second input")
  need_pair("margin_ranking_loss", first, y, "labels")
  local losses = methods.relu(options.margin - y * (widened(first) - widened(second)))
  return reduce("margin_ranking_loss", losses, options.reduction)
end

--- 1 - cosine where the label is 1, what the cosine exceeds the margin by where it is -1. Inputs [N, D], labels [N].
---@param first luda.Tensor
---@param second luda.Tensor
---@param y luda.Tensor
---@param given? {reduction: string, margin: number}
---@return luda.Tensor
function M.cosine_embedding_loss(first, second, y, given)
  local options = args.options("cosine_embedding_loss", given, { reduction = "mean", margin = 0 })
  need_pair("cosine_embedding_loss", first, second, "second input")
  need_tensors("cosine_embedding_loss", first, second, y)
  if first.ndim ~= y.ndim + 1 then
    errors.raise("shape", "cosine_embedding_loss: inputs %s and labels %s; the inputs have one dimension more",
      args.shape_text(first.shape), args.shape_text(y.shape))
  end
  local cosine = M.cosine_similarity(widened(first), widened(second), { dim = -1, eps = 1e-6 })
  need_pair("cosine_embedding_loss", cosine, y, "labels")
  local losses = functions.where(methods.eq(y, 1), 1 - cosine, 0)
    + functions.where(methods.eq(y, -1), methods.relu(cosine - options.margin), 0)
  return reduce("cosine_embedding_loss", losses, options.reduction)
end

--- How far the anchor is from being nearer to the positive than to the negative, by a margin. With `swap` the negative is
-- compared with the nearer of anchor and positive.
---@param anchor luda.Tensor
---@param near luda.Tensor
---@param far luda.Tensor
---@param given? {reduction: string, margin: number, p: number, eps: number, swap: boolean}
---@return luda.Tensor
function M.triplet_margin_loss(anchor, near, far, given)
  local options = args.options("triplet_margin_loss", given, {
    reduction = "mean", margin = 1, p = 2, eps = 1e-6, swap = false,
  })
  need_pair("triplet_margin_loss", anchor, near, "positive")
  need_pair("triplet_margin_loss", anchor, far, "negative")
  anchor, near, far = widened(anchor), widened(near), widened(far)
  local how = { p = options.p, eps = options.eps }
  local distant = M.pairwise_distance(anchor, far, how)
  if options.swap then
    distant = methods.minimum(distant, M.pairwise_distance(near, far, how))
  end
  return reduce("triplet_margin_loss", methods.relu(M.pairwise_distance(anchor, near, how) - distant + options.margin),
    options.reduction)
end

return M
