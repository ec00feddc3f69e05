--- Normalization over batches, groups and single images: functions and layers. Channels are dimension 2.

local args = require "luda.args"
local autograd = require "luda.autograd"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local initial = require "luda.nn.initial"
local positive = require("luda.nn.layers").positive
local modules = require "luda.nn.module"
require "luda.sugar"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

local M = {}

--- The shape of x, which has channels.
local function shape_of(op, x)
  if not is_tensor(x) then
    errors.raise("invalid", "%s: expected a tensor, got %s", op, args.describe(x))
  elseif args.dtype_class(x.dtype) ~= "float" then
    errors.raise("dtype", "%s: the input is %s; a floating type is needed, convert it with to(\"f32\")", op, x.dtype)
  elseif x.ndim < 2 then
    errors.raise("shape", "%s: the input has shape %s; [N, C, ...] is needed", op, args.shape_text(x.shape))
  end
  return x.shape
end

--- One number a channel, as a tensor that broadcasts over [N, C, ...].
local function over_channels(op, name, t, shape)
  if t == nil then
    return nil
  elseif not is_tensor(t) then
    errors.raise("invalid", "%s: %s must be a tensor, not %s", op, name, args.describe(t))
  elseif t.ndim ~= 1 or methods.size(t, 1) ~= shape[2] then
    errors.raise("shape", "%s: %s has shape %s, the input %s; one number for each of %d channels is needed", op, name,
      args.shape_text(t.shape), args.shape_text(shape), shape[2])
  end
  local sizes = { shape[2] }
  for i = 3, #shape do
    sizes[i - 1] = 1
  end
  return methods.view(t, sizes)
end

--- x * weight + bias.
local function affine(op, x, shape, options)
  local weight = over_channels(op, "weight", options.weight, shape)
  local bias = over_channels(op, "bias", options.bias, shape)
  if weight then
    x = x * weight
  end
  return bias and x + bias or x
end

--- Statistics and what is computed from them are f32 for halves.
local function widened(x)
  return (x.dtype == "bf16" or x.dtype == "f16") and methods.to(x, "f32") or x
end

--- running = (1 - momentum) * running + momentum * value, outside of the graph.
local function follow(running, value, momentum)
  if running then
    autograd.no_grad(function()
      value = methods.reshape(methods.detach(value), running.shape)
      methods.add_(methods.mul_(running, 1 - momentum), methods.to(value * momentum, running.dtype))
    end)
  end
end

local function batch_statistics(op, x, shape)
  local dims, count = { 1 }, shape[1]
  for i = 3, #shape do
    dims[i - 1], count = i, count * shape[i]
  end
  if count < 2 then
    errors.raise("shape", "%s: the input %s has %d value%s a channel; training needs more than one, call eval() or take a "
      .. "larger batch", op, args.shape_text(shape), count, count == 1 and "" or "s")
  end
  local mean = methods.mean(x, { dim = dims, keepdim = true })
  local centred = x - mean
  return mean, centred, methods.mean(methods.square(centred), { dim = dims, keepdim = true }), count
end

--- (x - mean) / sqrt(variance + eps) * weight + bias in each channel of [N, C, ...]. With `training`, or without running
-- statistics, mean and (biased) variance are those of the batch, and the running ones, where there are any, go
-- towards them by `momentum`, the variance unbiased; else the running ones are used.
---@param x luda.Tensor
---@param running_mean? luda.Tensor
---@param running_var? luda.Tensor
---@param given? {weight: luda.Tensor, bias: luda.Tensor, training: boolean, momentum: number, eps: number}
---@return luda.Tensor
function M.batch_norm(x, running_mean, running_var, given)
  local options = args.options("batch_norm", given, {
    weight = args.absent, bias = args.absent, training = false, momentum = 0.1, eps = 1e-5,
  })
  local shape = shape_of("batch_norm", x)
  local kept_mean = over_channels("batch_norm", "running_mean", running_mean, shape)
  local kept_var = over_channels("batch_norm", "running_var", running_var, shape)
  local weight = over_channels("batch_norm", "weight", options.weight, shape)
  local bias = over_channels("batch_norm", "bias", options.bias, shape)
  local dtype = x.dtype
  local y
  x = widened(x)
  if options.training or not (kept_mean and kept_var) then
    local mean, centred, variance, count = batch_statistics("batch_norm", x, shape)
    follow(running_mean, mean, options.momentum)
    follow(running_var, variance * (count / (count - 1)), options.momentum)
    local scale = methods.rsqrt(variance + options.eps)
    y = centred * (weight and scale * weight or scale)
    y = bias and y + bias or y
  else -- two passes over x: what does not depend on it is small
    local scale = methods.rsqrt(kept_var + options.eps)
    scale = weight and scale * weight or scale
    local shift = kept_mean * scale
    y = x * scale + (bias and bias - shift or -shift)
  end
  return methods.to(y, dtype)
end

local function group_norm(op, x, groups, options)
  local shape = shape_of(op, x)
  if shape[2] % groups ~= 0 then
    errors.raise("shape", "%s: %d channels of the input %s cannot be divided into %d groups", op, shape[2],
      args.shape_text(shape), groups)
  end
  local width = shape[2] / groups
  for i = 3, #shape do
    width = width * shape[i]
  end
  local rows = functions.layer_norm(methods.reshape(x, { shape[1], groups, width }), { eps = options.eps })
  return affine(op, methods.reshape(rows, shape), shape, options)
end

--- Mean 0 and variance 1 over each of `groups` runs of channels of each image, then weight and bias of each channel.
---@param x luda.Tensor
---@param groups integer
---@param given? {weight: luda.Tensor, bias: luda.Tensor, eps: number}
---@return luda.Tensor
function M.group_norm(x, groups, given)
  local options = args.options("group_norm", given, { weight = args.absent, bias = args.absent, eps = 1e-5 })
  return group_norm("group_norm", x, positive("group_norm", "groups", groups), options)
end

--- Mean 0 and variance 1 over each channel of each image, then weight and bias of each channel.
---@param x luda.Tensor
---@param given? {weight: luda.Tensor, bias: luda.Tensor, eps: number}
---@return luda.Tensor
function M.instance_norm(x, given)
  local options = args.options("instance_norm", given, { weight = args.absent, bias = args.absent, eps = 1e-5 })
  return group_norm("instance_norm", x, shape_of("instance_norm", x)[2], options)
end

-- Layers.

local function set_affine(self, channels, options)
  if options.affine then
    self.weight = initial.constant({ channels }, 1)
    self.bias = initial.constant({ channels }, 0)
  end
end

--- Makes a class that normalizes batches of so many dimensions. Momentum false means the mean of all batches so far.
---@alias luda.BatchNormOptions {eps: number, momentum: number|false, affine: boolean, track_running_stats: boolean}
local function batch_norm_class(name, least, most, expected)
  local BatchNorm = modules.module(name)

  function BatchNorm:init(channels, given)
    local options = args.options(name, given, { eps = 1e-5, momentum = 0.1, affine = true, track_running_stats = true })
    positive(name, "the number of channels", channels)
    if options.momentum then
      args.number(name, "momentum", options.momentum)
    end
    self.eps, self.momentum = args.number(name, "eps", options.eps), options.momentum
    set_affine(self, channels, options)
    if options.track_running_stats then
      self.running_mean = create.zeros(channels)
      self.running_var = create.ones(channels)
      self.num_batches_tracked = create.zeros({}, { dtype = "i64" })
    end
  end

  function BatchNorm:forward(x)
    local shape = shape_of(name, x)
    if #shape < least or #shape > most then
      errors.raise("shape", "%s: the input has shape %s; %s is needed", name, args.shape_text(shape), expected)
    end
    local momentum, running_mean = self.momentum, self.running_mean
    if running_mean and self.training then
      methods.add_(self.num_batches_tracked, 1)
      momentum = momentum or 1 / methods.item(self.num_batches_tracked)
    end
    return M.batch_norm(x, running_mean, self.running_var, {
      weight = self.weight, bias = self.bias, training = self.training, momentum = momentum or 0, eps = self.eps,
    })
  end

  return BatchNorm
end

---@class luda.nn.BatchNorm: luda.nn.Module
---@overload fun(channels: integer, options: luda.BatchNormOptions?): luda.nn.BatchNorm
M.BatchNorm = batch_norm_class("BatchNorm", 2, math.huge, "[N, C, ...]")
---@class luda.nn.BatchNorm1d: luda.nn.Module
---@overload fun(channels: integer, options: luda.BatchNormOptions?): luda.nn.BatchNorm1d
M.BatchNorm1d = batch_norm_class("BatchNorm1d", 2, 3, "[N, C] or [N, C, L]")
---@class luda.nn.BatchNorm2d: luda.nn.Module
---@overload fun(channels: integer, options: luda.BatchNormOptions?): luda.nn.BatchNorm2d
M.BatchNorm2d = batch_norm_class("BatchNorm2d", 4, 4, "[N, C, H, W]")

---@class luda.nn.GroupNorm: luda.nn.Module
---@overload fun(groups: integer, channels: integer, options: {eps: number, affine: boolean}?): luda.nn.GroupNorm
local GroupNorm = modules.module("GroupNorm")
M.GroupNorm = GroupNorm

function GroupNorm:init(groups, channels, given)
  local options = args.options("GroupNorm", given, { eps = 1e-5, affine = true })
  positive("GroupNorm", "the number of channels", channels)
  if channels % positive("GroupNorm", "the number of groups", groups) ~= 0 then
    errors.raise("invalid", "GroupNorm: %d channels cannot be divided into %d groups", channels, groups)
  end
  self.groups, self.channels, self.eps = groups, channels, args.number("GroupNorm", "eps", options.eps)
  set_affine(self, channels, options)
end

function GroupNorm:forward(x)
  if shape_of("GroupNorm", x)[2] ~= self.channels then
    errors.raise("shape", "GroupNorm: the input has shape %s; [N, %d, ...] is needed", args.shape_text(x.shape),
      self.channels)
  end
  return M.group_norm(x, self.groups, { weight = self.weight, bias = self.bias, eps = self.eps })
end

return M
