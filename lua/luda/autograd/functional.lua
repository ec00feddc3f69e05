--- Derivatives of functions: products with vectors, Jacobians, Hessians. Each takes a function of one tensor, or of a list of
--- tensors given one by one, and gives one result or a list accordingly.

local args = require "luda.args"
local autograd = require "luda.autograd"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

local M = {}

--- The inputs as fresh leaves, or as they are where a graph is wanted through tracked ones.
local function leaves(op, inputs, keep_tracked)
  local list = is_tensor(inputs) and { inputs } or inputs
  if type(list) ~= "table" or #list == 0 then
    errors.raise("invalid", "%s: expected a tensor or a list of tensors, got %s", op, args.describe(inputs))
  end
  local fresh = {}
  for i, input in ipairs(list) do
    if not is_tensor(input) then
      errors.raise("invalid", "%s: input %d must be a tensor, not %s", op, i, args.describe(input))
    end
    fresh[i] = keep_tracked and input.requires_grad and input or methods.detach(input):requires_grad_()
  end
  return fresh
end

local function evaluate(op, fn, inputs)
  args.callable(op, fn)
  local y = autograd.enable_grad(fn, unpack(inputs))
  if not is_tensor(y) then
    errors.raise("invalid", "%s: the function must return a tensor, not %s", op, args.describe(y))
  end
  return y
end

--- Gradients with zeros where an input took no part; also for a result that is not tracked at all.
local function gradients(y, inputs, options)
  local list = y.requires_grad and autograd.grad(y, inputs, options) or {}
  for i, input in ipairs(inputs) do
    list[i] = list[i] or create.zeros_like(input)
  end
  return list
end

local function as_given(given, list)
  return is_tensor(given) and list[1] or list
end

--- The value of fn, and v times its Jacobian.
---@param fn fun(...): luda.Tensor
---@param inputs luda.Tensor|luda.Tensor[]
---@param v? luda.Tensor of the value's shape; may be absent for one element
---@param given? {create_graph: boolean?}
---@return luda.Tensor value
---@return luda.Tensor|luda.Tensor[]
function M.vjp(fn, inputs, v, given)
  local options = args.options("vjp", given, { create_graph = false })
  local fresh = leaves("vjp", inputs, options.create_graph)
  local y = evaluate("vjp", fn, fresh)
  local list = gradients(y, fresh, { gradient = v, create_graph = options.create_graph, allow_unused = true })
  return options.create_graph and y or methods.detach(y), as_given(inputs, list)
end

--- The value of fn, and its Jacobian times v: the derivative of v's gradient with respect to the upstream gradient.
---@param fn fun(...): luda.Tensor
---@param inputs luda.Tensor|luda.Tensor[]
---@param v luda.Tensor|luda.Tensor[] of the inputs' shapes
---@return luda.Tensor value
---@return luda.Tensor
function M.jvp(fn, inputs, v)
  local fresh = leaves("jvp", inputs, false)
  local directions = is_tensor(v) and { v } or v
  local y = evaluate("jvp", fn, fresh)
  local upstream = create.zeros_like(y):requires_grad_()
  local back = gradients(y, fresh, { gradient = upstream, create_graph = true, allow_unused = true })
  local total = create.zeros_like(y)
  for i, gradient in ipairs(back) do
    if gradient.requires_grad then
      total = total + gradients(gradient, { upstream }, { gradient = directions[i], retain = true, allow_unused = true })[1]
    end
  end
  return methods.detach(y), total
end

--- d fn / d input: the value's shape followed by the input's, for each input.
---@param fn fun(...): luda.Tensor
---@param inputs luda.Tensor|luda.Tensor[]
---@param given? {create_graph: boolean?}
---@return luda.Tensor|luda.Tensor[]
function M.jacobian(fn, inputs, given)
  local options = args.options("jacobian", given, { create_graph = false })
  local fresh = leaves("jacobian", inputs, options.create_graph)
  local y = evaluate("jacobian", fn, fresh)
  local flat, rows = methods.reshape(y, { -1 }), {}
  for element = 1, flat.numel do
    local list = gradients(methods.select(flat, 1, element), fresh,
      { retain = true, create_graph = options.create_graph, allow_unused = true })
    for i, gradient in ipairs(list) do
      rows[i] = rows[i] or {}
      rows[i][element] = gradient
    end
  end
  local result = {}
  for i, input in ipairs(fresh) do
    local shape = y.shape
    for _, size in ipairs(input.shape) do
      shape[#shape + 1] = size
    end
    result[i] = rows[i] and methods.reshape(functions.stack(rows[i]), shape) or create.zeros(shape, { dtype = input.dtype })
  end
  return as_given(inputs, result)
end

local function one_element(op, y)
  if y.numel ~= 1 then
    errors.raise("shape", "%s: the function must return one element, not %s", op, args.shape_text(y.shape))
  end
  return y
end

--- The value of a function with one element as result, and its Hessian times v.
---@param fn fun(...): luda.Tensor
---@param inputs luda.Tensor|luda.Tensor[]
---@param v luda.Tensor|luda.Tensor[] of the inputs' shapes
---@return luda.Tensor value
---@return luda.Tensor|luda.Tensor[]
function M.hvp(fn, inputs, v)
  local fresh = leaves("hvp", inputs, false)
  local directions = is_tensor(v) and { v } or v
  local y = one_element("hvp", evaluate("hvp", fn, fresh))
  local first = gradients(y, fresh, { create_graph = true, allow_unused = true })
  local product
  for i, gradient in ipairs(first) do
    local term = methods.sum(gradient * directions[i])
    product = product and product + term or term
  end
  return methods.detach(y), as_given(inputs, gradients(product, fresh, { allow_unused = true }))
end

--- All second derivatives of a function with one element as result: [input shape, input shape], of one input.
---@param fn fun(x: luda.Tensor): luda.Tensor
---@param input luda.Tensor
---@return luda.Tensor
function M.hessian(fn, input)
  return M.jacobian(function(x)
    local y = one_element("hessian", fn(x))
    return gradients(y, { x }, { create_graph = true, allow_unused = true })[1]
  end, input)
end

return M
