--- Autocast: matrix products and attention in a half type, what needs range or long sums in f32, over f32 parameters.
--
-- Which operator does what is the fact `autocast` of its row. Parameters, and so their gradients and what an optimizer
-- sees, stay f32; the rounded copy of a parameter is made once for each of its versions.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local scope = require "luda.scope"

local C, context = lib.C, lib.context

local M = {}

local function restore(before)
  C.luda_context_use(context)
  C.luda_set_autocast(before)
end

local function call(dtype, fn, ...)
  args.callable("autocast", fn)
  C.luda_context_use(context)
  return scope.sealed(restore, C.luda_set_autocast(dtype), fn, ...)
end

--- Calls fn(…) with autocast to bf16; `luda.autocast({dtype="f16"}, fn, …)` chooses the type, `enabled = false` turns it off.
---@param first fun(...): any|{dtype: string?, enabled: boolean?}
---@param ... any the function where options came first, then its arguments
---@return any
function M.autocast(first, ...)
  if type(first) ~= "table" or getmetatable(first) then
    return call(C.LUDA_BF16, first, ...)
  end
  local options = args.options("autocast", first, { dtype = "bf16", enabled = true })
  local dtype = args.dtype("autocast", options.dtype)
  if dtype ~= C.LUDA_BF16 and dtype ~= C.LUDA_F16 then
    errors.raise("dtype", "autocast: dtype is %s; it is to bf16 or f16", options.dtype)
  end
  return call(options.enabled and dtype or -1, ...)
end

--- The type that autocast is to now; nil where it is off.
---@return string?
function M.dtype()
  C.luda_context_use(context)
  return args.dtype_names[C.luda_autocast()]
end

return M
