--- What losses share: checks of their inputs, types under autocast, and the reduction at the end.

local args = require "luda.args"
local errors = require "luda.error"
local autocast = require "luda.autocast"
local tensors = require "luda.tensor"
require "luda.sugar"

local methods, is_tensor = tensors.methods, tensors.is_tensor

local M = {}

--- Raises unless all the values are tensors.
function M.need_tensors(op, ...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if not is_tensor(value) then
      errors.raise("invalid", "%s: input %d must be a tensor, not %s", op, i, args.describe(value))
    end
  end
end

--- Raises unless x and y are tensors of one shape: a broadcast loss is nearly always a mistake. `what` names the second.
function M.need_pair(op, x, y, what)
  M.need_tensors(op, x, y)
  local first, second = args.shape_text(x.shape), args.shape_text(y.shape)
  if first ~= second then
    errors.raise("shape", "%s: the input has shape %s, the %s %s; losses do not broadcast, reshape or expand one of them", op,
      first, what or "target", second)
  end
end

--- Under autocast losses are computed in f32.
function M.widened(x)
  return autocast.dtype() and (x.dtype == "bf16" or x.dtype == "f16") and methods.to(x, "f32") or x
end

--- Sum, mean or all of the elementwise losses.
function M.reduce(op, losses, reduction)
  if reduction == "mean" then
    return methods.mean(losses)
  elseif reduction == "sum" then
    return methods.sum(losses)
  elseif reduction == "none" then
    return losses
  end
  return errors.raise("invalid", "%s: reduction is mean, sum or none, not %s", op, args.describe(reduction))
end

return M
