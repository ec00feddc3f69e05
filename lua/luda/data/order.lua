--- Numbers that are a function of a seed: hashes, and orders of 1 … n that are computed place by place, never stored.

local bxor, rshift, tobit = bit.bxor, bit.rshift, bit.tobit
local floor, ceil, sqrt = math.floor, math.ceil, math.sqrt

local M = {}

--- 32 bits of a key and a number, in plain numbers: 64-bit ones are slow where this is not compiled. A factor of 19 bits
-- keeps a product exact.
local function mix(key, x)
  x = tobit(bxor(tobit(x), key) * 0x6eb4b)
  x = tobit(bxor(x, rshift(x, 15)) * 0x5a9a7)
  x = tobit(bxor(x, rshift(x, 13)) * 0x7d2d5)
  return bxor(x, rshift(x, 16))
end

--- Takes a whole number below 2^53 into a key.
local function take(key, number)
  return mix(mix(key, number % 0x100000000), floor(number / 0x100000000) + 0x51ed)
end

--- A whole number below 2^52 that belongs to three whole numbers.
---@param a integer
---@param b integer
---@param c integer
---@return integer
function M.hash(a, b, c)
  local low = take(take(take(0x243f6a88, a), b), c)
  local high = take(take(take(0x13198a2e, a), b), c)
  return (high % 0x100000) * 0x100000000 + low % 0x100000000
end

-- Rounds until no test tells the orders from random ones: a narrow rectangle mixes slowly.
local SMALL, ROUNDS_OF_SMALL, ROUNDS = 256, 24, 10

--- The order of 1 … n that belongs to a seed and an epoch, as a function of the place: a Feistel network over a rectangle
-- hardly larger than n, walked on from places outside.
---@param n integer
---@param seed integer
---@param epoch integer
---@return fun(place: integer): integer
function M.permutation(n, seed, epoch)
  local width = ceil(sqrt(n))
  local height = ceil(n / width)
  local keys, rounds = {}, n < SMALL and ROUNDS_OF_SMALL or ROUNDS
  for round = 1, rounds do
    keys[round] = tobit(M.hash(seed, epoch, round) % 0x100000000)
  end
  return function(place)
    local x = place - 1
    repeat
      local column, row = x % width, floor(x / width)
      for round = 1, rounds, 2 do
        column = (column + mix(keys[round], row)) % width
        row = (row + mix(keys[round + 1], column)) % height
      end
      x = row * width + column
    until x < n
    return x + 1
  end
end

return M
