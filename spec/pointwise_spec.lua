--- Elementwise mathematics and activations: PyTorch's values and gradients, the ends of the range, types, refusals.

local luda = require "luda"
local json = require "luda.json"
local helper = require "spec.helper"

local nan, inf = 0 / 0, math.huge

local golden = helper.golden("pointwise")

local words = { nan = nan, inf = inf, ["-inf"] = -inf, ["-0"] = -0.0 }

local function numbers(list)
  local result = {}
  for i, value in ipairs(list) do
    result[i] = words[value] or value
  end
  return result
end

local function set(name, dtype)
  return luda.tensor(numbers(golden.sets[name]), { dtype = dtype or "f64" })
end

local weights = { 1, -2, 3 }

local function weighted(t)
  local list = {}
  for i = 1, t.numel do
    list[i] = weights[(i - 1) % 3 + 1]
  end
  return luda.tensor(list, { dtype = t.dtype })
end

-- At corners, or at NaN, PyTorch takes another slope.
local corners = {
  clamp = true, hardswish = true, maximum = true, minimum = true, ["relu6 special"] = true, ["elu special"] = true,
}

-- Where PyTorch rounds more than we do: its trigamma to 1e-10, its softplus changes formula, sixths in float.
local rough = { digamma = 1e-9, polygamma_1 = 1e-9, softplus = 3e-9, hardsigmoid = 1e-7, hardswish = 1e-7, mish = 3e-9 }

local function call(case, inputs)
  local order = case.op:match("^polygamma_(%d)$")
  if order then
    return luda.polygamma(tonumber(order), inputs[1])
  end
  local arguments = { unpack(inputs) }
  for _, value in ipairs(case.arguments) do
    arguments[#arguments + 1] = value
  end
  return luda[case.op](unpack(arguments))
end

describe("PyTorch's values", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, case in ipairs(golden.calls) do
    local title = ("of %s of %s %s"):format(case.op, table.concat(case.sets, ", "), json.encode(case.arguments))
    it(title, function()
      local inputs = {}
      for i, name in ipairs(case.sets) do
        inputs[i] = set(name):requires_grad_()
      end
      local y = call(case, inputs)
      assert.tensor_near(numbers(case.y), y, rough[case.op] or 3e-12, rough[case.op] or 1e-14)
      if case.grads and y.requires_grad then
        local grads = y:backward { gradient = weighted(y) }
        for i, want in ipairs(case.grads) do
          if not corners[case.op] and not corners[case.op .. " " .. case.sets[1]] then
            assert.tensor_near(numbers(want), grads[inputs[i]], rough[case.op] or 3e-11, rough[case.op] or 1e-13)
          end
        end
      end
    end)

    it(title .. " in narrower types", function()
      for dtype, unit in pairs { f32 = 2e-6, f16 = 1e-3, bf16 = 8e-3 } do
        local inputs, wide = {}, {}
        for i, name in ipairs(case.sets) do
          inputs[i] = set(name, dtype)
          wide[i] = inputs[i]:to("f64")
        end
        local y, want = call(case, inputs), call(case, wide)
        if want.dtype == "f64" then
          assert.equal(dtype, y.dtype)
          want = want:to(dtype)
        end
        if case.op ~= "nan_to_num" then
          assert.tensor_near(want, y, unit, unit)
        end
      end
    end)
  end
end)

-- Second order, of what is composed; rows have theirs in elementwise_gradients_spec and row_gradients_spec.

describe("second order gradients", function()
  before_each(helper.before)
  after_each(helper.after)

  local x = { -2.3, -1.2, -0.4, 0.3, 1.7, 2.6 }
  local functions = {
    clamp = function(t) return t:clamp(-1, 2) end,
    clamp_tensors = function(t) return t:clamp(t * 0.5 - 0.3, t:sin() + 1.5) end,
    sinc = function(t) return t:sinc() end,
    frac = function(t) return t:frac() end,
    logit = function(t) return t:sigmoid():logit() end,
    lerp = function(t) return t:lerp(t * t, t:sin()) end,
    addcmul = function(t) return t:addcmul(t, t:cos(), 0.7) end,
    addcdiv = function(t) return t:addcdiv(t, t * t + 1, -0.7) end,
    softplus = function(t) return t:softplus(3) end,
    logsigmoid = function(t) return t:logsigmoid() end,
    leaky_relu = function(t) return t:leaky_relu(0.3) * t end,
    elu = function(t) return t:elu(1.3) end,
    selu = function(t) return t:selu() end,
    celu = function(t) return t:celu(0.6) end,
    mish = function(t) return t:mish() end,
    hardswish = function(t) return t:hardswish() end,
    softsign = function(t) return t:softsign() end,
    glu = function(t) return t:glu() end,
    swiglu = function(t) return t:swiglu(1) end,
    prelu = function(t) return t:prelu((t * t):sum():sin()) end,
    threshold = function(t) return t:threshold(0.5, 7) * t end,
    nan_to_num = function(t) return t:nan_to_num() * t end,
    ldexp = function(t) return t:ldexp(2) * t end,
    alpha = function(t) return t:add(t * t, { alpha = -3 }):sub(t, { alpha = t:sum() }) end,
    remainder_of_divisor = function(t) return luda.remainder(luda.full({ 6 }, 5.1, { dtype = "f64" }), t * 0.9) end,
    acosh = function(t) return (t * t + 1.5):acosh() end,
    lgamma_below = function(t) return (t * 0.9 - 3.01):lgamma() end,
    hypot_of_zero = function(t) return luda.hypot(t, 0) end,
  }
  for name, fn in pairs(functions) do
    it("of " .. name, function()
      luda.autograd.gradcheck(fn, { luda.tensor(x, { dtype = "f64" }):requires_grad_() },
        { second = true, eps = 1e-5, atol = 2e-6 })
    end)
  end
end)

describe("corners", function()
  before_each(helper.before)
  after_each(helper.after)

  --- Value and gradient at the elements of a list.
  local function slopes(list, fn, gradient)
    local x = luda.tensor(list):requires_grad_()
    local y = fn(x)
    local grads = y:backward { gradient = gradient and luda.tensor(gradient) or luda.ones_like(y) }
    return y:totable(), grads[x]:totable()
  end

  it("of clamp pass the gradient on once, and not at the bound", function()
    local x = luda.tensor({ 0.5, -0.5, 2, -3 }):requires_grad_()
    assert.same({ -3, -3, 0, 0 }, (x:clamp(-1, 1):sum() * -3):backward()[x]:totable())
    assert.same({ 0.25, 0.25, 0, 0 }, x:clamp(-1, 1):mean():backward()[x]:totable())
    local _, g = slopes({ -1, 1, 0 }, function(t) return t:clamp(-1, 1) end, { 2, -3, 5 })
    assert.same({ 0, 0, 5 }, g)
    _, g = slopes({ 0, 6, 3 }, luda.relu6, { 2, -3, 5 })
    assert.same({ 0, 0, 5 }, g)
    local bound = luda.tensor({ 1, 1, 1 }):requires_grad_()
    assert.same({ 7, 7, 0 }, luda.tensor({ 0, 1, 2 }):clamp(bound):backward { gradient = luda.tensor({ 7, 7, 7 }) }[bound]
      :totable())
  end)

  it("of clamp keep NaN and whole numbers, and take one bound or two", function()
    assert.tensor_near({ nan, 1, -1 }, luda.tensor({ nan, inf, -inf }):clamp(-1, 1), 0, 0)
    assert.same({ 2, 2, 3 }, luda.tensor({ 1, 2, 3 }):clamp { min = 2 }:totable())
    assert.same({ 1, 2, 2 }, luda.tensor({ 1, 2, 3 }):clamp(nil, 2):totable())
    assert.same({ 3, 3 }, luda.tensor({ 1, 9 }):clip(5, 3):totable())
    local whole = luda.tensor({ 1, 5, 9 }, { dtype = "i32" }):clamp(2, 6)
    assert.equal("i32", whole.dtype)
    assert.same({ 2, 5, 6 }, whole:totable())
    local x = luda.tensor({ -4, 0.5, 4 })
    assert.is_true(x:clamp_(-1, 1) == x)
    assert.same({ -1, 0.5, 1 }, x:totable())
    assert.raises("invalid", "clamp: neither min nor max", x.clamp, x)
    assert.raises("invalid", "unknown option 'mn'", x.clamp, x, { mn = 1 })
  end)

  it("of softplus hold at the ends of the range", function()
    for _, beta in ipairs { 1, 5 } do
      local y, g = slopes({ 20, 50, 100 }, function(t) return t:softplus(beta) end)
      assert.tensor_near({ 20, 50, 100 }, y, 1e-7, 0)
      assert.tensor_near({ 1, 1, 1 }, g, 1e-7, 0)
    end
    assert.same({ 0, inf }, luda.tensor({ -inf, inf }):softplus():totable())
    assert.same({ 3, 0 }, (luda.tensor({ 3, -200 })):softplus(1, 2):totable())
  end)

  it("of logaddexp are infinite, never NaN", function()
    assert.same({ -inf, inf, 0, inf }, luda.logaddexp(luda.tensor({ -inf, inf, -inf, -inf }), luda.tensor({ -inf, inf, 0, inf }))
      :totable())
  end)

  it("of hypot, atan2, xlogy, sinc and pow at zero have no NaN in gradients", function()
    for _, fn in ipairs { luda.hypot, luda.atan2, luda.xlogy } do
      local a, b = luda.zeros(2, { requires_grad = true }), luda.zeros(2, { requires_grad = true })
      local grads = fn(a, b):backward { gradient = luda.tensor({ 3, -2 }) }
      assert.same({ 0, 0 }, grads[a]:totable())
    end
    local y, g = slopes({ 0, 1 }, luda.sinc, { 5, 1 })
    assert.tensor_near({ 1, 0 }, y, 0, 1e-7)
    assert.tensor_near({ 0, -1 }, g, 0, 1e-6)
  end)

  it("of elu, selu and celu do not overflow above", function()
    for _, fn in ipairs { luda.elu, luda.selu, luda.celu } do
      local y, g = slopes({ 1000, 0 }, fn)
      assert.is_true(y[1] >= 1000 and y[1] < 2000 and g[1] >= 1 and g[1] < 2 and g[2] >= 1)
    end
  end)
end)

describe("whole numbers", function()
  before_each(helper.before)
  after_each(helper.after)

  local function ints(list, dtype)
    return luda.tensor(list, { dtype = dtype or "i32" })
  end

  it("divide and leave remainders by the signs of their rules", function()
    for _, dtype in ipairs { "i8", "i16", "i32", "i64" } do
      local a, b = ints({ -7, -7, 7, 7, 6 }, dtype), ints({ 2, -2, -2, 2, 3 }, dtype)
      assert.same({ -4, 3, -4, 3, 2 }, a:floor_divide(b):totable())
      assert.same({ -3, 3, -3, 3, 2 }, a:div(b, { rounding_mode = "trunc" }):totable())
      assert.same({ -4, 3, -4, 3, 2 }, a:div(b, { rounding_mode = "floor" }):totable())
      assert.same({ -1, -1, 1, 1, 0 }, a:fmod(b):totable())
      assert.same({ 1, -1, -1, 1, 0 }, (a % b):totable())
      assert.equal(dtype, a:floor_divide(b).dtype)
    end
    assert.equal("f32", ints({ 1 }):div(ints({ 2 })).dtype)
  end)

  it("refuse a divisor of zero and wrap the one overflow", function()
    local a = ints({ 1, 2, 3, 4, 5, 6, 7, 8, 9 })
    for _, name in ipairs { "floor_divide", "fmod", "remainder" } do
      assert.raises("invalid", name .. ": division of integers by zero", luda[name], a, ints({ 0 }))
      assert.raises("invalid", name .. ": division of integers by zero", a[name .. "_"], a, 0)
    end
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9 }, a:totable())
    local least = luda.full({ 9 }, -2147483648, { dtype = "i32" })
    assert.equal(-2147483648, least:floor_divide(-1)[9]:item())
    assert.equal(0, least:fmod(-1)[9]:item())
    assert.equal(0, least:remainder(-1)[9]:item())
  end)

  it("have divisors, multiples and bits", function()
    assert.same({ 6, 5, 0, 7 }, ints({ 12, -5, 0, 0 }):gcd(ints({ 18, 10, 0, -7 })):totable())
    assert.same({ 36, 10, 0, 0 }, ints({ 12, -5, 0, 0 }):lcm(ints({ 18, 10, 0, -7 })):totable())
    assert.same({ 8, 14, 6 }, { ints({ 12 }):bitwise_and(10):item(), ints({ 12 }):bitwise_or(10):item(),
      ints({ 12 }):bitwise_xor(10):item() })
    assert.same({ -13, 0 }, ints({ 12, -1 }):bitwise_not():totable())
    assert.same({ 243 }, ints({ 12 }, "u8"):bitwise_not():totable())
    assert.same({ 48, 0, 0 }, ints({ 12, 1, 1 }, "i8"):bitwise_left_shift(ints({ 2, 8, -1 }, "i8")):totable())
    assert.same({ -2, 3, -1, 0 }, ints({ -8, 12, -3, 3 }, "i8"):bitwise_right_shift(ints({ 2, 2, 70, 9 }, "i8")):totable())
    assert.same({ 64 }, ints({ 128 }, "u8"):bitwise_right_shift(1):totable())
    local yes = luda.tensor({ true, true, false, false })
    local other = luda.tensor({ true, false, true, false })
    assert.same({ true, false, false, false }, yes:bitwise_and(other):totable())
    assert.same({ false, true, true, false }, yes:bitwise_xor(other):totable())
    assert.same({ false, false, true, true }, yes:bitwise_not():totable())
    assert.equal("9007199254740993", (tostring(luda.tensor({ 9007199254740992LL }):bitwise_or(1):item()):gsub("LL", "")))
    for _, name in ipairs { "gcd", "lcm", "bitwise_and", "bitwise_left_shift" } do
      assert.raises("dtype", name .. ": input 1 of shape %[2%] is f32; integers", luda[name], luda.ones(2), luda.ones(2))
    end
    assert.raises("dtype", "gcd: input 1 of shape %[%d%] is bool", luda.gcd, yes, other)
  end)

  it("are their own floor, and true or false by being zero", function()
    for _, name in ipairs { "floor", "ceil", "round", "trunc" } do
      assert.same({ -3, 2 }, ints({ -3, 2 }, "i64")[name](ints({ -3, 2 }, "i64")):totable())
    end
    assert.same({ 0, 2, 2, -2 }, luda.tensor({ 0.5, 1.5, 2.5, -2.5 }):round():totable())
    assert.same({ false, false, true, true }, luda.tensor({ 0, 0, 2, 2 }):logical_and(luda.tensor({ 0, 0, 3, -1 })):totable())
    assert.same({ false, true, true }, luda.tensor({ 0, 0, 2 }):logical_xor(luda.tensor({ 0, nan, 0 })):totable())
    assert.same({ false, true, true }, luda.tensor({ 0, 0, 2 }):logical_or(luda.tensor({ 0, nan, 0 })):totable())
    assert.same({ true, false }, ints({ 5, 0 }):isfinite():logical_and(ints({ 5, 0 })):totable())
    assert.same({ true, false, true }, luda.tensor({ -0.0, 0, -inf }):signbit():totable())
  end)
end)

describe("closeness", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is relative and absolute, and knows infinities and NaN", function()
    local a = luda.tensor({ 1, 1, inf, inf, 1, nan, 0 })
    local b = luda.tensor({ 1.000005, 1.001, inf, -inf, inf, nan, 1e-9 })
    assert.same({ true, false, true, false, false, false, true }, a:isclose(b):totable())
    assert.same({ true, true, true, false, false, true, true }, a:isclose(b, { rtol = 0.01, equal_nan = true }):totable())
    assert.is_false(a:allclose(b))
    assert.is_true(a[{ { 1, 3 } }]:allclose(b[{ { 1, 3 } }], 0.01))
    assert.is_true(luda.zeros(0):allclose(luda.zeros(0)))
    assert.is_true(luda.tensor({ 9007199254740993LL }):allclose(luda.tensor({ 9007199254740993LL })))
    assert.is_false(luda.tensor({ 3 }, { dtype = "u8" }):allclose(luda.tensor({ 4 }, { dtype = "u8" })))
    assert.raises("invalid", "must not be negative", a.isclose, a, b, -1)
  end)
end)

describe("refusals", function()
  before_each(helper.before)
  after_each(helper.after)

  it("say what is wrong", function()
    local x = luda.ones(2, 3)
    assert.raises("shape", "glu: dimension 2 of %[2, 3%] has an odd size", luda.glu, x)
    assert.raises("shape", "prelu: a weight %[2%] for a tensor %[2, 3%]", luda.prelu, x, luda.ones(2))
    assert.raises("invalid", "hardtanh: min_val 2 is above max_val 1", luda.hardtanh, x, 2, 1)
    assert.raises("invalid", "div: rounding_mode is", luda.div, x, x, { rounding_mode = "up" })
    assert.raises("invalid", "elu: expected a tensor", luda.elu, 3)
    assert.raises("invalid", "elu: alpha must be a number", luda.elu, x, "a")
    assert.raises("invalid", "leaky_relu: unexpected argument 2", luda.leaky_relu, x, 1, 2)
    assert.raises("invalid", "celu: alpha is 0", luda.celu, x, 0)
  end)

  it("are not needed for empty, 0-d, expanded and transposed tensors", function()
    for _, name in ipairs { "clamp", "elu", "softplus", "mish", "sinc", "expm1", "lgamma", "isfinite", "nan_to_num", "relu6" } do
      local fn = name == "clamp" and function(t) return t:clamp(0, 1) end or luda[name]
      assert.same({ 0, 2 }, fn(luda.zeros(0, 2)).shape)
      assert.same({}, fn(luda.tensor(0.5)).shape)
      local x = luda.rand(3, 4, { generator = luda.generator(1) })
      assert.same(fn(x):t():totable(), fn(x:t()):totable())
      local row = x[1]
      assert.same(fn(row):totable(), fn(row:expand(5, 4))[5]:totable())
    end
  end)
end)
