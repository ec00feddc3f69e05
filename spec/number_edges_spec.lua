--- Numbers at the ends of their types: NaN in extremes, long sums, large means, roundings, whole-number division, casts.

local luda = require "luda"
local helper = require "spec.helper"
local ffi = require "ffi"

local nan, inf = 0 / 0, math.huge

--- An f32 tensor of bit patterns.
local function from_bits(list)
  local t = luda.zeros(#list)
  local bits = ffi.cast("uint32_t *", t:data())
  for i, pattern in ipairs(list) do
    bits[i - 1] = pattern
  end
  return t
end

--- The bits of a contiguous tensor of halves.
local function bits_of(t)
  local stored, list = t:contiguous():data(), {}
  for i = 1, t.numel do
    list[i] = ("%04X"):format(stored[i - 1])
  end
  return list
end

describe("NaN", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, dtype in ipairs { "f64", "f32", "f16", "bf16" } do
    it("wins in extremes, the first of several, whatever its sign and place: " .. dtype, function()
      local function make(list)
        return luda.tensor(list, { dtype = dtype })
      end
      for _, sign in ipairs { nan, -nan } do
        for _, name in ipairs { "max", "min", "amax", "amin" } do
          assert.is_true(luda[name](make { 1, sign, 3 }):isnan():item())
        end
        for _, name in ipairs { "argmax", "argmin" } do
          assert.equal(2, luda[name](make { 1, sign, 3 }):item())
          assert.equal(1, luda[name](make { sign, 1, nan }):item())
        end
        for _, name in ipairs { "maximum", "minimum" } do
          assert.is_true(luda[name](make { 0 }, make { sign }):isnan():item())
          assert.is_true(luda[name](make { sign }, make { 0 }):isnan():item())
        end
        assert.is_true(make({ sign }):relu():isnan():item())
        assert.is_true(make({ sign }):clamp(-1, 1):isnan():item())
        local values, positions = make({ { 1, 2, sign, 4, nan }, { 5, 4, 3, 2, 1 } }):max(2)
        assert.tensor_near({ nan, 5 }, values, 0, 0)
        assert.same({ 3, 1 }, positions:totable())
        local ordered, where = make({ sign, 1, -nan, -inf, inf }):sort()
        assert.tensor_near({ -inf, 1, inf, nan, nan }, ordered, 0, 0)
        assert.same({ 4, 2, 5, 1, 3 }, where:totable())
      end
    end)

    it("is found at every place of rows of any length: " .. dtype, function()
      for _, length in ipairs { 7, 16, 33, 67 } do
        local whole = luda.arange(length):to(dtype)
        for place = 1, length, 3 do
          local x = whole:clone()
          x[place] = nan
          assert.is_true(x:amax():isnan():item() and x:amin():isnan():item())
          assert.equal(place, x:argmax():item())
          assert.equal(place, x:argmin():item())
          local column = x:reshape(length, 1):expand(length, 3):contiguous()
          assert.same({ place, place, place }, column:argmax(1):totable())
          assert.is_true(column:amin(1):isnan():all():item())
        end
      end
    end)
  end
end)

describe("sums of many #long", function()
  before_each(helper.before)
  after_each(helper.after)

  local count = 33554432

  it("do not stop growing, in any layout and as gradients", function()
    luda.scope(function()
      local ones = luda.ones(count)
      assert.equal(count, ones:sum():item())
      assert.equal(1, ones:mean():item())
      local column = ones:reshape(count, 1)
      assert.same({ count }, column:sum(1):totable())
      assert.same({ 1 }, column:mean(1):totable())
      local wide = ones:reshape(count / 2, 2)
      assert.same({ count / 2, count / 2 }, wide:sum(1):totable())
      assert.equal(count / 2, wide:select(2, 1):sum():item()) -- strided
      assert.equal(count, wide:t():sum():item())
      local bias = luda.zeros(1):requires_grad_()
      assert.same({ count }, (column + bias):sum():backward()[bias]:totable())
    end)
    luda.scope(function()
      local weight, bias = luda.ones(1, 1):requires_grad_(), luda.zeros(1):requires_grad_()
      local grads = luda.linear(luda.ones(count, 1), weight, bias):sum():backward()
      assert.same({ count }, grads[bias]:totable())
      assert.same({ { count } }, grads[weight]:totable())
    end)
  end)

  it("keep their digits", function()
    luda.scope(function()
      local x = luda.full({ 1000000 }, 0.1)
      assert.near(100000.0015, x:sum():item(), 0.05)
      assert.near(100000.0015, x:reshape(1000000, 1):sum(1):item(), 0.05)
      assert.near(100000.0015, luda.full({ 1000000, 3 }, 0.1):sum(1)[2]:item(), 0.05)
      assert.near(100000.0015, luda.full({ 1000000, 3 }, 0.1):select(2, 2):sum():item(), 0.05)
      assert.near(100000.0015, x:cumsum(1)[1000000]:item(), 0.05)
      assert.near(0.1, x:mean():item(), 1e-7)
      assert.near(math.sqrt(1e4), x:norm():item(), 1e-4)
      local bias = luda.zeros(3):requires_grad_()
      local gradient = (luda.zeros(1000000, 3) + bias):backward { gradient = luda.full({ 1000000, 3 }, 0.1) }[bias]
      assert.near(100000.0015, gradient[3]:item(), 0.05)
    end)
  end)
end)

describe("rows with a large mean", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are normalised by their differences", function()
    local want = { -1.341635, -0.447212, 0.447212, 1.341635 }
    local row = { 40000, 40001, 40002, 40003 }
    for _, rows in ipairs { 1, 37 } do
      local list, wanted = {}, {}
      for i = 1, rows do
        list[i], wanted[i] = row, want
      end
      local x = luda.tensor(list)
      assert.tensor_near(wanted, luda.layer_norm(x, luda.ones(4), luda.zeros(4)), 0, 1e-3)
      assert.tensor_near(wanted, luda.nn.LayerNorm(4)(x), 0, 1e-3)
      assert.near(1.25, x:var { dim = 2, correction = 0 }[1]:item(), 1e-4)
      assert.tensor_near(wanted, luda.nn.group_norm(x:reshape(rows, 1, 4), 1):reshape(rows, 4), 0, 1e-3)
    end
    local gradient_row = luda.tensor({ row }):requires_grad_()
    local gradient = luda.layer_norm(gradient_row, luda.ones(4), luda.zeros(4)):backward {
      gradient = luda.tensor { { 1, -2, 3, 0.5 } } }[gradient_row]
    -- rstd (g - mean g - xhat mean(g xhat)) in plain numbers
    local g, mean, dot, rstd = { 1, -2, 3, 0.5 }, 0.625, 0, 1 / math.sqrt(1.25 + 1e-5)
    for i = 1, 4 do
      dot = dot + g[i] * want[i] / 4
    end
    local wanted = {}
    for i = 1, 4 do
      wanted[i] = rstd * (g[i] - mean - want[i] * dot)
    end
    assert.tensor_near({ wanted }, gradient, 0, 1e-3)
  end)
end)

describe("f32 becomes bf16", function()
  before_each(helper.before)
  after_each(helper.after)

  local pairs_of_bits = {
    { 0x3F808000, "3F80" }, { 0x3F818000, "3F82" }, { 0x3F808001, "3F81" }, { 0x3F807FFF, "3F80" },
    { 0x3E89CCD5, "3E8A" }, { 0x7F7F7FFF, "7F7F" }, { 0x7F7FFFFF, "7F80" }, { 0x7F800001, "7FC0" },
    { 0xFF800001, "FFC0" }, { 0x80000000, "8000" }, { 0x00018000, "0002" }, { 0x7F800000, "7F80" }, { 0xFF800000, "FF80" },
    { 0xFF7FFFFF, "FF80" }, { 0x3FFFFFFF, "4000" },
  }

  it("by nearest even, in vectors, in the tail, one by one and strided", function()
    local input, want = {}, {}
    for round = 1, 6 do
      for i, pair in ipairs(pairs_of_bits) do
        input[#input + 1], want[#want + 1] = pair[1], pair[2]
        if round == 1 then
          assert.same({ pair[2] }, bits_of(from_bits({ pair[1] }):to("bf16")), ("pair %d"):format(i))
        end
      end
    end
    assert.same(want, bits_of(from_bits(input):to("bf16")))
    local wide = from_bits(input):reshape(#input, 1):expand(#input, 3)
    assert.same(want, bits_of(wide:to("bf16"):select(2, 2)))
    assert.same(want, bits_of(from_bits(input):reshape(#input / 2, 2):t():to("bf16"):t()))
    local held = luda.zeros(#input, { dtype = "bf16" })
    held:copy_(from_bits(input))
    assert.same(want, bits_of(held))
    -- the rounding of results: x + 0 for everything but the sign of zero
    local sum = bits_of(luda.add(from_bits(input):to("bf16"), 0))
    for i = 1, #want do
      assert.equal(want[i] == "8000" and "0000" or want[i], sum[i])
    end
  end)
end)

describe("booleans", function()
  before_each(helper.before)
  after_each(helper.after)

  it("stay booleans beside booleans", function()
    local mask = luda.tensor { true, false }
    assert.equal("bool", luda.where(mask, true, false).dtype)
    assert.same({ true, false }, luda.where(mask, mask, false):totable())
    assert.equal("i64", luda.where(mask, mask, 0).dtype)
    assert.equal("i64", luda.where(mask, 5LL, 6LL).dtype)
    assert.equal("f16", luda.where(mask, luda.ones(2, { dtype = "f16" }), 0).dtype)
    local square = luda.ones(2, 2, { dtype = "bool" })
    assert.same({ { true, false }, { true, true } }, square:tril():totable())
    assert.same({ { true, true }, { false, true } }, square:triu():totable())
    assert.same({ false, false }, mask:clone():zero_():totable())
    assert.same({ true, true }, mask:clone():fill_(true):totable())
  end)
end)

describe("whole numbers", function()
  before_each(helper.before)
  after_each(helper.after)

  local lowest = { i32 = -2147483648, i64 = -0x7fffffffffffffffLL - 1, i16 = -32768, i8 = -128 }

  for dtype, least in pairs(lowest) do
    it("divide downwards and never trap: " .. dtype, function()
      local function make(value, length)
        return luda.full({ length }, value, { dtype = dtype })
      end
      for _, length in ipairs { 1, 9, 40 } do
        local function both(name, a, b)
          local result = luda[name](make(a, length), make(b, length))
          assert.equal(dtype, result.dtype)
          local list = result:totable()
          for i = 2, length do
            assert.equal(list[1], list[i])
          end
          return list[1]
        end
        assert.equal(-4, both("floor_divide", -7, 2))
        assert.equal(1, both("remainder", -7, 2))
        assert.equal(-1, both("remainder", 7, -2))
        assert.equal(1, both("fmod", 7, -2))
        assert.equal(-1, both("fmod", -7, 2))
        assert.is_true(both("floor_divide", least, -1) == least) -- wraps
        assert.equal(0, both("remainder", least, -1))
        assert.equal(0, both("fmod", least, -1))
        assert.equal(-4, luda.div(make(-7, length), make(2, length), { rounding_mode = "floor" })[1]:item())
        assert.equal(-3, luda.div(make(-7, length), make(2, length), { rounding_mode = "trunc" })[1]:item())
        for _, name in ipairs { "floor_divide", "remainder", "fmod" } do
          local divisors = make(3, length)
          divisors[length] = 0
          assert.raises("invalid", name .. ": division of integers by zero", luda[name], make(-7, length), divisors)
          assert.raises("invalid", name .. ": division of integers by zero", luda[name], make(-7, length), 0)
        end
        assert.is_true(make(least, length):abs()[1]:item() == least)
        assert.is_true((-make(least, length))[length]:item() == least)
      end
      assert.equal(-4, luda.floor_divide(luda.tensor(-7, { dtype = dtype }), 2):item())
      assert.equal(inf, (luda.tensor({ 7 }, { dtype = dtype }) / 0):item()) -- a true quotient is a float
    end)
  end

  it("of floats: NaN becomes 0, the rest ends at the ends", function()
    local list = { nan, inf, -inf, 3e9, -3e9, 2.9, -2.9, -0.0, 1e30, -1e30 }
    local ends = {
      i32 = { -2147483648, 2147483647 }, i16 = { -32768, 32767 }, i8 = { -128, 127 }, u8 = { 0, 255 },
    }
    for dtype, range in pairs(ends) do
      local low, high = range[1], range[2]
      local negative = math.max(-2, low)
      for _, source in ipairs { "f32", "f64" } do
        for _, repeats in ipairs { 1, 5 } do
          local x = luda.tensor(list, { dtype = source }):tile(repeats)
          local want = { 0, high, low, high, low, 2, negative, 0, high, low }
          assert.same(want, x:to(dtype)[{ { 1, 10 } }]:totable())
          assert.same(want, x:to(dtype)[{ { 10 * repeats - 9, 10 * repeats } }]:totable())
        end
      end
      assert.same({ 0, high, low }, luda.tensor({ nan, inf, -inf }, { dtype = "f16" }):to(dtype):totable())
      assert.same({ 0, high, low, high }, luda.tensor({ nan, inf, -inf, 3e9 }, { dtype = "bf16" }):to(dtype):totable())
    end
    local wide = luda.tensor({ nan, inf, -inf, 1e30, -1e30, 2.9 }, { dtype = "f64" }):to("i64"):totable()
    local high, low = 0x7fffffffffffffffLL, -0x7fffffffffffffffLL - 1
    assert.is_true(wide[1] == 0 and wide[2] == high and wide[3] == low and wide[4] == high and wide[5] == low and wide[6] == 2)
    assert.same({ true, true, true, false }, luda.tensor({ nan, inf, 0.5, -0.0 }):to("bool"):totable())
  end)
end)

-- The same answers from every instruction set that this processor has.
describe("other instruction sets", function()
  for _, level in ipairs { "baseline", "v3", "v4" } do
    if not os.getenv "LUDA_SIMD" then
      it("give them too: " .. level, function()
        local command = "LUDA_SIMD=%s luajit /usr/bin/busted --exclude-tags=long spec/number_edges_spec.lua 2>&1"
        local pipe = assert(io.popen(command:format(level) .. "; echo status $?"))
        local output = pipe:read "*a"
        pipe:close()
        assert.is_truthy(output:find("status 0\n$"), output)
      end)
    end
  end
end)
