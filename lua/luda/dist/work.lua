--- Work for another Lua state: what a module or a file returns, and errors as plain data.

local errors = require "luda.error"

local M = {}

--- The function that a module or a file returns.
---@param op string
---@param what string module name or file
---@param signature string of the function, for messages
---@return function
function M.load(op, what, signature)
  local chunk, problem = loadfile(what)
  local work
  if chunk then
    work = chunk()
  elseif not problem:find("cannot open", 1, true) then
    errors.raise("invalid", "%s: %s", op, problem)
  elseif not package.searchpath(what, package.path) then
    errors.raise("io", "%s: there is neither a file nor a module '%s'", op, what)
  else
    work = require(what)
  end
  if type(work) ~= "function" then
    errors.raise("invalid", "%s: '%s' returns a %s, not a %s", op, what, type(work), signature)
  end
  return work
end

local FIELDS = { "code", "op", "message", "where", "traceback", "rank", "culprits", "detail" }

--- An error as plain data; called where it was raised, by xpcall.
---@param err any
---@return table
function M.describe(err)
  if getmetatable(err) ~= errors.Error then
    return { code = "internal", message = tostring(err), traceback = debug.traceback("", 2) }
  end
  local fields = {}
  for _, name in ipairs(FIELDS) do
    fields[name] = err[name]
  end
  return fields
end

return M
