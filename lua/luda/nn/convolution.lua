--- Layers of image models: convolution, pooling, and what flattens their results for a linear layer.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local images = require "luda.nn.images"
local initial = require "luda.nn.initial"
local interpolate = require("luda.nn.interpolation").interpolate
local layers = require "luda.nn.layers"
local modules = require "luda.nn.module"
local volumes = require "luda.nn.volumes"

local methods, functions, positive = tensors.methods, ops.functions, layers.positive

local M = {}

--- Height and width, both positive, from a number or a list of two.
local function pair(op, name, value)
  return images.pair(op, name, value, 1)
end

--- Convolution of images [N, inputs, H, W]. The weight is [outputs, inputs / groups, KH, KW]; weight and bias start uniform
-- within 1 / sqrt(inputs / groups * KH * KW).
---@alias luda.Pair integer|integer[] height and width, or a number for both
---@class luda.Conv2dOptions: {stride: luda.Pair, padding: luda.Pair, dilation: luda.Pair, groups: integer, bias: boolean}
---@class luda.nn.Conv2d: luda.nn.Module
---@overload fun(inputs: integer, outputs: integer, kernel: luda.Pair, options: luda.Conv2dOptions?): luda.nn.Conv2d
local Conv2d = modules.module("Conv2d")
M.Conv2d = Conv2d

--- Weight, bias and options of a convolution. A transposed one has the inputs first.
local function fill(self, name, inputs, outputs, kernel, options, transposed)
  local groups = positive(name, "groups", options.groups)
  positive(name, "the number of inputs", inputs)
  positive(name, "the number of outputs", outputs)
  if inputs % groups ~= 0 or outputs % groups ~= 0 then
    errors.raise("invalid", "%s: %d channels in and %d out cannot be divided into %d groups", name, inputs, outputs, groups)
  end
  local shape = transposed and { inputs, outputs / groups } or { outputs, inputs / groups }
  local area = 1
  for i, size in ipairs(kernel) do
    shape[i + 2], area = size, area * size
  end
  local bound = math.sqrt(1 / (shape[2] * area)) -- as in PyTorch, also where the weight is transposed
  self.weight = initial.uniform(shape, bound)
  if options.bias then
    self.bias = initial.uniform({ outputs }, bound)
  end
  options.bias = nil
  self.options = options
end

function Conv2d:init(inputs, outputs, kernel, given)
  local options = args.options("Conv2d", given, { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true })
  fill(self, "Conv2d", inputs, outputs, pair("Conv2d", "kernel", kernel), options)
end

function Conv2d:forward(x)
  local bias = self.bias
  if bias then
    return functions.conv2d(x, self.weight, bias, self.options)
  end
  return functions.conv2d(x, self.weight, self.options)
end

--- Convolution of sequences [N, inputs, L]. The weight is [outputs, inputs / groups, K] and starts as that of Conv2d.
---@class luda.Conv1dOptions: {stride: integer, padding: integer, dilation: integer, groups: integer, bias: boolean}
---@class luda.nn.Conv1d: luda.nn.Module
---@overload fun(inputs: integer, outputs: integer, kernel: integer, options: luda.Conv1dOptions?): luda.nn.Conv1d
local Conv1d = modules.module("Conv1d")
M.Conv1d = Conv1d

function Conv1d:init(inputs, outputs, kernel, given)
  local options = args.options("Conv1d", given, { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true })
  fill(self, "Conv1d", inputs, outputs, { positive("Conv1d", "the kernel", kernel) }, options)
end

function Conv1d:forward(x)
  return images.conv1d(x, self.weight, self.bias, self.options)
end

--- Convolution of volumes [N, inputs, D, H, W]. The weight is [outputs, inputs / groups, KD, KH, KW] and starts as that of
-- Conv2d.
---@class luda.nn.Conv3d: luda.nn.Module
---@overload fun(inputs: integer, outputs: integer, kernel: integer|integer[], options: table?): luda.nn.Conv3d
local Conv3d = modules.module("Conv3d")
M.Conv3d = Conv3d

function Conv3d:init(inputs, outputs, kernel, given)
  local options = args.options("Conv3d", given, { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true })
  fill(self, "Conv3d", inputs, outputs, volumes.triple("Conv3d", "kernel", kernel, 1), options)
end

function Conv3d:forward(x)
  return volumes.conv3d(x, self.weight, self.bias, self.options)
end

--- Transposed convolution of images [N, inputs, H, W]. The weight is [inputs, outputs / groups, KH, KW].
---@class luda.nn.ConvTranspose2d: luda.nn.Module
---@overload fun(inputs: integer, outputs: integer, kernel: luda.Pair, options: table?): luda.nn.ConvTranspose2d
local ConvTranspose2d = modules.module("ConvTranspose2d")
M.ConvTranspose2d = ConvTranspose2d

function ConvTranspose2d:init(inputs, outputs, kernel, given)
  local name = "ConvTranspose2d"
  local options = args.options(name, given, {
    stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1, bias = true,
  })
  fill(self, name, inputs, outputs, pair(name, "kernel", kernel), options, true)
end

function ConvTranspose2d:forward(x)
  return images.conv_transpose2d(x, self.weight, self.bias, self.options)
end

--- Transposed convolution of sequences [N, inputs, L]. The weight is [inputs, outputs / groups, K].
---@class luda.nn.ConvTranspose1d: luda.nn.Module
---@overload fun(inputs: integer, outputs: integer, kernel: integer, options: table?): luda.nn.ConvTranspose1d
local ConvTranspose1d = modules.module("ConvTranspose1d")
M.ConvTranspose1d = ConvTranspose1d

function ConvTranspose1d:init(inputs, outputs, kernel, given)
  local name = "ConvTranspose1d"
  local options = args.options(name, given, {
    stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1, bias = true,
  })
  fill(self, name, inputs, outputs, { positive(name, "the kernel", kernel) }, options, true)
end

function ConvTranspose1d:forward(x)
  return images.conv_transpose1d(x, self.weight, self.bias, self.options)
end

--- The largest element of each window; a window goes on by `stride`, its own size unless given.
---@class luda.MaxPool2dOptions: {stride: luda.Pair, padding: luda.Pair, dilation: luda.Pair, ceil_mode: boolean}
---@class luda.nn.MaxPool2d: luda.nn.Module
---@overload fun(kernel: luda.Pair, options: luda.MaxPool2dOptions?): luda.nn.MaxPool2d
local MaxPool2d = modules.module("MaxPool2d")
M.MaxPool2d = MaxPool2d

function MaxPool2d:init(kernel, given)
  self.options = args.options("MaxPool2d", given, { stride = args.absent, padding = 0, dilation = 1, ceil_mode = false })
  self.options.kernel = pair("MaxPool2d", "kernel", kernel)
end

function MaxPool2d:forward(x)
  return functions.max_pool2d(x, self.options)
end

--- The mean of each window; count_include_pad counts the padding.
---@class luda.AvgPool2dOptions: {stride: luda.Pair, padding: luda.Pair, ceil_mode: boolean, count_include_pad: boolean}
---@class luda.nn.AvgPool2d: luda.nn.Module
---@overload fun(kernel: luda.Pair, options: luda.AvgPool2dOptions?): luda.nn.AvgPool2d
local AvgPool2d = modules.module("AvgPool2d")
M.AvgPool2d = AvgPool2d

function AvgPool2d:init(kernel, given)
  self.options = args.options("AvgPool2d", given, { stride = args.absent, padding = 0, ceil_mode = false,
    count_include_pad = true })
  self.options.kernel = pair("AvgPool2d", "kernel", kernel)
end

function AvgPool2d:forward(x)
  return functions.avg_pool2d(x, self.options)
end

--- Means of windows chosen so that the result has a size.
---@class luda.nn.AdaptiveAvgPool2d: luda.nn.Module
---@overload fun(size: luda.Pair): luda.nn.AdaptiveAvgPool2d
local AdaptiveAvgPool2d = modules.module("AdaptiveAvgPool2d")
M.AdaptiveAvgPool2d = AdaptiveAvgPool2d

function AdaptiveAvgPool2d:init(size)
  self.size = pair("AdaptiveAvgPool2d", "size", size)
end

function AdaptiveAvgPool2d:forward(x)
  return images.adaptive_avg_pool2d(x, self.size)
end

--- Another size, by the options of nn.interpolate.
---@class luda.nn.Upsample: luda.nn.Module
---@overload fun(options: {size: luda.Pair?, scale_factor: number?, mode: string?, align_corners: boolean?}): luda.nn.Upsample
local Upsample = modules.module("Upsample")
M.Upsample = Upsample

function Upsample:init(given)
  local absent = args.absent
  self.options = args.options("Upsample", given, {
    size = absent, scale_factor = absent, mode = "nearest", align_corners = false,
  })
  if (self.options.size == nil) == (self.options.scale_factor == nil) then
    errors.raise("invalid", "Upsample: give either size or scale_factor")
  end
end

function Upsample:forward(x)
  return interpolate(x, self.options)
end

--- Dimensions `first` to `last` as one: [N, C, H, W] becomes [N, C * H * W].
---@class luda.nn.Flatten: luda.nn.Module
---@overload fun(first: integer?, last: integer?): luda.nn.Flatten
local Flatten = modules.module("Flatten")
M.Flatten = Flatten

function Flatten:init(first, last)
  self.first, self.last = first or 2, last or -1
end

function Flatten:forward(x)
  return methods.flatten(x, self.first, self.last)
end

return M
