--- Tags: how C names what it needs Lua for. A tag stands for an object with `run(self, walk)` until C reports it dead.

local lib = require "luda.ffi"

local C, context = lib.C, lib.context

local M = {}

local CAPACITY = 64

-- Belongs to the context, as tags do, whatever is reloaded.
lib.tags = lib.tags or { last = 0, handlers = {} }
local tags = lib.tags

--- Forgets the handlers of tags that died in C.
function M.drain()
  local dead = lib.ffi.new("int64_t[?]", CAPACITY)
  repeat
    local count = C.luda_context_dead_tags(context, dead, CAPACITY)
    for i = 0, count - 1 do
      tags.handlers[tonumber(dead[i])] = nil
    end
  until count < CAPACITY
end

---@param handler table
---@return integer tag
function M.new(handler)
  M.drain()
  tags.last = tags.last + 1
  tags.handlers[tags.last] = handler
  return tags.last
end

---@param tag integer
function M.forget(tag)
  tags.handlers[tag] = nil
end

---@param tag integer
---@return table?
function M.get(tag)
  return tags.handlers[tag]
end

--- How many tags stand for something.
---@return integer
function M.count()
  M.drain()
  local count = 0
  for _ in pairs(tags.handlers) do
    count = count + 1
  end
  return count
end

return M
