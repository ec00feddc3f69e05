--- The models of the training rows, one step of each, and how much arithmetic a step needs.

local luda = require "luda"
local create = require "create"

local nn = luda.nn

local M = {}

local Mlp = nn.module("Mlp")

function Mlp:init()
  self.a, self.b, self.c = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)
end

function Mlp:forward(x, y)
  return nn.cross_entropy(self.c(self.b(self.a(x):relu()):relu()), y)
end

local Convolutional = nn.module("Convolutional")

function Convolutional:init()
  self.a, self.b = nn.Conv2d(1, 32, 3, { padding = 1 }), nn.Conv2d(32, 64, 3, { padding = 1 })
  self.pool = nn.MaxPool2d(2)
  self.c = nn.Linear(64 * 7 * 7, 10)
end

function Convolutional:forward(x, y)
  x = self.pool(self.a(x):relu())
  x = self.pool(self.b(x):relu())
  return nn.cross_entropy(self.c(x:flatten(2)), y)
end

--- Products of a step: three times those of forward, a multiply-add counted as two, of attention the half below the diagonal.
local function gpt_flops(size, batch, length)
  local width = size.width
  local token = 2 * (12 * size.layers * width * width + size.vocab * width) + 2 * size.layers * (length + 1) * width
  return 3 * batch * length * token
end

local function gpt(size, batch, length)
  return {
    optimizer = "AdamW", flops = gpt_flops(size, batch, length),
    make = function()
      return nn.GPT(size)
    end,
    data = function()
      local ids = create.positions(size.vocab, { batch, length + 1 })
      return ids:narrow(2, 1, length):contiguous(), ids:narrow(2, 2, length):contiguous()
    end,
  }
end

local function small(more)
  local size = { vocab = 256, context = 128, layers = 12, heads = 4, width = 128 }
  for name, value in pairs(more or {}) do
    size[name] = value
  end
  return gpt(size, 8, 128)
end

M.list = { "mlp", "convolutional", "character gpt", "gpt2 124M" }

local MODELS = {
  mlp = {
    optimizer = "Adam", flops = 6 * 128 * (784 * 512 + 512 * 512 + 512 * 10), make = Mlp,
    data = function()
      return create.randn(128, 784), create.positions(10, { 128 })
    end,
  },
  convolutional = {
    optimizer = "Adam", flops = 6 * 64 * (28 * 28 * 9 * 32 + 14 * 14 * 9 * 32 * 64 + 64 * 49 * 10), make = Convolutional,
    needs = "Conv2d",
    data = function()
      return create.randn(64, 1, 28, 28), create.positions(10, { 64 })
    end,
  },
  ["character gpt"] = gpt({ vocab = 65, context = 256, layers = 6, heads = 6, width = 384 }, 8, 256),
  ["12-layer gpt"] = small(),
  ["12-layer gpt, dropout"] = small { dropout = 0.1 },
  ["12-layer gpt, dropout, recompute"] = small { dropout = 0.1, checkpoint = "auto" },
  ["gpt2 124M"] = gpt({ vocab = 50257, context = 1024, layers = 12, heads = 12, width = 768 }, 4, 64),
}

--- What the model needs and this build lacks, or nil.
---@param name string
---@return string?
function M.lacks(name)
  local needs = MODELS[name].needs
  return needs and not nn[needs] and "there is no nn." .. needs or nil
end

--- A function that trains once on a batch that stays the same, the products of that in flops, and the parameters.
---@param name string
---@param bf16? boolean
---@return fun()
---@return number
---@return integer
function M.step(name, bf16)
  local entry = MODELS[name]
  local model = entry.make()
  if create.device ~= "cpu" then
    model:to(create.device)
  end
  local x, y = entry.data()
  luda.keep { x, y }
  local optimizer = luda.optim[entry.optimizer](model)
  local function forward()
    return model(x, y)
  end
  local function train()
    local loss = bf16 and luda.autocast(forward) or forward()
    optimizer:step(1e-4, loss:backward())
    return loss:item()
  end
  return train, entry.flops, model:count()
end

return M
