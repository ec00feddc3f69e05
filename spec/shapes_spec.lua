--- Shapes, pieces and grids: PyTorch's values, gradients of both orders, refusals; random numbers of other distributions.

local luda = require "luda"
local helper = require "spec.helper"

local golden = helper.golden("pointwise")

describe("PyTorch's values", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, case in ipairs(golden.shapes) do
    it("of " .. case.lua, function()
      local environment = {
        luda = luda, x = luda.arange(24, { dtype = "f64" }):reshape(2, 3, 4),
        v = luda.tensor({ 3, 1, 2 }, { dtype = "f64" }),
      }
      local y = setfenv(assert(loadstring("return " .. case.lua)), environment)()
      assert.same(case.shape, y.shape)
      if y.numel > 0 then
        assert.tensor_near(case.y, y:reshape(-1), 1e-7, 1e-12)
      end
    end)

    if case.lua:find("^x:") and not case.lua:find("floor") then
      it("and gradients of " .. case.lua .. ", of turned tensors too", function()
        local fn = setfenv(assert(loadstring("local x, v = ... return " .. case.lua)), { luda = luda })
        local v = luda.tensor({ 3, 1, 2 }, { dtype = "f64" })
        local x = luda.rand(4, 3, 2, { dtype = "f64", generator = luda.generator(4) }):permute(3, 2, 1)
        assert.same(fn(x:contiguous(), v):reshape(-1):totable(), fn(x, v):reshape(-1):totable())
        luda.autograd.gradcheck(function(t) return fn(t * t, v) end,
          { x:detach():requires_grad_() }, { second = true, eps = 1e-5, atol = 2e-6 })
      end)
    end
  end
end)

describe("gradients", function()
  before_each(helper.before)
  after_each(helper.after)

  it("of lists go to each entry", function()
    local function check(fn)
      luda.autograd.gradcheck(fn, {
        luda.tensor({ 1, -2, 0.5 }, { dtype = "f64" }):requires_grad_(),
        luda.tensor({ 0.3, 4, -1 }, { dtype = "f64" }):requires_grad_(),
      }, { second = true, eps = 1e-5, atol = 2e-6 })
    end
    check(function(a, b) return luda.hstack(a * a, b) end)
    check(function(a, b) return luda.vstack(a * a, b) end)
    check(function(a, b) return luda.dstack { a * a, b } end)
    check(function(a, b)
      local grid = luda.meshgrid(a, b)
      return grid[1] * grid[2]
    end)
    check(function(a, b)
      local list = luda.broadcast_tensors(a:unsqueeze(2), b)
      return list[1] * list[2]
    end)
    check(function(a, b) return a:diag_embed(1) * b[2] end)
    check(function(a, b) return a:pad({ 2, 1 }, "reflect") * b[1] end)
  end)

  it("of what is read twice add up", function()
    local x = luda.tensor({ 1, 2, 3 }):requires_grad_()
    assert.same({ 3, 5, 4 }, x:pad({ 1, 1 }, "reflect"):backward { gradient = luda.tensor({ 3, 3, 0, 4, 2 }) }[x]:totable())
    assert.same({ 1, 12, 110, 1100, 1000 }, (function()
      local y = luda.zeros(5, { requires_grad = true })
      return y:unfold(1, 2, 1):backward { gradient = luda.tensor({ { 1, 2 }, { 10, 10 }, { 100, 100 }, { 1000, 1000 } }) }[y]
        :totable()
    end)())
  end)
end)

describe("shapes", function()
  before_each(helper.before)
  after_each(helper.after)

  it("of diagonals, windows and halves of contiguous tensors share storage where they can", function()
    local x = luda.zeros(3, 3)
    x:diagonal():fill_(7)
    assert.same({ { 7, 0, 0 }, { 0, 7, 0 }, { 0, 0, 7 } }, x:totable())
  end)

  it("may be empty", function()
    local z = luda.zeros(2, 0)
    assert.same({ 2, 0 }, z:flip(1, 2).shape)
    assert.same({ 2, 0 }, z:roll(3, 2).shape)
    assert.same({ 2, 0 }, z:roll(3).shape)
    assert.same({ 4, 0 }, z:tile(2, 3).shape)
    assert.same({ 2, 3 }, z:pad { 1, 2 }.shape)
    assert.same({ 0 }, z:diagonal().shape)
    assert.same({ 2, 0, 0 }, z:diag_embed().shape)
    assert.same({ 0, 2 }, z:rot90().shape)
    assert.same({ 0 }, z:repeat_interleave(2).shape)
    assert.same({ 2, 1, 0 }, z:unfold(2, 0, 1).shape)
    assert.same({ 0, 0 }, luda.tri(0).shape)
    assert.same({ 0, 2 }, luda.meshgrid(luda.zeros(0), luda.ones(2))[1].shape)
  end)

  it("keep element types and 0-d tensors", function()
    local one = luda.tensor(5, { dtype = "i64" })
    assert.same({ { { 5 } } }, luda.atleast_3d(one):totable())
    assert.same({ 5, 5 }, luda.hstack(one, one):totable())
    assert.same({ 5, 5, 5 }, one:tile(3):totable())
    assert.same({ 5, 5 }, one:repeat_interleave(2):totable())
    assert.same({ 5 }, one:ravel():totable())
    assert.equal("i64", one:tile(3).dtype)
    local mask = luda.tensor({ true, false })
    assert.same({ false, true }, mask:flip(1):totable())
    assert.same({ { true, false }, { false, false } }, mask:diag_embed():totable())
    assert.same({ false, true, false }, mask:pad { 1, 0 }:totable())
    assert.equal("u8", luda.ones(3, { dtype = "u8" }):pad { 1, 1 }.dtype)
    assert.equal("bf16", luda.logspace(0, 1, 3, { dtype = "bf16" }).dtype)
  end)

  it("are refused with the shapes", function()
    local x = luda.ones(2, 3)
    assert.raises("shape", "unflatten: the sizes %[2, 2%] do not multiply to 3", x.unflatten, x, 2, { 2, 2 })
    assert.raises("invalid", "movedim: a dimension is given twice", x.movedim, x, { 1, 1 }, { 1, 2 })
    assert.raises("invalid", "flip: dimension 1 is given twice", x.flip, x, 1, -2)
    assert.raises("invalid", "roll: 2 shifts for 1 dimensions", x.roll, x, { 1, 2 }, { 1 })
    assert.raises("shape", "pad: 3 and 0 elements by reflect beside dimension 2 of %[2, 3%]", x.pad, x, { 3, 0 }, "reflect")
    assert.raises("shape", "pad: dimension 2 of %[2, 3%] is cut", x.pad, x, { -2, -2 })
    assert.raises("shape", "pad: the sizes are pairs", x.pad, x, { 1 })
    assert.raises("invalid", "pad: the mode is", x.pad, x, { 1, 1 }, "mirror")
    assert.raises("dtype", "pad: the value 0.5 does not fit i32", luda.pad, luda.ones(2, { dtype = "i32" }), { 1, 1 }, nil, 0.5)
    assert.raises("shape", "unfold: windows of 4, 1 apart, in dimension 2 of %[2, 3%]", x.unfold, x, 2, 4, 1)
    assert.raises("shape", "as_strided: sizes %[3, 3%], strides %[3, 1%] and offset 0 reach element 9 of 6", x.as_strided, x,
      { 3, 3 }, { 3, 1 })
    assert.raises("shape", "repeat_interleave: 2 counts for dimension 2", x.repeat_interleave, x, { 1, 2 }, 2)
    assert.raises("shape", "broadcast_tensors: shapes %[2, 3%] and %[2%] do not broadcast", luda.broadcast_tensors, x,
      luda.ones(2))
    assert.raises("shape", "meshgrid: tensor 1 has the shape %[2, 3%]", luda.meshgrid, x, x)
    assert.raises("invalid", "meshgrid: indexing is", luda.meshgrid, luda.ones(2), luda.ones(2), { indexing = "yx" })
    assert.raises("index", "diagonal", x.diagonal, x, 0, 1, 3)
  end)
end)

-- Random numbers.

describe("distributions", function()
  before_each(helper.before)
  after_each(helper.after)

  local function moments(t)
    local wide = t:to("f64")
    local mean = wide:mean():item()
    return mean, (wide - mean):square():mean():item()
  end

  local count = 40000
  local function filled(name, ...)
    local t = luda.empty(count)
    assert.is_true(t[name](t, ...) == t)
    return t
  end

  it("fill tensors with the mean and the variance of their formulas", function()
    luda.manual_seed(3)
    for _, case in ipairs {
      { "uniform_", -1, 3, mean = 1, variance = 16 / 12 },
      { "normal_", 2, 3, mean = 2, variance = 9 },
      { "exponential_", 0.5, mean = 2, variance = 4 },
      { "gumbel_", 1, 2, mean = 1 + 2 * 0.5772156649, variance = 4 * math.pi ^ 2 / 6 },
      { "trunc_normal_", mean = 0, variance = 0.7737413 }, -- 1 - 2 * 2 phi(2) / (2 Phi(2) - 1)
      { "bernoulli_", 0.3, mean = 0.3, variance = 0.21 },
    } do
      local t = filled(unpack(case, 1, #case))
      local mean, variance = moments(t)
      assert.is_true(math.abs(mean - case.mean) < 6 * math.sqrt(case.variance / count), case[1] .. " " .. mean)
      assert.is_true(math.abs(variance / case.variance - 1) < 0.06, case[1] .. " " .. variance)
      assert.is_true(t:isfinite():sum():item() == count)
    end
    local cut = filled("trunc_normal_", 5, 2, 4, 5.5)
    assert.is_true(cut:amin():item() >= 4 and cut:amax():item() <= 5.5)
  end)

  it("count events", function()
    luda.manual_seed(5)
    for _, rate in ipairs { 0, 0.3, 4, 9.9, 10.5, 47, 3000 } do
      local t = luda.full({ count }, rate):poisson()
      local mean, variance = moments(t)
      assert.is_true(math.abs(mean - rate) <= 6 * math.sqrt(rate / count), rate .. " " .. mean)
      assert.is_true(math.abs(variance - rate) <= 0.06 * rate + 1e-12, rate .. " " .. variance)
      assert.is_true(t:frac():abs():sum():item() == 0)
    end
    -- The chance of none is exp(-rate).
    local none = luda.full({ count }, 1.5):poisson():eq(0):sum():item() / count
    assert.is_true(math.abs(none - math.exp(-1.5)) < 0.012)
  end)

  it("draw positions in proportion to weights", function()
    luda.manual_seed(7)
    local draws = luda.tensor({ { 1, 0, 3 }, { 2, 2, 0 } }):multinomial(8000, { replacement = true })
    assert.same({ 2, 8000 }, draws.shape)
    assert.equal("i64", draws.dtype)
    local function share(row, value)
      return draws[row]:eq(value):sum():item() / 8000
    end
    assert.equal(0, share(1, 2))
    assert.equal(0, share(2, 3))
    assert.is_true(math.abs(share(1, 3) - 0.75) < 0.03 and math.abs(share(2, 1) - 0.5) < 0.035)
    for _ = 1, 20 do
      local seen = {}
      for _, place in ipairs(luda.tensor({ 1, 5, 0, 2, 2 }):multinomial(4, { base = 0 }):totable()) do
        assert.is_nil(seen[place])
        seen[place] = true
      end
      assert.is_nil(seen[2])
    end
    assert.raises("invalid", "multinomial: 3 draws without replacement where 2 weights", luda.multinomial,
      luda.tensor({ 1, 0, 1 }), 3)
    assert.raises("invalid", "a weight is negative", luda.multinomial, luda.tensor({ 1, -1 }), 1)
  end)

  it("are 1 with the probability of each element", function()
    luda.manual_seed(2)
    assert.same({ 0, 1, 0, 1 }, luda.tensor({ 0, 1, 0, 1 }):bernoulli():totable())
    assert.raises("invalid", "bernoulli: a probability is not within", luda.bernoulli, luda.tensor({ 0.5, 1.5 }))
    local mean = moments(luda.full({ count }, 0.2):bernoulli())
    assert.is_true(math.abs(mean - 0.2) < 0.013)
  end)

  it("are decided by the generator, not by threads", function()
    local function all()
      local generator = { generator = luda.generator(11) }
      local list = { luda.full({ 5000 }, 12.5):poisson(generator), luda.full({ 5000 }, 0.4):bernoulli(generator),
        luda.rand(50, { generator = luda.generator(1) }):multinomial(20, generator), luda.gumbel(5000, generator) }
      for _, name in ipairs { "uniform_", "normal_", "exponential_", "trunc_normal_" } do
        local t = luda.empty(5000)
        list[#list + 1] = t[name](t, generator)
      end
      for i, t in ipairs(list) do
        list[i] = t:totable()
      end
      return list
    end
    local threads = luda.threads()
    luda.set_threads(1)
    local want = all()
    luda.set_threads(4)
    assert.same(want, all())
    luda.set_threads(threads)
  end)

  it("take the shape of another tensor", function()
    local t = luda.randint_like(luda.ones(2, 3, { dtype = "i16" }), 4, 6)
    assert.equal("i16", t.dtype)
    assert.same({ 2, 3 }, t.shape)
    assert.is_true(t:amin():item() >= 4 and t:amax():item() <= 5)
    assert.raises("invalid", "randint_like: a low and a high are needed", luda.randint_like, t, 4)
  end)

  it("refuse what they cannot do", function()
    assert.raises("dtype", "normal_: i64 is not possible", luda.normal_, luda.ones(2, { dtype = "i64" }))
    assert.raises("invalid", "uniform_: from 2 is above to 1", luda.uniform_, luda.ones(2), 2, 1)
    assert.raises("invalid", "exponential_: lambd is 0", luda.exponential_, luda.ones(2), 0)
    assert.raises("invalid", "poisson: a rate is negative", luda.poisson, luda.tensor({ -1 }))
    assert.same({ 0 }, luda.zeros(0):poisson().shape)
  end)
end)
