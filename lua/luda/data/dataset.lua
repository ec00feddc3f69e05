--- Data sets: a number of items and a function that makes one, with steps that wrap it lazily.

local args = require "luda.args"
local class = require "luda.class"
local create = require "luda.create"
local errors = require "luda.error"
local random = require "luda.random"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
require "luda.sugar"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

---@class luda.data.Dataset
---@field size integer
local Dataset = class("luda.data.Dataset")

---@param size integer
---@param get fun(i: integer, epoch: integer): any item i of 1 … size
function Dataset:init(size, get)
  if size ~= math.huge and args.integer("dataset", "the size", size) < 0 then
    errors.raise("invalid", "dataset: the size is %d", size)
  end
  if type(get) ~= "function" then
    errors.raise("invalid", "dataset: the second argument must be a function, not %s", args.describe(get))
  end
  self.size, self.item = size, get
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

--- The items through a function.
---@param fn fun(item: any): any
---@return luda.data.Dataset
function Dataset:map(fn)
  return Dataset(self.size, function(i, epoch)
    return fn(self.item(i, epoch))
  end)
end

--- The items in an order that is a function of the seed and the epoch.
---@param seed? integer
---@return luda.data.Dataset
function Dataset:shuffle(seed)
  seed = args.integer("shuffle", "the seed", seed or 0)
  local order, ordered
  return Dataset(self.size, function(i, epoch)
    if ordered ~= epoch then
      if order then
        scope.release(order)
      end
      local generator = random.generator(seed):set_state { seed, epoch }
      order, ordered = scope.keep(create.randperm(self.size, { generator = generator })), epoch
    end
    return self.item(tonumber(methods.data(order)[i - 1]), epoch)
  end)
end

--- Lists of `count` items; the last is shorter unless drop_last.
---@param count integer
---@param given? {drop_last: boolean}
---@return luda.data.Dataset
function Dataset:batch(count, given)
  local options = args.options("batch", given, { drop_last = false })
  if args.integer("batch", "the size", count) < 1 then
    errors.raise("invalid", "batch: the size is %d; it must be positive", count)
  end
  local number = (options.drop_last and math.floor or math.ceil)(self.size / count)
  return Dataset(number, function(i, epoch)
    local list = {}
    for k = (i - 1) * count + 1, math.min(i * count, self.size) do
      list[#list + 1] = self.item(k, epoch)
    end
    return list
  end)
end

--- One value from a list: tensors are stacked, numbers and booleans become a tensor, tables are joined field by field.
local function join(list)
  local first = list[1]
  if is_tensor(first) then
    return functions.stack(list)
  elseif type(first) == "number" or type(first) == "boolean" or args.is_boxed(first) then
    return create.tensor(list)
  elseif type(first) ~= "table" then
    return list
  end
  local joined = {}
  for name in pairs(first) do
    local column = {}
    for i, item in ipairs(list) do
      column[i] = item[name]
    end
    joined[name] = join(column)
  end
  return joined
end

--- Each list of items as one value, by a function or as tensors of a batch.
---@param fn? fun(list: any[]): any
---@return luda.data.Dataset
function Dataset:collate(fn)
  return self:map(fn or join)
end

--- The items several times (without end when no number is given), each time as the next epoch.
---@param times? integer
---@return luda.data.Dataset
function Dataset:repeat_(times)
  if times ~= nil and args.integer("repeat_", "the number of times", times) < 0 then
    errors.raise("invalid", "repeat_: %d times", times)
  end
  local size = self.size
  return Dataset(size == 0 and 0 or size * (times or math.huge), function(i, epoch)
    return self.item((i - 1) % size + 1, epoch + math.floor((i - 1) / size))
  end)
end

--- Every size-th item from rank + 1 on; all ranks get the same number.
---@param rank integer
---@param size integer
---@return luda.data.Dataset
function Dataset:shard(rank, size)
  if args.integer("shard", "the rank", rank) < 0 or rank >= args.integer("shard", "the size", size) then
    errors.raise("invalid", "shard: rank %d of %d; ranks count from 0", rank, size)
  end
  return Dataset(math.floor(self.size / size), function(i, epoch)
    return self.item((i - 1) * size + rank + 1, epoch)
  end)
end

return Dataset
