--- Reductions, scans, sorting and index data: PyTorch's values and gradients, edge cases, refusals.

local luda = require "luda"
local json = require "luda.json"
local helper = require "spec.helper"

local gradcheck = luda.autograd.gradcheck
local nan, inf = 0 / 0, math.huge

local golden = helper.golden("reductions")

--- The formula of scripts/golden.py.
local function values(shape, seed, special)
  local count, list = 1, {}
  for _, size in ipairs(shape) do
    count = count * size
  end
  local replaced = { nan, inf, 0, -inf, -0.0, 2.5 }
  for k = 0, count - 1 do
    list[k + 1] = ((k * 7 + seed * 5) % 23 - 11) / 8
    if special and k % 3 == 0 then
      list[k + 1] = replaced[k / 3 % #replaced + 1]
    end
  end
  return luda.tensor(list, { dtype = "f64" }):reshape(shape)
end

--- Numbers, or the words that stand for what JSON lacks; positions count from 1 here.
local function wanted(list, shape, positions)
  local numbers = {}
  for i, value in ipairs(list) do
    numbers[i] = (type(value) == "boolean" and (value and 1 or 0) or tonumber(value)) + (positions and 1 or 0)
  end
  return luda.tensor(numbers, { dtype = "f64" }):reshape(shape)
end

local function from_zero(number)
  return number >= 0 and number + 1 or number
end

local function options_of(case)
  local options = {}
  for name, value in pairs(case.options) do
    if name == "dim" and type(value) == "table" then
      local dims = {}
      for i, dim in ipairs(value) do
        dims[i] = from_zero(dim)
      end
      value = dims
    elseif name == "dim" then
      value = from_zero(value)
    elseif name == "p" then
      value = tonumber(value)
    end
    options[name] = value
  end
  return options
end

describe("PyTorch's values", function()
  before_each(helper.before)
  after_each(helper.after)

  local function check(case)
    local x = values(case.x, 1, case.special):requires_grad_()
    local results = { luda[case.op](x, options_of(case)) }
    assert.equal(#case.results, #results)
    for i, want in ipairs(case.results) do
      assert.same(want.shape, results[i].shape)
      results[i] = results[i].dtype == "bool" and results[i]:to("f64") or results[i]
      assert.tensor_near(wanted(want.y, want.shape, want.positions), results[i], 1e-13, 1e-14)
    end
    if case.grad then
      local g = values(results[1].shape, 4)
      assert.tensor_near(wanted(case.grad, case.x), results[1]:backward { gradient = g }[x], 1e-12, 1e-13)
    end
    local turned = values(case.x, 1, case.special)
    if turned.ndim == 2 then -- the same in another layout
      turned = turned:t():clone():t()
      assert.tensor_near(results[1], luda[case.op](turned, options_of(case)):to(results[1].dtype), 1e-13, 1e-14)
    end
  end

  local groups, names = {}, {}
  for _, case in ipairs(golden.named) do
    if not groups[case.op] then
      groups[case.op], names[#names + 1] = {}, case.op
    end
    table.insert(groups[case.op], case)
  end
  for _, name in ipairs(names) do
    it("of " .. name, function()
      for number, case in ipairs(groups[name]) do
        local good, problem = pcall(check, case)
        assert(good, ("case %d, %s: %s"):format(number, json.encode(case.options), tostring(problem)))
      end
    end)
  end

  for number, case in ipairs(golden.indexed) do
    it(("of %s, case %d"):format(case.op, number), function()
      local index = wanted(case.index.y, case.index.shape, true):to("i64")
      local inputs = { values(case.x, 1):requires_grad_(), values(case.index.shape, 2):requires_grad_() }
      local y = inputs[1][case.op](inputs[1], case.dim + 1, index, case.op ~= "gather" and inputs[2] or nil)
      assert.tensor_near(wanted(case.y, case.shape), y, 1e-15, 0)
      local grads = y:backward { gradient = values(y.shape, 4) }
      for i, grad in ipairs(case.grads) do
        assert.tensor_near(wanted(grad, inputs[i].shape), grads[inputs[i]], 1e-15, 0)
      end
    end)
  end
end)

describe("gradients of both orders", function()
  before_each(helper.before)
  after_each(helper.after)

  local functions = {
    prod = function(x) return x:prod(2) end,
    ["prod of all"] = function(x) return x:prod() end,
    var = function(x) return x:var { dim = 2, correction = 0 } end,
    std = function(x) return x:std(1) end,
    logsumexp = function(x) return x:logsumexp(2) end,
    norm = function(x) return x:norm(3, 2) end,
    ["norm of all"] = function(x) return x:norm() end,
    nanmean = function(x) return x:nanmean(1) end,
    cumsum = function(x) return x:cumsum(1) end,
    cumprod = function(x) return x:cumprod(2) end,
    logcumsumexp = function(x) return x:logcumsumexp(2) end,
    topk = function(x) return (x:topk(2, 1)) end,
    kthvalue = function(x) return (x:kthvalue(2, 2)) end,
    median = function(x) return (x:median(2)) end,
    quantile = function(x) return x:quantile(0.3, 2) end,
    masked_select = function(x) return x:square():masked_select(x:gt(0)) end,
    masked_fill = function(x) return x:square():masked_fill(x:gt(0), 3) end,
    masked_scatter = function(x) return x:square():masked_scatter(x:gt(0), x:exp()) end,
    index_add = function(x)
      return x:square():index_add(1, luda.tensor({ 1, 3, 1 }, { dtype = "i64" }), x:exp(), { alpha = 2 })
    end,
    index_copy = function(x) return x:square():index_copy(2, luda.tensor({ 4, 1 }, { dtype = "i64" }), x:narrow(2, 2, 2)) end,
    index_fill = function(x) return x:square():index_fill(2, luda.tensor({ 4, 1 }, { dtype = "i64" }), 7) end,
    take = function(x) return x:square():take(luda.tensor({ { 1, 12 }, { 12, 5 } }, { dtype = "i64" })) end,
    tril = function(x) return x:square():tril(1) end,
    diag = function(x) return x:square():diag(1):diag(-1) end,
    trace = function(x) return x:square():trace() end,
  }
  for name, fn in pairs(functions) do
    it("of " .. name, function()
      local x = (values({ 3, 4 }, 2) + 0.03):requires_grad_()
      assert.is_true(gradcheck(fn, { x }, { second = true, eps = 1e-5, atol = 2e-6 }))
    end)
  end

  it("of a product with zeros in it", function()
    for _, list in ipairs { { 2, 0, 4 }, { 2, 0, 0 }, { 0 } } do
      local x = luda.tensor(list, { dtype = "f64" }):requires_grad_()
      local want = #list == 1 and { 1 } or list[3] == 4 and { 0, 8, 0 } or { 0, 0, 0 }
      assert.same(want, x:prod():backward()[x]:totable())
      assert.same(want, x:prod(1):backward()[x]:totable())
    end
    local x = luda.tensor({ 3, 0, 2, 0, 5 }, { dtype = "f64" }):requires_grad_()
    assert.is_true(gradcheck(function(t) return t:cumprod(1) end, { x }, { second = true, eps = 1e-5, atol = 2e-6 }))
  end)

  it("of the norm of zeros are zeros, and of one element's variance what its divisor says", function()
    for _, call in ipairs {
      function(x) return x:norm() end, function(x) return x:norm(2, 1) end, function(x) return x:norm(0.5, 1) end,
      function(x) return x:std { dim = 1, correction = 0 } end, function(x) return x:norm(3) end,
    } do
      local x = luda.zeros(3, 3):requires_grad_()
      local grad = call(x):sum():backward()[x]
      assert.tensor_near(luda.zeros(3, 3), grad, 0, 0)
    end
    local x = luda.tensor({ { 1 } }):requires_grad_()
    local value = x:var { correction = 0 }
    assert.equal(0, value:item())
    assert.same({ { 0 } }, value:backward()[x]:totable())
    value = x:var()
    assert.is_true(value:item() ~= value:item())
    local grad = value:backward()[x]
    assert.same({ 1, 1 }, grad.shape)
    assert.is_true(grad:item() ~= grad:item())
  end)

  it("add up where positions repeat, and belong to the last one written", function()
    local index = luda.tensor({ 1, 1 }, { dtype = "i64" })
    local x, source = luda.tensor({ 0.1 }):requires_grad_(), luda.tensor({ 5, 6 }):requires_grad_()
    assert.tensor_near({ 0.5 }, x:gather(1, index):backward { gradient = luda.tensor { 0.2, 0.3 } }[x], 1e-6, 0)
    local y = x:scatter(1, index, source)
    assert.same({ 6 }, y:totable())
    local grads = y:backward { gradient = luda.tensor { -3 } }
    assert.same({ 0, -3 }, grads[source]:totable())
    assert.same({ 0 }, grads[x]:totable())
    local many = luda.full({ 10000 }, 1):to("i64")
    assert.equal(10000, luda.zeros(2, { dtype = "bf16" }):scatter_add(1, many, 1):to("f32")[1]:item() + 16)
  end)
end)

describe("NaN", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is larger than all in sorting, whatever its sign, and wins running extremes", function()
    for _, dtype in ipairs { "f64", "f32", "f16", "bf16" } do
      local ordered, positions = luda.sort(luda.tensor({ nan, 1, -nan, -inf, inf }, { dtype = dtype }))
      assert.tensor_near({ -inf, 1, inf, nan, nan }, ordered, 0, 0)
      assert.same({ 4, 2, 5, 1, 3 }, positions:totable())
      local largest, where = luda.cummax(luda.tensor({ 1, 3, 3, nan, 5, nan, 2 }, { dtype = dtype }), 1)
      assert.tensor_near({ 1, 3, 3, nan, nan, nan, nan }, largest, 0, 0)
      assert.same({ 1, 2, 3, 4, 4, 6, 6 }, where:totable())
      local least = luda.cummin(luda.tensor({ 1, -3, 2, nan, -5 }, { dtype = dtype }), 1)
      assert.tensor_near({ 1, -3, -3, nan, nan }, least, 0, 0)
    end
  end)

  it("does not come out of infinities", function()
    assert.equal(0, luda.tensor({ 0, -inf }):logsumexp(1):item())
    assert.equal(-inf, luda.tensor({ -inf, -inf }):logsumexp(1):item())
    assert.equal(inf, luda.tensor({ inf, 1 }):logsumexp():item())
    local x = luda.tensor({ 0, -inf }):requires_grad_()
    assert.same({ 1, 0 }, x:logsumexp(1):backward()[x]:totable())
    assert.tensor_near({ -inf, -1000, -1000 + math.log(2) }, luda.tensor({ -inf, -1000, -1000 }):logcumsumexp(1), 1e-6, 0)
  end)
end)

describe("every element type", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, dtype in ipairs { "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool" } do
    it("is sorted, long lines too: " .. dtype, function()
      local list, low = {}, dtype == "u8" and 0 or dtype == "bool" and 0 or -50
      for i = 1, 333 do
        list[i] = low + i * 37 % 101
        if dtype == "bool" then
          list[i] = i * 7 % 3 == 0
        end
      end
      local numbers, order = {}, {}
      for i = 1, #list do
        numbers[i], order[i] = dtype == "bool" and (list[i] and 1 or 0) or list[i], i
      end
      for _, descending in ipairs { false, true } do
        table.sort(order, function(a, b)
          if numbers[a] ~= numbers[b] then
            return (numbers[a] < numbers[b]) ~= descending
          end
          return a < b
        end)
        local x = luda.tensor(list, dtype ~= "bool" and { dtype = dtype } or nil)
        local ordered, positions = x:sort(1, descending)
        assert.equal(dtype, ordered.dtype)
        assert.same(order, positions:totable())
        assert.is_true(ordered:equal(x[positions]))
      end
      assert.same({ 0, 2 }, luda.zeros(2, 3, { dtype = dtype }):nonzero().shape)
    end)
  end

  it("has sums and products that do not overflow small integers", function()
    local x = luda.tensor({ 100, 100, 100 }, { dtype = "i8" })
    assert.same({ 100, 200, 300 }, x:cumsum(1):totable())
    assert.equal(1000000, x:prod():item())
    assert.equal("i64", x:prod(1).dtype)
    assert.same({ 1, 1, 2 }, luda.tensor({ true, false, true }):cumsum(1):totable())
    assert.tensor_near({ 16777224 }, luda.ones(16777224):cumsum(1):narrow(1, 16777224, 1), 0, 0)
    assert.is_false(luda.tensor({ true, false }):all():item())
    assert.is_true(luda.tensor({ 0, nan }):any():item())
    assert.raises("dtype", "var", luda.var, x)
  end)
end)

describe("empty and 0-d tensors", function()
  before_each(helper.before)
  after_each(helper.after)

  it("have identities, or refuse", function()
    local z = luda.zeros(2, 0)
    assert.same({ 1, 1 }, z:prod(2):totable())
    assert.same({ 0 }, z:prod(1).shape)
    assert.equal(1, z:prod():item())
    assert.is_true(z:all():item())
    assert.is_false(z:any():item())
    assert.equal(-inf, z:logsumexp():item())
    assert.equal(0, z:norm():item())
    assert.same({ 2, 0 }, z:cumsum(2).shape)
    assert.same({ 2, 0 }, (z:sort(2)).shape)
    assert.same({ 0, 2 }, z:nonzero().shape)
    assert.same({ 0 }, (z:unique()).shape)
    assert.raises("shape", "median: an empty dimension", luda.median, z, 2)
    local x = luda.tensor(3)
    assert.equal(3, x:prod():item())
    assert.equal(3, x:cumsum(1):item())
    assert.equal(3, (x:sort()):item())
    assert.equal(3, (x:topk(1)):item())
    assert.same({ 1, 0 }, x:nonzero().shape)
    assert.equal(5, x:index_fill(1, luda.tensor({ 1 }, { dtype = "i64" }), 5):item())
  end)
end)

describe("positions", function()
  before_each(helper.before)
  after_each(helper.after)

  local function ids(...)
    return luda.tensor({ ... }, { dtype = "i64" })
  end

  it("of masks read and write", function()
    local x = luda.arange(12):reshape(3, 4)
    local mask = (x % 3):eq(1)
    assert.same({ 1, 4, 7, 10 }, x[mask]:totable())
    assert.same({ { 1, 2 }, { 2, 1 }, { 2, 4 }, { 3, 3 } }, mask:nonzero():totable())
    local y = x:clone()
    y[mask] = ids(9, 8, 7, 6):to("f32")
    assert.same({ { 0, 9, 2, 3 }, { 8, 5, 6, 7 }, { 8, 9, 6, 11 } }, y:totable())
    local rows = x:clone()
    rows[luda.tensor { true, false, true }] = luda.tensor { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }
    assert.same({ { 1, 2, 3, 4 }, { 4, 5, 6, 7 }, { 5, 6, 7, 8 } }, rows:totable())
    rows[ids(1, 1)] = luda.tensor { { 0, 0, 0, 0 }, { -1, -1, -1, -1 } } -- the last wins
    assert.same({ -1, -1, -1, -1 }, rows[1]:totable())
    assert.same({ { 0, 5, 2, 3 }, { 5, 5, 6, 5 }, { 8, 9, 5, 11 } }, x:masked_fill(mask, 5):totable())
  end)

  it("count, look up and mark", function()
    assert.same({ 2, 0, 1 }, ids(1, 3, 1):bincount():totable())
    assert.same({ 0.5, 3 }, ids(1, 0, 1):bincount { weights = luda.tensor { 1, 0.5, 2 }, base = 0 }:totable())
    assert.same({ 2, 3, 1, 4 }, luda.searchsorted(luda.tensor { 1, 3, 5 }, luda.tensor { 3, 5, -inf, nan }):totable())
    assert.same({ 3, 4 }, luda.tensor({ 3, 5 }):bucketize(luda.tensor { 1, 3, 5 }, { right = true }):totable())
    assert.same({ { 0, 1, 0 }, { 1, 0, 0 } }, ids(2, 1):one_hot(3):totable())
    assert.same({ { 0, 1 }, { 1, 0 } }, ids(1, 0):one_hot { base = 0 }:totable())
    local distinct, inverse, counts = luda.tensor({ { 3, 1 }, { 3, 2 } }):unique { return_inverse = true, return_counts = true }
    assert.same({ 1, 2, 3 }, distinct:totable())
    assert.same({ { 3, 1 }, { 3, 2 } }, inverse:totable())
    assert.same({ 1, 1, 2 }, counts:totable())
    local x = luda.zeros(2, 3)
    assert.is_true(x:scatter_(2, luda.tensor({ { 3 }, { 1 } }, { dtype = "i64" }), 4) == x)
    assert.same({ { 0, 0, 4 }, { 4, 0, 0 } }, x:totable())
    x:index_add_(1, ids(2), luda.ones(1, 3))
    assert.same({ { 0, 0, 4 }, { 5, 1, 1 } }, x:totable())
  end)

  it("are refused where they are wrong", function()
    local x = luda.zeros(2, 3)
    assert.raises("index", "gather: position 0.*base = 0", luda.gather, x, 1, ids(0, 1):reshape(1, 2))
    assert.raises("shape", "scatter: shapes %[2, 3%] and %[3%]", luda.scatter, x, 1, ids(1, 1, 1), 2)
    assert.raises("shape", "index_add: the source is %[3%]", luda.index_add, x, 1, ids(1, 1, 1), luda.zeros(3))
    assert.raises("dtype", "masked_select: the mask must be a tensor of bool, not f32", luda.masked_select, x, x)
    assert.raises("index", "one_hot: label 0 is outside 1 .. 2.*pass base = 0", luda.one_hot, ids(0, 1), 2)
    assert.raises("index", "topk: k is 4", luda.topk, x, 4)
    assert.raises("invalid", "std: unknown option 'keepdims'", luda.std, x, { keepdims = true })
    assert.raises("index", "prod: dimension 3", luda.prod, x, 3)
    assert.raises("shape", "trace: %[2%]", luda.trace, luda.zeros(2))
    assert.raises("invalid", "quantile: q is 2", luda.quantile, x, 2)
  end)
end)
