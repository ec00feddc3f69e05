--- Profiles: what ran and when, as a Chrome trace (chrome://tracing, Perfetto).

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local json = require "luda.json"
local scope = require "luda.scope"
local spans = require "luda.spans"

local ffi, C, context = lib.ffi, lib.C, lib.context

local M = {}

-- One row of the picture for each kind, top to bottom.
local ROWS = { "lua", "module", "record", "collective", "operator", "backward" }
local NUMBERS = {}
for number, name in ipairs(ROWS) do
  NUMBERS[name] = number
end

local function write_event(file, name, kind, start, duration)
  file:write(",\n", ('{"name":%s,"cat":"%s","ph":"X","pid":1,"tid":%d,"ts":%.3f,"dur":%.3f}'):format(
    json.encode(name), kind, NUMBERS[kind], start / 1000, duration / 1000))
end

local function write_rows(file)
  for number, name in ipairs(ROWS) do
    file:write(number > 1 and ",\n" or "",
      ('{"name":"thread_name","ph":"M","pid":1,"tid":%d,"args":{"name":"%s"}}'):format(number, name))
  end
end

--- Writes all events; times count from the first.
local function write(path, origin)
  local file, problem = io.open(path, "w")
  if not file then
    errors.raise("io", "profile: cannot write %s", problem)
  end
  file:write('{"displayTimeUnit":"ms","traceEvents":[\n')
  write_rows(file)
  for _, span in ipairs(spans.active) do
    write_event(file, span.name, span.kind, span.start - origin, span.duration)
  end
  local event, kinds = ffi.new("luda_profile_event"), {
    [tonumber(C.LUDA_PROFILE_OPERATOR)] = "operator", [tonumber(C.LUDA_PROFILE_BACKWARD)] = "backward",
  }
  for index = 0, tonumber(C.luda_profile_count(context)) - 1 do
    C.luda_profile_get(context, index, event)
    write_event(file, ffi.string(event.name), kinds[event.kind], tonumber(event.start) - origin, tonumber(event.duration))
  end
  file:write(('\n],"otherData":{"lost":%d}}\n'):format(tonumber(C.luda_profile_lost(context))))
  local ok, err = file:close()
  if not ok then
    errors.raise("io", "profile: cannot write %s: %s", path, err)
  end
end

local function stop()
  spans.active = nil
  C.luda_profile_stop(context)
end

--- Calls fn(…) and writes what ran meanwhile to a file: operators, nodes of backward, modules, collectives, records, and
-- spans of the script's own (luda.profile.span). On a CUDA device an operator's time is that of enqueuing it.
---@generic T
---@param fn fun(...): T
---@param path string
---@return T
function M.profile(fn, path, ...)
  args.callable("profile", fn)
  if type(path) ~= "string" then
    errors.raise("invalid", "profile: the second argument is the path of the trace, not %s", args.describe(path))
  end
  C.luda_context_use(context)
  lib.check(C.luda_profile_start(context))
  spans.active = {}
  local origin = tonumber(C.luda_profile_now())
  return scope.sealed(stop, nil, function(...)
    local function finish(...)
      write(path, origin)
      return ...
    end
    return finish(fn(...))
  end, ...)
end

--- A span of the script's own, in the row "lua" of the picture; without a profile it is the call alone.
---@generic T
---@param name string
---@param fn fun(...): T
---@return T
function M.span(name, fn, ...)
  if type(name) ~= "string" then
    errors.raise("invalid", "span: the first argument is a name, not %s", args.describe(name))
  end
  args.callable("span", fn)
  return spans.run(name, "lua", fn, ...)
end

return setmetatable(M, {
  __call = function(_, ...)
    return M.profile(...)
  end,
})
