--- Scopes: what is made inside is released at the end, except what is returned or kept.

local lib = require "luda.ffi"
local memory = require "luda.memory"
local args = require "luda.args"

local registry = debug.getregistry()
if registry["luda.scope"] then
  return registry["luda.scope"]
end

local ffi, C, context, signals, Tensor = lib.ffi, lib.C, lib.context, lib.signals, lib.Tensor
local gsub = string.gsub

local M = {}

--- Frames by depth, reused: a closure for each scope would not compile. Fields: fn, n, 1..n, handles, and
-- `owned`, the set of objects beside tensors (gradients, works) that the scope releases with :release().
local frames = setmetatable({}, {
  __index = function(self, depth)
    local frame = { n = 0, owned = {} }
    self[depth] = frame
    return frame
  end,
})

local function store(frame, ...)
  for i = 5, frame.n do -- arguments, where fewer results follow
    frame[i] = nil
  end
  frame.n = select("#", ...)
  if frame.n <= 4 then
    frame[1], frame[2], frame[3], frame[4] = ...
    return
  end
  for i = 1, frame.n do
    frame[i] = (select(i, ...))
  end
end

--- Empties a frame and passes its values on. Few values are written out, here and below: short loops do not compile.
local function clear(frame, ...)
  frame[1], frame[2], frame[3], frame[4] = nil, nil, nil, nil
  for i = 5, frame.n do
    frame[i] = nil
  end
  frame.fn, frame.n = nil, 0
  return ...
end

local function run_frame()
  local frame = frames[signals.depth]
  store(frame, frame.fn(unpack(frame, 1, frame.n)))
end

--- Makes an object (with a method `release`) belong to the innermost open scope.
---@param object table
function M.own(object)
  local depth = signals.depth
  if depth > 0 then
    frames[depth].owned[object] = true
  end
  return object
end

local function move_tensor(value, depth)
  if ffi.istype(Tensor, value) and C.luda_handle_move(context, value.handle, depth) == 1 and depth == 0 then
    memory.register(value)
  end
end

--- Moves a tensor, an object that a scope owns, or all of those in a table of any depth to the scope `depth`.
local function move(value, depth)
  local seen, pending, count = {}, { value }, 1
  while count > 0 do
    local item = pending[count]
    pending[count], count = nil, count - 1
    local kind = type(item)
    if kind == "cdata" then
      move_tensor(item, depth)
    elseif kind == "table" and not seen[item] then
      seen[item] = true
      local owned = false
      for level = depth + 1, signals.depth do
        if frames[level].owned[item] then
          frames[level].owned[item], owned = nil, true
          if depth > 0 then
            frames[depth].owned[item] = true
          end
        end
      end
      if not owned then
        for _, field in next, item do
          if type(field) == "cdata" or type(field) == "table" then
            count = count + 1
            pending[count] = field
          end
        end
      end
    end
  end
end

local function survive(value, depth)
  local kind = type(value)
  if kind == "table" then
    move(value, depth)
  elseif kind == "cdata" then
    move_tensor(value, depth)
  end
end

local function leave(depth, frame)
  if next(frame.owned) then
    for object in pairs(frame.owned) do
      frame.owned[object] = nil
      object:release()
    end
  end
  if C.luda_scope_leave(context, depth) ~= 0 then
    lib.raise(signals.status)
  end
  memory.lower_limit()
end

--- Calls fn(…) and releases the tensors made meanwhile, except those it returns (also in tables) and those kept.
---@generic T
---@param fn fun(...): T
---@return T
function M.scope(fn, ...)
  if type(fn) ~= "function" then
    args.callable("scope", fn)
  end
  local depth = C.luda_scope_enter(context)
  if depth == 0 then
    lib.raise(signals.status)
  end
  local frame = frames[depth]
  frame.fn, frame.handles = fn, signals.handles
  store(frame, ...)
  -- gsub puts a C frame between, so that no coroutine can yield out of the scope.
  local ok, err = pcall(gsub, "_", "_", run_frame)
  if ok then
    survive(frame[1], depth - 1)
    survive(frame[2], depth - 1)
    for i = 3, frame.n do
      survive(frame[i], depth - 1)
    end
  end
  leave(depth, frame)
  if not ok then
    clear(frame)
    error(err, 0)
  end
  return clear(frame, unpack(frame, 1, frame.n))
end

--- Calls fn(…) so that nothing can yield out of it, then `after(state)` whatever happened; an error passes through.
function M.sealed(after, state, fn, ...)
  local values = { n = select("#", ...), ... }
  local ok, err = pcall(gsub, "_", "_", function()
    local function collect(...)
      values = { n = select("#", ...), ... }
    end
    collect(fn(unpack(values, 1, values.n)))
  end)
  after(state)
  if not ok then
    error(err, 0)
  end
  return unpack(values, 1, values.n)
end

--- Saves a tensor (or all in a table) from every open scope; returns it.
---@generic T
---@param value T
---@return T
function M.keep(value)
  move(value, 0)
  return value
end

--- Releases a tensor now; doing it twice is harmless.
---@param tensor luda.Tensor
function M.release(tensor)
  C.luda_handle_release(context, tensor.handle)
end

function memory.describe_scope()
  local depth = signals.depth
  if depth == 0 then
    return nil
  end
  local place, inside = nil, false
  for level = 2, 200 do
    local info = debug.getinfo(level, "Slf")
    if not info then
      break
    end
    if inside and info.what ~= "C" then
      place = ("%s:%d"):format(info.short_src, info.currentline)
      break
    end
    inside = inside or info.func == M.scope
  end
  return ("the scope%s holds %d tensors"):format(place and " entered at " .. place or "",
    signals.handles - frames[depth].handles)
end

registry["luda.scope"] = M
return M
