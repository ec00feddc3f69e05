--- Gradients: what backward returns. Entries go by parameter id; nothing is stored on tensors.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
require "luda.sugar"

local ffi, C = lib.ffi, lib.C
local methods, is_tensor, pointer = tensors.methods, tensors.is_tensor, memory.pointer

---@class luda.Gradients
---@field pointer any luda_gradients*
local Gradients = class("luda.Gradients")

function Gradients.__index(self, key)
  local method = Gradients[key]
  if method ~= nil then
    return method
  end
  if is_tensor(key) then
    return Gradients.get(self, key)
  end
end

--- An empty container.
function Gradients:init()
  local out = ffi.new("luda_gradients *[1]")
  lib.check(C.luda_gradients_new(out))
  self.pointer = ffi.gc(out[0], C.luda_gradients_release)
  scope.own(self)
end

--- A container around a reference that passes to it.
function Gradients.adopt(owned)
  local self = setmetatable({ pointer = ffi.gc(owned, C.luda_gradients_release) }, Gradients)
  scope.own(self)
  return self
end

local function container(self)
  local found = rawget(self, "pointer")
  if not found then
    errors.raise("closed", "gradients: they were released, or their scope has ended; return them from the scope or keep() them")
  end
  return found
end

local function id_of(op, key)
  if is_tensor(key) then
    return key.id
  end
  return args.integer(op, "the id", key)
end

--- The gradient of a tensor (or of a parameter id), or nil if it took no part.
---@param key luda.Tensor|integer
---@return luda.Tensor?
function Gradients:get(key)
  local found = C.luda_gradients_get(container(self), id_of("get", key))
  if found == nil then
    return nil
  end
  C.luda_tensor_retain(found)
  return memory.adopt(found)
end

--- Removes and returns a gradient.
---@param key luda.Tensor|integer
---@return luda.Tensor?
function Gradients:take(key)
  local found = self:get(key)
  if found then
    lib.check(C.luda_gradients_set(container(self), id_of("take", key), nil))
  end
  return found
end

--- Puts a gradient in place of the one there, or of none.
---@param key luda.Tensor|integer
---@param gradient luda.Tensor
---@return luda.Gradients self
function Gradients:register(key, gradient)
  if not is_tensor(gradient) then
    errors.raise("invalid", "register: the gradient must be a tensor, not %s", args.describe(gradient))
  end
  lib.check(C.luda_gradients_set(container(self), id_of("register", key), pointer(gradient)))
  return self
end

---@return integer
function Gradients:len()
  return C.luda_gradients_count(container(self))
end

--- Iterates over ids, ascending, with their gradients.
---@return fun(): integer?, luda.Tensor?
function Gradients:pairs()
  local ids = {}
  for i = 1, self:len() do
    ids[i] = tonumber(C.luda_gradients_id(container(self), i - 1))
  end
  local i = 0
  return function()
    i = i + 1
    if ids[i] then
      return ids[i], self:get(ids[i])
    end
  end
end

--- Only the gradients of a module's parameters.
---@param module table
---@return luda.Gradients
function Gradients:of(module)
  local chosen = Gradients()
  for _, parameter in ipairs(module:parameters()) do
    local gradient = self:get(parameter)
    if gradient then
      chosen:register(parameter, gradient)
    end
  end
  return chosen
end

--- All gradients on a device.
---@param device string
---@return luda.Gradients
function Gradients:to(device)
  local moved = Gradients()
  for id, gradient in self:pairs() do
    moved:register(id, methods.to(gradient, device))
  end
  return moved
end

--- The norm over all gradients together, added up in double.
---@return number
function Gradients:norm()
  local out = ffi.new("double[1]")
  C.luda_context_use(lib.context)
  lib.check(C.luda_gradients_norm(container(self), out))
  return out[0]
end

--- Scales all gradients in place (whoever else holds one sees it), so that their common norm is at most `limit`; returns the
-- norm before. One that is not finite is returned too, and the gradients stay as they are: no factor makes them right. With
-- `each` every gradient is scaled by itself where its own norm is larger (and finite); the common norm is returned.
---@param limit number
---@param given? {each: boolean}
---@return number
function Gradients:clip_norm_(limit, given)
  local each = args.options("clip_norm_", given, { each = false }).each
  limit = args.number("clip_norm_", "the limit", limit)
  if each then
    local norm = self:norm()
    lib.check(C.luda_gradients_clip_each(container(self), limit))
    return norm
  end
  local norm = ffi.new("double[1]")
  C.luda_context_use(lib.context)
  lib.check(C.luda_gradients_clip_norm(container(self), limit, norm))
  return norm[0]
end

--- Limits every element to -limit … limit, in place; infinities become the limit, NaN stays.
---@param limit number
---@return luda.Gradients self
function Gradients:clip_value_(limit)
  C.luda_context_use(lib.context)
  lib.check(C.luda_gradients_clip_value(container(self), args.number("clip_value_", "the limit", limit)))
  return self
end

--- Count, shapes and dtypes, in the order of ids: what ranks must agree on before data moves.
local function manifest(self)
  local lines = {}
  for _, gradient in self:pairs() do
    lines[#lines + 1] = args.shape_text(gradient.shape) .. " " .. gradient.dtype
  end
  return table.concat(lines, "\n")
end

--- The reduction of all ranks' gradients, in ascending order of ids, in each gradient's own dtype.
---@param comm luda.Comm
---@param op string "sum", "mean", …
---@return luda.Gradients
function Gradients:all_reduce(comm, op)
  local all, culprits = comm:exchange(manifest(self)), {}
  for rank, text in ipairs(all) do
    if text ~= all[1] then
      culprits[#culprits + 1] = rank - 1
    end
  end
  if #culprits > 0 then
    errors.raise_with("mismatch", ("all_reduce: ranks hold different gradients: rank 0 [%s], rank %d [%s]"):format(
      all[1]:gsub("\n", "; "), culprits[1], (all[culprits[1] + 1]:gsub("\n", "; "))), { rank = comm.rank, culprits = culprits })
  end
  local reduced = Gradients()
  for id, gradient in self:pairs() do
    reduced:register(id, comm:all_reduce(gradient, op))
  end
  return reduced
end

--- Gives the gradients back now; twice is harmless.
function Gradients:release()
  local found = rawget(self, "pointer")
  if found then
    self.pointer = nil
    C.luda_gradients_release(ffi.gc(found, nil))
  end
end

--- Saves the container from every open scope.
---@return luda.Gradients self
function Gradients:keep()
  return scope.keep(self)
end

function Gradients:__tostring()
  local found = rawget(self, "pointer")
  return found and ("luda.Gradients(%d)"):format(C.luda_gradients_count(found)) or "luda.Gradients (released)"
end

return Gradients
