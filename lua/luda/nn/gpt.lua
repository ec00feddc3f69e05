--- GPT: a stack of causal transformer blocks over token and position embeddings.

local args = require "luda.args"
local autograd = require "luda.autograd"
local create = require "luda.create"
local errors = require "luda.error"
local scope = require "luda.scope"
local sugar = require "luda.sugar"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local attention = require "luda.nn.attention"
local initial = require "luda.nn.initial"
local layers = require "luda.nn.layers"
local losses = require "luda.nn.losses"
local modules = require "luda.nn.module"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

---@class luda.nn.GPT: luda.nn.Module
---@overload fun(options: table): luda.nn.GPT with vocab, context, layers, heads, width, and what has a default below
local GPT = modules.module("GPT")

local DEVIATION = 0.02

--- Normal weights, zero biases; what adds to the residual stream is smaller, by the number of such additions.
local function initialise(self, count)
  for path, module in self:named_modules() do
    if getmetatable(module) == layers.Linear then
      local residual = path:find("projection$") or path:find("down$")
      module.weight = initial.normal(module.weight.shape, residual and DEVIATION / math.sqrt(2 * count) or DEVIATION)
      if module.bias then
        module.bias = initial.constant(module.bias.shape, 0)
      end
    elseif getmetatable(module) == layers.Embedding then
      module.weight = initial.normal(module.weight.shape, DEVIATION)
    end
  end
end

function GPT:init(given)
  local absent = args.absent
  local options = args.options("GPT", given, {
    vocab = absent, context = absent, layers = absent, heads = absent, width = absent,
    dropout = 0, bias = true, tied = true, norm = "layer", mlp = 4, base = 1, kv_heads = absent,
    checkpoint = false,
  })
  for _, name in ipairs { "vocab", "context", "layers", "heads", "width" } do
    layers.positive("GPT", name, options[name])
  end
  if options.checkpoint and options.checkpoint ~= true and options.checkpoint ~= "auto" then
    errors.raise("invalid", "GPT: checkpoint is false, true (blocks run again in backward) or 'auto' (what is cheap), not %s",
      args.describe(options.checkpoint))
  end
  self.context, self.base, self.vocab, self.checkpoint = options.context, options.base, options.vocab, options.checkpoint
  self.tokens = layers.Embedding(options.vocab, options.width, { base = options.base })
  self.positions = layers.Embedding(options.context, options.width)
  self.dropout = layers.Dropout(options.dropout)
  local blocks = {}
  for i = 1, options.layers do
    blocks[i] = attention.TransformerBlock(options.width, options.heads, {
      dropout = options.dropout, bias = options.bias, norm = options.norm, mlp = options.mlp, kv_heads = options.kv_heads,
    })
  end
  self.blocks = blocks
  self.norm = layers.norm("GPT", options.norm, options.width, options.bias)
  if not options.tied then
    self.head = layers.Linear(options.width, options.vocab, { bias = false })
  end
  initialise(self, options.layers)
end

--- The last hidden states [B, T, width].
local function hidden(self, ids)
  if not is_tensor(ids) or ids.ndim ~= 2 then
    errors.raise("shape", "GPT: ids are a tensor [B, T], not %s",
      is_tensor(ids) and args.shape_text(ids.shape) or args.describe(ids))
  end
  local length = methods.size(ids, 2)
  if length > self.context then
    errors.raise("shape", "GPT: %d tokens in a row; the context has %d", length, self.context)
  end
  local x = self.dropout(self.tokens(ids) + methods.narrow(self.positions.weight, 1, 1, length))
  for _, block in ipairs(self.blocks) do
    if self.checkpoint then
      x = autograd[self.checkpoint == "auto" and "recompute" or "checkpoint"](block, x)
    else
      x = block(x)
    end
  end
  return self.norm(x)
end

local function logits_of(self, x)
  local head = self.head
  if head then
    return head(x)
  end
  return methods.matmul(x, methods.t(self.tokens.weight))
end

--- Logits [B, T, vocab] for ids [B, T]; with targets [B, T] the mean loss instead. Targets of -100 are passed over.
---@param ids luda.Tensor
---@param targets? luda.Tensor
---@return luda.Tensor
function GPT:forward(ids, targets)
  local logits = logits_of(self, hidden(self, ids))
  if targets == nil then
    return logits
  end
  return losses.cross_entropy(logits, targets, { base = self.base })
end

-- Generation.

--- The order of a row's likeliest `count` entries; equal ones in order of their positions.
local function likeliest(row, count)
  local order = {}
  for i = 1, #row do
    order[i] = i
  end
  table.sort(order, function(a, b)
    if row[a] ~= row[b] then
      return row[a] > row[b]
    end
    return a < b
  end)
  for i = #order, count + 1, -1 do
    order[i] = nil
  end
  return order
end

--- The position where the running sum of a row (in the order, where one is given) passes a fraction of the whole.
local function pick(row, order, fraction)
  local count, total = order and #order or #row, 0
  for i = 1, count do
    total = total + row[order and order[i] or i]
  end
  local target, last = fraction * total, nil
  for i = 1, count do
    local position = order and order[i] or i
    target = target - row[position]
    if row[position] > 0 then
      last = position
      if target < 0 then
        return position
      end
    end
  end
  return last
end

--- One new id for each row of logits [B, vocab].
local function sample(logits, options)
  logits = methods.to(logits, "cpu", "f64")
  local greedy = options.temperature == 0
  local rows = methods.totable(greedy and logits or functions.softmax(logits * (1 / options.temperature), -1))
  local draws = not greedy and methods.totable(create.rand({ #rows }, { generator = options.generator }))
  local found = {}
  for b, row in ipairs(rows) do
    if greedy then
      found[b] = likeliest(row, 1)[1]
    else
      found[b] = pick(row, options.top_k and likeliest(row, options.top_k), draws[b])
    end
    if not found[b] then
      errors.raise("invalid", "generate: the probabilities of row %d are not finite", b)
    end
  end
  return found
end

--- Room for the rows of ids and `count` more.
local function make_room(ids, count)
  if type(ids) == "table" then
    ids = create.tensor({ ids }, { dtype = "i64" })
  end
  if not is_tensor(ids) or ids.ndim > 2 or ids.numel == 0 then
    errors.raise("shape", "generate: at least one id is needed, in a list or a tensor [T] or [B, T]; got %s",
      is_tensor(ids) and args.shape_text(ids.shape) or args.describe(ids))
  end
  local rows = methods.reshape(methods.to(ids, "cpu", "i64"), { ids.ndim == 2 and methods.size(ids, 1) or 1, -1 })
  local batch, length = methods.size(rows, 1), methods.size(rows, 2)
  local room = create.empty({ batch, length + count }, { dtype = "i64" })
  sugar.assign("generate", methods.narrow(room, 2, 1, length), rows)
  return room, batch, length
end

local function step(self, room, batch, length, options)
  local first = math.max(length - self.context, 0) + 1
  local window = methods.narrow(room, 2, first, length - first + 1)
  local x = hidden(self, methods.to(methods.contiguous(window), self.tokens.weight.device))
  local found = sample(logits_of(self, methods.select(x, 2, -1)), options)
  local data, width = methods.data(room), methods.size(room, 2)
  for b = 1, batch do
    data[(b - 1) * width + length] = found[b] - 1 + self.base
  end
end

local function restore(state)
  state[1]:train(state[2])
end

--- Continues ids (a list, [T] or [B, T]) by `count` sampled ones. Temperature 0 takes the likeliest; top_k looks at so
-- many of the likeliest. Returns all ids, with the dimensions given.
---@param ids luda.Tensor|integer[]
---@param count integer
---@param given? {temperature: number, top_k: integer, generator: luda.Generator}
---@return luda.Tensor
function GPT:generate(ids, count, given)
  local options = args.options("generate", given, { temperature = 1, top_k = args.absent, generator = args.absent })
  if args.number("generate", "temperature", options.temperature) < 0 then
    errors.raise("invalid", "generate: the temperature is %g; it cannot be negative", options.temperature)
  end
  if options.top_k ~= nil then
    layers.positive("generate", "top_k", options.top_k)
  end
  args.integer("generate", "the count", count)
  local state = { self, self.training }
  self:eval()
  return scope.sealed(restore, state, autograd.no_grad, scope.scope, function()
    local room, batch, length = make_room(ids, count)
    for i = 0, count - 1 do
      scope.scope(step, self, room, batch, length + i, options)
    end
    return is_tensor(ids) and ids.ndim == 2 and room or methods.select(room, 1, 1)
  end)
end

return GPT
