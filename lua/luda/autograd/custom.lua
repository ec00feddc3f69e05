--- What of the graph runs in Lua: functions with a backward of their own, and hooks on gradients.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"
local tags = require "luda.autograd.tags"
local walks = require "luda.autograd.walk"

local ffi, C, context = lib.ffi, lib.C, lib.context
local methods, is_tensor, pointer = tensors.methods, tensors.is_tensor, memory.pointer

local M = {}

--- The context of one call: `needs[i]` says whether argument i wants a gradient, `saved` holds what was saved; other
-- fields are the user's.
local Context = class("luda.autograd.Context")

--- Keeps tensors for backward. They live in the graph, so that they die with it.
---@param ... luda.Tensor
function Context:save(...)
  local list = { ... }
  for i = 1, select("#", ...) do
    if not is_tensor(list[i]) then
      errors.raise("invalid", "save: argument %d is %s; other values are fields of ctx", i, args.describe(list[i]))
    end
  end
  self.pending = list
end

--- One recorded call: what its tag stands for.
local Call = class("luda.autograd.Call")

function Call:run(walk)
  local ctx, node = self.ctx, C.luda_walk_node(walk)
  local out = ffi.new("luda_tensor *[1]")
  local saved = {}
  for i = 1, C.luda_node_kept_count(node) do
    lib.check(C.luda_node_kept(node, i - 1, out))
    saved[i] = memory.adopt(out[0])
  end
  for input, position in ipairs(self.arguments) do
    ctx.needs[position] = C.luda_walk_needs(walk, input - 1) ~= 0
  end
  local gradients = {}
  for output, position in ipairs(self.results) do
    gradients[position] = walks.lent(C.luda_walk_gradient(walk, output - 1))
  end
  ctx.saved = saved
  local given = { self.backward(ctx, unpack(gradients, 1, self.result_count)) }
  ctx.saved = nil
  for input, position in ipairs(self.arguments) do
    local gradient = given[position]
    if gradient ~= nil and not is_tensor(gradient) then
      errors.raise("invalid", "%s: backward returned %s for argument %d; a tensor or nil is needed", self.name,
        args.describe(gradient), position)
    end
    if gradient and ctx.needs[position] then
      lib.check(C.luda_walk_give(walk, input - 1, pointer(gradient)))
    end
  end
end

--- An operation with a backward of its own. `forward(ctx, …)` returns its results; `backward(ctx, …)` gets a gradient for
-- each result (nil where it took no part) and returns one for each argument (nil for none). Tensors for backward go
-- through ctx:save(…) and come back in ctx.saved.
---@class luda.autograd.Function
---@overload fun(...): any
local Function = class("luda.autograd.Function")
M.Function = Function

---@param spec {forward: fun(ctx: table, ...): any, backward: fun(ctx: table, ...): any, name: string?}
function Function:init(spec)
  spec = args.options("Function", spec, { forward = args.absent, backward = args.absent, name = "Function" })
  for _, part in ipairs { "forward", "backward" } do
    if type(spec[part]) ~= "function" then
      errors.raise("invalid", "Function: %s must be a function, not %s", part, args.describe(spec[part]))
    end
  end
  self.forward, self.backward, self.name = spec.forward, spec.backward, spec.name
end

--- What pcall returned, as a list after the mode was set back.
local function finish_forward(mode, ok, ...)
  C.luda_context_use(context)
  C.luda_set_grad_enabled(mode)
  if not ok then
    error((...), 0)
  end
  return { ... }, select("#", ...), mode ~= 0
end

--- Runs forward without recording; returns the results, their number, and whether recording was on.
local function run_forward(self, ctx, ...)
  C.luda_context_use(context)
  return finish_forward(C.luda_set_grad_enabled(0), pcall(self.forward, ctx, ...))
end

--- Ties the results to the arguments; results become fresh tensors, since a node may not own tensors that it did not make.
local function record(self, ctx, given, arguments, values, count)
  local inputs, outputs, results, made = {}, {}, {}, {}
  for i, position in ipairs(arguments) do
    inputs[i] = given[position]
  end
  for position = 1, count do
    if is_tensor(values[position]) then
      made[position] = methods.detach(values[position])
      outputs[#outputs + 1], results[#results + 1] = made[position], position
    else
      made[position] = values[position]
    end
  end
  local call = setmetatable({
    ctx = ctx, backward = self.backward, name = self.name, arguments = arguments, results = results, result_count = count,
  }, Call)
  local tag = tags.new(call)
  local node = ffi.new("luda_node *[1]")
  C.luda_context_use(context)
  local status = C.luda_node_new_lua(walks.pointers(inputs, #inputs), #inputs, walks.pointers(outputs, #outputs), #outputs,
    self.name, tag, node)
  if status ~= 0 or node[0] == nil then
    tags.forget(tag)
    lib.check(status)
    return made
  end
  local pending = ctx.pending or {}
  ctx.pending = nil
  for _, saved in ipairs(pending) do
    for _, position in ipairs(results) do
      if values[position] == saved then
        saved = made[position]
        break
      end
    end
    lib.check(C.luda_node_keep(node[0], pointer(saved)))
  end
  return made
end

function Function:__call(...)
  local given, arguments, tracked = { ... }, {}, false
  local ctx = setmetatable({ needs = {} }, Context)
  for position = 1, select("#", ...) do
    ctx.needs[position] = false
    if is_tensor(given[position]) then
      arguments[#arguments + 1] = position
      ctx.needs[position] = given[position].requires_grad
      tracked = tracked or ctx.needs[position]
    end
  end
  local values, count, recording = run_forward(self, ctx, ...)
  if recording and tracked then
    values = record(self, ctx, given, arguments, values, count)
  end
  return unpack(values, 1, count)
end

-- Hooks.

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
