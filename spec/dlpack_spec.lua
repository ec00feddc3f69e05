--- DLPack from Lua: memory is shared both ways, and each side frees what is its own.

local ffi = require "ffi"
local luda = require "luda"
local helper = require "spec.helper"

describe("dlpack", function()
  before_each(helper.before)
  after_each(helper.after)

  local function check(dtype, device)
    local t = luda.tensor({ { 1, 0, 3 }, { 4, 5, 6 } }, { dtype = dtype, device = device })
    local u = luda.from_dlpack(luda.to_dlpack(t:t()))
    assert.equal(dtype, u.dtype)
    assert.equal(device, u.device)
    assert.same({ 3, 2 }, u.shape)
    assert.same(t:t():totable(), u:totable())
    t:zero_()
    assert.equal(0, u:to("f32"):sum():item())
  end

  it("shares memory both ways", function()
    for _, dtype in ipairs { "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool" } do
      check(dtype, "cpu")
      if luda.has("cuda") then
        check(dtype, "cuda:0")
      end
    end
  end)

  it("keeps the memory when the tensor goes", function()
    local t = luda.arange(1000)
    local lent = luda.to_dlpack(t)
    t:release()
    local u = luda.from_dlpack(lent)
    assert.equal(999, u[1000]:item())
  end)

  it("leaks nothing, taken or not", function()
    helper.no_leak(function()
      for _ = 1, 20 do
        luda.to_dlpack(luda.ones(1000))
        luda.from_dlpack(luda.to_dlpack(luda.ones(1000)))
      end
    end)
  end)

  it("gives each loan to one taker", function()
    local lent = luda.to_dlpack(luda.ones(2))
    luda.from_dlpack(lent)
    assert.raises("invalid", "taken before", luda.from_dlpack, lent)
    assert.raises("invalid", "expected a pointer", luda.from_dlpack, 5)
    assert.raises("invalid", "expected a pointer", luda.from_dlpack, luda.to_dlpack)
    assert.raises("invalid", "expected a pointer", luda.from_dlpack, ffi.cast("void *", 0))
    assert.raises("graph", "detach it first", luda.to_dlpack, luda.ones(2):requires_grad_())
    assert.raises("invalid", "expected a tensor", luda.to_dlpack, 5)
  end)
end)
