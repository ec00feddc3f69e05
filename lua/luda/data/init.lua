--- Data: text as tokens, batches of them, IDX files, and small data sets with lazy steps.

local Batches = require "luda.data.batches"
local Dataset = require "luda.data.dataset"

---@class luda.data
return {
  text = require("luda.data.text").text,
  idx = require("luda.data.idx").idx,
  batches = Batches,
  dataset = Dataset,
}
