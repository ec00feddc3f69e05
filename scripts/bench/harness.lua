--- Timing: samples of one row, taken in turn from the limit, LUDA and the peer, and what follows from them.
--
-- A row says what to run and what bounds it:
--   section, case, dtype, unit ("GB/s", "GFLOP/s", "ns", "us", "ms")
--   make()      returns what the code sees as locals (NAMES below)
--   code        an expression that makes one tensor, which is released at once;
--   statement   or a statement, of which scopes hold 100 runs;
--   step        or one that runs in a scope of its own;
--   outside     or one that runs in no scope
--   interpreted the JIT is off
--   once        a sample is one run
--   bytes, flops   for rates
--   operators   how many operators one run is, for rows in ns
--   minus       a step whose time is taken off: the row says what its own code adds to it
--   bounds      list of what limits.lua makes; `sum` adds them up instead of taking the largest
--   peer        the request that the peer understands

local luda = require "luda"

local M = {}

local NAMES = { "x", "y", "w", "b", "g", "index", "out", "run" }
local GROUP = 100 -- runs in one scope

-- Numbers.

---@param list number[]
---@return number
function M.median(list)
  local sorted = { unpack(list) }
  table.sort(sorted)
  local middle = math.floor(#sorted / 2)
  return #sorted % 2 == 1 and sorted[middle + 1] or (sorted[middle] + sorted[middle + 1]) / 2
end

--- The distance of the extremes, as a share of the median.
---@param list number[]
---@return number
function M.spread(list)
  local low, high = math.huge, -math.huge
  for _, value in ipairs(list) do
    low, high = math.min(low, value), math.max(high, value)
  end
  return (high - low) / M.median(list)
end

--- Seconds of one run as the row's unit says it.
---@param row table
---@param seconds number
---@return number
function M.in_unit(row, seconds)
  if row.unit == "GB/s" then
    return row.bytes / seconds / 1e9
  elseif row.unit == "GFLOP/s" then
    return row.flops / seconds / 1e9
  end
  return seconds * ({ ns = 1e9, us = 1e6, ms = 1e3 })[row.unit] / (row.operators or 1)
end

-- Code.

local function locals()
  local fields = {}
  for i, name in ipairs(NAMES) do
    fields[i] = "v." .. name
  end
  return ("local v, luda, scope, sync = ...\nlocal %s = %s\n"):format(table.concat(NAMES, ", "), table.concat(fields, ", "))
end

local IN_SCOPES = [[
local function some(n) for _ = 1, n do %s end end
return function(n)
  while n > 0 do scope(some, n < GROUP and n or GROUP); n = n - GROUP end
  sync()
end]]

local TEMPLATES = {
  code = IN_SCOPES:format("local r = %s; r:release()"):gsub("GROUP", GROUP),
  statement = IN_SCOPES:gsub("GROUP", GROUP),
  step = "local function once() %s end\nreturn function(n) for _ = 1, n do scope(once) end; sync() end",
  outside = "return function(n) for _ = 1, n do %s end; sync() end",
}

--- A function that runs a row n times. Its loop is compiled anew, so that no other row has shaped its traces.
---@param row table
---@param values table<string, any>
---@param sync fun()
---@return fun(n: integer)
function M.compile(row, values, sync)
  for kind, template in pairs(TEMPLATES) do
    local body = row[kind]
    if body then
      local text = locals() .. template:gsub("%%s", function()
        return body
      end)
      return assert(loadstring(text, "=" .. row.case))(values, luda, luda.scope, sync)
    end
  end
  error("the row has nothing to run", 0)
end

-- Samples.

--- How many runs take about `seconds`.
local function calibrate(clock, run, seconds)
  local n = 1
  run(1)
  while true do
    local start = clock()
    run(n)
    local took = clock() - start
    if took >= seconds or n >= 2 ^ 28 then
      return n
    end
    n = math.min(math.max(math.ceil(n * seconds / math.max(took, 1e-7) * 1.1), n + 1), n * 16)
  end
end

local function without_jit(run)
  return function(n)
    jit.off()
    run(n)
    jit.on()
  end
end

--- One sample after another: each bound, then LUDA, then the peer, so that all see the machine in the same state.
---@param row table
---@param given {clock: fun(): number, samples: integer, seconds: number, peer: table?, sync: fun()}
---@return {own: number[], bounds: number[][], peer: number[]?, peer_problem: string?}
function M.collect(row, given)
  local clock, seconds, found = given.clock, given.seconds, { own = {}, bounds = {}, peer = {} }
  local values = row.make and row.make() or {}
  local run = M.compile(row, values, given.sync)
  if row.interpreted then
    run = without_jit(run)
  end
  local n = row.once and 1 or calibrate(clock, run, seconds)
  local minus = row.minus and M.compile({ case = row.case, step = row.minus }, values, given.sync)
  local peer = row.peer and given.peer
  for s = 1, given.samples do
    for i, bound in ipairs(row.bounds or {}) do
      found.bounds[i] = found.bounds[i] or {}
      found.bounds[i][s] = bound.sample(seconds)
    end
    local start = clock()
    run(n)
    found.own[s] = (clock() - start) / n
    if minus then
      start = clock()
      minus(n)
      found.own[s] = found.own[s] - (clock() - start) / n
    end
    if peer then
      local took, problem = peer:sample(row.peer, seconds)
      found.peer[s], found.peer_problem = took, problem
      peer = took and peer
    end
  end
  return found
end

--- The limit of a row in seconds, what it is of, and the limit by bytes alone.
local function limit_of(row, samples)
  local limit, kind, by_bytes
  for i, bound in ipairs(row.bounds or {}) do
    local seconds = M.median(samples[i])
    by_bytes = bound.bytes and seconds or by_bytes
    if row.sum then
      limit, kind = (limit or 0) + seconds, row.sum
    elseif not limit or seconds > limit then
      limit, kind = seconds, bound.kind
    end
  end
  return limit, kind, by_bytes
end

--- The row as the JSON file has it, and the ratio to the limit by bytes where another one is higher.
---@param row table
---@param found table what `collect` returned
---@param about {threads: integer, peer: table?, foreign_cpu: number?}
---@return table result
---@return number? bytes_ratio
function M.summarize(row, found, about)
  local own = M.median(found.own)
  local result = {
    section = row.section, case = row.case, dtype = row.dtype or "f32", threads = about.threads, unit = row.unit,
    value = M.in_unit(row, own), samples = #found.own, spread = M.spread(found.own), foreign_cpu = about.foreign_cpu,
  }
  local limit, kind, by_bytes = limit_of(row, found.bounds)
  if limit then
    result.limit, result.limit_kind, result.ratio = M.in_unit(row, limit), kind, limit / own
  end
  if found.peer and #found.peer == #found.own then
    local peer = M.median(found.peer)
    result.peer = { name = about.peer.name, version = about.peer.version, value = M.in_unit(row, peer) }
    result.peer_ratio = peer / own
  end
  return result, kind == "arithmetic" and by_bytes and by_bytes / own or nil
end

return M
