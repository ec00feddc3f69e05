--- LUDA: tensors, automatic differentiation, optimizers, collectives and training records.

if not jit then
  error("luda needs LuaJIT")
end

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
require "luda.sugar"
require "luda.index"
require "luda.print"
require "luda.ops.reductions"
require "luda.ops.sorting"
require "luda.ops.positions"
local create = require "luda.create"
require "luda.ops.pointwise"
require "luda.ops.activations"
require "luda.ops.shapes"
require "luda.ops.pieces"
require "luda.ops.draws"
require "luda.ops.placing"
require "luda.ops.distinct"
require "luda.ops.series"
require "luda.ops.names"
require "luda.bytes"
require "luda.ops.attention"
local random = require "luda.random"
local autocast = require "luda.autocast"
local autograd = require "luda.autograd"
require "luda.ops.later"
local files = require "luda.files"
local dlpack = require "luda.dlpack"

local C = lib.C

---@class luda
local luda = {
  version = lib.version,
  Error = errors.Error,
  Tensor = tensors.Tensor,
  autograd = autograd,
  is_tensor = tensors.is_tensor,
  scope = scope.scope,
  keep = scope.keep,
  release = scope.release,
  memory = memory.memory,
  set_memory_budget = memory.set_memory_budget,
  no_grad = autograd.no_grad,
  enable_grad = autograd.enable_grad,
  autocast = autocast.autocast,
  autocast_dtype = autocast.dtype,
  generator = random.generator,
  manual_seed = random.manual_seed,
  save = files.save,
  load = files.load,
  to_dlpack = dlpack.to_dlpack,
  from_dlpack = dlpack.from_dlpack,
}

for name, fn in pairs(ops.functions) do
  luda[name] = luda[name] or fn
end
for name, fn in pairs(create) do
  luda[name] = fn
end

--- Threads of the worker pool, the calling one included.
---@param threads integer
function luda.set_threads(threads)
  lib.check(C.luda_set_threads(args.integer("set_threads", "the number of threads", threads)))
end

---@return integer
function luda.threads()
  return C.luda_threads()
end

--- True if this build on this machine has a feature, such as "cuda".
---@param feature string
---@return boolean
function luda.has(feature)
  return feature == "cuda" and C.luda_device_count(C.LUDA_CUDA) > 0
end

--- Sub-modules (luda.nn, luda.optim, …) are loaded when first used.
return setmetatable(luda, {
  __index = function(self, name)
    if type(name) == "string" and package.searchpath("luda." .. name, package.path) then
      self[name] = require("luda." .. name)
      return rawget(self, name)
    end
  end,
})
