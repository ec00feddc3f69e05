--- First values of parameters. They are drawn in float32 on the CPU, so that a seed gives one model everywhere.

local create = require "luda.create"
local modules = require "luda.nn.module"

local M = {}

--- Uniform numbers between -bound and bound.
---@param shape integer[]
---@param bound number
---@return luda.Tensor
function M.uniform(shape, bound)
  return modules.parameter(create.rand(shape) * (2 * bound) - bound)
end

--- Normal numbers with mean 0.
---@param shape integer[]
---@param deviation number
---@return luda.Tensor
function M.normal(shape, deviation)
  return modules.parameter(create.randn(shape) * deviation)
end

---@param shape integer[]
---@param value number
---@return luda.Tensor
function M.constant(shape, value)
  return modules.parameter(create.full(shape, value))
end

return M
