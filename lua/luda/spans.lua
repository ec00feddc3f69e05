--- Spans of a profile that come from Lua. Off (luda.profile turns them on), a place that may make one costs a test.

local lib = require "luda.ffi"

local C = lib.C

local M = {
  ---@type table[]? {name, kind, start, duration}, nanoseconds
  active = nil,
}

local function finish(list, name, kind, start, ...)
  list[#list + 1] = { name = name, kind = kind, start = start, duration = tonumber(C.luda_profile_now()) - start }
  return ...
end

--- Calls fn(…) and notes when it began and ended; a call that raises leaves no span.
---@generic T
---@param name string
---@param kind string
---@param fn fun(...): T
---@return T
function M.run(name, kind, fn, ...)
  local list = M.active
  if not list then
    return fn(...)
  end
  return finish(list, name, kind, tonumber(C.luda_profile_now()), fn(...))
end

--- Makes the methods `names` of a class leave spans "prefix.name".
---@param class table
---@param prefix string
---@param kind string
---@param names string[]
function M.watch(class, prefix, kind, names)
  for _, name in ipairs(names) do
    local method, label = class[name], prefix .. "." .. name
    class[name] = function(...)
      if M.active then
        return M.run(label, kind, method, ...)
      end
      return method(...)
    end
  end
end

return M
