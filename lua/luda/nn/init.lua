--- Modules, layers and losses.

local layers = require "luda.nn.layers"
local losses = require "luda.nn.losses"
local fields = require "luda.nn.fields"
local modules = require "luda.nn.module"
require "luda.nn.state"
local attention = require "luda.nn.attention"
local convolution = require "luda.nn.convolution"
local images = require "luda.nn.images"
local interpolation = require "luda.nn.interpolation"
local normalization = require "luda.nn.normalization"
local recurrent = require "luda.nn.recurrent"
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
for _, group in ipairs { layers.functions, losses, attention, convolution, interpolation, normalization, recurrent } do
  for name, value in pairs(group) do
    nn[name] = value
  end
end
-- Rows that belong to this list of names as well.
for _, name in ipairs {
  "linear", "conv2d", "max_pool2d", "avg_pool2d", "softmax", "log_softmax", "layer_norm", "rms_norm", "dropout",
  "scaled_dot_product_attention",
} do
  nn[name] = rows[name]
end

for _, name in ipairs {
  "conv1d", "conv_transpose1d", "conv_transpose2d", "unfold", "fold", "adaptive_avg_pool2d", "pixel_shuffle",
  "pixel_unshuffle",
} do
  nn[name] = images[name]
end

--- Functions of files that are loaded when one of them is first used. Files with classes are not among them: loaded again,
-- as test frameworks do, they would extend other classes.
local places = {}
for file, names in pairs {
  distances = {
    "normalize", "cosine_similarity", "pairwise_distance", "smooth_l1_loss", "huber_loss", "gaussian_nll_loss",
    "poisson_nll_loss", "kl_div", "binary_cross_entropy", "hinge_embedding_loss", "margin_ranking_loss",
    "cosine_embedding_loss", "triplet_margin_loss",
  },
  tokens = { "embedding", "rope", "embedding_bag" },
  volumes = { "conv3d", "adaptive_avg_pool1d" },
  ctc = { "ctc_loss" },
  vocabulary = { "linear_cross_entropy" },
} do
  for _, name in ipairs(names) do
    places[name] = "luda.nn." .. file
  end
end

return setmetatable(nn, {
  __index = function(self, name)
    if places[name] then
      self[name] = assert(require(places[name])[name], name)
    end
    return rawget(self, name)
  end,
})
