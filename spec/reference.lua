--- Elementwise operators in plain Lua, for comparison, and the values they are tried on.

local M = {}

local nan, inf = 0 / 0, math.huge

--- Error function: the series for small arguments, the continued fraction of its complement beyond.
local function erf(x)
  local size = math.abs(x)
  if x ~= x then
    return x
  elseif size < 2.5 then
    local term, sum, n = x, x, 0
    repeat
      n = n + 1
      term = -term * x * x / n
      sum = sum + term / (2 * n + 1)
    until math.abs(term) < 1e-20 * math.abs(sum) or n > 300
    return sum * 2 / math.sqrt(math.pi)
  elseif size > 6 then
    return x > 0 and 1 or -1
  end
  local fraction = 0
  for k = 120, 1, -1 do
    fraction = k / 2 / (size + fraction)
  end
  local complement = math.exp(-size * size) / math.sqrt(math.pi) / (size + fraction)
  return (x > 0 and 1 or -1) * (1 - complement)
end

local function sigmoid(x)
  if x < 0 then
    local e = math.exp(x)
    return e / (1 + e)
  end
  return 1 / (1 + math.exp(-x))
end

local function tanh(x)
  return math.tanh(x)
end

local root = math.sqrt(2 / math.pi)

local function tanh_inner(x)
  return root * (x + 0.044715 * x * x * x)
end

local function extreme(better)
  return function(a, b)
    if a ~= a or b ~= b then
      return nan
    end
    return better(a, b) and a or b
  end
end

M.functions = {
  add = function(a, b) return a + b end,
  sub = function(a, b) return a - b end,
  mul = function(a, b) return a * b end,
  div = function(a, b) return a / b end,
  pow = function(a, b) return a ^ b end,
  remainder = function(a, b)
    local r = math.fmod(a, b)
    return r ~= 0 and (r < 0) ~= (b < 0) and r + b or r
  end,
  maximum = extreme(function(a, b) return a >= b end),
  minimum = extreme(function(a, b) return a <= b end),
  neg = function(a) return -a end,
  abs = math.abs,
  sign = function(a) return a ~= a and nan or a > 0 and 1 or a < 0 and -1 or 0 end,
  square = function(a) return a * a end,
  sqrt = math.sqrt,
  rsqrt = function(a) return 1 / math.sqrt(a) end,
  reciprocal = function(a) return 1 / a end,
  exp = math.exp,
  log = function(a) return math.log(a) end,
  sin = math.sin,
  cos = math.cos,
  tanh = tanh,
  sigmoid = sigmoid,
  erf = erf,
  clone = function(a) return a end,
  relu = function(a) return a ~= a and a or math.max(a, 0) end,
  relu_backward = function(g, y) return y > 0 and g or 0 end,
  gelu = function(x) return x * 0.5 * (1 + erf(x / math.sqrt(2))) end,
  gelu_tanh = function(x) return 0.5 * x * (1 + tanh(tanh_inner(x))) end,
  gelu_tanh_backward = function(g, x)
    local t = tanh(tanh_inner(x))
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x))
  end,
  gelu_backward = function(g, x)
    return g * (0.5 * (1 + erf(x / math.sqrt(2))) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi))
  end,
  tanh_backward = function(g, y) return g * (1 - y * y) end,
  sigmoid_backward = function(g, y) return g * y * (1 - y) end,
  silu = function(x) return x * sigmoid(x) end,
  silu_backward = function(g, x)
    local e = math.exp(-x)
    return g * (1 + e + x * e) / ((1 + e) * (1 + e))
  end,
  silu_mul = function(x, y) return x / (1 + math.exp(-x)) * y end,
  eq = function(a, b) return a == b end,
  ne = function(a, b) return a ~= b end,
  lt = function(a, b) return a < b end,
  le = function(a, b) return a <= b end,
  gt = function(a, b) return a > b end,
  ge = function(a, b) return a >= b end,
  isnan = function(a) return a ~= a end,
  logical_not = function(a) return a == 0 end,
  where = function(mask, a, b)
    if mask then
      return a
    end
    return b
  end,
}

--- How much looser than one rounding a composed function may be (in multiples of the tolerance), and where the error is
-- absolute because terms cancel.
M.looser = {
  pow = 8, tanh = 4, sigmoid = 4, erf = 8, gelu = 16, gelu_tanh = 16, gelu_tanh_backward = 32, silu = 4, exp = 4, silu_mul = 4,
  gelu_backward = 32, silu_backward = 16, tanh_backward = 32, sigmoid_backward = 32, sin = 8,
  cos = 8, log = 4, remainder = 8, rsqrt = 2,
}
M.absolute = {
  gelu = true, gelu_tanh = true, gelu_tanh_backward = true, sin = true, cos = true, log = true, remainder = true, erf = true,
  gelu_backward = true, silu_backward = true, tanh_backward = true, sigmoid_backward = true,
}

local positive = { sqrt = true, rsqrt = true, log = true }
local specials = { 0, -0, 1, -1, inf, -inf, nan, 0.5, -2.5, 3 }
-- Operators whose results at the ends of the range this file does not define.
local ordinary = {
  pow = true, remainder = true, gelu = true, gelu_tanh = true, gelu_tanh_backward = true, silu = true, sin = true, cos = true,
  relu_backward = true, gelu_backward = true, silu_backward = true, tanh_backward = true, sigmoid_backward = true,
  silu_mul = true,
}

--- `count` values for input `input` of an operator.
function M.values(name, input, count)
  local list = {}
  for k = 1, count do
    local u = (k * 0.7548776662466927 + input * 0.31) % 1
    if name == "where" and input == 1 then
      list[k] = u < 0.5
    elseif positive[name] or (name == "pow" and input == 1) then
      list[k] = 0.01 + 9 * u
    else
      list[k] = 12 * u - 6
    end
    if name == "remainder" and input == 2 then
      list[k] = u < 0.5 and -0.4 - 3 * u or 0.4 + 3 * u
    end
  end
  if count > 100 and not ordinary[name] and not (name == "where" and input == 1) then
    for i, first in ipairs(specials) do
      for j, second in ipairs(specials) do
        list[(i - 1) * #specials + j] = input == 1 and first or second
      end
    end
  end
  return list
end

return M
