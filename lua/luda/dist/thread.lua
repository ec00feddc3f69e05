--- What runs in the new Lua state of a rank thread.

local lib = require "luda.ffi"
local errors = require "luda.error"
local Comm = require "luda.dist.comm"
local message = require "luda.dist.message"

local ffi = lib.ffi

local function not_found(what)
  errors.raise("io", "spawn: there is neither a file nor a module '%s'", what)
end

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
  local chunk, problem = loadfile(job.what)
  if chunk then
    return chunk()
  elseif not problem:find("cannot open", 1, true) then
    errors.raise("invalid", "spawn: %s", problem)
  elseif not package.searchpath(job.what, package.path) then
    not_found(job.what)
  end
  return require(job.what)
end

local FIELDS = { "code", "op", "message", "where", "traceback", "rank", "culprits", "detail" }

local function describe(err)
  if getmetatable(err) ~= errors.Error then
    return { code = "internal", message = tostring(err), traceback = debug.traceback("", 2) }
  end
  local fields = {}
  for _, name in ipairs(FIELDS) do
    fields[name] = err[name]
  end
  return fields
end

local function run(job)
  local work = load_work(job)
  if type(work) ~= "function" then
    errors.raise("invalid", "spawn: '%s' returns a %s, not a function(comm, args)", job.what, type(work))
  end
  return message.encode("spawn", { value = work(job.comm, message.decode(job.args)) })
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
  local ok, result = xpcall(run, describe, job)
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
