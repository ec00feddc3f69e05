--- Numbers that are a function of a seed: hashes, and orders of 1 … n that are computed place by place, never stored.

local ffi = require "ffi"

local bxor, rshift, tobit = bit.bxor, bit.rshift, bit.tobit
local floor, ceil, sqrt = math.floor, math.ceil, math.sqrt

local M = {}

--- Spreads every bit of 64 over all: Stafford's variant 13 of the finalizer of MurmurHash3.
local function spread(x)
  x = bxor(x, rshift(x, 30)) * 0xbf58476d1ce4e5b9ULL
  x = bxor(x, rshift(x, 27)) * 0x94d049bb133111ebULL
  return bxor(x, rshift(x, 31))
end

local function word(number)
  return ffi.cast("uint64_t", ffi.cast("int64_t", number))
end

--- 64 bits of three whole numbers.
---@param a integer
---@param b integer
---@param c integer
---@return any uint64_t
function M.hash(a, b, c)
  local x = spread(word(a) + 0x9e3779b97f4a7c15ULL)
  x = spread(bxor(x, word(b)) + 0x9e3779b97f4a7c15ULL)
  return spread(bxor(x, word(c)) + 0x9e3779b97f4a7c15ULL)
end

--- 32 bits of a key and a number, in plain numbers: 64-bit ones are slow where this is not compiled. A factor of 19 bits
-- keeps a product exact.
local function mix(key, x)
  x = tobit(bxor(tobit(x), key) * 0x6eb4b)
  x = tobit(bxor(x, rshift(x, 15)) * 0x5a9a7)
  x = tobit(bxor(x, rshift(x, 13)) * 0x7d2d5)
  return bxor(x, rshift(x, 16))
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
    keys[round] = tobit(tonumber(M.hash(seed, epoch, round) % 0x100000000ULL))
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
