--- Functions with a backward of their own, in Lua.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"
local spans = require "luda.spans"
local contexts = require "luda.autograd.context"
local tags = require "luda.autograd.tags"
local walks = require "luda.autograd.walk"

local ffi, C, context, Tensor = lib.ffi, lib.C, lib.context, lib.Tensor
local istype, wrap = ffi.istype, memory.wrap
local flags_of, many_flags, list_of, give_back = contexts.flags_of, contexts.many_flags, contexts.list_of, contexts.give_back

local M = {}

-- What passes to C and back lies in `call` and these arrays, by position; between their filling and the call, and between the
-- call and their reading, nothing else may run. Few values are written out: short loops do not compile.
local call, capacity = walks.call, 0
local inputs, outputs, saved

local function make_room(count)
  if count > capacity then
    capacity = math.max(2 * capacity, count, 8)
    inputs, outputs, saved = ffi.new("double[?]", capacity), ffi.new("double[?]", capacity), ffi.new("double[?]", capacity)
    call.inputs, call.outputs, call.saved, call.capacity = inputs, outputs, saved, capacity
  end
end
make_room(8)

local function handle_of(value)
  return istype(Tensor, value) and value.handle or 0
end

--- The tensor of a handle, or the value that has none.
local function tensor_of(handle, value)
  if handle ~= 0 then
    return wrap(handle)
  end
  return value
end

local function fill_few(array, a, b, c, d)
  array[0] = istype(Tensor, a) and a.handle or 0
  array[1] = istype(Tensor, b) and b.handle or 0
  array[2] = istype(Tensor, c) and c.handle or 0
  array[3] = istype(Tensor, d) and d.handle or 0
end

local function fill(array, list, count)
  for i = 1, count do
    array[i - 1] = handle_of(list[i])
  end
end

--- An operation with a backward of its own. `forward(ctx, …)` returns its results; `backward(ctx, …)` gets a gradient for
-- each result (nil where it took no part) and returns one for each argument (nil for none). Tensors for backward go
-- through ctx:save(…) and come back in ctx.saved.
---@class luda.autograd.Function
---@overload fun(...): any
local Function = class("luda.autograd.Function")
M.Function = Function

---@param spec {forward: fun(ctx: table, ...): any, backward: fun(ctx: table, ...): any, name: string?, once: boolean?} `once`:
-- backward computes with numbers instead of operators, so that it cannot be differentiated in turn, and says so when asked to
function Function:init(spec)
  spec = args.options("Function", spec, { forward = args.absent, backward = args.absent, name = "Function", once = false })
  for _, part in ipairs { "forward", "backward" } do
    if type(spec[part]) ~= "function" then
      errors.raise("invalid", "Function: %s must be a function, not %s", part, args.describe(spec[part]))
    end
  end
  self.forward, self.backward, self.name, self.once = spec.forward, spec.backward, spec.name, spec.once
end

-- Forward.

--- Ties the results to the arguments; results become fresh tensors, since a node may not own tensors that it did not make.
-- The arrays have all three lists.
local function record(self, ctx, mode, count, results)
  local list, kept = ctx.saved, 0
  if list then
    kept = #list
    if kept <= 2 then
      fill_few(saved, list[1], list[2])
    else
      fill(saved, list, kept)
    end
    ctx.saved = false
    give_back(list)
  end
  call.ninputs, call.noutputs, call.nsaved = count, results, kept
  local tag = tags.take(ctx)
  call.tag = tag
  local status = C.luda_function_record(context, call, mode, self.name)
  if call.tag == 0 then
    tags.forget(tag)
  end
  lib.check(status)
end

local function record_few(self, ctx, mode, count, a, b, c, d, results, x, y)
  fill_few(inputs, a, b, c, d)
  outputs[0], outputs[1] = handle_of(x), handle_of(y)
  record(self, ctx, mode, count, results)
  local first, second, dead = outputs[0], outputs[1], call.dead
  if dead ~= 0 then
    tags.drain()
  end
  if first ~= 0 then
    x = wrap(first)
  end
  if results == 1 then
    return x
  elseif second ~= 0 then
    y = wrap(second)
  end
  return x, y
end

local function record_many(self, ctx, mode, given, count, ...)
  local results, made = select("#", ...), { ... }
  make_room(math.max(results, ctx.saved and #ctx.saved or 0))
  fill(inputs, given, count)
  fill(outputs, made, results)
  record(self, ctx, mode, count, results)
  local handles = {}
  for i = 1, results do
    handles[i] = outputs[i - 1]
  end
  for i = 1, results do
    made[i] = tensor_of(handles[i], made[i])
  end
  tags.drain()
  return unpack(made, 1, results)
end

--- After an error in forward, or where nothing is recorded.
local function leave(mode, ok, ...)
  C.luda_context_use(context)
  C.luda_set_grad_enabled(mode)
  if not ok then
    error((...), 0)
  end
  return ...
end

local function finish_few(self, ctx, mode, wanted, count, a, b, c, d, ok, ...)
  if not ok or not wanted then
    return leave(mode, ok, ...)
  end
  local results = select("#", ...)
  if (results == 1 or results == 2) and not (ctx.saved and #ctx.saved > 4) then
    local x, y = ...
    return record_few(self, ctx, mode, count, a, b, c, d, results, x, y)
  end
  return record_many(self, ctx, mode, { a, b, c, d }, count, ...)
end

local function finish_many(self, ctx, mode, wanted, given, count, ok, ...)
  if not ok or not wanted then
    return leave(mode, ok, ...)
  end
  return record_many(self, ctx, mode, given, count, ...)
end

--- Enters C's half of a call and makes its context; the array of inputs is filled.
local function enter(self, count)
  call.ninputs = count
  local mode = C.luda_function_enter(context, call)
  if mode < 0 then
    lib.raise(mode)
  end
  local bits = call.needs
  return mode, mode ~= 0 and bits ~= 0, contexts.new(self, flags_of(count, bits))
end

local function call_many(self, given, count)
  make_room(count)
  fill(inputs, given, count)
  local mode, wanted, ctx = enter(self, count)
  if count > 31 then
    ctx.needs = many_flags(given, count)
  end
  return finish_many(self, ctx, mode, wanted, given, count, pcall(self.forward, ctx, unpack(given, 1, count)))
end

function Function:__call(...)
  local count = select("#", ...)
  if count > 4 or count == 0 then
    return call_many(self, { ... }, count)
  end
  local a, b, c, d = ...
  fill_few(inputs, a, b, c, d)
  local mode, wanted, ctx = enter(self, count)
  if count == 1 then
    return finish_few(self, ctx, mode, wanted, count, a, b, c, d, pcall(self.forward, ctx, a))
  elseif count == 2 then
    return finish_few(self, ctx, mode, wanted, count, a, b, c, d, pcall(self.forward, ctx, a, b))
  elseif count == 3 then
    return finish_few(self, ctx, mode, wanted, count, a, b, c, d, pcall(self.forward, ctx, a, b, c))
  end
  return finish_few(self, ctx, mode, wanted, count, a, b, c, d, pcall(self.forward, ctx, a, b, c, d))
end

-- Backward.

local function check_gradient(name, position, value)
  if value ~= nil and not istype(Tensor, value) then
    errors.raise("invalid", "%s: backward returned %s for argument %d; a tensor or nil is needed", name, args.describe(value),
      position)
  end
end

local function give(name, count, a, b, c, d)
  check_gradient(name, 1, a)
  check_gradient(name, 2, b)
  check_gradient(name, 3, c)
  check_gradient(name, 4, d)
  fill_few(inputs, a, b, c, d)
  call.given = count
end

local function give_many(name, count, list)
  for i = 1, count do
    check_gradient(name, i, list[i])
  end
  fill(inputs, list, count)
  call.given = count
end

local function many_gradients(ctx, results, kept, count)
  local handles, gradients, list = {}, {}, {}
  for i = 1, results do
    handles[i] = outputs[i - 1]
  end
  for i = 1, kept do
    list[i] = saved[i - 1]
  end
  for i = 1, kept do
    list[i] = wrap(list[i])
  end
  for i = 1, results do
    gradients[i] = tensor_of(handles[i])
  end
  ctx.saved = list
  give_many(ctx[0].name, count, { ctx[0].backward(ctx, unpack(gradients, 1, results)) })
end

local function forget_handles(results, kept)
  for i = 1, results do
    C.luda_handle_release(context, outputs[i - 1])
  end
  for i = 1, kept do
    C.luda_handle_release(context, saved[i - 1])
  end
end

local function backward(ctx, options)
  local fn, count, kept, results = ctx[0], call.ninputs, call.nsaved, call.noutputs
  if fn.once and options.create_graph then
    forget_handles(results, kept)
    errors.raise("graph", "%s: its backward is not recorded (once = true), so it has no second derivative", fn.name)
  end
  if count <= 31 then
    ctx.needs = flags_of(count, call.needs)
  end
  if results > 2 or kept > 2 or count > 4 then
    many_gradients(ctx, results, kept, count)
  else
    local g, h, s, t = outputs[0], outputs[1], saved[0], saved[1]
    if kept == 2 then
      ctx.saved = list_of(wrap(s), wrap(t))
    else
      ctx.saved = list_of(kept == 1 and wrap(s) or nil)
    end
    local first = g ~= 0 and wrap(g) or nil
    if results == 1 then
      give(fn.name, count, fn.backward(ctx, first))
    else
      give(fn.name, count, fn.backward(ctx, first, h ~= 0 and wrap(h) or nil))
    end
  end
  give_back(ctx.saved)
  ctx.saved = false
end

function walks.run_function(ctx, options)
  if spans.active then
    return spans.run(ctx[0].name, "backward", backward, ctx, options)
  end
  backward(ctx, options)
end

return M
