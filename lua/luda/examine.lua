--- What is in a file is data to be examined: content that no save has written is an error that names its place.

local errors = require "luda.error"
local json = require "luda.json"

local M = {}

--- Raises `corrupt`.
---@param path string
---@param what string
---@param problem string
function M.refuse(path, what, problem)
  errors.raise_with("corrupt", ("load: %s: %s: %s"):format(path, what, problem), { detail = { tensor = "header" } })
end

--- A table from its text in the metadata.
---@param path string
---@param key string
---@param text string
---@return table
function M.decode(path, key, text)
  local fine, value = pcall(json.decode, text)
  if not fine or type(value) ~= "table" or value == json.null then
    M.refuse(path, key, fine and "not a table" or value.message)
  end
  return value
end

--- Returns fn(…), which only looks at a piece of the file; where it trips over the content, that is refused.
---@param path string
---@param what string
---@param fn function
---@return any
function M.try(path, what, fn, ...)
  local ok, result = pcall(fn, ...)
  if not ok and getmetatable(result) ~= errors.Error then
    M.refuse(path, what, tostring(result))
  elseif not ok then
    error(result, 0)
  end
  return result
end

return M
