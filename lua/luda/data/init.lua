--- Data: text as tokens, batches of them, IDX files, and data sets with lazy steps and workers.

local Batches = require "luda.data.batches"
local Dataset = require "luda.data.dataset"

---@class luda.data
local M = {
  text = require("luda.data.text").text,
  idx = require("luda.data.idx").idx,
  batches = Batches,
}

--- A data set of n items that get(i, epoch) makes; or the one that a module or file makes, which returns function(args):
--- workers need that form, since no function can pass to another Lua state. Tensors in args are shared with the workers.
---@param n integer|string
---@param get any
---@return luda.data.Dataset
function M.dataset(n, get)
  if type(n) == "string" then
    return Dataset.load(n, get)
  end
  return Dataset(n, get)
end

return M
