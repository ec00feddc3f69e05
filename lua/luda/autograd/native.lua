--- Operators that a library of the user's own has in C: functions `luda_status name(inputs…, luda_tensor **out)`.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"

local ffi, C, context, Tensor = lib.ffi, lib.C, lib.context, lib.Tensor
local istype, pointer, adopt = ffi.istype, memory.pointer, memory.adopt

local M = {}

---@class luda.autograd.Native
---@overload fun(...): luda.Tensor
local Native = class("luda.autograd.Native")

--- What C gets for an argument: tensors lend their pointers, everything else is passed as the FFI does.
local function passed(value)
  if istype(Tensor, value) then
    return pointer(value)
  end
  return value
end

local function run(self, ...)
  local count = select("#", ...)
  local a, b, c = ...
  if count == 1 then
    return self.fn(passed(a), self.out)
  elseif count == 2 then
    return self.fn(passed(a), passed(b), self.out)
  elseif count == 3 then
    return self.fn(passed(a), passed(b), passed(c), self.out)
  end
  local list = { ... }
  for i = 1, count do
    list[i] = passed(list[i])
  end
  list[count + 1] = self.out
  return self.fn(unpack(list, 1, count + 1))
end

--- The results are new references: each becomes a tensor.
local function results(self)
  local made = {}
  for i = 1, self.outputs do
    made[i] = self.out[i - 1]
  end
  for i = 1, self.outputs do
    if made[i] ~= nil then
      made[i] = adopt(made[i])
    end
  end
  for i = 1, self.outputs do
    if made[i] == nil then
      errors.raise("internal", "%s: it returned LUDA_OK and no tensor %d", self.name, i)
    end
  end
  return unpack(made, 1, self.outputs)
end

function Native:__call(...)
  for i = 0, self.outputs - 1 do
    self.out[i] = nil
  end
  C.luda_context_use(context)
  lib.check(run(self, ...))
  if self.outputs == 1 and self.out[0] ~= nil then
    return adopt(self.out[0])
  end
  return results(self)
end

--- A function in C, declared by ffi.cdef as `luda_status name(luda_tensor *x, …, luda_tensor **out)`, as a function in Lua:
-- tensors become pointers, numbers stay, failures are raised, and the `outputs` tensors in out are returned. Its backward is
-- that of the node which it makes (luda_node_new), see examples/own_operator.c. The library stays loaded.
---@param fn any the function, of ffi.load's result
---@param given? {outputs: integer, name: string}
---@return luda.autograd.Native
function M.native(fn, given)
  local options = args.options("native", given, { outputs = 1, name = "native" })
  if type(fn) ~= "cdata" then
    errors.raise("invalid", "native: expected a function of ffi.load's result, got %s", args.describe(fn))
  end
  local outputs = args.integer("native", "outputs", options.outputs)
  if outputs < 1 then
    errors.raise("invalid", "native: a function has at least one output, not %d", outputs)
  end
  lib.check(C.luda_library_keep(ffi.cast("const void *", fn)))
  return setmetatable({
    fn = fn, name = options.name, outputs = outputs, out = ffi.new("luda_tensor *[?]", outputs),
  }, Native)
end

return M
