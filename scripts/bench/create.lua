--- The tensors of rows, on the device that is measured.

local luda = require "luda"

local M = { device = "cpu" }

---@param ... integer|integer[] sizes
---@return luda.Tensor
function M.randn(...)
  local sizes = ...
  return luda.randn(type(sizes) == "table" and sizes or { ... }, { device = M.device })
end

---@param size integer
---@return luda.Tensor
function M.ones(size)
  return luda.ones(size, { device = M.device })
end

--- Positions 1 … limit.
---@param limit integer
---@param sizes integer[]
---@return luda.Tensor
function M.positions(limit, sizes)
  return luda.randint(1, limit + 1, sizes, { dtype = "i64", device = M.device })
end

return M
