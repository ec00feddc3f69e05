--- Reductions across ranks in plain Lua, to the last bit: element by element in the order in which an algorithm combines, in
--- the type in which sums are kept, rounded once at the end.

local ffi = require "ffi"
local bit = require "bit"

local M = {}

--- Element types: "float" ones keep sums in `partial` and are stored with `digits` binary digits from 2^least on.
M.types = {
  f64 = { class = "float", partial = "double" },
  f32 = { class = "float", partial = "float" },
  f16 = { class = "float", partial = "float", digits = 11, least = -14, most = 65504 },
  bf16 = { class = "float", partial = "float", digits = 8, least = -126, most = 0x1.FEp127 },
  i64 = { class = "int", c = "int64_t" }, i32 = { class = "int", c = "int32_t" }, i16 = { class = "int", c = "int16_t" },
  i8 = { class = "int", c = "int8_t" }, u8 = { class = "int", c = "uint8_t" }, bool = { class = "bool", c = "uint8_t" },
}

--- What each class of types has.
M.offered = {
  float = { sum = true, mean = true, min = true, max = true, prod = true },
  int = { sum = true, min = true, max = true, prod = true, ["and"] = true, ["or"] = true, xor = true },
  bool = { min = true, max = true, ["and"] = true, ["or"] = true, xor = true },
}

local function to_float(x)
  return tonumber(ffi.new("float", x))
end

--- Round to nearest, ties to even.
function M.round(dtype, x)
  local t = M.types[dtype]
  if not t.digits then
    return t.partial == "float" and to_float(x) or x
  elseif x ~= x or x == 0 or x == math.huge or x == -math.huge then
    return x
  end
  local _, exponent = math.frexp(math.abs(x))
  local quantum = 2 ^ math.max(exponent - t.digits, t.least - t.digits + 1)
  local rounded = ((x / quantum + 0x1.8p52) - 0x1.8p52) * quantum
  return math.abs(rounded) > t.most and (x > 0 and math.huge or -math.huge) or rounded
end

local function as_c(t, x)
  return ffi.cast("int64_t", ffi.cast(t.c, x))
end

local function lesser(a, b)
  return (b < a or b ~= b) and b or a
end

local function greater(a, b)
  return (b > a or b ~= b) and b or a
end

local OPERATIONS = {
  sum = function(a, b) return a + b end, mean = function(a, b) return a + b end, prod = function(a, b) return a * b end,
  min = lesser, max = greater, ["and"] = bit.band, ["or"] = bit.bor, xor = bit.bxor,
}

--- a op b in the type of partial sums.
local function combiner(dtype, reduction)
  local t, f = M.types[dtype], OPERATIONS[reduction]
  if t.class ~= "float" then
    return function(a, b)
      return as_c(t, f(a, b))
    end
  end
  return t.partial == "float" and function(a, b)
    return to_float(f(a, b))
  end or f
end

--- How each algorithm combines the ranks' values (a list, rank r at r + 1) of an element in piece `piece` for `root`.
M.orders = {}

function M.orders.direct(values, op)
  local sum = values[1]
  for r = 2, #values do
    sum = op(sum, values[r])
  end
  return sum
end
M.orders.centralized = M.orders.direct

--- Piece q starts at rank q + 1 and comes around; each rank adds what comes in to its own.
function M.orders.ring(values, op, piece)
  local size = #values
  local sum = values[(piece + 1) % size + 1]
  for step = 2, size do
    sum = op(values[(piece + step) % size + 1], sum)
  end
  return sum
end

--- Pairs at half the distance each time, after ranks beyond the power of two have folded in.
function M.orders.halving(values, op)
  local power, sums = 1, {}
  while power * 2 <= #values do
    power = power * 2
  end
  for r = 1, power do
    sums[r] = values[r + power] and op(values[r], values[r + power]) or values[r]
  end
  while power > 1 do
    power = power / 2
    for r = 1, power do
      sums[r] = op(sums[r], sums[r + power])
    end
  end
  return sums[1]
end

local function tree(arity)
  return function(values, op, _, root)
    local size = #values
    local function below(position)
      local sum = values[(position + root) % size + 1]
      for child = arity * position + 1, math.min(arity * position + arity, size - 1) do
        sum = op(sum, below(child))
      end
      return sum
    end
    return below(0)
  end
end
M.orders.tree, M.orders["tree(1)"], M.orders["tree(3)"] = tree(2), tree(1), tree(3)

--- The result of one element.
function M.reduce(dtype, reduction, algorithm, values, piece, root)
  local t = M.types[dtype]
  local op = combiner(dtype, reduction)
  local sum = M.orders[algorithm](values, op, piece, root or 0)
  if reduction == "mean" then
    sum = t.partial == "float" and to_float(sum / #values) or sum / #values
  end
  return t.class == "float" and M.round(dtype, sum) or sum
end

--- Rank r's value of element i: of mixed signs and sizes, with extremes of integers, not-a-numbers and infinities.
function M.value(dtype, reduction, r, i)
  local t = M.types[dtype]
  local noise = math.sin(i * 12.9898 + r * 78.233 + 1) -- in no case special
  if t.class == "bool" then
    return as_c(t, noise > -0.3 and 1 or 0)
  elseif t.class == "int" then
    local extremes = { i64 = 9007199254740993LL, i32 = 2147483647LL, i16 = 32767LL, i8 = 127LL, u8 = 255LL }
    local x = (i + r) % 4 == 0 and extremes[dtype] - r or ffi.cast("int64_t", math.floor(noise * 100))
    return as_c(t, dtype == "u8" and (x < 0 and -x or x) or x)
  elseif i == 5 and r == 1 then
    return (reduction == "min" or reduction == "max") and 0 / 0 or math.huge
  end
  local scale = reduction == "prod" and 2 or 10 ^ ((i * 3 + r) % 7 - 3)
  return M.round(dtype, noise * scale)
end

return M
