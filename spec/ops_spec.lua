--- Every operator, from its row: layouts, empty and 0-d tensors, types.

local luda = require "luda"
local ops = require "luda.ops"
local helper = require "spec.helper"
local samples = require "spec.samples"

for _, row in ipairs(ops.rows) do
  describe(row.name, function()
    before_each(helper.before)
    after_each(helper.after)

    local cases = samples.cases(row)

    if row.name ~= "view" and #cases > 0 then
      it("does not depend on the layout", function()
        for _, case in ipairs(cases) do
          for dtype, rtol in pairs { f64 = 1e-13, f32 = 2e-6 } do
            local plain, spread = samples.tensors(case, dtype), {}
            for i, t in ipairs(plain) do
              spread[i] = samples.strided(t)
              assert.is_true(#t.shape == 0 or t.numel == 1 or not spread[i]:is_contiguous())
            end
            local want, have = { samples.call(row, case, plain) }, { samples.call(row, case, spread) }
            assert.equal(row.outputs, #want)
            for o = 1, row.outputs do
              assert.tensor_near(want[o], have[o], rtol, rtol, case.text)
            end
          end
        end
      end)
    end

    if row.facts.inplace then
      it("has an in-place form", function()
        local list = samples.tensors(cases[1], "f32")
        local want = samples.call(row, cases[1], list)
        local target = list[1]
        local result = ops.functions[row.name .. "_"](unpack(list))
        assert.is_true(result == target)
        assert.tensor_near(want, target, 0, 0)
      end)
    end
  end)
end

describe("types", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, row in ipairs(ops.rows) do
    local call = ops.functions[row.name]
    local function inputs(dtype)
      local list = {}
      for i = 1, row.inputs do
        list[i] = luda.ones(2, 3, { dtype = dtype })
      end
      return list
    end
    if row.family == nil and row.types == "NUM" then
      it("of " .. row.name .. ": numbers stay what they are, bool is refused", function()
        assert.equal("i32", call(unpack(inputs("i32"))).dtype)
        assert.equal("bf16", call(unpack(inputs("bf16"))).dtype)
        assert.raises("dtype", row.name, call, unpack(inputs("bool")))
      end)
    elseif row.family == nil and row.types == "FLOAT" then
      it("of " .. row.name .. ": whole numbers become f32", function()
        assert.equal("f32", call(unpack(inputs("i64"))).dtype)
        assert.equal("f64", call(unpack(inputs("f64"))).dtype)
        assert.equal("f16", call(unpack(inputs("f16"))).dtype)
      end)
    elseif row.types == "COMPARE" then
      it("of " .. row.name .. ": the result is bool", function()
        assert.equal("bool", call(unpack(inputs("f32"))).dtype)
        assert.equal("bool", call(unpack(inputs("i8"))).dtype)
      end)
    elseif row.types == "FLOAT_ONLY" and row.inputs == 1 then
      it("of " .. row.name .. ": whole numbers are refused", function()
        assert.raises("dtype", row.name, call, unpack(inputs("i32")))
      end)
    end
  end

  it("are promoted by category, then by width", function()
    local function result(a, b)
      return (luda.ones(1, { dtype = a }) + luda.ones(1, { dtype = b })).dtype
    end
    assert.equal("i32", result("i32", "bool"))
    assert.equal("i16", result("u8", "i8"))
    assert.equal("i64", result("i64", "u8"))
    assert.equal("f16", result("i64", "f16"))
    assert.equal("f32", result("f16", "bf16"))
    assert.equal("f64", result("f64", "f32"))
  end)

  it("of sums widen small integers", function()
    assert.equal("i64", luda.ones(300, { dtype = "i8" }):sum().dtype)
    assert.equal(300, luda.ones(300, { dtype = "i8" }):sum():item())
    assert.equal(2, luda.tensor({ true, false, true }):sum():item())
    assert.equal("f16", luda.ones(3, { dtype = "f16" }):sum().dtype)
  end)
end)

describe("empty reductions", function()
  before_each(helper.before)
  after_each(helper.after)

  it("have the identity, NaN, or an error", function()
    local z = luda.zeros(2, 0)
    assert.same({ 0, 0 }, z:sum(2):totable())
    assert.same({ 0 }, z:sum(1).shape)
    assert.equal(0, z:sum():item())
    local mean = z:mean(2):totable()
    assert.is_true(mean[1] ~= mean[1] and mean[2] ~= mean[2])
    assert.same({ 0 }, z:amax(1).shape)
    assert.has_error(function() return z:amax(2) end)
    assert.has_error(function() return z:amax() end)
    assert.has_error(function() return z:max(2) end)
  end)

  it("multiply to zeros", function()
    assert.same({ { 0, 0 }, { 0, 0 }, { 0, 0 } }, (luda.zeros(3, 0):matmul(luda.zeros(0, 2))):totable())
  end)
end)
