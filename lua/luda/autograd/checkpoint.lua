--- Memory for time: a part of the computation whose inner results are made again in backward instead of being kept.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local memory = require "luda.memory"
local random = require "luda.random"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
local tags = require "luda.autograd.tags"
local walks = require "luda.autograd.walk"

local ffi, C, context = lib.ffi, lib.C, lib.context
local methods, is_tensor, pointer = tensors.methods, tensors.is_tensor, memory.pointer

local M = {}

--- One recorded call: what its tag stands for. Tensor arguments live in the graph; the list has their positions.
local Segment = class("luda.autograd.Segment")

--- The default generator and those among the arguments, with their states.
local function generator_states(given, count)
  local default = random.generator()
  local list = { { generator = default, state = default:state() } }
  for position = 1, count do
    if getmetatable(given[position]) == random.Generator then
      list[#list + 1] = { generator = given[position], state = given[position]:state() }
    end
  end
  return list
end

local function set_states(list)
  for _, entry in ipairs(list) do
    entry.generator:set_state(entry.state)
  end
end

--- What changes while a segment is called again, to be set back afterwards.
local function restore(before)
  set_states(before.states)
  C.luda_context_use(context)
  C.luda_set_grad_enabled(before.mode)
  C.luda_set_autocast(before.autocast)
end

function Segment:arguments(walk)
  local node, out, given = C.luda_walk_node(walk), ffi.new("luda_tensor *[1]"), { unpack(self.given, 1, self.count) }
  for index, position in ipairs(self.positions) do
    lib.check(C.luda_node_kept(node, index - 1, out))
    given[position] = memory.adopt(out[0])
  end
  return given
end

--- Calls the function again and walks what it records.
function Segment:again(walk, options)
  local mark = C.luda_graph_mark(context)
  local values = { self.fn(unpack(self:arguments(walk), 1, self.count)) }
  local roots, seeds = {}, {}
  for output, position in ipairs(self.results) do
    local gradient = C.luda_walk_gradient(walk, output - 1)
    if gradient ~= nil and is_tensor(values[position]) then
      roots[#roots + 1], seeds[#seeds + 1] = values[position], walks.lent(gradient)
    end
  end
  walks.run(roots, seeds, { since = mark, outer = walk, create_graph = options.create_graph }):release()
end

function Segment:run(walk, options)
  local before = {
    states = {}, mode = C.luda_grad_enabled(), autocast = C.luda_set_autocast(self.autocast),
  }
  for i, entry in ipairs(self.states) do
    before.states[i] = { generator = entry.generator, state = entry.generator:state() }
  end
  set_states(self.states)
  C.luda_set_grad_enabled(1)
  scope.sealed(restore, before, scope.scope, self.again, self, walk, options)
end

--- What fn returned, with results of the segment's node in the place of what it recorded.
local function close(segment, mark, values)
  local recorded, fresh = {}, {}
  for position = 1, values.n do
    local value = values[position]
    if is_tensor(value) and C.luda_graph_since(pointer(value), mark) ~= 0 then
      recorded[#recorded + 1], segment.results[#segment.results + 1] = value, position
      fresh[#fresh + 1] = methods.detach(value)
      values[position] = fresh[#fresh]
    end
  end
  if #recorded == 0 then
    return
  end
  local tag, node = tags.new(segment), ffi.new("luda_node *[1]")
  C.luda_context_use(context)
  local status = C.luda_node_new_segment(walks.pointers(recorded, #recorded), walks.pointers(fresh, #fresh), #recorded, mark, tag,
    node)
  if status ~= 0 then
    tags.forget(tag)
    lib.check(status)
  end
  for position = 1, segment.count do
    if is_tensor(segment.given[position]) then
      segment.positions[#segment.positions + 1] = position
      lib.check(C.luda_node_keep(node[0], pointer(segment.given[position])))
      segment.given[position] = false
    end
  end
end

local function pack(...)
  return { n = select("#", ...), ... }
end

--- Calls fn(…) now and again in backward, with the same arguments, random numbers and autocast, so that nothing made inside
-- has to live until then: only the arguments do. Gradients are the same bits. fn must do the same in every call; tensors
-- made inside are released when it returns, except its results; collectives belong outside.
---@generic T
---@param fn fun(...): T
---@return T
function M.checkpoint(fn, ...)
  args.callable("checkpoint", fn)
  C.luda_context_use(context)
  if C.luda_grad_enabled() == 0 then
    return fn(...)
  end
  local segment = setmetatable({
    fn = fn, given = { ... }, count = select("#", ...), positions = {}, results = {},
    autocast = C.luda_autocast(),
  }, Segment)
  segment.states = generator_states(segment.given, segment.count)
  local mark = C.luda_graph_mark(context)
  local values = pack(scope.scope(fn, ...))
  close(segment, mark, values)
  return unpack(values, 1, values.n)
end

local function restore_recompute(before)
  C.luda_context_use(context)
  C.luda_set_recompute(before)
end

--- Calls fn(…) once. What memory-bound operators made inside (elementwise ones, norms, softmax, dropout, casts) is not kept
-- for backward but made again there, where it can be made from what is kept: arguments, and the results of products,
-- convolutions, attention, functions and collectives, which are never repeated. Gradients are the same bits. Tensors made inside
-- are released when it returns, except its results; what it was given must not be changed in place until backward.
---@generic T
---@param fn fun(...): T
---@return T
function M.recompute(fn, ...)
  args.callable("recompute", fn)
  C.luda_context_use(context)
  local before = C.luda_set_recompute(C.luda_graph_mark(context) + 1)
  return scope.sealed(restore_recompute, before, scope.scope, fn, ...)
end

return M
