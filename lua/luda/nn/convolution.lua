--- Layers of image models: convolution, pooling, and what flattens their results for a linear layer.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local initial = require "luda.nn.initial"
local layers = require "luda.nn.layers"
local modules = require "luda.nn.module"

local methods, functions, positive = tensors.methods, ops.functions, layers.positive

local M = {}

--- Height and width from a number or a list of two.
local function pair(op, name, value)
  if type(value) ~= "table" then
    value = { value, value }
  elseif #value ~= 2 then
    errors.raise("invalid", "%s: %s is a number or a list of two, height and width; the list has %d", op, name, #value)
  end
  return { positive(op, name, value[1]), positive(op, name, value[2]) }
end

--- Convolution of images [N, inputs, H, W]. The weight is [outputs, inputs / groups, KH, KW]; weight and bias start uniform
-- within 1 / sqrt(inputs / groups * KH * KW).
---@alias luda.Pair integer|integer[] height and width, or a number for both
---@class luda.Conv2dOptions: {stride: luda.Pair, padding: luda.Pair, dilation: luda.Pair, groups: integer, bias: boolean}
---@class luda.nn.Conv2d: luda.nn.Module
---@overload fun(inputs: integer, outputs: integer, kernel: luda.Pair, options: luda.Conv2dOptions?): luda.nn.Conv2d
local Conv2d = modules.module("Conv2d")
M.Conv2d = Conv2d

function Conv2d:init(inputs, outputs, kernel, given)
  local options = args.options("Conv2d", given, { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true })
  local groups = positive("Conv2d", "groups", options.groups)
  kernel = pair("Conv2d", "kernel", kernel)
  positive("Conv2d", "the number of inputs", inputs)
  positive("Conv2d", "the number of outputs", outputs)
  if inputs % groups ~= 0 or outputs % groups ~= 0 then
    errors.raise("invalid", "Conv2d: %d channels in and %d out cannot be divided into %d groups", inputs, outputs, groups)
  end
  local bound = math.sqrt(1 / (inputs / groups * kernel[1] * kernel[2]))
  self.weight = initial.uniform({ outputs, inputs / groups, kernel[1], kernel[2] }, bound)
  if options.bias then
    self.bias = initial.uniform({ outputs }, bound)
  end
  options.bias = nil
  self.options = options
end

function Conv2d:forward(x)
  local bias = self.bias
  if bias then
    return functions.conv2d(x, self.weight, bias, self.options)
  end
  return functions.conv2d(x, self.weight, self.options)
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
