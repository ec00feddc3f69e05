--- Rank threads: the same work on n new threads, each with its own Lua state, joined by a communicator.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local host = require "luda.host"
local message = require "luda.dist.message"
local buffer = require "string.buffer"

local ffi, C = lib.ffi, lib.C

local BOOTSTRAP = [[
return function(index, payload)
  return require("luda.dist.thread")(index, payload)
end
]]

local M = {}

local function address(pointer)
  return tonumber(ffi.cast("uintptr_t", pointer))
end

--- A communicator for each rank; their references pass to the threads.
local function make_comms(count, timeout)
  local options = ffi.new("luda_comm_options")
  options.size, options.timeout = ffi.sizeof(options), timeout or 0
  local comms = ffi.new("luda_comm *[?]", count)
  lib.check(C.luda_comm_new_local_group(count, options, comms))
  return comms
end

local function start(count, jobs)
  local payloads, sizes = ffi.new("const char *[?]", count), ffi.new("size_t[?]", count)
  for i = 1, count do
    payloads[i - 1], sizes[i - 1] = jobs[i], #jobs[i]
  end
  local out = ffi.new("luda_rank_threads *[1]")
  lib.check(host.C.luda_rank_threads_start(count, package.path, BOOTSTRAP, payloads, sizes, out))
  return ffi.gc(out[0], host.C.luda_rank_threads_release)
end

--- Results and errors by rank, in the order in which the threads end.
local function collect(threads)
  local size, failed = ffi.new("size_t[1]"), ffi.new("int[1]")
  local results, problems = {}, {}
  while true do
    local index = host.C.luda_rank_threads_wait(threads, -1)
    if index < 0 then
      return results, problems
    end
    local text = ffi.string(host.C.luda_rank_threads_result(threads, index, size, failed), size[0])
    local outcome = failed[0] == 0 and message.decode(text)
      or { error = { code = "internal", message = text, rank = index } }
    results[index + 1] = outcome.value
    if outcome.error then
      problems[#problems + 1] = outcome.error
    end
  end
end

--- The failure that came first by itself, not the ones that it caused elsewhere.
local function raise_first(problems)
  local chosen = problems[1]
  for _, problem in ipairs(problems) do
    if problem.code ~= "cancelled" and problem.code ~= "peer" then
      chosen = problem
      break
    end
  end
  local op = chosen.op and chosen.op .. ": " or ""
  errors.raise_with(chosen.code, ("%s%s (rank %d, %s)"):format(op, chosen.message, chosen.rank, chosen.where or "?"),
    { rank = chosen.rank, culprits = chosen.culprits, detail = chosen.detail, traceback = chosen.traceback })
end

local function run(count, options, make_job)
  local comms = make_comms(count, options.timeout)
  local jobs = {}
  for i = 1, count do
    local job = make_job(i)
    job.comm = address(comms[i - 1])
    job.device = options.devices and options.devices[i] or "cpu"
    jobs[i] = buffer.encode(job)
  end
  local results, problems = collect(start(count, jobs))
  if #problems > 0 then
    raise_first(problems)
  end
  return results
end

local function rank_count(op, count)
  count = args.integer(op, "the number of ranks", count)
  if count < 1 or count > 1024 then
    errors.raise("invalid", "%s: %d ranks; 1 to 1024 are possible", op, count)
  end
  return count
end

--- Runs function(comm, args), which a module or file returns, in n new states on n new threads. The list of what the ranks
--- returned; the first error aborts the others and is raised with its rank.
---@param count integer
---@param what string module name or file
---@param arguments? any plain data and tensors; copied
---@param options? {timeout: number?, devices: string[]?}
---@return any[]
function M.spawn(count, what, arguments, options)
  options = args.options("spawn", options, { timeout = args.absent, devices = args.absent })
  count = rank_count("spawn", count)
  if type(what) ~= "string" then
    errors.raise("invalid", "spawn: the work is a module name or a file, not %s; functions cannot pass between states",
      args.describe(what))
  end
  return run(count, options, function()
    return { what = what, args = message.encode("spawn", arguments, true) }
  end)
end

--- Runs a script once in each of n rank threads, as `luda run --threads` does.
function M.run_script(count, script, script_arguments, options)
  return run(rank_count("run", count), options or {}, function()
    return { script = script, script_arguments = script_arguments, args = message.encode("run", nil) }
  end)
end

return M
