--- Batches of token sequences, epoch after epoch, the same for any number of ranks.
--
-- The tokens are cut into samples of `length`, each with the following token as its last target. The order of an epoch is
-- a function of the seed and the epoch's number; a global batch is a run of it, and rank r takes its share of the rows.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local create = require "luda.create"
local errors = require "luda.error"
local places = require "luda.data.place"
local random = require "luda.random"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
require "luda.sugar"

local ffi = lib.ffi
local methods, is_tensor = tensors.methods, tensors.is_tensor

---@class luda.data.Batches
---@field epoch integer the epoch of the next batch, from 1
---@field sample integer samples of that epoch that all ranks together have had
---@field samples integer samples of an epoch
---@field batches integer batches of an epoch
local Batches = class("luda.data.Batches")

local function positive(name, value)
  if args.integer("batches", name, value) < 1 then
    errors.raise("invalid", "batches: %s is %d; it must be positive", name, value)
  end
  return value
end

--- Options that must be given.
local function check(tokens, options)
  if not is_tensor(tokens) or tokens.ndim ~= 1 or tokens.dtype ~= "i64" or tokens.device ~= "cpu" then
    errors.raise("invalid", "batches: tokens are a CPU tensor [N] of i64, not %s",
      is_tensor(tokens) and tokens.dtype .. " " .. args.shape_text(tokens.shape) or args.describe(tokens))
  end
  local batch, size, rank = positive("batch", options.batch), positive("size", options.size), options.rank
  positive("length", options.length)
  args.integer("batches", "the seed", options.seed)
  if batch % size ~= 0 then
    errors.raise("invalid", "batches: a global batch of %d cannot be split evenly among %d ranks", batch, size)
  end
  if args.integer("batches", "the rank", rank) < 0 or rank >= size then
    errors.raise("invalid", "batches: rank %d of %d; ranks count from 0", rank, size)
  end
end

---@param tokens luda.Tensor [N] of i64
---@param given table batch, length; shuffle, seed, rank, size, drop_last, device
function Batches:init(tokens, given)
  local options = args.options("batches", given, {
    batch = args.absent, length = args.absent, shuffle = true, seed = 0, rank = 0, size = 1, drop_last = true, device = "cpu",
  })
  check(tokens, options)
  self.tokens = scope.keep(methods.contiguous(tokens))
  self.samples = math.max(math.floor((methods.size(tokens, 1) - 1) / options.length), 0)
  for name, value in pairs(options) do
    self[name] = value
  end
  local whole = math.floor(self.samples / self.batch)
  self.batches = options.drop_last and whole or math.ceil(self.samples / self.batch)
  if self.batches == 0 then
    errors.raise("invalid", "batches: %d tokens make %d samples of %d; a batch needs %d", methods.size(tokens, 1),
      self.samples, self.length, options.drop_last and self.batch or 1)
  end
  self.epoch, self.sample = 1, 0
end

--- Goes to the next epoch where this one has no batch any more.
local function roll(self)
  local rest = self.samples - self.sample
  if rest <= 0 or (self.drop_last and rest < self.batch) then
    self.epoch, self.sample = self.epoch + 1, 0
  end
end

--- The epoch's order as a C array of samples from 0, or nil for the order of the text.
local function order_of(self)
  if not self.shuffle then
    return nil
  end
  if self.ordered ~= self.epoch then
    if self.order then
      scope.release(self.order)
    end
    local generator = random.generator(self.seed):set_state { self.seed, self.epoch }
    self.order = scope.keep(create.randperm(self.samples, { generator = generator, base = 0 }))
    self.ordered = self.epoch
  end
  return methods.data(self.order)
end

--- Inputs and targets [batch / size, length] of the next global batch; targets are the tokens one further on.
---@return luda.Tensor x
---@return luda.Tensor y
function Batches:next()
  roll(self)
  local length, order = self.length, order_of(self)
  local global = math.min(self.batch, self.samples - self.sample)
  local first = math.floor(global * self.rank / self.size)
  local count = math.floor(global * (self.rank + 1) / self.size) - first
  local x = create.empty({ count, length }, { dtype = "i64" })
  local y = create.empty({ count, length }, { dtype = "i64" })
  local source, inputs, targets = methods.data(self.tokens), methods.data(x), methods.data(y)
  for row = 0, count - 1 do
    local place = self.sample + first + row
    local from = source + (order and tonumber(order[place]) or place) * length
    ffi.copy(inputs + row * length, from, length * 8)
    ffi.copy(targets + row * length, from + 1, length * 8)
  end
  self.sample = self.sample + global
  roll(self)
  if self.device ~= "cpu" then
    return methods.to(x, self.device), methods.to(y, self.device)
  end
  return x, y
end

--- Where the loader stands, as plain data; the same on all ranks.
---@return table
function Batches:state()
  return {
    epoch = self.epoch, sample = self.sample, seed = self.seed, shuffle = self.shuffle, length = self.length,
    samples = self.samples,
  }
end

--- One sentence for each thing that keeps a state from being loaded; none: it fits.
---@param state table
---@return string[]
function Batches:check_state(state)
  if type(state) ~= "table" then
    return places.no_state(state)
  end
  local found = {}
  for _, name in ipairs { "length", "samples" } do
    if state[name] ~= self[name] then
      found[#found + 1] = ("loader: %s is %s in the state, %s here; use the same tokens and length"):format(name,
        tostring(state[name]), tostring(self[name]))
    end
  end
  places.check(found, state, self.samples)
  return found
end

--- Goes on where a state was taken, also with another number of ranks or another batch.
---@param state table
---@return luda.data.Batches self
function Batches:load_state(state)
  places.refuse(self, state)
  self.epoch, self.sample, self.seed, self.shuffle = state.epoch, state.sample, state.seed, state.shuffle ~= false
  self.ordered = nil
  return self
end

return Batches
