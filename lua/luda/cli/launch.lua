--- Rank processes: starting them, on one host or as one of several, again after a failure, and what to say in the end.

local lib = require "luda.ffi"
local folder = require "luda.folder"
local host = require "luda.host"

local ffi, C = lib.ffi, lib.C

local M = {}

local WAIT_MS = 1000

--- NULL-ended array of C strings; `anchor` keeps them alive.
local function c_strings(list, anchor)
  local array = ffi.new("const char *[?]", #list + 1)
  for i, text in ipairs(list) do
    array[i - 1] = text
  end
  anchor[#anchor + 1] = { list, array }
  return array
end

local function environment(options, index, start, meeting)
  local list = {
    "LUDA_RANK=" .. options.first_rank + index, "LUDA_WORLD_SIZE=" .. options.size, "LUDA_LOCAL_RANK=" .. index,
    "LUDA_NODE=" .. options.node, "LUDA_RENDEZVOUS=" .. meeting.address, "LUDA_SESSION=" .. meeting.session,
    "LUDA_RESTART=" .. start,
  }
  local function set(name, value)
    if value then
      list[#list + 1] = name .. "=" .. value
    end
  end
  set("LUDA_DEVICE", options.devices[index + 1])
  set("LUDA_THREADS", not os.getenv("LUDA_THREADS") and math.max(1, math.floor(C.luda_threads() / options.ranks)))
  set("LUDA_TIMEOUT", options.timeout)
  set("LUDA_SECRET_FILE", options.secret_file)
  set("LUDA_LOG_DIR", options.log_dir)
  return list
end

--- One start of this host's ranks, until all have ended.
local function run_once(options, start, meeting)
  local anchor, environments = {}, ffi.new("const char *const *[?]", options.ranks)
  for index = 0, options.ranks - 1 do
    environments[index] = c_strings(environment(options, index, start, meeting), anchor)
  end
  local settings = ffi.new("luda_launch_options", {
    size = ffi.sizeof("luda_launch_options"), ranks = options.ranks, first_rank = options.first_rank,
    prefix = options.bare and 0 or 1, arguments = c_strings(options.command, anchor), environment = environments,
    grace = options.grace or 5, stop_grace = options.grace or 30, log_folder = options.log_dir, log_append = start > 0 and 1 or 0,
  })
  local launch, report = ffi.new("luda_launch *[1]"), ffi.new("luda_launch_report[1]")
  lib.check(host.C.luda_launch_new(settings, launch))
  repeat until host.C.luda_launch_wait(launch[0], WAIT_MS, report) == 1
  host.C.luda_launch_release(launch[0])
  return { status = report[0].status, rank = report[0].rank, signal = report[0].signal, stopped = report[0].stopped ~= 0,
    node = options.node }
end

--- The outcome to report: of a rank that failed by itself before one that lost another, then by rank.
local function worst(outcomes)
  local function weight(outcome)
    local kind = outcome.status == 0 and 0 or outcome.status == host.C.LUDA_EXIT_OTHER_RANK and 1 or 2
    return kind * 1e6 - outcome.rank
  end
  local chosen = outcomes[1]
  for _, outcome in ipairs(outcomes) do
    if weight(outcome) > weight(chosen) then
      chosen = outcome
    end
  end
  return chosen
end

local function say(...)
  io.stderr:write("luda run: ", string.format(...), "\n")
end

local function describe(outcome, options)
  local how = outcome.signal ~= 0 and ("was killed by signal %d"):format(outcome.signal)
    or ("ended with status %d"):format(outcome.status)
  local who = outcome.rank < 0 and "the process that kept the ranks" or "rank " .. outcome.rank
  return ("%s%s %s"):format(who, options.nodes > 1 and (" (node %d)"):format(outcome.node) or "", how)
end

--- Where the failed rank's output and last calls are.
local function files_of(outcome, options)
  if not options.log_dir or outcome.node ~= options.node or outcome.rank < 0 then
    return ""
  end
  local prefix, found = ("rank-%d."):format(outcome.rank), {}
  for _, name in ipairs(folder.list(options.log_dir)) do
    if name:sub(1, #prefix) == prefix then
      found[#found + 1] = options.log_dir .. "/" .. name
    end
  end
  return #found > 0 and "; see " .. table.concat(found, ", ") or ""
end

--- One start on all nodes: the outcome that counts, how many starts are allowed, and what was lost on the way.
local function run_all(options, start)
  if options.nodes == 1 then
    local meeting = require("luda.dist").rendezvous { size = options.size, bind = options.rendezvous, secret = options.secret }
    local outcome = run_once(options, start, meeting)
    meeting:close()
    return outcome, options.restarts
  end
  local link = require("luda.cli.nodes").join(options, start)
  local own = run_once(options, start, link)
  local outcomes, problem = link:share(own)
  link:close()
  if problem then
    say("%s", problem)
    own.status = own.status ~= 0 and own.status or 1
    return own, 0
  end
  local outcome = worst(outcomes)
  for _, each in ipairs(outcomes) do
    outcome.stopped = outcome.stopped or each.stopped
  end
  return outcome, link.restarts
end

--- Runs the ranks of this host to their end; the exit status.
---@param options table see luda.cli.run
---@return integer
function M.run(options)
  if options.log_dir then
    folder.make(options.log_dir)
  end
  for start = 0, math.huge do
    local outcome, restarts = run_all(options, start)
    if outcome.status == 0 then
      if outcome.stopped then
        say("asked to stop; all ranks ended well")
      end
      return 0
    end
    local what, where = describe(outcome, options), files_of(outcome, options)
    if outcome.stopped then
      say("asked to stop; %s%s", what, where)
    elseif start < restarts then
      say("%s; restart %d of %d%s", what, start + 1, restarts, where)
    else
      local spent = restarts > 0 and ("; %d of %d restarts were made"):format(start, restarts) or ""
      say("%s; the others were stopped%s%s", what, spent, where)
    end
    if outcome.stopped or start >= restarts then
      return outcome.status
    end
  end
end

return M
