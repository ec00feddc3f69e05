--- Backward: drives the core's walk and does Lua's part (hooks, Lua functions) between its steps.

local lib = require "luda.ffi"
local errors = require "luda.error"
local memory = require "luda.memory"
local Gradients = require "luda.autograd.gradients"
local tags = require "luda.autograd.tags"

local ffi, C, context, signals = lib.ffi, lib.C, lib.context, lib.signals
local pointer = memory.pointer

local M = {}

---@class luda.WalkOptions
---@field retain? boolean keep the graph
---@field create_graph? boolean record the backward pass
---@field inputs? luda.Tensor[] gradients of these only
---@field since? any gradients stop at what was recorded up to this mark
---@field outer? any a walk whose waiting node gets what they stopped with
---@field on_leaf? fun(id: integer, gradients: luda.Gradients) a leaf's gradient is final

--- Does Lua's part for a node of a luda.autograd.Function; set by luda.autograd.custom.
---@type fun(call: any, options: luda.WalkOptions)
M.run_function = nil

--- What passes between a call of a Function and C, and what arrays it has room for: see luda_function_call.
local call = ffi.new("luda_function_call")
M.call = call

--- Goes on after `event`; -1: from where the walk stands.
local function step_through(walk, event, options, gradients)
  local run_function = M.run_function
  while true do
    event = C.luda_function_next(context, call, walk, event)
    if event == C.LUDA_NEEDS_FUNCTION then
      run_function(tags.get(call.tag), options)
    elseif event == C.LUDA_WALK_DONE then
      return
    elseif event == C.LUDA_LEAF_FINAL then
      options.on_leaf(tonumber(C.luda_walk_leaf(walk)), gradients)
    else
      lib.check(event < 0 and event or 0)
      local handler = tags.get(tonumber(C.luda_walk_tag(walk)))
      if not handler then
        errors.raise("internal", "backward: nothing stands for tag %d", tonumber(C.luda_walk_tag(walk)))
      end
      handler:run(walk, options)
    end
    event = -1
  end
end

--- An array of lent tensor pointers; `false` entries are NULL.
local function pointers(list, count)
  local array = ffi.new("luda_tensor *[?]", math.max(count, 1))
  for i = 1, count do
    array[i - 1] = list[i] and pointer(list[i]) or nil
  end
  return array
end
M.pointers = pointers

--- A new tensor for a lent gradient, or nil.
function M.lent(tensor)
  if tensor == nil then
    return nil
  end
  C.luda_tensor_retain(tensor)
  return memory.adopt(tensor)
end

local function explained(err)
  local anomaly = package.loaded["luda.autograd.anomaly"]
  return anomaly and anomaly.explain(err) or err
end

--- Goes through a walk that was just made or, with an event other than -1, waits.
local function finish(walk, event, options)
  local mode = C.luda_grad_enabled()
  ffi.gc(walk, C.luda_walk_release)
  local found = C.luda_walk_gradients(walk)
  C.luda_gradients_retain(found)
  local gradients = Gradients.adopt(found)
  -- For what runs in Lua; the core's steps turn them off themselves.
  local autocast, recompute = C.luda_set_autocast(-1), C.luda_set_recompute(0)
  local ok, err = pcall(step_through, walk, event, options, gradients)
  if ok and options.outer then
    ok, err = pcall(lib.check, C.luda_walk_hand_over(walk, options.outer))
  end
  C.luda_set_grad_enabled(mode)
  C.luda_set_autocast(autocast)
  C.luda_set_recompute(recompute)
  C.luda_walk_release(ffi.gc(walk, nil))
  tags.drain()
  if not ok then
    gradients:release()
    error(explained(err), 0)
  end
  return gradients
end

local waiting, waits_for = ffi.new("luda_walk *[1]"), ffi.new("int[1]")

--- The common walk: from one tensor to all leaves. All of it is one call where Lua has nothing to do.
---@param root luda.Tensor
---@param gradient luda.Tensor|false
---@param options luda.WalkOptions retain and create_graph are looked at
---@return luda.Gradients
function M.backward(root, gradient, options)
  local found = C.luda_call_backward(context, root.handle, gradient and gradient.handle or 0, options.retain and 1 or 0,
    options.create_graph and 1 or 0, waiting, waits_for)
  if found ~= nil then
    return Gradients.adopt(found)
  end
  local walk = waiting[0]
  if walk ~= nil then
    return finish(walk, waits_for[0], options)
  end
  local _, err = pcall(lib.raise, signals.status)
  return error(explained(err), 0)
end

--- Walks the graph below `roots`.
---@param roots luda.Tensor[]
---@param seeds table<integer, luda.Tensor|false> by root
---@param options luda.WalkOptions
---@return luda.Gradients
function M.run(roots, seeds, options)
  C.luda_context_use(context)
  local inputs = options.inputs or {}
  local wanted = pointers(inputs, #inputs)
  local settings = ffi.new("luda_backward_options", {
    retain = options.retain and 1 or 0,
    create_graph = options.create_graph and 1 or 0,
    ninputs = #inputs,
    inputs = wanted,
    since = options.since or 0,
  })
  local out = ffi.new("luda_walk *[1]")
  lib.check(C.luda_walk_new(pointers(roots, #roots), pointers(seeds, #roots), #roots, settings, out))
  if options.on_leaf then
    C.luda_walk_report_leaves(out[0], 1)
  end
  return finish(out[0], -1, options)
end

return M
