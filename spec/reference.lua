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
  expm1 = function(a) return math.abs(a) < 1e-3 and a + a * a / 2 + a ^ 3 / 6 or math.exp(a) - 1 end,
  log1p = function(a) return math.log(1 + a) end,
  exp2 = function(a) return 2 ^ a end,
  log2 = function(a) return math.log(a) / math.log(2) end,
  log10 = math.log10,
  tan = math.tan,
  atan = math.atan,
  sinh = function(a) return math.sinh(a) end,
  cosh = function(a) return math.cosh(a) end,
  softplus = function(a) return math.max(a, 0) + math.log(1 + math.exp(-math.abs(a))) end,
  floor = math.floor,
  ceil = math.ceil,
  trunc = function(a) return a < 0 and math.ceil(a) or math.floor(a) end,
  isinf = function(a) return a == inf or a == -inf end,
  isfinite = function(a) return a - a == 0 end,
  clamp_min = extreme(function(a, b) return a >= b end),
  clamp_max = extreme(function(a, b) return a <= b end),
  floor_divide = function(a, b) return math.floor(a / b) end,
  fmod = math.fmod,
  atan2 = math.atan2,
  hypot = function(a, b) return math.sqrt(a * a + b * b) end,
  logaddexp = function(a, b) return math.max(a, b) + math.log(1 + math.exp(-math.abs(a - b))) end,
  xlogy = function(a, b) return a * math.log(b) end,
  copysign = function(a, b) return (b < 0 or 1 / b < 0) and -math.abs(a) or math.abs(a) end,
  logical_and = function(a, b) return a ~= 0 and b ~= 0 end,
  logical_or = function(a, b) return a ~= 0 or b ~= 0 end,
  logical_xor = function(a, b) return (a ~= 0) ~= (b ~= 0) end,
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
  cos = 8, log = 4, remainder = 8, rsqrt = 2, expm1 = 1000, log1p = 8, exp2 = 4, log2 = 8, log10 = 4, tan = 8, sinh = 4,
  cosh = 4, softplus = 8, hypot = 2, logaddexp = 8, xlogy = 4, fmod = 8,
}
M.absolute = {
  gelu = true, gelu_tanh = true, gelu_tanh_backward = true, sin = true, cos = true, log = true, remainder = true, erf = true,
  gelu_backward = true, silu_backward = true, tanh_backward = true, sigmoid_backward = true, expm1 = true, log1p = true,
  log2 = true, log10 = true, softplus = true, logaddexp = true, xlogy = true, tan = true,
}

local positive = { sqrt = true, rsqrt = true, log = true, log1p = true, log2 = true, log10 = true, xlogy = true }
local specials = { 0, -0, 1, -1, inf, -inf, nan, 0.5, -2.5, 3 }
-- Operators whose results at the ends of the range this file does not define.
local ordinary = {
  pow = true, remainder = true, gelu = true, gelu_tanh = true, gelu_tanh_backward = true, silu = true, sin = true, cos = true,
  relu_backward = true, gelu_backward = true, silu_backward = true, tanh_backward = true, sigmoid_backward = true,
  silu_mul = true, expm1 = true, tan = true, floor_divide = true, fmod = true, atan2 = true, hypot = true, logaddexp = true,
  xlogy = true, copysign = true, softplus = true, exp2 = true, sinh = true, cosh = true, trunc = true, log1p = true,
  log2 = true, log10 = true,
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
    if (name == "remainder" or name == "fmod" or name == "floor_divide") and input == 2 then
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
