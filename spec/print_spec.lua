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

  it("breaks long rows, and has blank lines between matrices", function()
    local rows = text(luda.arange(1000, 1030, { dtype = "i32" }))
    assert.equal("[1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1012,\n"
      .. " 1013, 1014, 1015, 1016, 1017, 1018, 1019, 1020, 1021, 1022, 1023, 1024, 1025,\n"
      .. " 1026, 1027, 1028, 1029]\n[i32 30 cpu]", rows)
    assert.equal("[[[0., 1.]],\n\n [[2., 3.]]]\n[f32 2x1x2 cpu]", text(luda.arange(4):reshape(2, 1, 2)))
    assert.equal("[[[[0.]]],\n\n\n [[[1.]]]]\n[f32 2x1x1x1 cpu]", text(luda.arange(2):reshape(2, 1, 1, 1)))
    for line in text(luda.randn(30, 30)):gmatch("[^\n]+") do
      assert.is_true(#line <= 80, line)
    end
  end)

  it("is short and at once whatever the size and the number of dimensions", function()
    local start = os.clock()
    local big = luda.zeros(1, { dtype = "i8" }):expand(100000000)
    assert.equal("[0, 0, 0, ..., 0, 0, 0]\n[i8 100000000 cpu]", text(big))
    local half = luda.full({ 10000, 10000 }, 0.5, { dtype = "bf16" })
    assert.equal(8, select(2, text(half):gsub("\n", "\n")) + 1)
    assert.is_truthy(text(half):find("[bf16 10000x10000 cpu]", 1, true))
    local deep = text(luda.ones(1):expand(6, 6, 6, 6, 6, 6, 6, 6))
    assert.is_true(#deep < 20000, #deep)
    assert.equal("[]\n[f32 100000000x0 cpu]", text(luda.zeros(100000000, 0)))
    assert.is_true(os.clock() - start < 2)
  end)

  it("takes one notation from what is shown, for halves and integers too", function()
    assert.equal("[1.0000, 0.3340]\n[bf16 2 cpu]", text(luda.tensor({ 1, 1 / 3 }, { dtype = "bf16" })))
    assert.equal("[-128,  127]\n[i8 2 cpu]", text(luda.tensor({ -128, 127 }, { dtype = "i8" })))
    assert.equal("[1.2346e+05, 1.5000e+00]\n[f32 2 cpu]", text(luda.tensor { 123456, 1.5 }))
    assert.equal("[-0.,  1.]\n[f32 2 cpu]", text(luda.tensor { -0.0, 1 } * 1))
  end)
end)
