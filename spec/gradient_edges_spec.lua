--- Gradients where rules go wrong: zeros, branches not taken, broadcasts, repeated positions, views, depth, infinities.

local luda = require "luda"
local helper = require "spec.helper"

local nn = luda.nn
local nan, inf = 0 / 0, math.huge

local function leaf(values, options)
  return luda.tensor(values, options):requires_grad_()
end

--- The gradient of sum(fn(x) g) for x; g of all ones where none is given.
local function slope(fn, x, g)
  local y = fn(x)
  return y:backward({ gradient = g and luda.tensor(g, { dtype = y.dtype }) or luda.ones(y.shape, { dtype = y.dtype }) })[x]
end

local function ids(...)
  return luda.tensor({ ... }, { dtype = "i64" })
end

describe("gradients at zero", function()
  before_each(helper.before)
  after_each(helper.after)

  it("of products are products of the other factors, and keep the shape", function()
    for _, dtype in ipairs { "f32", "f64" } do
      for _, row in ipairs {
        { { 2, 0, 4 }, { 0, -24, 0 } }, { { 2, 0, 0 }, { 0, 0, 0 } }, { { 0 }, { -3 } }, { { 2, 5, -1 }, { 15, 6, -30 } },
      } do
        for _, fn in ipairs { function(x) return x:prod() end, function(x) return x:prod(1) end } do
          local x = leaf(row[1], { dtype = dtype })
          local y = fn(x)
          local gradient = y:backward({ gradient = luda.tensor(-3, { dtype = dtype }) })[x]
          assert.same(row[2], gradient:totable())
        end
      end
      local x = leaf({ { 0, 2 }, { 3, 0 } }, { dtype = dtype })
      assert.same({ { 6, 0 }, { 0, -4 } }, slope(function(t) return t:prod { dim = 1 } end, x, { 2, -2 }):totable())
    end
  end)

  it("of powers are those of constants, lines and parabolas", function()
    local function power(exponent)
      return function(x) return x ^ exponent end
    end
    for _, dtype in ipairs { "f32", "f64" } do
      for exponent, want in pairs { [0] = { 1, 0 }, [1] = { 0, 1 }, [2] = { 0, 0 }, [3] = { 0, 0 } } do
        local x = leaf({ 0 }, { dtype = dtype })
        assert.same({ want[1] }, power(exponent)(x):totable())
        assert.same({ -2 * want[2] + 0 }, slope(power(exponent), x, { -2 }):add(0):totable())
        local exponents = luda.tensor({ exponent, exponent }, { dtype = dtype })
        local both = slope(power(exponents), leaf({ 0, 0 }, { dtype = dtype }), { 5, 5 })
        assert.same({ 5 * want[2], 5 * want[2] }, both:totable())
      end
      assert.same({ inf }, slope(power(0.5), leaf({ 0 }, { dtype = dtype })):totable())
      assert.tensor_near({ nan, 0.25, 0 }, slope(power(0.5), leaf({ 0, 4, 9 }, { dtype = dtype }), { 0, 1, 0 }))
      -- in the exponent: 0^y is flat for y > 0
      local zero = luda.tensor(0, { dtype = dtype })
      assert.same({ 0, 0 }, slope(function(y) return zero ^ y end, leaf({ 1, 2 }, { dtype = dtype })):totable())
    end
  end)

  it("of every spelling of a norm are zero at zero vectors, and rows beside them are right", function()
    local spellings = {
      function(x) return x:norm(2, -1) end,
      function(x) return x:norm { p = 2, dim = -1 } end,
      function(x) return x:norm { p = 3, dim = -1 } end,
      function(x) return luda.hypot(luda.hypot(x:select(2, 1), x:select(2, 2)), x:select(2, 3)) end,
      function(x) return nn.pairwise_distance(x, luda.zeros(2, 3), { eps = 0 }) end,
    }
    for number, fn in ipairs(spellings) do
      local gradient = slope(fn, leaf { { 0, 0, 0 }, { 0, 3, 0 } }, { 1, -2 })
      assert.tensor_near({ { 0, 0, 0 }, { 0, -2, 0 } }, gradient, 1e-5, 1e-6, tostring(number))
    end
    assert.same({ 0, 0, 0 }, slope(function(x) return x:norm() end, leaf { 0, 0, 0 }):totable())
    local gradient = slope(function(x) return nn.normalize(x, { dim = 1 }):sum() end, leaf { 0, 0 })
    assert.same({ true, true }, gradient:isfinite():totable())
  end)
end)

describe("branches", function()
  before_each(helper.before)
  after_each(helper.after)

  it("that were not chosen give nothing, forward and backward", function()
    local mask, a, b = luda.tensor { true, false }, leaf { 1, 2 }, leaf { nan, 5 }
    local y = luda.where(mask, a, b)
    assert.same({ 1, 5 }, y:totable())
    local grads = y:backward { gradient = luda.tensor { inf, 1 } }
    assert.same({ inf, 0 }, grads[a]:totable())
    assert.same({ 0, 1 }, grads[b]:totable())
    local x = leaf { -1, -4 }
    local safe = luda.where(x:gt(0), x, 1)
    assert.same({ 1, 1 }, luda.where(x:gt(0), safe:sqrt(), x):sum():backward()[x]:totable())
    -- without the safe step the chain rule's 0 * inf stays
    assert.tensor_near({ nan }, slope(function(t) return luda.where(t:gt(0), t:sqrt(), t) end, leaf { 0 }), 0, 0)
  end)

  it("of bounds, masks and pieces write their zeros", function()
    local x = { -5, 0.5, 5 }
    local g = { inf, 2, nan }
    assert.same({ 0, 2, 0 }, slope(function(t) return t:clamp(-1, 1) end, leaf(x), g):totable())
    assert.same({ 0, 2, 0 }, slope(function(t) return luda.hardtanh(t) end, leaf(x), g):totable())
    assert.same({ 0, 2, 0 }, slope(function(t) return t:masked_fill(t:abs():gt(1), 7) end, leaf(x), g):totable())
    assert.same({ 0, 2, -1 }, slope(function(t) return t:relu() end, leaf(x), { inf, 2, -1 }):totable())
    assert.same({ 0, -3, 0 }, slope(function(t) return luda.relu6(t - 0.25) end, leaf { -5, 0.5, 50 }, { inf, -3, nan })
      :totable())
    local lower = slope(function(t) return t:tril() end, leaf { { 1, 1 }, { 1, 1 } }, { { 1, nan }, { 1, 1 } })
    assert.same({ { 1, 0 }, { 1, 1 } }, lower:totable())
    assert.same({ 0, 3 }, slope(function(t) return t:nan_to_num() end, leaf { nan, 1 }, { inf, 3 }):totable())
  end)

  it("at bounds have slope 0, for clamp, relu and relu6 alike", function()
    assert.same({ 0, 0 }, slope(function(t) return t:clamp(-1, 1) end, leaf { -1, 1 }):totable())
    assert.same({ 0, 0 }, slope(function(t) return luda.hardtanh(t) end, leaf { -1, 1 }):totable())
    assert.same({ 0, 0 }, slope(function(t) return luda.relu6(t) end, leaf { 0, 6 }):totable())
    assert.same({ 0 }, slope(function(t) return t:relu() end, leaf { 0 }):totable())
    assert.same({ 0 }, slope(function(t) return t:clamp { min = 0 } end, leaf { 0 }):totable())
  end)

  it("pass the gradient from above once", function()
    local x = leaf { 0.5, -0.5, 2, -3 }
    assert.same({ 0.25, 0.25, 0, 0 }, x:clip(-1, 1):mean():backward()[x]:totable())
    assert.same({ -3, -3, 0, 0 }, (x:clip(-1, 1):sum() * -3):backward()[x]:totable())
  end)
end)

describe("broadcasts", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are undone in the shape of each operand", function()
    local a, b = leaf { { 1 }, { 2 } }, leaf { 10, 20, 30 }
    local grads = (a * b):sum():backward()
    assert.same({ { 60 }, { 60 } }, grads[a]:totable())
    assert.same({ 3, 3, 3 }, grads[b]:totable())
    local c, s = leaf(0.5), leaf { { { 1 }, { 2 }, { 3 } } }
    assert.same({}, (c * luda.ones(2, 3)):sum():backward()[c].shape)
    assert.equal(6, (c * luda.ones(2, 3)):sum():backward()[c]:item())
    assert.same({ { { 8 }, { 8 }, { 8 } } }, (s * luda.ones(2, 3, 4)):sum():backward()[s]:totable())
    -- every row with two operands, against its own gradient without a broadcast
    local g = luda.tensor { { 1, -2, 3 }, { -4, 5, -6 } }
    for _, name in ipairs { "add", "sub", "mul", "div", "pow", "maximum", "minimum", "atan2", "hypot", "logaddexp", "xlogy" } do
      local column, line = leaf { { 1.5 }, { 2.5 } }, leaf { 1, 2, 3 }
      local wide, long = leaf { { 1.5, 1.5, 1.5 }, { 2.5, 2.5, 2.5 } }, leaf { { 1, 2, 3 }, { 1, 2, 3 } }
      local narrow = luda[name](column, line):backward { gradient = g }
      local full = luda[name](wide, long):backward { gradient = g }
      assert.tensor_near(full[wide]:sum { dim = 2, keepdim = true }, narrow[column], 1e-5, 1e-6)
      assert.tensor_near(full[long]:sum(1), narrow[line], 1e-5, 1e-6)
    end
  end)
end)

describe("repeated positions", function()
  before_each(helper.before)
  after_each(helper.after)

  it("add up", function()
    for _, name in ipairs { "index_select", "gather" } do
      local x = leaf { 0.1 }
      assert.tensor_near({ 0.5 }, x[name](x, 1, ids(1, 1)):backward { gradient = luda.tensor { 0.2, 0.3 } }[x], 1e-6, 0)
    end
    local table_ = nn.Embedding(3, 2)
    local g = luda.tensor { { 1, 2 }, { 10, 20 }, { 5, 6 } }
    local gradient = table_(ids(2, 2, 3)):backward { gradient = g }[table_.weight]
    assert.same({ { 0, 0 }, { 11, 22 }, { 5, 6 } }, gradient:totable())
    local x = leaf { 3, 4 }
    assert.same({ 0, 10000 }, x:index_select(1, luda.full({ 10000 }, 2, { dtype = "i64" })):sum():backward()[x]:totable())
  end)

  it("of a fill count the elements that hold the value", function()
    local v = leaf(3)
    local y = luda.zeros(5, 5):index_fill(1, ids(3, 3), v)
    assert.same({ 3, 3, 3, 3, 3 }, y[3]:totable())
    assert.equal(15, y:sum():item())
    assert.equal(5, y:sum():backward()[v]:item())
    assert.equal(-10, (luda.zeros(5, 5):index_fill(1, ids(3, 1, 3), v) * -1):sum():backward()[v]:item())
  end)
end)

describe("compositions", function()
  before_each(helper.before)
  after_each(helper.after)

  it("keep the graph where there is nothing to compute, and where values are picked", function()
    local empty = luda.zeros(2, 0):requires_grad_()
    assert.is_true(empty:prod().requires_grad and empty:prod(2).requires_grad)
    assert.same({ 2, 0 }, empty:prod(2):sum():backward()[empty].shape)
    local x = leaf { 3, 1, 3, 2, 1 }
    assert.same({ 1, 2, 3 }, x:unique():totable())
    assert.same({ -5, 10, 0, 7, 0 }, x:unique():backward({ gradient = luda.tensor { 10, 7, -5 } })[x]:totable())
  end)
end)

describe("views of saved tensors", function()
  before_each(helper.before)
  after_each(helper.after)

  it("that change in place are noticed, where the value was needed", function()
    local x = leaf { { 0, 0 } }
    local y = x:exp()
    local loss = y:sum()
    luda.no_grad(function() y:flatten():add_(1) end)
    assert.raises("graph", "exp: its result of shape %[1, 2%].*changed in place", loss.backward, loss)
    -- a product with a number needs nothing of x
    local z = leaf { 1, 2, 3 }
    local copy = z * 1
    local out = (copy:view(3) * 2):sum()
    out:backward { retain = true }
    luda.no_grad(function() copy:view(3, 1):mul_(10) end)
    assert.same({ 2, 2, 2 }, out:backward()[z]:totable())
  end)
end)

describe("deep graphs", function()
  before_each(helper.before)
  after_each(helper.after)

  it("use no C stack, walked or dropped", function()
    assert.equal("done", helper.on_small_stack(512, [[
      local x = luda.tensor({ 1 }):requires_grad_()
      for _, step in ipairs { function(y) return y * 1 end, function(y) return y + 0 end } do
        local before = luda.memory("cpu").live
        luda.scope(function()
          local y = x
          for _ = 1, 200000 do y = step(y) end
          assert(y:sum():backward()[x]:item() == 1)
        end)
        luda.scope(function()
          local y = x
          for _ = 1, 200000 do y = step(y) end
        end)
        assert(luda.memory("cpu").live == before)
      end
      io.write("done")]]))
  end)
end)

describe("logarithms of sums", function()
  before_each(helper.before)
  after_each(helper.after)

  it("keep their slopes at the ends of the range", function()
    for _, beta in ipairs { 1, 5 } do
      local x = leaf { 20, 50, 100, -100 }
      local y = luda.softplus(x, { beta = beta })
      assert.tensor_near({ 20, 50, 100, 0 }, y, 1e-6, 1e-30)
      assert.tensor_near({ -1, -1, -1, 0 }, y:backward { gradient = luda.full({ 4 }, -1) }[x], 1e-6, 1e-30)
    end
    local x = leaf { -100, 100, 0 }
    local loss = nn.bce_with_logits(x, luda.zeros(3), { reduction = "none" })
    assert.tensor_near({ 0, 100, 0.693147 }, loss, 1e-6, 1e-30)
    assert.tensor_near({ 0, 1, 0.5 }, loss:sum():backward()[x], 1e-6, 1e-30)
    assert.tensor_near({ -0.693147, -inf, -0.693147 }, luda.log_softmax(luda.tensor { 0, -inf, 0 }, 1), 1e-6, 0)
    assert.same({ 1, 0 }, slope(function(t) return t:logsumexp(1) end, leaf { 0, -inf }):totable())
    assert.same({ inf, 4, inf }, slope(function(t) return luda.logit(t) end, leaf { 0, 0.5, 1 }):totable())
    -- where every element is -inf there is no direction: NaN, as from exp(x - logsumexp(x))
    assert.tensor_near({ nan, nan }, slope(function(t) return t:logsumexp(1) end, leaf { -inf, -inf }), 0, 0)
  end)

  it("are the same in rows of any width", function()
    for _, width in ipairs { 3, 31, 33, 1025 } do
      local list, top, sum = {}, -inf, 0
      for i = 1, width do
        list[i] = (i * 37 % 101) / 3 - 17
        top = math.max(top, list[i])
      end
      for i = 1, width do
        sum = sum + math.exp(list[i] - top)
      end
      local want, log_sum = {}, top + math.log(sum)
      for i = 1, width do
        want[i] = list[i] - log_sum
      end
      local x = luda.tensor { list, list }
      assert.tensor_near({ want, want }, x:log_softmax(2), 1e-6, 2e-6)
      assert.tensor_near({ log_sum, log_sum }, x:logsumexp(2), 1e-6, 0)
    end
  end)
end)
