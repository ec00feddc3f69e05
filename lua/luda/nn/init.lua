--- Modules, layers and losses.

local layers = require "luda.nn.layers"
local losses = require "luda.nn.losses"
local fields = require "luda.nn.fields"
local modules = require "luda.nn.module"
require "luda.nn.state"
local attention = require "luda.nn.attention"
local convolution = require "luda.nn.convolution"

local distances = require "luda.nn.distances"
local images = require "luda.nn.images"
local interpolation = require "luda.nn.interpolation"
local normalization = require "luda.nn.normalization"
local recurrent = require "luda.nn.recurrent"
local tokens = require "luda.nn.tokens"
local rows = require("luda.ops").functions

---@class luda.nn
local nn = {
  Module = modules.Module,
  module = modules.module,
  is_module = fields.is_module,
  parameter = modules.parameter,
  GPT = require "luda.nn.gpt",
}

for _, name in ipairs {
  "Linear", "Embedding", "LayerNorm", "RMSNorm", "Dropout", "Sequential", "ReLU", "GELU", "Tanh", "Sigmoid", "SiLU",
} do
  nn[name] = layers[name]
end
for _, classes in ipairs { convolution, attention, recurrent } do
  for name, class in pairs(classes) do
    nn[name] = class
  end
end
for _, name in ipairs { "BatchNorm", "BatchNorm1d", "BatchNorm2d", "GroupNorm" } do
  nn[name] = normalization[name]
end
for _, name in ipairs {
  "conv1d", "conv_transpose1d", "conv_transpose2d", "unfold", "fold", "adaptive_avg_pool2d", "pixel_shuffle", "pixel_unshuffle",
} do
  nn[name] = images[name]
end
-- Rows that belong to this list of names as well.
for _, name in ipairs {
  "linear", "conv2d", "max_pool2d", "avg_pool2d", "softmax", "log_softmax", "layer_norm", "rms_norm", "dropout",
  "scaled_dot_product_attention",
} do
  nn[name] = rows[name]
end
for _, group in ipairs { layers.functions, losses, distances, interpolation, normalization.functions, tokens } do
  for name, fn in pairs(group) do
    nn[name] = fn
  end
end

return nn
