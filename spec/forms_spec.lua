--- Forms of operators: out= of every row, in-place forms of those that may have one, and of what is composed from rows.

local luda = require "luda"
local ops = require "luda.ops"
local helper = require "spec.helper"
local samples = require "spec.samples"

local function call_into(row, case, list, out)
  local options = { out = out }
  for name, value in pairs(case.options) do
    options[name] = value
  end
  return samples.call(row, { options = options }, list)
end

local function zeros_like(t, dtype)
  return luda.zeros(t.shape, { dtype = dtype or t.dtype })
end

local function spread_zeros(t)
  return samples.strided(zeros_like(t))
end

describe("out= of", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, row in ipairs(ops.rows) do
    local case = samples.cases(row)[1]
    if case then
      it(row.name .. ": the result, written where it fits", function()
        local list = samples.tensors(case, "f32")
        local want = { samples.call(row, case, list) }
        for _, make in ipairs { zeros_like, spread_zeros } do
          local targets = {}
          for o, t in ipairs(want) do
            targets[o] = make(t)
          end
          local given = { call_into(row, case, list, #want == 1 and targets[1] or targets) }
          assert.equal(#want, #given)
          for o, t in ipairs(want) do
            assert.is_true(given[o] == targets[o])
            assert.tensor_near(t, targets[o], 0, 0)
          end
        end
        if #want > 1 then
          return
        end
        local result, shape = want[1], want[1].shape
        if result.dtype == "f32" then
          assert.tensor_near(result:to("f64"), call_into(row, case, list, zeros_like(result, "f64")), 0, 0)
          assert.raises("dtype", row.name .. ": a result of f32 cannot be written into i32", call_into, row, case, list,
            zeros_like(result, "i32"))
        end
        local other = luda.full({ 2, unpack(shape) }, 7):to(result.dtype)
        assert.raises("shape", row.name .. ": the result has shape.*cannot grow", call_into, row, case, list, other)
        assert.is_true(other:equal(luda.full(other.shape, 7):to(result.dtype)))
        if result.numel > 1 then
          assert.raises("invalid", row.name .. ": elements of the tensor to write share memory", call_into, row, case, list,
            luda.zeros({}, { dtype = result.dtype }):expand(shape))
        end
        assert.raises("invalid", row.name .. ": the target must be a tensor, not 3", call_into, row, case, list, 3)
        if row.gradient ~= "zero" and row.gradient ~= "none" then -- tracked tensors are refused, but not under no_grad
          local tracked, target = samples.tensors(case, "f32", true), zeros_like(result)
          assert.raises("graph", row.name .. ": with out= no gradient", call_into, row, case, tracked, target)
          assert.raises("graph", row.name .. ": with out= no gradient", call_into, row, case, list,
            zeros_like(result, "f32"):requires_grad_())
          assert.tensor_near(result, luda.no_grad(call_into, row, case, tracked, target), 0, 0)
        end
      end)
    end
  end
end)

-- Rows whose result has the shape of their first input, and no in-place form: what a test says of numbers is no number, `where`
-- has a mask first, polygamma an order, and the rest is for gradients or is the copy itself (copy_ is its form).
local without = {
  isnan = true, isinf = true, isfinite = true, signbit = true, where = true, polygamma = true, clone = true,
}

describe("in-place forms", function()
  before_each(helper.before)
  after_each(helper.after)

  local function may_have(row)
    return row.shape == "broadcast" and row.inputs > 0 and not row.facts.random and not without[row.name]
      and not row.name:find("_backward$")
  end

  it("exist for every row that may have one", function()
    for _, row in ipairs(ops.rows) do
      assert.equal(may_have(row), ops.functions[row.name .. "_"] ~= nil and row.facts.inplace ~= nil, row.name)
    end
  end)

  for _, row in ipairs(ops.rows) do
    if may_have(row) then
      it("of " .. row.name .. " write what the function gives, wherever the elements lie", function()
        local case = samples.cases(row)[1]
        for _, dtype in ipairs { "f32", "f64", "bf16", "i32", "bool" } do
          local list = {}
          for i, input in ipairs(case.inputs) do
            list[i] = samples.tensor(input, "f32"):to(dtype)
          end
          local fine, want = pcall(ops.functions[row.name], unpack(list))
          local rank = { bool = 1, i32 = 2 }
          if fine and (rank[want.dtype] or 3) <= (rank[dtype] or 3) then
            for _, layout in ipairs { luda.clone, samples.strided } do
              local target = layout(list[1])
              local given = ops.functions[row.name .. "_"](target, unpack(list, 2))
              assert.is_true(given == target)
              assert.equal(dtype, target.dtype)
              assert.is_true(target:equal(want:to(dtype)))
            end
          elseif fine then
            assert.raises("dtype", "", ops.functions[row.name .. "_"], list[1]:clone(), unpack(list, 2))
          end
        end
        if row.types ~= "INTEGER" and row.types ~= "BITS" then
          local leaf = samples.tensor(case.inputs[1], "f32"):to("f32"):requires_grad_()
          assert.raises("graph", "leaf", ops.functions[row.name .. "_"], leaf, unpack(samples.tensors(case, "f32"), 2))
        end
      end)
    end
  end

  for name, arguments in pairs {
    cumsum = function() return 1 end, cumprod = function() return 2 end, lerp = function(_, y) return y, 0.3 end,
    addcmul = function(_, y) return y, y, 0.5 end, addcdiv = function(_, y) return y, y end, ldexp = function(_, y) return y end,
    frac = {}, deg2rad = {}, rad2deg = {}, sinc = {}, nan_to_num = {}, tril = {}, triu = function() return 1 end,
    logit = function() return 0.1 end, clamp = function() return -0.1, 0.4 end, clip = function() return -0.1, 0.4 end,
    leaky_relu = {}, elu = {}, selu = {}, celu = {}, mish = {}, hardtanh = {}, relu6 = {}, hardsigmoid = {}, hardswish = {},
    threshold = function() return 0.2, -1 end, add = function(_, y) return y, { alpha = 2 } end,
    sub = function(_, y) return y, { alpha = -3 } end, div = function(_, y) return y, { rounding_mode = "floor" } end,
    masked_fill = function(x) return x:gt(0), 3 end, put = function() return luda.tensor({ 2, 5 }, { dtype = "i64" }), 9 end,
    index_put = function(_, y) return { luda.tensor({ 2 }, { dtype = "i64" }) }, y, true end,
    scatter_reduce = function(x) return 2, luda.tensor({ { 1, 1 }, { 3, 2 } }, { dtype = "i64" }), x, "prod" end,
    multiply = function(_, y) return y end, greater = function(_, y) return y end,
  } do
    it("of " .. name .. ", which is composed, write what the function gives", function()
      local x, y = luda.tensor { { 0.3, -0.2, 0.9 }, { 0.5, 0.1, -0.7 } }, luda.tensor { 0.25, 2, -1 }
      local function given()
        return (type(arguments) == "function" and arguments or function() end)(x, y)
      end
      local want = luda[name](x, given()):to("f32")
      local strided = samples.strided(x)
      assert.is_true(luda[name .. "_"](strided, given()) == strided)
      assert.tensor_near(want, strided, 0, 0)
      x[name .. "_"](x, given())
      assert.tensor_near(want, x, 0, 0)
    end)
  end
end)

describe("out= of what is composed", function()
  before_each(helper.before)
  after_each(helper.after)

  it("comes last among the options, with others or alone", function()
    local x = luda.tensor { { 3, 1, 2 }, { 6, 5, 4 } }
    local target = luda.zeros(2)
    assert.is_true(x:var(2, { out = target }) == target)
    assert.same({ 1, 1 }, target:totable())
    x:std { dim = 2, correction = 0, out = target }
    assert.tensor_near({ math.sqrt(2 / 3), math.sqrt(2 / 3) }, target)
    local mask = luda.zeros(3, { dtype = "bool" })
    x:gt(4):any(1, { out = mask })
    assert.same({ true, true, false }, mask:totable())
    local values, places = luda.zeros(2, 3), luda.zeros(2, 3, { dtype = "i64" })
    local first, second = x:sort { dim = 2, out = { values, places } }
    assert.is_true(first == values and second == places)
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, values:totable())
    assert.same({ { 2, 3, 1 }, { 3, 2, 1 } }, places:totable())
    luda.max(x, { dim = 1, out = { values[1], places[2] } })
    assert.same({ 6, 5, 4 }, values[1]:totable())
    assert.same({ 2, 2, 2 }, places[2]:totable())
    local whole = luda.zeros(2, 3)
    x:div(luda.tensor { 2, 2, 2 }, { rounding_mode = "floor", out = whole })
    assert.same({ { 1, 0, 1 }, { 3, 2, 2 } }, whole:totable())
    x:add(x, { alpha = 2, out = whole })
    assert.same({ { 9, 3, 6 }, { 18, 15, 12 } }, whole:totable())
    luda.stack({ x, x }, { dim = 1, out = luda.zeros(2, 2, 3) })
  end)

  it("may be what is read, even in part: as if computed first", function()
    local x = luda.tensor { 1, 2, 3, 4 }
    luda.exp(x, { out = x })
    assert.tensor_near({ math.exp(1), math.exp(2), math.exp(3), math.exp(4) }, x)
    local list = luda.tensor { 1, 2, 3, 4 }
    luda.neg(list[{ { 1, 3 } }], { out = list[{ { 2, 4 } }] })
    assert.same({ 1, -1, -2, -3 }, list:totable())
    local square = luda.tensor { { 1, 2 }, { 3, 4 } }
    square:add_(square:t())
    assert.same({ { 2, 5 }, { 5, 8 } }, square:totable())
    square:cumsum(1, { out = square:t() })
    assert.same({ { 2, 7 }, { 5, 13 } }, square:totable())
  end)

  it("is refused where it does not fit", function()
    local x = luda.ones(2, 3)
    assert.raises("shape", "var: the result has shape %[2%], the tensor to write has %[3%]", x.var, x, 2, { out = luda.zeros(3) })
    assert.raises("dtype", "var: a result of f32 cannot be written into i64", x.var, x, 2,
      { out = luda.zeros(2, { dtype = "i64" }) })
    assert.raises("invalid", "sort: out is a tensor; it has 2 results", x.sort, x, { out = luda.zeros(2, 3) })
    assert.raises("graph", "var: with out= no gradient", x.var, luda.ones(2, 3):requires_grad_(), 2, { out = luda.zeros(2) })
  end)
end)
