--- The items of a data set one after the other, epoch after epoch, made ahead by worker threads or on demand by this one.
--
-- A worker takes the next number from a queue in C and makes the item that stands there; numbers count items from where the
-- loader started. The loader reads results in the order of the numbers, so what it returns does not depend on how many
-- workers there are, and its state is that of what it has returned.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local Dataset = require "luda.data.dataset"
local errors = require "luda.error"
local places = require "luda.data.place"
local host = require "luda.host"
local memory = require "luda.memory"
local message = require "luda.dist.message"
local sequence = require "luda.data.sequence"
local buffer = require "string.buffer"

local ffi, C = lib.ffi, lib.C

local BOOTSTRAP = [[
return function(_, payload)
  return require("luda.data.worker")(payload)
end
]]
local PATIENCE = 200 -- milliseconds between looks at whether the workers still live

---@class luda.data.Loader
---@field epoch integer the epoch of the next item, from 1
---@field sample integer samples of that epoch that all ranks together have had
---@field samples integer samples of an epoch
local Loader = class("luda.data.Loader")

---@param set luda.data.Dataset
---@param given table workers, ahead, seed
function Loader:init(set, given)
  local options = args.options("prefetch", given, { workers = 2, ahead = args.absent, seed = 0 })
  self.workers = args.integer("prefetch", "the number of workers", options.workers)
  self.ahead = args.integer("prefetch", "ahead", options.ahead or math.max(2 * self.workers, 1))
  self.seed = args.integer("prefetch", "the seed", options.seed)
  if self.workers < 0 or self.workers > 256 or self.ahead < 1 then
    errors.raise("invalid", "prefetch: %d workers, %d items ahead; 0 to 256 workers are possible, and at least one item",
      self.workers, self.ahead)
  elseif set.size == 0 then
    errors.raise("invalid", "prefetch: the data set has no items")
  elseif self.workers > 0 and not set.recipe then
    errors.raise("invalid", "prefetch: %s was given a function, which cannot pass to a worker; let a file return "
      .. "function(args) that makes the data set, and begin with dataset(\"file.lua\", args), or use workers = 0", set.foreign)
  end
  self.set, self.samples = set, set.samples
  self:start(1, 0)
end

function Loader:__tostring()
  return ("luda.data.Loader(%d workers, sample %d of epoch %d)"):format(self.workers, self.sample, self.epoch)
end

--- Stands at a sample of an epoch; workers begin with the next next().
function Loader:start(epoch, sample)
  self:close()
  self.sequence = sequence(self.set, epoch, sample)
  self.number = 0
  self.epoch, self.sample = self.sequence:standing(0)
end

-- Workers.

local function start_workers(self)
  local out = ffi.new("luda_queue *[1]")
  lib.check(host.C.luda_queue_new(self.ahead, out))
  self.queue = ffi.gc(out[0], host.C.luda_queue_release)
  local recipe, count = self.set.recipe, self.workers
  local payloads, sizes, texts = ffi.new("const char *[?]", count), ffi.new("size_t[?]", count), {}
  for i = 1, count do
    texts[i] = buffer.encode {
      queue = tonumber(ffi.cast("uintptr_t", self.queue)), what = recipe.what, steps = recipe.steps, seed = self.seed,
      args = message.encode("prefetch", recipe.args), epoch = self.epoch, sample = self.sample,
    }
    payloads[i - 1], sizes[i - 1] = texts[i], #texts[i]
  end
  local threads = ffi.new("luda_rank_threads *[1]")
  lib.check(host.C.luda_rank_threads_start(count, package.path, BOOTSTRAP, payloads, sizes, threads))
  self.threads = threads[0]
  host.C.luda_queue_own(self.queue, self.threads)
  self.sequence, self.number = sequence(self.set, self.epoch, self.sample), 0
end

--- Raises if a worker's thread has ended, which none does by itself.
local function check_alive(self)
  local index = host.C.luda_rank_threads_wait(self.threads, 0)
  if index >= 0 then
    local size, failed = ffi.new("size_t[1]"), ffi.new("int[1]")
    local text = ffi.string(host.C.luda_rank_threads_result(self.threads, index, size, failed), size[0])
    self:close()
    errors.raise("internal", "prefetch: worker %d ended: %s", index + 1, text)
  end
end

local function receive(self)
  if not self.queue then
    start_workers(self)
  end
  while host.C.luda_queue_wait(self.queue, PATIENCE) == 0 do
    check_alive(self)
  end
  local size, list = ffi.new("size_t[1]"), ffi.new("luda_tensor *const *[1]")
  local bytes = host.C.luda_queue_result(self.queue, size, list)
  local result = message.join(ffi.string(bytes, size[0]), function(k)
    C.luda_tensor_retain(list[0][k - 1])
    return memory.adopt(list[0][k - 1])
  end)
  host.C.luda_queue_next(self.queue)
  return result
end

--- A worker's error, raised here; the item stays the next one, and workers start anew with it.
local function raise(self, problem)
  self:close()
  local op = problem.op and problem.op .. ": " or ""
  local place = (problem.where or "?") ~= "?" and ", " .. problem.where or ""
  errors.raise_with(problem.code, ("%s%s (a worker's item at sample %d of epoch %d%s)"):format(op, problem.message,
    self.sample, self.epoch, place), { detail = problem.detail, traceback = problem.traceback })
end

--- The next item.
---@return any
function Loader:next()
  local value
  if self.workers > 0 then
    local result = receive(self)
    if result.error then
      raise(self, result.error)
    end
    value = result.value
  else
    value = Dataset.seeded(self.seed, self.sequence.make, self.sequence, self.number)
  end
  self.number = self.number + 1
  self.epoch, self.sample = self.sequence:standing(self.number)
  return value
end

--- Ends the workers after what each is doing; what they have made ahead is given back. next() starts them anew.
function Loader:close()
  if self.queue then
    host.C.luda_queue_release(ffi.gc(self.queue, nil))
    self.queue, self.threads = nil, nil
  end
end

-- State.

--- Where the loader stands, as plain data; the same on all ranks.
---@return table
function Loader:state()
  return { epoch = self.epoch, sample = self.sample, seed = self.seed, samples = self.samples, shuffles = self.set.seeds }
end

--- One sentence for each thing that keeps a state from being loaded; none: it fits.
---@param state table
---@return string[]
function Loader:check_state(state)
  if type(state) ~= "table" or type(state.shuffles) ~= "table" then
    return places.no_state(state)
  end
  local found = {}
  if state.samples ~= self.samples then
    found[1] = ("loader: an epoch has %s samples in the state, %d here"):format(tostring(state.samples), self.samples)
  end
  local there, here = table.concat(state.shuffles, ", "), table.concat(self.set.seeds, ", ")
  if there ~= here then
    found[#found + 1] = ("loader: shuffled with seed '%s' in the state, '%s' here"):format(there, here)
  end
  places.check(found, state, self.samples)
  if #found == 0 then
    local fits, problem = pcall(self.set.from, self.set, state.sample)
    found[1] = not fits and "loader: " .. problem.message or nil
  end
  return found
end

--- Goes on where a state was taken, also with another number of ranks, workers or samples in a batch.
---@param state table
---@return luda.data.Loader self
function Loader:load_state(state)
  places.refuse(self, state)
  self.seed = state.seed
  self:start(state.epoch, state.sample)
  return self
end

return Loader
