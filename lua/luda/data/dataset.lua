--- Data sets: a number of items and a function that makes one, with steps that wrap it lazily.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local collate = require "luda.data.collate"
local errors = require "luda.error"
local order = require "luda.data.order"
local random = require "luda.random"
local work = require "luda.dist.work"
require "luda.sugar"

local ffi, C = lib.ffi, lib.C
local floor, min = math.floor, math.min

---@class luda.data.Dataset
---@field size integer items
---@field samples integer of an epoch, of all ranks together
---@field span integer samples that an item stands for, of all ranks together
---@field seeds integer[] of the shuffles
---@field item fun(i: integer, epoch: integer): any
---@field recipe? {what: string, args: any, steps: table[]} how a worker makes it
local Dataset = class("luda.data.Dataset")

local words = ffi.new("uint64_t[2]", 0, 1)

--- Seeds the default generator, for each item: set_state without its care.
local function reseed(seed)
  words[0] = seed
  lib.check(C.luda_generator_set(C.luda_context_generator(lib.context), words))
end

---@param size integer
---@param get fun(i: integer, epoch: integer): any item i of 1 … size
function Dataset:init(size, get)
  if size ~= math.huge and args.integer("dataset", "the size", size) < 0 then
    errors.raise("invalid", "dataset: the size is %d", size)
  end
  if type(get) ~= "function" then
    errors.raise("invalid", "dataset: the second argument must be a function, not %s", args.describe(get))
  end
  self.size, self.samples, self.span, self.seeds = size, size, 1, {}
  self.foreign = "dataset(n, get)"
  self.item = function(i, epoch)
    if Dataset.seed then
      reseed(order.hash(Dataset.seed, epoch, i))
    end
    return get(i, epoch)
  end
end

--- The data set that a module or a file makes: it returns function(args), which returns one. Workers make it anew, so that
-- no function has to pass between Lua states.
---@param what string
---@param arguments any plain data and tensors
---@param steps? table[] steps to repeat: name and arguments
---@return luda.data.Dataset
function Dataset.load(what, arguments, steps)
  local set = work.load("dataset", what, "function(args)")(arguments)
  if getmetatable(set) ~= Dataset then
    errors.raise("invalid", "dataset: the function of '%s' returns %s, not a data set", what, args.describe(set))
  end
  set.recipe = { what = what, args = arguments, steps = {} }
  for _, step in ipairs(steps or {}) do
    set = set[step[1]](set, step[2], step[3])
  end
  return set
end

--- What a step makes of a set. `step`: its name and arguments, or its name alone where one of them is a function.
local function derive(source, step, fields)
  local set = setmetatable(fields, Dataset)
  set.samples, set.span, set.seeds = set.samples or source.samples, set.span or source.span, set.seeds or source.seeds
  set.source, set.dealt, set.foreign = source, set.dealt or source.dealt, source.foreign
  local recipe = source.recipe
  if recipe and type(step) == "table" then
    local steps = { unpack(recipe.steps) }
    steps[#steps + 1] = step
    set.recipe = { what = recipe.what, args = recipe.args, steps = steps }
  elseif recipe then
    set.foreign = step
  end
  return set
end

--- The same without the first `start` samples of an epoch (of all ranks together).
---@param start integer
---@return luda.data.Dataset
function Dataset:from(start)
  if self.rebuild then
    return self.rebuild(self.source:from(start))
  elseif start % self.span ~= 0 then
    errors.raise("mismatch", "from: sample %d lies within one of the shuffled items, which are of %d samples", start, self.span)
  end
  local skipped = start / self.span
  return derive(self, "from", {
    size = self.size - skipped,
    item = function(i, epoch)
      return self.item(i + skipped, epoch)
    end,
  })
end

--- Item i; `epoch` matters where the order is shuffled.
---@param i integer
---@param epoch? integer
function Dataset:get(i, epoch)
  if args.integer("get", "the position", i) < 1 or i > self.size then
    errors.raise("index", "get: item %d of %d", i, self.size)
  end
  return self.item(i, epoch or 1)
end

--- Iterates over the items once.
---@param epoch? integer
function Dataset:iter(epoch)
  local i = 0
  return function()
    i = i + 1
    if i <= self.size then
      return self.item(i, epoch or 1)
    end
  end
end

local function mapped(self, step, fn)
  args.callable(type(step) == "table" and step[1] or step, fn)
  local whole = self.whole
  return derive(self, step, {
    size = self.size,
    item = function(i, epoch)
      return fn(self.item(i, epoch))
    end,
    rebuild = function(source)
      return mapped(source, step, fn)
    end,
    whole = whole and mapped(whole, step, fn), rank = self.rank,
  })
end

--- The items through a function.
---@param fn fun(item: any): any
---@return luda.data.Dataset
function Dataset:map(fn)
  return mapped(self, "map", fn)
end

--- The items in an order that is a function of the seed and the epoch.
---@param seed? integer
---@return luda.data.Dataset
function Dataset:shuffle(seed)
  seed = args.integer("shuffle", "the seed", seed or 0)
  if self.size == math.huge then
    errors.raise("invalid", "shuffle: the items have no end; shuffle before repeat_, which makes each time another epoch")
  end
  local place, ordered
  local seeds = { unpack(self.seeds) }
  seeds[#seeds + 1] = seed
  return derive(self, { "shuffle", seed }, {
    size = self.size, seeds = seeds,
    item = function(i, epoch)
      if ordered ~= epoch then
        place, ordered = order.permutation(self.size, seed, epoch), epoch
      end
      return self.item(place(i), epoch)
    end,
  })
end

--- Every size-th item from rank + 1 on; all ranks get the same number. A batch of them is then a global one, of which each
-- rank gets its share of the rows.
---@param rank integer
---@param size integer
---@return luda.data.Dataset
function Dataset:shard(rank, size)
  if args.integer("shard", "the rank", rank) < 0 or rank >= args.integer("shard", "the size", size) then
    errors.raise("invalid", "shard: rank %d of %d; ranks count from 0", rank, size)
  elseif self.dealt then
    errors.raise("invalid", "shard: the items are dealt out already, to %d ranks", self.dealt)
  end
  return derive(self, { "shard", rank, size }, {
    size = floor(self.size / size), span = self.span * size, dealt = size, whole = self, rank = rank,
    item = function(i, epoch)
      return self.item((i - 1) * size + rank + 1, epoch)
    end,
    rebuild = function(source)
      return source:shard(rank, size)
    end,
  })
end

--- Lists of `count` items, of all ranks together; the last is shorter unless drop_last. A rank that gets none of the last
-- one gets an empty list with an item as its field `template`.
---@param count integer
---@param given? {drop_last: boolean}
---@return luda.data.Dataset
function Dataset:batch(count, given)
  local options = args.options("batch", given, { drop_last = false })
  if args.integer("batch", "the size", count) < 1 then
    errors.raise("invalid", "batch: the size is %d; it must be positive", count)
  end
  local items, rank, ranks = self, 0, 1
  if self.rank then
    items, rank, ranks = self.whole, self.rank, self.dealt
  elseif self.dealt and self.span == self.dealt then
    errors.raise("invalid", "batch: a batch is one of all ranks together; call it before repeat_, and shuffle before shard")
  end
  if count % ranks ~= 0 then
    errors.raise("invalid", "batch: a global batch of %d cannot be split evenly among %d ranks", count, ranks)
  end
  return derive(self, { "batch", count, options }, {
    size = (options.drop_last and floor or math.ceil)(items.size / count), span = items.span * count,
    item = function(i, epoch)
      local first = (i - 1) * count
      local global = min(count, items.size - first)
      local list = {}
      for k = first + floor(global * rank / ranks) + 1, first + floor(global * (rank + 1) / ranks) do
        list[#list + 1] = items.item(k, epoch)
      end
      if #list == 0 then
        list.template = items.item(first + 1, epoch)
      end
      return list
    end,
    rebuild = function(source)
      return source:batch(count, given)
    end,
  })
end

--- Each list of items as one value, by a function or as tensors of a batch.
---@param fn? fun(list: any[]): any
---@return luda.data.Dataset
function Dataset:collate(fn)
  return mapped(self, fn and "collate" or { "collate" }, fn or collate)
end

--- The items several times (without end when no number is given), each time as the next epoch.
---@param times? integer
---@return luda.data.Dataset
function Dataset:repeat_(times)
  if times ~= nil and args.integer("repeat_", "the number of times", times) < 0 then
    errors.raise("invalid", "repeat_: %d times", times)
  end
  local size, number = self.size, times or math.huge
  return derive(self, { "repeat_", times }, {
    size = size == 0 and 0 or size * number, samples = size == 0 and 0 or size * self.span * number,
    item = function(i, epoch)
      return self.item((i - 1) % size + 1, epoch + floor((i - 1) / size))
    end,
  })
end

--- The items one after the other, epoch after epoch, made by `workers` threads with Lua states of their own, or by this
-- one (workers = 0); whatever their number, the same values in the same order.
---@param given? {workers: integer, ahead: integer, seed: integer}
---@return luda.data.Loader
function Dataset:prefetch(given)
  return require("luda.data.loader")(self, given)
end

--- Calls fn(…) with the default generator seeded anew for each item that is made meanwhile; it is then what it was.
function Dataset.seeded(seed, fn, ...)
  local generator = random.generator()
  local state = generator:state()
  Dataset.seed = seed
  local ok, value = pcall(fn, ...)
  Dataset.seed = nil
  generator:set_state(state)
  if not ok then
    error(value, 0)
  end
  return value
end

return Dataset
