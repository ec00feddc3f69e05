--- Backward: drives the core's walk and does Lua's part (hooks, Lua functions) between its steps.

local lib = require "luda.ffi"
local errors = require "luda.error"
local memory = require "luda.memory"
local Gradients = require "luda.autograd.gradients"
local tags = require "luda.autograd.tags"

local ffi, C, context = lib.ffi, lib.C, lib.context
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

local function step_through(walk, options, gradients)
  local run_function = M.run_function
  while true do
    local event = C.luda_function_next(context, call, walk)
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

--- Walks the graph below `roots`.
---@param roots luda.Tensor[]
---@param seeds table<integer, luda.Tensor|false> by root
---@param options luda.WalkOptions
---@return luda.Gradients
function M.run(roots, seeds, options)
  C.luda_context_use(context)
  local mode = C.luda_grad_enabled()
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
  local walk = ffi.gc(out[0], C.luda_walk_release)
  if options.on_leaf then
    C.luda_walk_report_leaves(walk, 1)
  end
  local found = C.luda_walk_gradients(walk)
  C.luda_gradients_retain(found)
  local gradients = Gradients(found)
  local autocast = C.luda_set_autocast(-1) -- for what runs in Lua; the core's steps turn it off themselves
  local ok, err = pcall(step_through, walk, options, gradients)
  if ok and options.outer then
    ok, err = pcall(lib.check, C.luda_walk_hand_over(walk, options.outer))
  end
  C.luda_set_grad_enabled(mode)
  C.luda_set_autocast(autocast)
  C.luda_walk_release(ffi.gc(walk, nil))
  tags.drain()
  if not ok then
    gradients:release()
    local anomaly = package.loaded["luda.autograd.anomaly"]
    error(anomaly and anomaly.explain(err) or err, 0)
  end
  return gradients
end

return M
