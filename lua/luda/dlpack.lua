--- DLPack: memory shared with other array libraries of the process, without a copy.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local values = require "luda.values"

local ffi, C, context = lib.ffi, lib.C, lib.context

local M = {}

local taken = setmetatable({}, { __mode = "k" })

--- A `struct DLManagedTensor *` over the tensor's memory, which lives as long as this value or who takes it over. A library
-- that takes it over calls the deleter itself: call `ffi.gc(managed, nil)` when it does. Tracked tensors are refused.
---@param t luda.Tensor
---@return any managed
function M.to_dlpack(t)
  local cell = ffi.new("struct DLManagedTensor *[1]")
  C.luda_context_use(context)
  lib.check(C.luda_tensor_to_dlpack(memory.pointer(values.need_tensor("to_dlpack", t)), cell))
  return ffi.gc(cell[0], C.luda_dlpack_release)
end

--- A tensor over the memory of a `struct DLManagedTensor *`, which it owns from then on: what was lent calls the deleter
-- with the last view of it.
---@param managed any
---@return luda.Tensor
function M.from_dlpack(managed)
  local kind = type(managed) == "cdata" and tostring(ffi.typeof(managed))
  if not kind or not (kind:find("DLManagedTensor %*>$") or kind:find("void %*>$")) or managed == nil then
    errors.raise("invalid", "from_dlpack: expected a pointer to a DLManagedTensor, got %s", args.describe(managed))
  elseif taken[managed] then
    errors.raise("invalid", "from_dlpack: this was taken before; each is for one taker")
  end
  local cell = ffi.new("luda_tensor *[1]")
  C.luda_context_use(context)
  lib.check(C.luda_tensor_from_dlpack(ffi.cast("struct DLManagedTensor *", managed), cell))
  taken[managed] = true
  ffi.gc(managed, nil)
  return memory.adopt(cell[0])
end

return M
