--- Writing at positions, distinct values, differences, cuts: PyTorch's values and gradients, edge cases, refusals.

local luda = require "luda"
local helper = require "spec.helper"

local nan, inf = 0 / 0, math.huge

local golden = helper.golden("order")

local function number(value)
  return type(value) == "string" and tonumber(value) or value
end

local function from_json(entry, dtype, add)
  local list = {}
  for k, value in ipairs(entry.values or entry.y) do
    list[k] = number(value) + (add or 0)
  end
  return luda.tensor(list, { dtype = "f64" }):reshape(entry.shape):to(dtype or "f64")
end

--- The tensors that calls name: "i…" are positions, "b" is a mask, "n" holds whole numbers.
local function environment()
  local names = { luda = luda, unpack = unpack }
  for name, entry in pairs(golden.tensors) do
    local kind = name:sub(1, 1)
    local dtype = (kind == "i" or kind == "n") and "i64" or kind == "b" and "bool" or "f64"
    names[name] = from_json(entry, dtype, kind == "i" and 1 or 0)
  end
  return names
end

local function weights(y)
  local list, pattern = {}, { 1, -2, 3 }
  for k = 1, y.numel do
    list[k] = pattern[(k - 1) % 3 + 1]
  end
  return luda.tensor(list, { dtype = "f64" }):reshape(y.shape)
end

local function run(case, change)
  local names = environment()
  for name in pairs(case.grads or {}) do
    names[name]:requires_grad_()
  end
  for name, t in pairs(names) do
    names[name] = luda.is_tensor(t) and change and change(t, case.grads and case.grads[name]) or t
  end
  return names, { setfenv(assert(loadstring("return " .. case.lua)), names)() }
end

describe("PyTorch's values", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, case in ipairs(golden.cases) do
    it("of " .. case.lua, function()
      local names, results = run(case)
      assert.equal(#case.results, #results)
      for k, want in ipairs(case.results) do
        assert.same(want.shape, results[k].shape)
        assert.tensor_near(from_json(want, "f64", want.positions and 1 or 0), results[k]:to("f64"), 1e-12, 1e-14)
      end
      if case.grads then
        local grads = results[1]:backward { gradient = weights(results[1]) }
        for name, want in pairs(case.grads) do
          assert.tensor_near(from_json({ shape = names[name].shape, y = want }), grads[names[name]], 1e-11, 1e-12)
        end
      end
      local _, turned = run(case, function(t, tracked) -- the same in another layout
        return not tracked and t.ndim == 2 and t:t():contiguous():t() or t
      end)
      for k, want in ipairs(results) do
        assert.tensor_near(want:to("f64"), turned[k]:to("f64"), 1e-13, 1e-14)
      end
    end)
  end
end)

describe("gradients of both orders", function()
  before_each(helper.before)
  after_each(helper.after)

  local function ids(list)
    return luda.tensor(list, { dtype = "i64" })
  end
  local functions = {
    index_put = function(x) return x:square():index_put({ ids { 1, 3, 1 }, ids { 2, 2, 4 } }, x[1][{ { 1, 3 } }]:exp()) end,
    ["index_put with a gap"] = function(x) return x:square():index_put({ {}, ids { 2, 4 } }, x:exp()[{ {}, { 1, 2 } }], true) end,
    put = function(x) return x:square():put(ids { 1, 7, 7 }, x[1][{ { 1, 3 } }]:exp(), true) end,
    mean = function(x) return x:square():scatter_reduce(1, ids { { 1, 2, 3, 1 }, { 1, 1, 3, 2 } }, x:exp(), "mean") end,
    prod = function(x) return x:scatter_reduce(1, ids { { 1, 2, 3, 1 }, { 1, 1, 3, 2 } }, x:exp(), "prod") end,
    amax = function(x)
      return x:square():scatter_reduce(2, ids { { 1, 1, 3, 1 }, { 4, 1, 3, 2 } }, x:exp(), "amax", { include_self = false })
    end,
    amin = function(x) return x:square():scatter_reduce(2, ids { { 1, 1, 3, 1 }, { 4, 1, 3, 2 } }, x:exp(), "amin") end,
    mode = function(x) return (x:square():mode(2)) end,
    nanmedian = function(x) return (x:square():nanmedian(1)) end,
    nanquantile = function(x) return x:square():nanquantile(0.3, 2) end,
    diff = function(x) return x:square():diff { n = 2, dim = 2, append = x } end,
    cov = function(x) return x:cov() end,
    vander = function(x) return x[1]:vander(3) end,
    erfc = function(x) return x:erfc() end,
  }
  for name, fn in pairs(functions) do
    it("of " .. name, function()
      local x = luda.tensor({ { 0.4, -1.1, 0.9, 2 }, { -0.3, 1.3, -0.8, 0.7 }, { 1.7, -0.6, 0.2, -1.6 } }, { dtype = "f64" })
      assert.is_true(luda.autograd.gradcheck(fn, { x:requires_grad_() }, { second = true, eps = 1e-5, atol = 2e-6 }))
    end)
  end

  it("of products with zeros, and of shared extremes", function()
    local at = ids { 1, 1, 2, 2, 2 }
    local x = luda.tensor({ 2, 3, 5 }, { dtype = "f64" }):requires_grad_()
    local source = luda.tensor({ 0, 4, 0, 0, 7 }, { dtype = "f64" }):requires_grad_()
    local grads = x:scatter_reduce(1, at, source, "prod"):backward { gradient = luda.tensor({ 1, -1, 10 }, { dtype = "f64" }) }
    assert.same({ 8, 0, 0, 0, 0 }, grads[source]:totable())
    assert.same({ 0, 0, 10 }, grads[x]:totable())
    for include_self, want in pairs {
      [true] = { { 2, 0, -5 }, { 2, 2, 0, 4, 4 } }, [false] = { { 0, 0, -5 }, { 3, 3, 0, 4, 4 } },
    } do
      local a = luda.tensor({ 4, 1, 0 }):requires_grad_()
      local b = luda.tensor({ 4, 4, -1, 6, 6 }):requires_grad_()
      grads = a:scatter_reduce(1, at, b, "amax", include_self):backward { gradient = luda.tensor { 6, 8, -5 } }
      assert.same(want[1], grads[a]:totable())
      assert.same(want[2], grads[b]:totable())
    end
  end)
end)

describe("every element type", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, dtype in ipairs { "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8" } do
    it("is scattered, counted and cut: " .. dtype, function()
      local x = luda.tensor({ 1, 2, 3 }, { dtype = dtype })
      local at, source = luda.tensor({ 2, 2, 1, 2 }, { dtype = "i32" }), luda.tensor({ 5, 1, 4, 3 }, { dtype = dtype })
      for how, want in pairs { sum = { 5, 11, 3 }, prod = { 4, 30, 3 }, amax = { 4, 5, 3 }, amin = { 1, 1, 3 } } do
        local y = x:scatter_reduce(1, at, source, how)
        assert.same(want, y:totable())
        assert.equal(dtype, y.dtype)
      end
      assert.same({ 4, 3, 3 }, x:scatter_reduce(1, at, source, "mean", false):totable())
      assert.same({ 4, 1, 3 }, x:index_put({ luda.tensor({ 1, 2, 2 }, { dtype = "i16" }) }, source[{ { 3, 4 } }]:index_select(1,
        luda.tensor({ 1, 2, 2 }, { dtype = "i64" })):sub(luda.tensor({ 0, 0, 2 }, { dtype = dtype }))):totable())
      local value, place = luda.tensor({ 3, 1, 3, 1, 2 }, { dtype = dtype }):mode()
      assert.equal(1, value:item())
      assert.equal(4, place:item())
      assert.same({ { 1, 2 }, { 3, 0 } }, (luda.tensor({ { 3, 0 }, { 1, 2 }, { 3, 0 } }, { dtype = dtype }):unique { dim = 1 })
        :totable())
      assert.same({ 2, 1 }, luda.tensor({ 1, 3, 4 }, { dtype = dtype }):diff():totable())
    end)
  end

  it("of halves is rounded once", function()
    local many = luda.ones(3000, { dtype = "bf16" })
    local at = luda.full({ 3000 }, 1):to("i64")
    assert.equal(1, luda.zeros(1, { dtype = "bf16" }):scatter_reduce(1, at, many, "mean", { include_self = false }):item())
  end)
end)

describe("edge cases", function()
  before_each(helper.before)
  after_each(helper.after)

  local function ids(...)
    return luda.tensor({ ... }, { dtype = "i64" })
  end

  it("of empty and 0-d tensors", function()
    local z, none = luda.zeros(2, 0), luda.zeros(0, { dtype = "i64" })
    assert.same({ 2, 0 }, z:index_put({ none }, 3).shape)
    assert.same({ 1, 2, 3 }, luda.tensor({ 1, 2, 3 }):index_put({ none }, 3):totable())
    assert.same({ 1, 2, 3 }, luda.tensor({ 1, 2, 3 }):scatter_reduce(1, none, luda.zeros(0), "prod"):totable())
    assert.equal(15, luda.tensor(3):scatter_reduce(1, ids(1):squeeze(), luda.tensor(5), "prod"):item())
    assert.equal(5, luda.tensor(3):put(ids(1), 5):item())
    assert.same({ 0 }, (luda.zeros(0):unique_consecutive()).shape)
    assert.same({ 0, 3 }, (luda.zeros(0, 3):unique { dim = 1 }).shape)
    assert.same({ 1, 0 }, (luda.zeros(4, 0):unique { dim = 1 }).shape)
    assert.same({ 1, 0 }, (luda.zeros(4, 0):unique_consecutive { dim = 1 }).shape)
    assert.same({ 2, 0 }, luda.zeros(2, 1):diff().shape)
    assert.same({ 2, 0 }, z:diff().shape)
    assert.equal(3, (luda.tensor(3):mode()):item())
    assert.same({ 2, 0 }, luda.tril_indices(0, 3).shape)
    assert.same({ 0, 2 }, luda.tril_indices(3, 3, -9):t().shape)
    assert.equal(0, luda.zeros(0):trapezoid():item())
  end)

  it("of NaN: each is a value of its own, and skipped where the name says so", function()
    assert.same({ 3 }, (luda.tensor({ nan, 1, nan }):unique()).shape)
    local value, place = luda.tensor({ nan, 2, nan, 2 }):mode()
    assert.equal(2, value:item())
    assert.equal(4, place:item())
    assert.tensor_near({ 2, nan }, luda.tensor({ { 2, nan, 4 }, { nan, nan, nan } }):nanmedian(2), 0, 0)
    assert.tensor_near({ inf, 2 }, luda.tensor({ { inf, inf, inf }, { 1, 3, nan } }):nanquantile(0.5, 2), 0, 0)
  end)

  it("of masks: they stay masks", function()
    local mask = luda.full({ 2, 2 }, true)
    assert.same({ { true, false }, { true, true } }, mask:tril():totable())
    assert.same({ { false, true }, { false, false } }, mask:triu(1):totable())
    assert.same({ true, false }, luda.where(luda.tensor { true, false }, true, false):totable())
    assert.same({ true, false }, luda.tensor({ true, false, false }):diff():totable())
  end)

  it("of negative zeros: they are zeros", function()
    for _, dtype in ipairs { "f64", "f32", "f16", "bf16" } do
      assert.same({ { 3 }, { 4 } }, luda.tensor({ -0.0, 0, 1, nan }, { dtype = dtype }):nonzero():totable())
      assert.same({ 0 }, (luda.tensor({ 0, -0.0 }, { dtype = dtype }):unique()):totable())
    end
  end)

  it("of erfc: all digits in the tail", function()
    -- exp(-x^2) / (x sqrt(pi)) times the asymptotic series, and erfc(-x) = 2 - erfc(x)
    for dtype, tolerance in pairs { f64 = 2e-8, f32 = 4e-7 } do
      for _, x in ipairs { 6, 7, 8, 9 } do
        local y = 2 * x * x
        local series = 1 - 1 / y + 3 / y ^ 2 - 15 / y ^ 3 + 105 / y ^ 4 - 945 / y ^ 5 + 10395 / y ^ 6
        local want = math.exp(-x * x) / (x * math.sqrt(math.pi)) * series
        assert.near(1, luda.erfc(luda.tensor(x, { dtype = dtype })):item() / want, tolerance)
        assert.near(2, luda.erfc(luda.tensor(-x, { dtype = dtype })):item(), 1e-7)
      end
    end
    assert.tensor_near({ 0, 2, nan, 1 }, luda.erfc(luda.tensor { inf, -inf, nan, 0 }), 0, 0)
  end)

  it("of other bases, masks and numbers", function()
    local x = luda.zeros(2, 2)
    assert.same({ { 0, 7 }, { 0, 0 } }, x:index_put({ ids(0), ids(1) }, 7, { base = 0 }):totable())
    assert.same({ { 1, 0 }, { 1, 0 } }, x:index_put({ {}, luda.tensor { true, false } }, 1):totable())
    assert.is_true(x:index_put_({ ids(2, 2) }, 1, true) == x)
    assert.same({ { 0, 0 }, { 2, 2 } }, x:totable())
    assert.same({ { 0, 0 }, { 9, 2 } }, x:put_(ids(3), 9):totable())
    assert.same({ { 0, 1 }, { 0, 0 } }, luda.tril_indices(2, 1, 0, { base = 0 }):totable())
  end)

  it("are refused where they are wrong", function()
    local x = luda.zeros(2, 3)
    assert.raises("index", "index_put: position 3 is outside 1 .. 2", x.index_put, x, { ids(3), ids(1) }, 1)
    assert.raises("index", "index_put: position 0 is outside.*base = 0", x.index_put, x, { ids(0) }, 1)
    assert.raises("index", "index_put: 3 dimensions are indexed, the tensor %[2, 3%] has 2", x.index_put, x,
      { ids(1), ids(1), ids(1) }, 1)
    assert.raises("shape", "index_put: .*%[2%] and %[3%]", x.index_put, x, { ids(1, 1), ids(1, 1, 1) }, 1)
    assert.raises("shape", "index_put: shape %[4%] cannot become %[2, 3%]", x.index_put, x, { ids(1, 1) }, luda.zeros(4))
    assert.raises("shape", "a mask %[3%] for dimension 1", x.index_put, x, { luda.tensor { true, false, true } }, 1)
    assert.raises("dtype", "index_put: index tensor 1 is f32", x.index_put, x, { luda.tensor { 1 } }, 1)
    assert.raises("dtype", "index tensor 1 is u8; masks are bool.*:to%(\"bool\"%)", x.index_put, x,
      { luda.tensor({ 1 }, { dtype = "u8" }) }, 1)
    assert.raises("invalid", "index_put: there is no index tensor", x.index_put, x, { {} }, 1)
    assert.raises("dtype", "f32 cannot be written into i64", luda.index_put, ids(1), { ids(1) }, luda.tensor { 0.5 })
    assert.raises("invalid", "scatter_reduce: reduce is one of amax", x.scatter_reduce, x, 1, ids(1), 1, "max")
    assert.raises("shape", "put: 2 elements given for 3", x.put, x, ids(1, 2, 3), luda.zeros(2))
    assert.raises("shape", "take_along_dim: positions %[1%]", x.take_along_dim, x, ids(1), 1)
    assert.raises("shape", "mode: an empty dimension", luda.mode, luda.zeros(0))
    assert.raises("shape", "diff: a 0%-d tensor", luda.diff, luda.tensor(1))
    assert.raises("shape", "hsplit: dimension 2 of %[2, 3%] does not divide into 2", x.hsplit, x, 2)
    assert.raises("shape", "cov: fweights is a tensor of one weight for each of 3", x.cov, x, { fweights = ids(1) })
  end)
end)
