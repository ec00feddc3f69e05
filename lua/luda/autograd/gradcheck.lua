--- gradcheck: gradients against central differences in float64, under upstream gradients of both signs and no units.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
local elements = require "luda.values"

local methods, is_tensor = tensors.methods, tensors.is_tensor

local M = {}

--- A fixed sequence of both signs, away from zero and one.
local function upstream_value(k)
  local fraction = (k * 0.6180339887498949) % 1
  return (k % 2 == 0 and -1 or 1) * (0.3 + 1.1 * fraction)
end

--- The outputs that have gradients.
local function outputs_of(fn, inputs)
  local outputs = {}
  local function take(...)
    for i = 1, select("#", ...) do
      local value = select(i, ...)
      for _, t in ipairs(type(value) == "table" and value or { value }) do
        if is_tensor(t) and args.dtype_class(t.dtype) == "float" then
          outputs[#outputs + 1] = t
        end
      end
    end
  end
  take(fn(unpack(inputs)))
  return outputs
end

--- Σ weight · output, in Lua numbers; the weights follow the order of all elements.
local function weighted_sum(outputs, weights)
  local total, k = 0, 0
  for o, output in ipairs(outputs) do
    local values, weight = elements.read(output), weights and elements.read(weights[o])
    for i = 0, output.numel - 1 do
      k = k + 1
      total = total + values[i] * (weight and weight[i] or upstream_value(k))
    end
  end
  return total
end

--- Upstream gradients in the outputs' shapes.
local function make_weights(outputs)
  local weights, k = {}, 0
  for o, output in ipairs(outputs) do
    local weight = create.empty(output.shape, { dtype = "f64" })
    local data = methods.data(weight)
    for i = 0, output.numel - 1 do
      k = k + 1
      data[i] = upstream_value(k)
    end
    weights[o] = weight
  end
  return weights
end

--- A leaf of the same values with element `index` moved.
local function moved(values, shape, index, change)
  local t = create.empty(shape, { dtype = "f64" })
  local data = methods.data(t)
  for i = 0, t.numel - 1 do
    data[i] = values[i]
  end
  data[index] = data[index] + change
  return methods.requires_grad_(t)
end

local function position_text(index, shape)
  local parts = {}
  for dim = #shape, 1, -1 do
    parts[dim] = index % shape[dim] + 1
    index = math.floor(index / shape[dim])
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- The entries that require gradients, and their places.
local function tracked(list)
  local chosen, places = {}, {}
  for place, t in ipairs(list) do
    if is_tensor(t) and t.requires_grad then
      chosen[#chosen + 1], places[#places + 1] = t, place
    end
  end
  return chosen, places
end

--- What is compared: the outputs that have gradients; of a recorded gradient all, because one that is constant has none.
local function compared(fn, inputs, options)
  local outputs = outputs_of(fn, inputs)
  return options.all and outputs or (tracked(outputs))
end

--- The slope of Σ weight · output along one element of one input.
local function difference(fn, inputs, place, values, shape, index, options)
  local function at(change)
    return scope.scope(function()
      local trial = { unpack(inputs) }
      trial[place] = moved(values, shape, index, change)
      return weighted_sum(compared(fn, trial, options))
    end)
  end
  return (at(options.eps) - at(-options.eps)) / (2 * options.eps)
end

--- The element whose gradient is furthest beyond the tolerance, or nil.
local function find_worst(op, fn, inputs, options)
  local outputs = compared(fn, inputs, options)
  local weights, seeds, analytic = make_weights(outputs), {}, {}
  local checked, places = tracked(inputs)
  local roots, root_places = tracked(outputs)
  if #roots == 0 and not options.all then
    errors.raise("graph", "%s: no output has a gradient", op)
  elseif #roots > 0 then
    for r, place in ipairs(root_places) do
      seeds[r] = weights[place]
    end
    local grad = require("luda.autograd").grad
    analytic = grad(roots, checked, { gradient = seeds, allow_unused = true, create_graph = options.recorded })
  end
  local worst
  for c, input in ipairs(checked) do
    local values, shape = elements.read(input), input.shape
    local found = analytic[c] and elements.read(analytic[c])
    for index = 0, input.numel - 1 do
      local numeric = difference(fn, inputs, places[c], values, shape, index, options)
      local value = found and found[index] or 0
      local excess = math.abs(value - numeric) - (options.atol + options.rtol * math.abs(numeric))
      local bad = excess > 0 or excess ~= excess
      if bad and not (worst and worst.excess >= excess) then
        worst = {
          excess = excess, input = places[c], position = position_text(index, shape), analytic = value, numeric = numeric,
        }
      end
    end
  end
  return worst
end

local function first_order(op, fn, inputs, options)
  local worst = scope.scope(find_worst, op, fn, inputs, options)
  if worst then
    errors.raise_with("graph", ("%s: input %d at %s: the gradient is %.10g, differences give %.10g"):format(
      op, worst.input, worst.position, worst.analytic, worst.numeric), { detail = worst })
  end
end

--- The gradients of fn as a function of its inputs and of the upstream gradients that follow them.
local function gradient_function(fn, count)
  return function(...)
    local list, upstream = { ... }, {}
    local given = { unpack(list, 1, count) }
    local roots, places = tracked(outputs_of(fn, given))
    for i, place in ipairs(places) do
      upstream[i] = list[count + place]
    end
    local gradients = require("luda.autograd").grad(roots, (tracked(given)), {
      gradient = upstream, create_graph = true, allow_unused = true,
    })
    local results = {}
    for _, gradient in ipairs(gradients) do
      results[#results + 1] = gradient or nil
    end
    return results
  end
end

--- Compares the gradients of fn(inputs…) with central differences; the inputs that require gradients must be f64.
---@param fn fun(...): any
---@param inputs luda.Tensor[]
---@param given? {eps: number?, atol: number?, rtol: number?, second: boolean?}
---@return true
function M.gradcheck(fn, inputs, given)
  local options = args.options("gradcheck", given, { eps = 1e-6, atol = 1e-6, rtol = 1e-5, second = false })
  for i, input in ipairs(inputs) do
    if is_tensor(input) and input.requires_grad and input.dtype ~= "f64" then
      errors.raise("dtype", "gradcheck: input %d is %s; differences need f64", i, input.dtype)
    end
  end
  first_order("gradcheck", fn, inputs, options)
  if options.second then
    scope.scope(function()
      options.recorded = true -- a fused backward has another composition where the pass itself is recorded
      first_order("gradcheck, recorded", fn, inputs, options)
      local all = { unpack(inputs) }
      for _, weight in ipairs(make_weights(outputs_of(fn, inputs))) do
        all[#all + 1] = methods.requires_grad_(weight)
      end
      options.all = true
      first_order("gradcheck, second order", gradient_function(fn, #inputs), all, options)
    end)
  end
  return true
end

return M
