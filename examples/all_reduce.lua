--- Four ranks in one process add their vectors around a ring, exactly.
--
--   build/luda examples/all_reduce.lua
--
-- Each rank holds 0.25 i + rank and sends y = 2 x + 1: the sum over ranks is 2 i + 16, the mean a quarter of it. 257 elements do
-- not divide by 4.

local luda = require "luda"

local RANKS, ELEMENTS = 4, 257

--- What each rank runs: this file, loaded again in the rank's own Lua state.
local function rank_work(comm)
  local index = luda.arange(ELEMENTS, { dtype = "f32" })
  local x = index * 0.25 + comm.rank
  local y = x * 2 + 1
  local before = y:clone()

  local sum = comm:all_reduce(y, "sum", { algorithm = "ring" })
  local mean = comm:all_reduce(y, "mean", { algorithm = "ring" })
  local expected = index * 2 + 16

  local function equal(a, b)
    return a:eq(b):sum():item() == ELEMENTS
  end
  assert(equal(sum, expected), "the sum differs")
  assert(equal(mean, expected / 4), "the mean differs")
  assert(equal(y, before), "an input was changed")
  comm:close()
  return ELEMENTS
end

-- luda.dist.spawn loads this file again in each rank's Lua state; there the main part is left to the first one.
if luda.dist.thread_comm() then
  return rank_work
end

local checked = luda.dist.spawn(RANKS, arg[0])
print(("%d ranks, %d float32 elements each: sum and mean exact, inputs intact, session closed"):format(#checked, checked[1]))
