--- Errors: every failure is one of these objects, and names the user's line.

local class = require "luda.class"

local registry = debug.getregistry()

---@class luda.Error
---@field code string the status word, such as "shape"
---@field op? string
---@field message string what is wrong, with the numbers; hint
---@field where string file:line of the user's call
---@field rank? integer the rank that speaks
---@field culprits? integer[] ranks blamed
---@field detail? table
---@field traceback string
-- One class for a Lua state, so that an error made before a reload is still one after it.
local Error = registry["luda.Error"] or class("luda.Error")
registry["luda.Error"] = Error

-- "@…/lua/luda/": what every source of ours begins with.
local ours = debug.getinfo(1, "S").source:match("^(.*)error%.lua$")

local M = { Error = Error, ours = ours }

--- Level (of the caller's numbering) and description of the nearest frame that is neither C nor ours.
local function user_frame()
  for level = 2, 200 do
    local info = debug.getinfo(level, "Sl")
    if not info then
      return 2, nil
    end
    if info.what ~= "C" and info.source:sub(1, #ours) ~= ours then
      return level, info
    end
  end
  return 2, nil
end

--- "file:line" of the user's code that is running.
---@return string
function M.where()
  local _, info = user_frame()
  return info and ("%s:%d"):format(info.short_src, info.currentline) or "?"
end

function Error:__tostring()
  local op = self.op and self.op .. ": " or ""
  return ("%s: %s%s"):format(self.where or "?", op, self.message)
end

--- Makes an error object from a code and a text of the form "op: what is wrong; hint".
---@param code string
---@param text string
---@param fields? {rank: integer?, culprits: integer[]?, detail: table?}
---@return luda.Error
function M.new(code, text, fields)
  local op, message = text:match("^([%w_%.]+): (.*)$")
  local level, info = user_frame()
  local object = setmetatable({
    code = code,
    op = op,
    message = message or text,
    where = info and ("%s:%d"):format(info.short_src, info.currentline) or "?",
    traceback = debug.traceback("", level - 1):gsub("^\n", ""),
  }, Error)
  for name, value in pairs(fields or {}) do
    object[name] = value
  end
  return object
end

--- Raises an error; `text` is a format string when arguments follow it.
---@param code string
---@param text string
---@param ... any
function M.raise(code, text, ...)
  if select("#", ...) > 0 then
    text = text:format(...)
  end
  error(M.new(code, text), 0)
end

--- What pcall gave; an error of it speaks of `op`, not of the functions that the call is made of.
---@param op string
---@param fine boolean
---@param ... any
---@return any ...
function M.speak_of(op, fine, ...)
  if not fine then
    local problem = ...
    if getmetatable(problem) == Error then
      problem.op = op
    end
    error(problem, 0)
  end
  return ...
end

--- Raises an error with more fields.
---@param code string
---@param text string
---@param fields table
function M.raise_with(code, text, fields)
  error(M.new(code, text, fields), 0)
end

return M
