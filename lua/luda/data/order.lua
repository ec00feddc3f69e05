--- Numbers that are a function of a seed: hashes, and orders of 1 … n that are computed place by place, never stored.

local ffi = require "ffi"

local floor, ceil, sqrt = math.floor, math.ceil, math.sqrt

local M = {}

local function word(number)
  return ffi.cast("uint64_t", ffi.cast("int64_t", number))
end

--- Spreads every bit over all: Stafford's variant 13 of the finalizer of MurmurHash3.
local function mix(x)
  x = bit.bxor(x, bit.rshift(x, 30)) * 0xbf58476d1ce4e5b9ULL
  x = bit.bxor(x, bit.rshift(x, 27)) * 0x94d049bb133111ebULL
  return bit.bxor(x, bit.rshift(x, 31))
end

--- 64 bits of three whole numbers.
---@param a integer
---@param b integer
---@param c integer
---@return any uint64_t
function M.hash(a, b, c)
  local x = mix(word(a) + 0x9e3779b97f4a7c15ULL)
  x = mix(bit.bxor(x, word(b)) + 0x9e3779b97f4a7c15ULL)
  return mix(bit.bxor(x, word(c)) + 0x9e3779b97f4a7c15ULL)
end

local ROUNDS = 8

--- The order of 1 … n that belongs to a seed and an epoch, as a function of the place: a Feistel network over a rectangle
-- hardly larger than n, walked on from places outside.
---@param n integer
---@param seed integer
---@param epoch integer
---@return fun(place: integer): integer
function M.permutation(n, seed, epoch)
  local width = ceil(sqrt(n))
  local height = ceil(n / width)
  local keys = ffi.new("uint64_t[?]", ROUNDS)
  for round = 1, ROUNDS do
    keys[round - 1] = M.hash(seed, epoch, round)
  end
  return function(place)
    local x = place - 1
    repeat
      local column, row = x % width, floor(x / width)
      for round = 0, ROUNDS - 2, 2 do
        column = (column + tonumber(mix(keys[round] + row) % width)) % width
        row = (row + tonumber(mix(keys[round + 1] + column) % height)) % height
      end
      x = row * width + column
    until x < n
    return x + 1
  end
end

return M
