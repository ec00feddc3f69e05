--- tostring of tensors.

local luda = require "luda"
local helper = require "spec.helper"

local function text(t)
  return tostring(t)
end

describe("a printed tensor", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is aligned, with its type, shape and device", function()
    assert.equal("[[ 1., -2.],\n [30.,  4.]]\n[f32 2x2 cpu]", text(luda.tensor { { 1, -2 }, { 30, 4 } }))
    assert.equal("[ 0.5000, -1.2500]\n[f32 2 cpu]", text(luda.tensor { 0.5, -1.25 }))
    assert.equal("[ 1, 20]\n[i32 2 cpu]", text(luda.tensor({ 1, 20 }, { dtype = "i32" })))
    assert.equal("[ true, false]\n[bool 2 cpu]", text(luda.tensor { true, false }))
    assert.equal("3.\n[f64 0-d cpu]", text(luda.tensor(3, { dtype = "f64" })))
    assert.equal("[]\n[f32 0 cpu]", text(luda.tensor {}))
    assert.equal("[9007199254740993]\n[i64 1 cpu]", text(luda.tensor { 9007199254740993LL }))
  end)

  it("uses one notation for all elements, and names the odd ones", function()
    assert.equal("[1.0000e-06, 2.0000e+03]\n[f32 2 cpu]", text(luda.tensor { 1e-6, 2000 }))
    assert.equal("[ nan,  inf, -inf,   1.]\n[f32 4 cpu]", text(luda.tensor { 0 / 0, math.huge, -math.huge, 1 }))
  end)

  it("is cut down to its edges when large", function()
    local long = text(luda.arange(5000))
    assert.equal("[   0.,    1.,    2., ..., 4997., 4998., 4999.]\n[f32 5000 cpu]", long)
    local wide = text(luda.zeros(200, 300))
    assert.equal(8, select(2, wide:gsub("\n", "\n")) + 1)
    assert.is_truthy(wide:find("\n ...,\n", 1, true))
  end)

  it("says that it is a leaf, or dead", function()
    assert.is_truthy(text(luda.ones(1, { requires_grad = true })):find("[f32 1 cpu requires_grad]", 1, true))
    local t = luda.ones(1)
    t:release()
    assert.equal("tensor (released)", text(t))
    assert.equal("x: tensor (released)", "x: " .. t)
  end)

  it("shows strided tensors in their own order", function()
    assert.equal("[[0., 3.],\n [1., 4.],\n [2., 5.]]\n[f32 3x2 cpu]", text(luda.arange(6):view(2, 3):t()))
  end)
end)
