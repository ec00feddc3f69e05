--- Three ranks in one thread: an in-process group sums their vectors around a ring, exactly.
--
--   build/luda examples/tensor_collectives.lua
--
-- Rank r holds i + r and brings twice that: the sum over ranks is 6 i + 6. It is squared where it lies, and every element is
-- compared. 257 elements do not divide by 3.

local luda = require "luda"

local RANKS, ELEMENTS = 3, 257

local devices = {}
for rank = 1, RANKS do
  devices[rank] = arg[1] or "cpu"
end
local group = luda.dist.group(devices)
local index = luda.arange(ELEMENTS, { dtype = "f32", device = devices[1] })

local function equal(a, b)
  return a:eq(b):all():item()
end

local values, doubled = {}, {}
for rank = 0, RANKS - 1 do
  values[rank + 1] = index + rank
  doubled[rank + 1] = values[rank + 1] * 2
end
local sums = group:all_reduce(doubled, "sum", { algorithm = "ring" })
local expected = index * 6 + 6
for rank = 0, RANKS - 1 do
  local sum = sums[rank + 1]
  assert(equal(sum, expected), "a sum differs")
  assert(equal(sum * sum, expected * expected), "a square differs")
  assert(equal(values[rank + 1], index + rank) and equal(doubled[rank + 1], (index + rank) * 2), "an input was changed")
end
group:close()
print(("%d ranks in one thread, %d float32 elements each on %s: sums and squares exact, inputs intact"):format(RANKS, ELEMENTS,
  sums[1].device))
