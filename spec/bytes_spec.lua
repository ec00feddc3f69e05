--- Bytes as tensors: other element types over one storage, memory of other owners, strings.

local ffi = require "ffi"
local luda = require "luda"
local tags = require "luda.autograd.tags"
local helper = require "spec.helper"

describe("bitcast", function()
  before_each(helper.before)
  after_each(helper.after)

  it("shows the same bytes as another element type, without a copy", function()
    local x = luda.tensor { 1, -2, 0.5 }
    local bits = x:view_as_dtype("i32")
    assert.same({ 0x3F800000, -0x40000000, 0x3F000000 }, bits:totable())
    bits[1] = 0x40400000
    assert.equal(3, x[1]:item())
    assert.same({ 0x3C00, 0xC000 - 0x10000 }, luda.tensor({ 1, -2 }, { dtype = "f16" }):bitcast("i16"):totable())
    assert.same({ 255, 128 }, luda.tensor({ -1, -128 }, { dtype = "i8" }):bitcast("u8"):totable())
    assert.same({ 1, 0 }, luda.tensor({ true, false }):bitcast("u8"):totable())
    local turned = luda.tensor({ { 1, 2 }, { 4, 8 } }):t()[{ {}, { 2, 2 } }]
    assert.same({ { 0x40800000 }, { 0x41000000 } }, turned:bitcast("i32"):totable())
    assert.equal(0x3F800000, luda.tensor(1):bitcast("i32"):item())
  end)

  it("scales the last dimension where sizes differ", function()
    local x = luda.tensor({ { 1, -2, 0.5 }, { 0, 3, 4 } })
    assert.same({ 2, 12 }, x:bitcast("u8").shape)
    assert.same({ 0, 0, 128, 63, 0, 0, 0, 192, 0, 0, 0, 63 }, x:bitcast("u8")[1]:totable())
    assert.tensor_near({ { 0, 1, 0, -2, 0, 0.5 }, { 0, 0, 0, 3, 0, 4 } }, x:bitcast("bf16"):to("f32"), 0, 0)
    assert.same(x:totable(), x:bitcast("u8"):bitcast("f32"):totable())
    local half = x[{ 2 }]:bitcast("bf16")
    assert.same({ 0, 3, 4 }, half[{ { 2, 6, 2 } }]:to("f32"):totable())
    assert.same({ 2, 1 }, luda.zeros(2, 8, { dtype = "u8" }):bitcast("i64").shape)
    assert.same({ 0, 4 }, luda.zeros(0, 1):bitcast("u8").shape)
    assert.same({ 3, 0 }, luda.zeros(3, 0):bitcast("f64").shape)
    local rows = luda.arange(8, { dtype = "i32" }):reshape(2, 4)[{ {}, { 3, 4 } }]
    assert.same({ { 2 + 3 * 2 ^ 32 }, { 6 + 7 * 2 ^ 32 } }, rows:bitcast("i64"):totable())
  end)

  it("refuses what does not fit", function()
    local x = luda.zeros(2, 3)
    assert.raises("shape", "last dimension of f32 %[2, 3%] does not divide into f64", x.bitcast, x, "f64")
    assert.raises("shape", "of f32 %[3, 2%] do not lie side by side, as u8 needs; call contiguous", x.bitcast, x:t(), "u8")
    assert.raises("shape", "0%-d f32 has no dimension", x.bitcast, luda.tensor(1), "u8")
    assert.raises("shape", "rows of f32 %[2, 2%] are no multiple of f64", x.bitcast, x[{ {}, { 1, 2 } }], "f64")
    assert.raises("shape", "first element of f32 %[2%]", x.bitcast, luda.zeros(3)[{ { 2, 3 } }], "f64")
    assert.raises("dtype", "need not be 0 or 1", x.bitcast, x, "bool")
    assert.raises("dtype", "f31", x.bitcast, x, "f31")
    assert.raises("graph", "bitcast: it has no gradient", x.bitcast, luda.zeros(2):requires_grad_(), "i32")
    assert.equal("i32", luda.no_grad(x.bitcast, luda.zeros(2):requires_grad_(), "i32").dtype)
  end)

  it("counts changes for what the graph kept", function()
    local x = luda.tensor({ 1, 2 })
    local w = luda.tensor({ 3, 4 }):requires_grad_()
    local y = (w * x):sum()
    x:bitcast("i32"):zero_()
    assert.raises("graph", "", y.backward, y)
  end)
end)

describe("memory of others", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is read and written where it lies", function()
    local array = ffi.new("float[6]", { 1, 2, 3, 4, 5, 6 })
    local x = luda.from_ptr(array, { 2, 3 })
    assert.equal("f32", x.dtype)
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:totable())
    x[{ 2, 1 }] = 40
    assert.equal(40, array[3])
    array[0] = -1
    assert.equal(-1, x[1][1]:item())
    assert.same({ 2, 3 }, luda.from_ptr(array + 1, { 2 }):totable())
    assert.equal("i64", luda.from_ptr(ffi.new("int64_t[2]"), { 2 }).dtype)
    assert.same({ 7, 8 }, luda.from_ptr(ffi.new("uint8_t[?]", 2, { 7, 8 }), { 2 }):totable())
    assert.same({ 1 }, luda.from_ptr(ffi.new("uint16_t[1]", 0x3C00), { 1 }, { dtype = "f16" }):totable())
    assert.same({ 0 }, luda.from_ptr(array, { 0 }).shape)
    assert.same({ -1, 2 }, luda.from_ptr(x:data(), { 2 }, { owner = x }):totable())
  end)

  it("lives as long as a tensor over it, and no longer", function()
    local seen = setmetatable({}, { __mode = "k" })
    local function make()
      local array, owner = ffi.new("double[?]", 1000), { "an owner" }
      seen[owner], array[999] = true, 5
      return luda.scope(function()
        return luda.from_ptr(array, { 1000 }, { owner = owner })[{ { 991, 1000 } }]
      end)
    end
    local view = make()
    local before = tags.count()
    helper.live()
    assert.is_true(next(seen) ~= nil)
    assert.equal(5, view[10]:item())
    view:release()
    helper.live()
    assert.is_true(next(seen) == nil)
    assert.equal(before - 1, tags.count())
  end)

  it("comes from strings as a copy and from arrays shared", function()
    assert.same({ 76, 85, 68, 65 }, luda.frombuffer("LUDA"):totable())
    assert.same({ 1, -2 }, luda.frombuffer("\0\0\128\63\0\0\0\192", { dtype = "f32" }):totable())
    assert.same({ -2 }, luda.frombuffer("\0\0\128\63\0\0\0\192", { dtype = "f32", offset = 4 }):totable())
    assert.same({ 85, 68 }, luda.frombuffer("LUDA", { count = 2, offset = 1 }):totable())
    assert.same({ true, false, true }, luda.frombuffer("\1\0\7", { dtype = "bool" }):totable())
    assert.same({ 0 }, luda.frombuffer("").shape)
    local array = ffi.new("int32_t[3]", { 5, 6, 7 })
    local x = luda.frombuffer(array, { offset = 4 })
    assert.same({ 6, 7 }, x:totable())
    x:add_(10)
    assert.equal(17, array[2])
    assert.equal(6, luda.frombuffer(ffi.new("struct { float a; int b; }", { 1, 6 }), { dtype = "i32" })[2]:item())
  end)

  it("is refused where it does not fit", function()
    local array = ffi.new("float[6]")
    assert.raises("shape", "%[7%] of f32 are 28 bytes, the array has 24", luda.from_ptr, array, { 7 })
    assert.raises("invalid", "no multiple of 4, the size of f32", luda.from_ptr, ffi.cast("char *", array) + 1, { 1 },
      { dtype = "f32" })
    assert.raises("invalid", "the address is NULL", luda.from_ptr, ffi.cast("float *", 0), { 2 })
    assert.raises("dtype", "name one", luda.from_ptr, ffi.cast("void *", array), { 2 })
    assert.raises("invalid", "expected a pointer or an array", luda.from_ptr, "abcd", { 1 })
    assert.raises("invalid", "expected a pointer or an array of the FFI, got a tensor", luda.from_ptr, luda.zeros(2), { 1 })
    assert.raises("shape", "frombuffer: 0.75 elements of f32 after byte 0 of 3", luda.frombuffer, "abc", { dtype = "f32" })
    assert.raises("shape", "frombuffer: 5 elements of u8 after byte 1 of 4", luda.frombuffer, "LUDA", { count = 5, offset = 1 })
    assert.raises("invalid", "use from_ptr with a shape", luda.frombuffer, array + 0)
    assert.raises("invalid", "unknown option 'length'", luda.frombuffer, "LUDA", { length = 1 })
  end)

  it("is pinned by being on the CPU", function()
    local x = luda.zeros(2)
    assert.is_true(x:pin() == x)
  end)
end)
