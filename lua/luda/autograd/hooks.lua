--- Hooks: functions in Lua that see a gradient on its way back, and may replace it.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local tags = require "luda.autograd.tags"
local walks = require "luda.autograd.walk"

local C, context = lib.C, lib.context
local is_tensor, pointer = tensors.is_tensor, memory.pointer

local M = {}

--- What a hook's tag stands for. It must not hold the tensor, whose node keeps the tag alive.
local HookCall = class("luda.autograd.HookCall")

function HookCall:run(walk)
  if not self.fn then
    return
  end
  local replacement = self.fn(walks.lent(C.luda_walk_gradient(walk, 0)))
  if replacement == nil then
    return
  end
  if not is_tensor(replacement) then
    errors.raise("invalid", "hook: it returned %s; a tensor or nil is needed", args.describe(replacement))
  end
  lib.check(C.luda_walk_give(walk, 0, pointer(replacement)))
end

---@class luda.autograd.Hook
local Hook = class("luda.autograd.Hook")

--- Takes the hook away; twice is harmless.
function Hook:remove()
  self.call.fn = nil
  if self.tensor and C.luda_handle_alive(context, self.tensor.handle) ~= 0 then
    lib.check(C.luda_hook_remove(pointer(self.tensor), self.tag))
  end
  self.tensor = nil
end

--- Calls fn(gradient) when the gradient of a tracked tensor is ready; a tensor that it returns takes the gradient's place.
-- A function that refers to the tensor itself keeps it alive until the hook is removed.
---@param tensor luda.Tensor
---@param fn fun(gradient: luda.Tensor): luda.Tensor?
---@return luda.autograd.Hook with :remove()
function M.register_hook(tensor, fn)
  if type(fn) ~= "function" then
    errors.raise("invalid", "register_hook: expected a function, got %s", args.describe(fn))
  end
  local call = setmetatable({ fn = fn }, HookCall)
  local tag = tags.new(call)
  C.luda_context_use(context)
  local status = C.luda_hook_add(pointer(tensor), tag)
  if status ~= 0 then
    tags.forget(tag)
    lib.check(status)
  end
  return setmetatable({ call = call, tensor = tensor, tag = tag }, Hook)
end

return M
