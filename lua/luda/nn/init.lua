--- Modules, layers and losses.

local layers = require "luda.nn.layers"
local losses = require "luda.nn.losses"
local fields = require "luda.nn.fields"
local modules = require "luda.nn.module"
require "luda.nn.state"
local attention = require "luda.nn.attention"
local convolution = require "luda.nn.convolution"

---@class luda.nn
local nn = {
  Module = modules.Module,
  module = modules.module,
  is_module = fields.is_module,
  parameter = modules.parameter,
  Linear = layers.Linear,
  Embedding = layers.Embedding,
  LayerNorm = layers.LayerNorm,
  RMSNorm = layers.RMSNorm,
  Dropout = layers.Dropout,
  Sequential = layers.Sequential,
  ReLU = layers.ReLU,
  GELU = layers.GELU,
  Tanh = layers.Tanh,
  Sigmoid = layers.Sigmoid,
  SiLU = layers.SiLU,
  Conv2d = convolution.Conv2d,
  MaxPool2d = convolution.MaxPool2d,
  AvgPool2d = convolution.AvgPool2d,
  Flatten = convolution.Flatten,
  MultiheadAttention = attention.MultiheadAttention,
  TransformerBlock = attention.TransformerBlock,
  GPT = require "luda.nn.gpt",
}

for name, fn in pairs(layers.functions) do
  nn[name] = fn
end
for name, fn in pairs(losses) do
  nn[name] = fn
end

return nn
