--- Functions of volumes [N, C, D, H, W] and the pooling of sequences, composed from those of images.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local images = require "luda.nn.images"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

local M = {}

--- Depth, height and width from a number or a list of three, each at least `least`.
function M.triple(op, name, value, least)
  return images.tuple(op, name, value, 3, "three, depth, height and width", least)
end

local function need(op, x, ndim, form)
  if not is_tensor(x) or x.ndim ~= ndim then
    errors.raise("shape", "%s: %s is needed, not %s", op, form, is_tensor(x) and args.shape_text(x.shape) or args.describe(x))
  end
  return x.shape
end

--- A convolution of volumes: x [N, C, D, H, W], weight [O, C / groups, KD, KH, KW], bias [O]. The slices that one place of
-- the kernel's depth meets become channels of an image, so that it is one convolution of N * D images.
---@param x luda.Tensor
---@param weight luda.Tensor
---@param bias? luda.Tensor
---@param given? {stride: integer|integer[], padding: integer|integer[], dilation: integer|integer[], groups: integer}
---@return luda.Tensor
function M.conv3d(x, weight, bias, given)
  if type(bias) == "table" and given == nil then
    bias, given = nil, bias
  end
  local options = args.options("conv3d", given, { stride = 1, padding = 0, dilation = 1, groups = 1 })
  local shape = need("conv3d", x, 5, "an input [N, C, D, H, W]")
  local kernel = need("conv3d", weight, 5, "a weight [O, C / groups, KD, KH, KW]")
  local stride, padding = M.triple("conv3d", "stride", options.stride, 1), M.triple("conv3d", "padding", options.padding, 0)
  local dilation, groups = M.triple("conv3d", "dilation", options.dilation, 1), args.integer("conv3d", "groups", options.groups)
  local depth = shape[3] + 2 * padding[1]
  local count = math.floor((depth - dilation[1] * (kernel[3] - 1) - 1) / stride[1]) + 1
  if groups < 1 or shape[2] ~= kernel[2] * groups then
    errors.raise("shape", "conv3d: the input %s has %d channels, the weight %s in %d groups is for %d", args.shape_text(shape),
      shape[2], args.shape_text(kernel), groups, kernel[2] * groups)
  elseif count < 1 then
    errors.raise("shape", "conv3d: the kernel %s with dilation %d is deeper than the input %s with padding %d",
      args.shape_text(kernel), dilation[1], args.shape_text(shape), padding[1])
  end
  if padding[1] > 0 then
    x = methods.narrow_backward(x, { dim = 3, start = padding[1] + 1, size = depth })
  end
  local slices = {}
  for k = 1, kernel[3] do
    slices[k] = methods.narrow(x, 3, (k - 1) * dilation[1] + 1, count, stride[1])
  end
  local stacked = methods.permute(functions.stack(slices, 3), { 1, 4, 2, 3, 5, 6 })
  local planes = methods.reshape(stacked, { shape[1] * count, shape[2] * kernel[3], shape[4], shape[5] })
  local filters = methods.reshape(weight, { kernel[1], kernel[2] * kernel[3], kernel[4], kernel[5] })
  local y = functions.conv2d(planes, filters, bias, {
    stride = { stride[2], stride[3] }, padding = { padding[2], padding[3] }, dilation = { dilation[2], dilation[3] },
    groups = groups,
  })
  local sizes = y.shape
  y = methods.reshape(y, { shape[1], count, sizes[2], sizes[3], sizes[4] })
  return methods.permute(y, { 1, 3, 2, 4, 5 })
end

--- Means of windows of sequences [N, C, L], chosen so that the result has a size.
---@param x luda.Tensor
---@param size integer
---@return luda.Tensor
function M.adaptive_avg_pool1d(x, size)
  need("adaptive_avg_pool1d", x, 3, "an input [N, C, L]")
  args.integer("adaptive_avg_pool1d", "the size", size)
  return methods.squeeze(images.adaptive_avg_pool2d(methods.unsqueeze(x, 3), { 1, size }), 3)
end

return M
