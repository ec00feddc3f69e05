--- What runs in the new Lua state of a rank thread.

local lib = require "luda.ffi"
local errors = require "luda.error"
local Comm = require "luda.dist.comm"
local message = require "luda.dist.message"
local work = require "luda.dist.work"

local ffi = lib.ffi

--- The function that a module or file returns; a script has none and has run by then.
local function load_work(job)
  if job.script then
    arg = job.script_arguments -- luacheck: globals arg
    local chunk, problem = loadfile(job.script)
    if not chunk then
      errors.raise("io", "run: %s", problem)
    end
    return function()
      chunk(unpack(job.script_arguments))
    end
  end
  return work.load("spawn", job.what, "function(comm, args)")
end

local function run(job)
  return message.encode("spawn", { value = load_work(job)(job.comm, message.decode(job.args)) })
end

--- Called by the bootstrap of luda.dist.spawn.
---@param index integer the rank
---@param payload string
---@return string
return function(index, payload)
  local job = require("string.buffer").decode(payload)
  local comm = Comm(ffi.cast("luda_comm *", ffi.cast("uintptr_t", job.comm)), { local_rank = index, device = job.device })
  debug.getregistry()["luda.dist.thread"] = comm
  job.comm = comm
  local ok, result = xpcall(run, work.describe, job)
  if not ok then
    result.rank = result.rank or index
    if comm.pointer and result.code ~= "cancelled" and result.code ~= "peer" then
      comm:abort(("rank %d failed: %s"):format(index, result.message))
    end
    result = message.encode("spawn", { error = result })
  end
  comm:close()
  return result
end
