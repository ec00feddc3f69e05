--- The elementary layers.

local args = require "luda.args"
local attributes = require "luda.attributes"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local fields = require "luda.nn.fields"
local initial = require "luda.nn.initial"
local modules = require "luda.nn.module"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

local M = {}

--- A whole number above zero.
local function positive(op, name, value)
  if args.integer(op, name, value) < 1 then
    errors.raise("invalid", "%s: %s is %d; it must be positive", op, name, value)
  end
  return value
end
M.positive = positive

--- x @ weight + bias, for any leading dimensions, and an activation ("relu" or "gelu_tanh") in the same pass where one is
-- asked for. The weight is [in, out]; both start uniform within 1 / sqrt(in).
---@class luda.nn.Linear: luda.nn.Module
---@overload fun(inputs: integer, outputs: integer, options: {bias: boolean, activation: string}?): luda.nn.Linear
local Linear = modules.module("Linear")
M.Linear = Linear

function Linear:init(inputs, outputs, given)
  local options = args.options("Linear", given, { bias = true, activation = "none" })
  if not attributes.choices.activation[options.activation] then
    errors.raise("invalid", "Linear: the activation is 'none', 'relu' or 'gelu_tanh', not %s",
      args.describe(options.activation))
  end
  self.fused = options.activation ~= "none" and { activation = options.activation } or nil
  local bound = math.sqrt(1 / positive("Linear", "the number of inputs", inputs))
  self.weight = initial.uniform({ inputs, positive("Linear", "the number of outputs", outputs) }, bound)
  if options.bias then
    self.bias = initial.uniform({ outputs }, bound)
  end
end

function Linear:forward(x)
  return functions.linear(x, self.weight, self.bias, self.fused)
end

--- Rows of a table by id. Ids count from `base`; the weight is [count, width] and starts standard normal.
---@class luda.nn.Embedding: luda.nn.Module
---@overload fun(count: integer, width: integer, options: {base: integer}?): luda.nn.Embedding
local Embedding = modules.module("Embedding")
M.Embedding = Embedding

function Embedding:init(count, width, given)
  local options = args.options("Embedding", given, { base = 1 })
  self.weight = initial.normal({ positive("Embedding", "the number of rows", count),
    positive("Embedding", "the width", width) }, 1)
  self.lookup = { base = args.integer("Embedding", "base", options.base), dim = 1 }
end

function Embedding:forward(ids)
  return methods.index_select(self.weight, ids, self.lookup)
end

local function measure(self, name, sizes, options)
  sizes = type(sizes) == "table" and sizes or { sizes }
  local width = 1
  for _, size in ipairs(sizes) do
    width = width * positive(name, "a size", size)
  end
  self.sizes, self.width, self.options = sizes, width, { eps = args.number(name, "eps", options.eps) }
end

--- Mean 0 and variance 1 over the last dimension, or over the last ones when a list of sizes is given; then times weight
-- plus bias.
---@class luda.nn.LayerNorm: luda.nn.Module
---@overload fun(sizes: integer|integer[], options: {eps: number, affine: boolean, bias: boolean}?): luda.nn.LayerNorm
local LayerNorm = modules.module("LayerNorm")
M.LayerNorm = LayerNorm

function LayerNorm:init(sizes, given)
  local options = args.options("LayerNorm", given, { eps = 1e-5, affine = true, bias = true })
  measure(self, "LayerNorm", sizes, options)
  if options.affine then
    self.weight = initial.constant({ self.width }, 1)
    if options.bias then
      self.bias = initial.constant({ self.width }, 0)
    end
  end
end

local function normalize(self, x)
  local weight, bias = self.weight, self.bias
  if bias then
    return functions.layer_norm(x, weight, bias, self.options)
  elseif weight then
    return functions.layer_norm(x, weight, self.options)
  end
  return functions.layer_norm(x, self.options)
end

--- normalise(self, rows) where the last dimensions that self.sizes names are one.
local function over_rows(self, x, normalise)
  local count = #self.sizes
  if count == 1 then
    return normalise(self, x)
  end
  local shape, rows = x.shape, {}
  for i = 1, #shape - count do
    rows[i] = shape[i]
  end
  rows[#rows + 1] = self.width
  return methods.reshape(normalise(self, methods.reshape(x, rows)), shape)
end

function LayerNorm:forward(x)
  return over_rows(self, x, normalize)
end

--- Divides by the root of the mean square over the last dimension, or over the last ones when a list of sizes is given; then
-- times weight.
---@class luda.nn.RMSNorm: luda.nn.Module
---@overload fun(sizes: integer|integer[], options: {eps: number, affine: boolean}?): luda.nn.RMSNorm
local RMSNorm = modules.module("RMSNorm")
M.RMSNorm = RMSNorm

function RMSNorm:init(sizes, given)
  local options = args.options("RMSNorm", given, { eps = 1e-5, affine = true })
  measure(self, "RMSNorm", sizes, options)
  if options.affine then
    self.weight = initial.constant({ self.width }, 1)
  end
end

local function scale_rows(self, x)
  if self.weight then
    return functions.rms_norm(x, self.weight, self.options)
  end
  return functions.rms_norm(x, self.options)
end

function RMSNorm:forward(x)
  return over_rows(self, x, scale_rows)
end

--- The normalization that the option `norm` of a model names.
function M.norm(name, norm, width, bias)
  if norm == "layer" then
    return LayerNorm(width, { bias = bias })
  elseif norm == "rms" then
    return RMSNorm(width)
  end
  errors.raise("invalid", "%s: norm is 'layer' or 'rms', not %s", name, args.describe(norm))
end

--- In training, zeroes elements with probability p and divides the others by 1 - p.
---@class luda.nn.Dropout: luda.nn.Module
---@overload fun(p: number?, options: {generator: luda.Generator}?): luda.nn.Dropout
local Dropout = modules.module("Dropout")
M.Dropout = Dropout

function Dropout:init(p, given)
  local options = args.options("Dropout", given, { generator = args.absent })
  p = args.number("Dropout", "p", p or 0.5)
  if not (p >= 0 and p < 1) then
    errors.raise("invalid", "Dropout: p is %g; it must be at least 0 and below 1", p)
  end
  self.p, self.options = p, { p = p, generator = options.generator }
end

function Dropout:forward(x)
  if not self.training or self.p == 0 then
    return x
  end
  return functions.dropout(x, self.options)
end

--- Modules (or plain functions) one after the other.
---@class luda.nn.Sequential: luda.nn.Module
---@overload fun(...: luda.nn.Module|fun(x: luda.Tensor): luda.Tensor): luda.nn.Sequential
local Sequential = modules.module("Sequential")
M.Sequential = Sequential

function Sequential:init(first, ...)
  local list = { first, ... }
  if type(first) == "table" and not fields.is_module(first) and select("#", ...) == 0 then
    list = first
  end
  for i, step in ipairs(list) do
    if type(step) ~= "function" and not fields.is_module(step) then
      errors.raise("invalid", "Sequential: entry %d must be a module or a function, not %s", i, args.describe(step))
    end
    self[i] = step
  end
  self.length = #list
end

function Sequential:forward(x, ...)
  for i = 1, self.length do
    if i == 1 then
      x = self[i](x, ...)
    else
      x = self[i](x)
    end
  end
  return x
end

-- Activations: functions, and modules around them.

---@type table<string, fun(x: luda.Tensor): luda.Tensor>
M.functions = { relu = functions.relu, tanh = functions.tanh, sigmoid = functions.sigmoid, silu = functions.silu }

--- x times the normal distribution function of x; approximate = "tanh" takes the tanh form.
---@param x luda.Tensor
---@param given? {approximate: "none"|"tanh"}
---@return luda.Tensor
function M.functions.gelu(x, given)
  local form = args.options("gelu", given, { approximate = "none" }).approximate
  if form == "tanh" then
    return functions.gelu_tanh(x)
  elseif form == "none" then
    return functions.gelu(x)
  end
  return errors.raise("invalid", "gelu: approximate is 'none' or 'tanh', not %s", args.describe(form))
end

for class_name, name in pairs { ReLU = "relu", Tanh = "tanh", Sigmoid = "sigmoid", SiLU = "silu", GELU = "gelu" } do
  local Activation, fn = modules.module(class_name), M.functions[name]
  M[class_name] = Activation

  function Activation:init(given)
    args.options(class_name, given, { approximate = name == "gelu" and args.absent or nil })
    self.options = given
  end

  function Activation:forward(x)
    if not is_tensor(x) then
      errors.raise("invalid", "%s: expected a tensor, got %s", class_name, args.describe(x))
    end
    return fn(x, self.options)
  end
end

return M
