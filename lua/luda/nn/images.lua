--- Functions of images [N, C, H, W] and sequences [N, C, L] that are composed from rows.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
require "luda.sugar"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions
local floor, ceil, max = math.floor, math.ceil, math.max

local M = {}

--- The shape of x, which has `ndim` dimensions that `form` names.
local function shape_of(op, x, ndim, form)
  if not is_tensor(x) then
    errors.raise("invalid", "%s: expected a tensor, got %s", op, args.describe(x))
  elseif x.ndim ~= ndim then
    errors.raise("shape", "%s: the input has shape %s; %s is needed", op, args.shape_text(x.shape), form)
  end
  return x.shape
end

--- Sizes from a number or a list of as many as `words` names, each at least `least`.
function M.tuple(op, name, value, count, words, least)
  local list = type(value) == "table" and value or {}
  if value ~= list then
    for i = 1, count do
      list[i] = value
    end
  elseif #list ~= count then
    errors.raise("invalid", "%s: %s is a number or a list of %s; the list has %d", op, name, words, #list)
  end
  for i = 1, count do
    if args.integer(op, name, list[i]) < least then
      errors.raise("invalid", "%s: %s is %d; it must be at least %d", op, name, list[i], least)
    end
  end
  return list
end

local function pair(op, name, value, least)
  return M.tuple(op, name, value, 2, "two, height and width", least)
end
M.pair = pair

-- Convolutions.

--- A convolution of sequences: x [N, C, L], weight [O, C / groups, K], bias [O].
---@param x luda.Tensor
---@param weight luda.Tensor
---@param bias? luda.Tensor
---@param given? {stride: integer, padding: integer, dilation: integer, groups: integer}
---@return luda.Tensor
function M.conv1d(x, weight, bias, given)
  if type(bias) == "table" and given == nil then
    bias, given = nil, bias
  end
  local options = args.options("conv1d", given, { stride = 1, padding = 0, dilation = 1, groups = 1 })
  shape_of("conv1d", x, 3, "[N, C, L]")
  shape_of("conv1d", weight, 3, "a weight [O, C / groups, K]")
  local how = {
    stride = { 1, options.stride }, padding = { 0, options.padding }, dilation = { 1, options.dilation },
    groups = options.groups,
  }
  x, weight = methods.unsqueeze(x, 3), methods.unsqueeze(weight, 3)
  return methods.squeeze(functions.conv2d(x, weight, bias, how), 3)
end

--- A transposed convolution, the gradient of conv2d for its input: x [N, C, H, W], weight [C, O / groups, KH, KW], bias [O].
-- `output_padding` adds to the size of the result, which several inputs of conv2d can have.
---@param x luda.Tensor
---@param weight luda.Tensor
---@param bias? luda.Tensor
---@param given? {stride: luda.Pair, padding: luda.Pair, output_padding: luda.Pair, dilation: luda.Pair, groups: integer}
---@return luda.Tensor
function M.conv_transpose2d(x, weight, bias, given)
  if type(bias) == "table" and given == nil then
    bias, given = nil, bias
  end
  local op = "conv_transpose2d"
  local options = args.options(op, given, { stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1 })
  local shape, kernel = shape_of(op, x, 4, "[N, C, H, W]"), shape_of(op, weight, 4, "a weight [C, O / groups, KH, KW]")
  local stride, padding = pair(op, "stride", options.stride, 1), pair(op, "padding", options.padding, 0)
  local more, dilation = pair(op, "output_padding", options.output_padding, 0), pair(op, "dilation", options.dilation, 1)
  if shape[2] ~= kernel[1] then
    errors.raise("shape", "%s: the input %s has %d channels, the weight %s is for %d; it is [C, O / groups, KH, KW]", op,
      args.shape_text(shape), shape[2], args.shape_text(kernel), kernel[1])
  end
  local size = {}
  for i = 1, 2 do
    if more[i] >= max(stride[i], dilation[i]) then
      errors.raise("invalid", "%s: output_padding is %d; it must be below the stride %d or the dilation %d", op, more[i],
        stride[i], dilation[i])
    end
    size[i] = (shape[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[2 + i] - 1) + more[i] + 1
    if size[i] < 1 then
      errors.raise("shape", "%s: the input %s and the kernel %s with padding %d give a size of %d", op,
        args.shape_text(shape), args.shape_text(kernel), padding[i], size[i])
    end
  end
  local y = functions.conv2d_input(x, weight, {
    stride = stride, padding = padding, dilation = dilation, groups = options.groups, size = size,
  })
  if bias then
    y = y + methods.view(bias, { -1, 1, 1 })
  end
  return y
end

--- A transposed convolution of sequences: x [N, C, L], weight [C, O / groups, K], bias [O].
---@param x luda.Tensor
---@param weight luda.Tensor
---@param bias? luda.Tensor
---@param given? {stride: integer, padding: integer, output_padding: integer, dilation: integer, groups: integer}
---@return luda.Tensor
function M.conv_transpose1d(x, weight, bias, given)
  if type(bias) == "table" and given == nil then
    bias, given = nil, bias
  end
  local options = args.options("conv_transpose1d", given, {
    stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1,
  })
  shape_of("conv_transpose1d", x, 3, "[N, C, L]")
  shape_of("conv_transpose1d", weight, 3, "a weight [C, O / groups, K]")
  local how = {
    stride = { 1, options.stride }, padding = { 0, options.padding }, output_padding = { 0, options.output_padding },
    dilation = { 1, options.dilation }, groups = options.groups,
  }
  return methods.squeeze(M.conv_transpose2d(methods.unsqueeze(x, 3), methods.unsqueeze(weight, 3), bias, how), 3)
end

-- Windows as columns.

local function windows(op, kernel, given)
  local options = args.options(op, given, { stride = 1, padding = 0, dilation = 1 })
  return pair(op, "kernel", kernel, 1), pair(op, "stride", options.stride, 1), pair(op, "padding", options.padding, 0),
    pair(op, "dilation", options.dilation, 1)
end

--- How many windows fit into a height and a width.
local function window_counts(op, shape, size, kernel, stride, padding, dilation)
  local counts = {}
  for i = 1, 2 do
    counts[i] = floor((size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i]) + 1
    if counts[i] < 1 then
      errors.raise("shape", "%s: a kernel of %d with dilation %d does not fit into %d and padding %d of %s", op, kernel[i],
        dilation[i], size[i], padding[i], shape)
    end
  end
  return counts
end

--- The windows of images as columns: [N, C, H, W] becomes [N, C * KH * KW, windows].
---@param x luda.Tensor
---@param kernel luda.Pair
---@param given? {stride: luda.Pair, padding: luda.Pair, dilation: luda.Pair}
---@return luda.Tensor
function M.unfold(x, kernel, given)
  local stride, padding, dilation
  kernel, stride, padding, dilation = windows("unfold", kernel, given)
  local shape = shape_of("unfold", x, 4, "[N, C, H, W]")
  local counts = window_counts("unfold", args.shape_text(shape), { shape[3], shape[4] }, kernel, stride, padding, dilation)
  for i = 1, 2 do
    if padding[i] > 0 then
      x = methods.narrow_backward(x, { dim = 2 + i, start = padding[i] + 1, size = shape[2 + i] + 2 * padding[i] })
    end
  end
  local columns = {}
  for i = 1, kernel[1] do
    local rows = methods.narrow(x, 3, (i - 1) * dilation[1] + 1, counts[1], stride[1])
    for j = 1, kernel[2] do
      columns[#columns + 1] = methods.unsqueeze(methods.narrow(rows, 4, (j - 1) * dilation[2] + 1, counts[2], stride[2]), 3)
    end
  end
  return methods.reshape(functions.cat(columns, 3), { shape[1], shape[2] * #columns, counts[1] * counts[2] })
end

--- Columns added up into images of a size (height and width), the transpose of unfold.
---@param x luda.Tensor [N, C * KH * KW, windows]
---@param size luda.Pair
---@param kernel luda.Pair
---@param given? {stride: luda.Pair, padding: luda.Pair, dilation: luda.Pair}
---@return luda.Tensor
function M.fold(x, size, kernel, given)
  local stride, padding, dilation
  size = pair("fold", "size", size, 1)
  kernel, stride, padding, dilation = windows("fold", kernel, given)
  local shape = shape_of("fold", x, 3, "[N, C * KH * KW, windows]")
  local counts = window_counts("fold", args.shape_text(size), size, kernel, stride, padding, dilation)
  local area = kernel[1] * kernel[2]
  if shape[2] % area ~= 0 or shape[3] ~= counts[1] * counts[2] then
    errors.raise("shape", "fold: the input has shape %s; [N, C * %d, %d] is needed for windows of %dx%d in %s",
      args.shape_text(shape), area, counts[1] * counts[2], kernel[1], kernel[2], args.shape_text(size))
  end
  local pieces = methods.reshape(x, { shape[1], shape[2] / area, kernel[1], kernel[2], counts[1], counts[2] })
  local y
  for i = 1, kernel[1] do
    local row
    for j = 1, kernel[2] do
      local piece = methods.select(methods.select(pieces, 3, i), 3, j)
      local placed = methods.narrow_backward(piece, {
        dim = 4, start = (j - 1) * dilation[2] + 1, size = size[2] + 2 * padding[2], step = stride[2],
      })
      row = row and row + placed or placed
    end
    local placed = methods.narrow_backward(row, {
      dim = 3, start = (i - 1) * dilation[1] + 1, size = size[1] + 2 * padding[1], step = stride[1],
    })
    y = y and y + placed or placed
  end
  for i = 1, 2 do
    y = padding[i] > 0 and methods.narrow(y, 2 + i, padding[i] + 1, size[i]) or y
  end
  return y
end

-- Other sizes.

--- Means over `count` windows of one dimension that begin at floor(i * size / count) and end at ceil((i + 1) * size / count).
local function adaptive_mean(x, dim, count)
  local size = methods.size(x, dim)
  if count == 1 then
    return methods.mean(x, { dim = dim, keepdim = true })
  end
  local parts = {}
  for i = 0, count - 1 do
    local first, last = floor(i * size / count), ceil((i + 1) * size / count)
    parts[i + 1] = methods.mean(methods.narrow(x, dim, first + 1, last - first), { dim = dim, keepdim = true })
  end
  return functions.cat(parts, dim)
end

--- Means of windows chosen so that the result has a size (height and width).
---@param x luda.Tensor
---@param size luda.Pair
---@return luda.Tensor
function M.adaptive_avg_pool2d(x, size)
  size = pair("adaptive_avg_pool2d", "size", size, 1)
  local shape = shape_of("adaptive_avg_pool2d", x, 4, "[N, C, H, W]")
  local height, width = shape[3], shape[4]
  if height == 0 or width == 0 then
    errors.raise("shape", "adaptive_avg_pool2d: the input has shape %s; a mean of nothing is asked for", args.shape_text(shape))
  elseif size[1] == 1 and size[2] == 1 then
    return methods.mean(x, { dim = { 3, 4 }, keepdim = true })
  elseif height % size[1] == 0 and width % size[2] == 0 then
    return functions.avg_pool2d(x, { height / size[1], width / size[2] })
  end
  return adaptive_mean(adaptive_mean(x, 3, size[1]), 4, size[2])
end

--- [N, C * r * r, H, W] as [N, C, H * r, W * r].
---@param x luda.Tensor
---@param factor integer
---@return luda.Tensor
function M.pixel_shuffle(x, factor)
  local shape, r = shape_of("pixel_shuffle", x, 4, "[N, C, H, W]"), args.integer("pixel_shuffle", "the factor", factor)
  if r < 1 or shape[2] % (r * r) ~= 0 then
    errors.raise("shape", "pixel_shuffle: %d channels of the input %s are no multiple of %d * %d", shape[2],
      args.shape_text(shape), r, r)
  end
  local channels = shape[2] / (r * r)
  local parts = methods.permute(methods.reshape(x, { shape[1], channels, r, r, shape[3], shape[4] }), { 1, 2, 5, 3, 6, 4 })
  return methods.reshape(parts, { shape[1], channels, shape[3] * r, shape[4] * r })
end

--- [N, C, H * r, W * r] as [N, C * r * r, H, W].
---@param x luda.Tensor
---@param factor integer
---@return luda.Tensor
function M.pixel_unshuffle(x, factor)
  local shape, r = shape_of("pixel_unshuffle", x, 4, "[N, C, H, W]"), args.integer("pixel_unshuffle", "the factor", factor)
  if r < 1 or shape[3] % r ~= 0 or shape[4] % r ~= 0 then
    errors.raise("shape", "pixel_unshuffle: height and width of the input %s are no multiples of %d",
      args.shape_text(shape), r)
  end
  local height, width = shape[3] / r, shape[4] / r
  local parts = methods.permute(methods.reshape(x, { shape[1], shape[2], height, r, width, r }), { 1, 2, 4, 6, 3, 5 })
  return methods.reshape(parts, { shape[1], shape[2] * r * r, height, width })
end

return M
