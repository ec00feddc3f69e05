--- Parameters and gradients as one vector, for optimizers that look at all of them at once.

local lib = require "luda.ffi"
local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local functions = require("luda.ops").functions
local scope = require "luda.scope"
local tensors = require "luda.tensor"
local Gradients = require "luda.autograd.gradients"

local C = lib.C

local M = {}

--- fn(…) with recording on or off.
local function with_recording(on, fn, ...)
  local mode = C.luda_set_grad_enabled(on)
  local results = { pcall(fn, ...) }
  C.luda_set_grad_enabled(mode)
  if not results[1] then
    error(results[2], 0)
  end
  return unpack(results, 2, 4)
end

---@param fn function
function M.unrecorded(fn, ...)
  return with_recording(0, fn, ...)
end

local function flatten(members, dtype, value_of)
  local parts = {}
  for i, entry in ipairs(members) do
    local value = value_of(entry)
    parts[i] = value and value:detach():reshape(-1):to(dtype)
      or create.zeros(entry.tensor.numel, { dtype = dtype, device = entry.tensor.device })
  end
  return #parts > 0 and functions.cat(parts, 1) or create.zeros(0, { dtype = dtype })
end

---@param members luda.Named[]
---@param dtype string
---@return luda.Tensor
function M.values(members, dtype)
  return flatten(members, dtype, function(entry)
    return entry.tensor
  end)
end

---@param members luda.Named[]
---@param vector luda.Tensor
function M.assign(members, vector)
  local offset = 1
  for _, entry in ipairs(members) do
    local n = entry.tensor.numel
    entry.tensor:copy_(vector:narrow(1, offset, n):reshape(entry.tensor.shape))
    offset = offset + n
  end
end

--- The loss as a number, and the gradients; a closure that returns only a loss leaves backward to us.
local function call(closure)
  local loss, grads = closure()
  if grads == nil and tensors.is_tensor(loss) and loss.requires_grad then
    grads = loss:backward()
  end
  local value = tensors.is_tensor(loss) and loss:item() or loss
  if type(value) ~= "number" or getmetatable(grads) ~= Gradients then
    errors.raise("invalid", "step: the closure must return the loss and its gradients (return loss, loss:backward()), "
      .. "got %s and %s", args.describe(loss), args.describe(grads))
  end
  return value, grads
end

local function run(closure, members, dtype, choose)
  local loss, grads = with_recording(1, call, closure)
  if choose then
    choose(grads)
  end
  return loss, flatten(members, dtype, function(entry)
    return grads:get(entry.tensor)
  end)
end

--- Loss and gradient (0 where there is none) of the parameters as they are. choose(grads) may fill the list first.
---@param closure function
---@param members luda.Named[]
---@param dtype string
---@param choose? fun(grads: luda.Gradients)
---@return number loss
---@return luda.Tensor gradient
function M.evaluate(closure, members, dtype, choose)
  return scope.scope(run, closure, members, dtype, choose)
end

return M
