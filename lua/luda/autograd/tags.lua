--- Tags: how C names what it needs Lua for. A tag stands for an object with `run(self, walk)` until C reports it dead.

local lib = require "luda.ffi"

local C, context = lib.C, lib.context

local M = {}

local CAPACITY = 64

-- Belongs to the context, as tags do, whatever is reloaded. `free` lists numbers that stand for nothing any more.
lib.tags = lib.tags or { last = 0, handlers = {}, free = {}, count = 0 }
local tags = lib.tags
local dead = lib.ffi.new("int64_t[?]", CAPACITY)

--- The number may stand for something else from now on: C does not know it, or has reported it dead.
---@param tag integer
local function forget(tag)
  tags.handlers[tag] = false
  tags.count = tags.count + 1
  tags.free[tags.count] = tag
end
M.forget = forget

--- Forgets the handlers of tags that died in C.
function M.drain()
  repeat
    local count = C.luda_context_dead_tags(context, dead, CAPACITY)
    for i = 0, count - 1 do
      forget(tonumber(dead[i]))
    end
  until count < CAPACITY
end

--- A number for a handler, without a look at those that died.
---@param handler table
---@return integer tag
function M.take(handler)
  local tag, count = tags.last + 1, tags.count
  if count > 0 then
    tag, tags.count = tags.free[count], count - 1
  else
    tags.last = tag
  end
  tags.handlers[tag] = handler
  return tag
end

---@param handler table
---@return integer tag
function M.new(handler)
  M.drain()
  return M.take(handler)
end

---@param tag integer
---@return table|false
function M.get(tag)
  return tags.handlers[tag]
end

--- How many tags stand for something.
---@return integer
function M.count()
  M.drain()
  return tags.last - tags.count
end

return M
