--- Attention with several heads, and the block of a transformer.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local layers = require "luda.nn.layers"
local modules = require "luda.nn.module"
require "luda.sugar"

local methods, functions = tensors.methods, ops.functions

local M = {}

--- softmax(q k^T / sqrt(width / heads)) v in each head. One projection gives q, k and v, one joins the heads. With fewer
-- `kv_heads` than heads, consecutive heads share keys and values.
---@class luda.nn.MultiheadAttention: luda.nn.Module
---@overload fun(width: integer, heads: integer, options: table?): luda.nn.MultiheadAttention
local MultiheadAttention = modules.module("MultiheadAttention")
M.MultiheadAttention = MultiheadAttention

function MultiheadAttention:init(width, heads, given)
  local options = args.options("MultiheadAttention", given, {
    causal = false, dropout = 0, bias = true, generator = args.absent, kv_heads = heads,
  })
  layers.positive("MultiheadAttention", "the width", width)
  if width % layers.positive("MultiheadAttention", "the number of heads", heads) ~= 0 then
    errors.raise("invalid", "MultiheadAttention: a width of %d cannot be split among %d heads", width, heads)
  end
  local few = options.kv_heads
  if heads % layers.positive("MultiheadAttention", "kv_heads", few) ~= 0 then
    errors.raise("invalid", "MultiheadAttention: %d heads cannot share %d heads of keys and values", heads, few)
  end
  self.width, self.heads, self.kv_heads = width, heads, few
  local shared = few ~= heads or nil
  self.evaluation = { is_causal = options.causal, enable_gqa = shared }
  self.practice = {
    is_causal = options.causal, dropout_p = options.dropout, generator = options.generator, enable_gqa = shared,
  }
  self.qkv = layers.Linear(width, width + 2 * few * (width / heads), { bias = options.bias })
  self.projection = layers.Linear(width, width, { bias = options.bias })
end

--- [B, T, n heads' width] as [B, n, T, width of a head].
local function split_heads(self, x)
  local shape, size = x.shape, self.width / self.heads
  return methods.transpose(methods.reshape(x, { shape[1], shape[2], shape[3] / size, size }), 2, 3)
end

--- Where q (1), k (2) or v (3) begins in the common projection, and its width.
local function place(self, part)
  if part == 1 then
    return 1, self.width
  end
  local size = self.kv_heads * (self.width / self.heads)
  return self.width + (part - 2) * size + 1, size
end

--- The part of the common projection that makes q, k or v.
local function project(self, x, part)
  local first, size = place(self, part)
  local bias = self.qkv.bias
  return split_heads(self, functions.linear(x, methods.narrow(self.qkv.weight, 2, first, size),
    bias and methods.narrow(bias, 1, first, size)))
end

--- A part of what the common projection made.
local function part_of(self, joined, part)
  return split_heads(self, methods.narrow(joined, 3, place(self, part)))
end

--- x attends to itself; or x to other keys and values. All are [B, T, width].
---@param x luda.Tensor
---@param keys? luda.Tensor
---@param values? luda.Tensor
---@return luda.Tensor
function MultiheadAttention:forward(x, keys, values)
  local shape = x.shape
  if #shape ~= 3 or shape[3] ~= self.width then
    errors.raise("shape", "MultiheadAttention: the input has shape %s; [B, T, %d] is needed", args.shape_text(shape),
      self.width)
  end
  local q, k, v
  if keys then
    q, k, v = project(self, x, 1), project(self, keys, 2), project(self, values or keys, 3)
  elseif self.kv_heads ~= self.heads then
    local joined = self.qkv(x)
    q, k, v = part_of(self, joined, 1), part_of(self, joined, 2), part_of(self, joined, 3)
  else
    local joined = methods.view(self.qkv(x), { shape[1], shape[2], 3, self.heads, self.width / self.heads })
    joined = methods.permute(joined, { 3, 1, 4, 2, 5 })
    q, k, v = methods.select(joined, 1, 1), methods.select(joined, 1, 2), methods.select(joined, 1, 3)
  end
  local y = functions.scaled_dot_product_attention(q, k, v, self.training and self.practice or self.evaluation)
  return self.projection(methods.reshape(methods.transpose(y, 2, 3), shape))
end

--- x + attention(norm(x)), then x + mlp(norm(x)); gelu in its tanh form between the two products of the mlp.
---@class luda.nn.TransformerBlock: luda.nn.Module
---@overload fun(width: integer, heads: integer, options: table?): luda.nn.TransformerBlock
local TransformerBlock = modules.module("TransformerBlock")
M.TransformerBlock = TransformerBlock

function TransformerBlock:init(width, heads, given)
  local options = args.options("TransformerBlock", given, {
    causal = true, dropout = 0, bias = true, norm = "layer", mlp = 4, generator = args.absent, kv_heads = heads,
  })
  local bias, noise = { bias = options.bias }, { generator = options.generator }
  local inner = args.integer("TransformerBlock", "mlp times the width", width * options.mlp)
  self.norm1 = layers.norm("TransformerBlock", options.norm, width, options.bias)
  self.attention = MultiheadAttention(width, heads, {
    causal = options.causal, dropout = options.dropout, bias = options.bias, generator = options.generator,
    kv_heads = options.kv_heads,
  })
  self.norm2 = layers.norm("TransformerBlock", options.norm, width, options.bias)
  self.up = layers.Linear(width, inner, { bias = options.bias, activation = "gelu_tanh" })
  self.down = layers.Linear(inner, width, bias)
  self.dropout = layers.Dropout(options.dropout, noise)
end

function TransformerBlock:forward(x)
  x = x + self.dropout(self.attention(self.norm1(x)))
  return x + self.dropout(self.down(self.up(self.norm2(x))))
end

return M
