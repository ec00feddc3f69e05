--- JSON: encode(value, indent), decode(text), null. Written in C (runtime/host/json.c), which says what becomes what.

local host = require "luda.host"
local errors = require "luda.error"

local open, problem = package.loadlib(host.path, "luaopen_luda_json")
if not open then
  errors.raise("io", "json: cannot open %s (%s)", host.path, problem)
end
local json = open()

local M = { null = json.null }

local function call(fn, ...)
  local ok, result = pcall(fn, ...)
  if not ok then
    errors.raise("invalid", (result:gsub("^.-json: ", "json: ")))
  end
  return result
end

--- Plain data as text: keys sorted, reals with all their bits. Equal values give equal text.
---@param value any
---@param indent? integer
---@return string
function M.encode(value, indent)
  return call(json.encode, value, indent)
end

--- What a text says.
---@param text string
---@return any
function M.decode(text)
  if type(text) ~= "string" then
    errors.raise("invalid", "json: expected a text, got a %s", type(text))
  end
  return call(json.decode, text)
end

return M
