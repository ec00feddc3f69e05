--- What runs in the Lua state of a data worker.

local lib = require "luda.ffi"
local Dataset = require "luda.data.dataset"
local host = require "luda.host"
local memory = require "luda.memory"
local message = require "luda.dist.message"
local scope = require "luda.scope"
local sequence = require "luda.data.sequence"
local work = require "luda.dist.work"
local buffer = require "string.buffer"

local ffi = lib.ffi

local function build(job)
  return sequence(Dataset.load(job.what, job.args, job.steps), job.epoch, job.sample)
end

local function make(items, number)
  return message.split("prefetch", { value = items:make(number) })
end

local function hand_over(queue, number, text, list)
  local pointers = ffi.new("luda_tensor *[?]", math.max(#list, 1))
  for k, tensor in ipairs(list) do
    pointers[k - 1] = memory.pointer(tensor)
  end
  lib.check(host.C.luda_queue_put(queue, number, text, #text, pointers, #list))
end

--- Makes item `number`, or says why not; what else was made on the way is released.
local function serve(queue, items, number)
  local ok, text, list = xpcall(make, work.describe, items, number)
  if not ok then
    text, list = message.split("prefetch", { error = text })
  end
  hand_over(queue, number, text, list)
end

--- Called by the bootstrap of luda.data.loader.
---@param payload string
---@return string
return function(payload)
  local job = buffer.decode(payload)
  local queue = ffi.cast("luda_queue *", ffi.cast("uintptr_t", job.queue))
  job.args = message.decode(job.args)
  Dataset.seed = job.seed
  local built, items = xpcall(build, work.describe, job)
  while true do
    local number = tonumber(host.C.luda_queue_take(queue))
    if number < 0 then
      return ""
    elseif built then
      scope.scope(serve, queue, items, number)
    else
      hand_over(queue, number, message.split("prefetch", { error = items }))
    end
  end
end
