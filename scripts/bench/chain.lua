--- A chain of operators as long as one wants, each of which only the next one uses.

local luda = require "luda"

--- A recorded chain over one element; results on the way belong to the graph alone.
---@param count integer operators
---@return luda.Tensor result
---@return luda.Tensor leaf
return function(count)
  local leaf = luda.ones(1):requires_grad_()
  local result = leaf * 0.5
  for _ = 2, count do
    local following = result * 1.0
    result:release()
    result = following
  end
  return result, leaf
end
