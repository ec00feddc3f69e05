--- Tensors of random numbers. Element i of a draw is a function of the generator's seed, its counter, and i.

local args = require "luda.args"
local ops = require "luda.ops"
local tensors = require "luda.tensor"

local methods, absent = tensors.methods, args.absent

--- The functions, given how luda.create reads options, and shapes with options.
return function(options, shape_and_options)
  local M = {}

  local function random(name, shape, given, more)
    given.shape = shape
    for key, value in pairs(more or {}) do
      given[key] = value
    end
    local requires_grad = given.requires_grad
    given.requires_grad = nil
    local t = ops.functions[name](given)
    return requires_grad and methods.requires_grad_(t) or t
  end

  ---@param ... integer|integer[]|table sizes; options dtype, device, generator, requires_grad
  ---@return luda.Tensor
  function M.rand(...)
    local shape, given = shape_and_options("rand", ...)
    return random("rand", shape, options("rand", given, "f32", { generator = absent }))
  end

  ---@param ... integer|integer[]|table
  ---@return luda.Tensor
  function M.randn(...)
    local shape, given = shape_and_options("randn", ...)
    return random("randn", shape, options("randn", given, "f32", { generator = absent }))
  end

  --- Whole numbers from low, below high.
  ---@param low integer
  ---@param high integer
  ---@param shape integer[]
  ---@param given? table
  ---@return luda.Tensor
  function M.randint(low, high, shape, given)
    given = options("randint", given, "i64", { generator = absent })
    args.fit("randint", args.number("randint", "low", low), given.dtype)
    args.fit("randint", args.number("randint", "high", high) - 1, given.dtype)
    return random("randint", args.sizes("randint", shape), given, { low = low, high = high })
  end

  --- A random order of 1 … n (0 … n-1 with base = 0).
  ---@param count integer
  ---@param given? table
  ---@return luda.Tensor
  function M.randperm(count, given)
    given = options("randperm", given, "i64", { generator = absent, base = 1 })
    given.low, given.base = given.base, nil
    return random("randperm", args.sizes("randperm", { count }), given)
  end

  return M
end
