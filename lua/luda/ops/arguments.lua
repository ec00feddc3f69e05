--- What functions composed from rows share: their arguments, the dimensions that they reduce, half types computed in f32.

local args = require "luda.args"
local errors = require "luda.error"
local sugar = require "luda.sugar"
local tensors = require "luda.tensor"
local values = require "luda.values"

local methods = tensors.methods

local M = { positive = sugar.positive }

--- Defines a method and function whose arguments after the tensor come by position, in the order of `names`, or by name.
---@param name string
---@param names string[]
---@param fn function (tensor, values in the order of `names`)
function M.define(name, names, fn)
  local known = {}
  for _, option in ipairs(names) do
    known[option] = true
  end
  values.define(name, function(t, ...)
    local list = { n = select("#", ...), ... }
    local given = args.take_options(list)
    local last = list[list.n]
    if type(last) == "table" and next(last) == nil and getmetatable(last) == nil then
      list.n = list.n - 1 -- no options
    end
    if list.n > #names then
      errors.raise("invalid", "%s: unexpected argument %s", name, args.describe(list[#names + 1]))
    end
    for option in pairs(given or {}) do
      if not known[option] then
        args.unknown_option(name, option, known)
      end
    end
    for i, option in ipairs(names) do
      if i > list.n then
        list[i] = nil
      end
      if given and given[option] ~= nil then
        list[i] = given[option]
      end
    end
    return fn(values.need_tensor(name, t), unpack(list, 1, #names))
  end)
end

--- A true or false option.
---@return boolean
function M.flag(op, name, value, default)
  if value == nil then
    return default or false
  elseif type(value) ~= "boolean" then
    errors.raise("invalid", "%s: %s is true or false, not %s", op, name, args.describe(value))
  end
  return value
end

--- The tensor, with one dimension if it had none.
function M.at_least_1d(t)
  return t.ndim == 0 and methods.reshape(t, { 1 }) or t
end

--- A dimension as a positive number; a 0-d tensor has dimension 1.
function M.dim(op, t, dim, default)
  return sugar.positive(op, M.at_least_1d(t), dim or default or -1)
end

--- Options for the rows that reduce, and how many elements one result stands for.
---@return {dim: integer[], keepdim: boolean} options
---@return integer count
function M.over(op, t, dim, keepdim)
  keepdim = M.flag(op, "keepdim", keepdim)
  if dim == nil or (type(dim) == "table" and #dim == 0) then
    return { dim = {}, keepdim = keepdim }, t.numel
  end
  local dims, count, seen = {}, 1, {}
  for i, entry in ipairs(type(dim) == "table" and dim or { dim }) do
    dims[i] = M.dim(op, t, entry)
    if seen[dims[i]] then
      errors.raise("invalid", "%s: dimension %d is given twice", op, dims[i])
    end
    seen[dims[i]] = true
    count = count * (t.ndim == 0 and 1 or methods.size(t, dims[i]))
  end
  return { dim = dims, keepdim = keepdim }, count
end

--- The same options with the dimensions kept as sizes of 1.
function M.kept(options)
  return { dim = options.dim, keepdim = true }
end

--- The reduced dimensions joined into one, the last; the shape of the result.
---@return luda.Tensor joined
---@return integer[] shape
function M.join(t, options, count)
  local reduced, order, joined, shape = {}, {}, {}, {}
  for _, dim in ipairs(options.dim) do
    reduced[dim] = true
  end
  local sizes = t.shape
  for dim, size in ipairs(sizes) do
    if #options.dim > 0 and not reduced[dim] then
      order[#order + 1], joined[#joined + 1], shape[#shape + 1] = dim, size, size
    elseif options.keepdim then
      shape[#shape + 1] = 1
    end
  end
  for dim in ipairs(sizes) do
    if #options.dim == 0 or reduced[dim] then
      order[#order + 1] = dim
    end
  end
  joined[#joined + 1] = count
  return methods.reshape(#sizes > 1 and methods.permute(t, order) or t, joined), shape
end

--- Raises unless the element type is a floating one; halves become f32.
---@return luda.Tensor
function M.floating(op, t)
  if args.dtype_class(t.dtype) ~= "float" then
    errors.raise("dtype", "%s: %s is not possible here, a floating type is needed; convert with :to(\"f32\")", op, t.dtype)
  end
  return (t.dtype == "f16" or t.dtype == "bf16") and methods.to(t, "f32") or t
end

--- The result in the element type that `t` had.
function M.rounded(result, t)
  return result.dtype == t.dtype and result or methods.to(result, t.dtype)
end

--- Sums and products of small integers are i64.
function M.widened(t)
  return args.dtype_class(t.dtype) == "float" and t or methods.to(t, "i64")
end

--- Where each value of a list stands.
---@param list any[]
---@return table<any, integer>
function M.places(list)
  local places = {}
  for place, value in ipairs(list) do
    places[value] = place
  end
  return places
end

return M
