--- Automatic differentiation: leaves, backward, gradients as objects, functions and hooks in Lua.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
local Gradients = require "luda.autograd.gradients"
local custom = require "luda.autograd.custom"
local hooks = require "luda.autograd.hooks"
local walks = require "luda.autograd.walk"

local ffi, C, context = lib.ffi, lib.C, lib.context
local methods, is_tensor = tensors.methods, tensors.is_tensor

local NO_OPTIONS = {}
local BACKWARD = { gradient = true, retain = true, create_graph = true, on_leaf = true }

local M = {
  Gradients = Gradients,
  Function = custom.Function,
}

--- Makes a tensor a leaf whose gradient backward computes, or (false) an ordinary one.
---@param t luda.Tensor
---@param required? boolean
---@return luda.Tensor t
function methods.requires_grad_(t, required)
  C.luda_context_use(context)
  lib.check(C.luda_set_requires_grad(memory.pointer(t), required == false and 0 or 1))
  return t
end

methods.register_hook = hooks.register_hook

--- The gradients of everything that a tensor was computed from.
---@param loss luda.Tensor
---@param given? {gradient: luda.Tensor?, retain: boolean?, create_graph: boolean?, on_leaf: function?}
---@return luda.Gradients
function methods.backward(loss, given)
  if given == nil then
    return walks.backward(loss, false, NO_OPTIONS)
  end
  args.check_options("backward", given, BACKWARD)
  local gradient = given.gradient
  if gradient ~= nil and not is_tensor(gradient) then
    errors.raise("invalid", "backward: gradient must be a tensor, not %s", args.describe(gradient))
  end
  if given.on_leaf then
    return walks.run({ loss }, { gradient or false }, given)
  end
  return walks.backward(loss, gradient or false, given)
end

local function as_list(value)
  return is_tensor(value) and { value } or value
end

--- Gradients of one tensor (or the sum of a list) for the given inputs, in their order; false where an input took no part.
---@param roots luda.Tensor|luda.Tensor[]
---@param inputs luda.Tensor|luda.Tensor[]
---@param given? {gradient: luda.Tensor|luda.Tensor[]?, retain: boolean?, create_graph: boolean?, allow_unused: boolean?}
---@return (luda.Tensor|false)[]
function M.grad(roots, inputs, given)
  local options = args.options("grad", given, {
    gradient = args.absent, retain = false, create_graph = false, allow_unused = false,
  })
  roots, inputs = as_list(roots), as_list(inputs)
  local seeds, upstream = {}, as_list(options.gradient or {})
  for i = 1, #roots do
    seeds[i] = upstream[i] or false
  end
  options.inputs = inputs
  local gradients = walks.run(roots, seeds, options)
  local list = {}
  for i, input in ipairs(inputs) do
    list[i] = gradients:get(input) or false
    if not list[i] and not options.allow_unused then
      gradients:release()
      errors.raise("graph", "grad: input %d took no part in the result; allow_unused = true gives false for it", i)
    end
  end
  gradients:release()
  return list
end

local function restore_mode(mode)
  C.luda_context_use(context)
  C.luda_set_grad_enabled(mode)
end

local function with_mode(enabled, fn, ...)
  args.callable("no_grad", fn)
  C.luda_context_use(context)
  return scope.sealed(restore_mode, C.luda_set_grad_enabled(enabled), fn, ...)
end

--- Calls fn(…) without recording.
---@generic T
---@param fn fun(...): T
---@return T
function M.no_grad(fn, ...)
  return with_mode(0, fn, ...)
end

--- Calls fn(…) with recording, inside no_grad.
---@generic T
---@param fn fun(...): T
---@return T
function M.enable_grad(fn, ...)
  return with_mode(1, fn, ...)
end

--- True while operations are recorded.
---@return boolean
function M.is_enabled()
  C.luda_context_use(context)
  return C.luda_grad_enabled() ~= 0
end

-- vjp, jvp, jacobian, hvp, hessian: see luda.autograd.functional.
for _, name in ipairs { "vjp", "jvp", "jacobian", "hvp", "hessian" } do
  M[name] = function(...)
    return require("luda.autograd.functional")[name](...)
  end
end

--- native(fn, options): an operator in C from a library of the user's own, see luda.autograd.native.
function M.native(fn, given)
  return require("luda.autograd.native").native(fn, given)
end

-- checkpoint(fn, …), recompute(fn, …): see luda.autograd.checkpoint.
for _, name in ipairs { "checkpoint", "recompute" } do
  M[name] = function(...)
    return require("luda.autograd.checkpoint")[name](...)
  end
end

--- detect_anomaly(fn, …): see luda.autograd.anomaly.
function M.detect_anomaly(fn, ...)
  return require("luda.autograd.anomaly").detect_anomaly(fn, ...)
end

--- The graph below a tensor as Graphviz text: `dot -Tsvg` draws it. Boxes are leaves by their ids; edges show shapes.
---@param root luda.Tensor
---@return string
function M.dot(root)
  if not is_tensor(root) then
    errors.raise("invalid", "dot: expected a tensor, got %s", args.describe(root))
  end
  local needed = ffi.new("size_t[1]")
  lib.check(C.luda_graph_dot(memory.pointer(root), nil, 0, needed))
  local text = ffi.new("char[?]", needed[0])
  lib.check(C.luda_graph_dot(memory.pointer(root), text, needed[0], needed))
  return ffi.string(text)
end

--- gradcheck(fn, inputs, options): see luda.autograd.gradcheck.
function M.gradcheck(fn, inputs, given)
  return require("luda.autograd.gradcheck").gradcheck(fn, inputs, given)
end

return M
