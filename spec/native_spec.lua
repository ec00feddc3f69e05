--- Operators that a library of the user's own has in C: examples/own_operator.c, called from Lua.

local ffi = require "ffi"
local luda = require "luda"
local helper = require "spec.helper"

local build = os.getenv("LUDA_BUILD") or "build"
local path = build .. "/examples/libown_operator.so"
local native = luda.autograd.native

pcall(ffi.cdef, "luda_status own_swish(luda_tensor *x, double beta, luda_tensor **out);")

describe("an operator in C", function()
  local library, swish
  setup(function()
    library = ffi.load(path)
    swish = native(library.own_swish, { name = "swish" })
  end)
  before_each(helper.before)
  after_each(helper.after)

  it("outlives what ffi.load returned", function()
    local code = [[
      local ffi, luda = require "ffi", require "luda"
      ffi.cdef "luda_status own_swish(luda_tensor *x, double beta, luda_tensor **out);"
      local swish = luda.autograd.native(ffi.load("%s").own_swish)
      local x = luda.ones(3):requires_grad_()
      local y = swish(x, 0)
      collectgarbage() collectgarbage()
      print(y:sum():backward()[x]:sum():item(), swish(x, 0):sum():item())]]
    local pipe = io.popen(("%s/luda -e '%s' 2>&1"):format(build, code:format(path)))
    assert.equal("1.5\t1.5\n", pipe:read("*a"))
    pipe:close()
  end)

  local function value(x, beta)
    return x / (1 + math.exp(-beta * x))
  end

  it("has its values and its backward, also on strided, empty and 0-d inputs", function()
    local list = { { 1, -2.5, 0 }, { 0.5, 3, -0.75 } }
    local x = luda.tensor(list):requires_grad_()
    local up = luda.tensor { { 1, -3 }, { 2, 0.5 }, { -1, 4 } }
    local y = swish(x:t(), 1.5)
    local grads = y:backward { gradient = up }
    for i = 1, 2 do
      for j = 1, 3 do
        local v, h = list[i][j], 1e-5
        assert.near(value(v, 1.5), y[j][i]:item(), 1e-6)
        local slope = (value(v + h, 1.5) - value(v - h, 1.5)) / (2 * h)
        assert.near(up[j][i]:item() * slope, grads[x][i][j]:item(), 1e-5)
      end
    end
    local scalar = luda.tensor(2):requires_grad_()
    assert.near((value(2.00001, 1) - value(1.99999, 1)) / 2e-5, swish(scalar, 1):backward()[scalar]:item(), 1e-5)
    assert.same({ 0, 3 }, swish(luda.zeros(0, 3), 1).shape)
  end)

  it("is recorded where that is wanted only", function()
    local x = luda.tensor({ 1 }):requires_grad_()
    assert.is_true(swish(x, 1).requires_grad)
    assert.is_false(luda.no_grad(swish, x, 1).requires_grad)
    assert.is_false(swish(luda.ones(1), 1).requires_grad)
  end)

  it("raises what it returns: in forward, and in backward", function()
    assert.raises("dtype", "swish: f32 on the CPU is needed; convert", swish, luda.ones(2, { dtype = "f64" }), 1)
    local x = luda.tensor({ 1, 2 }):requires_grad_()
    local doubled = x * 2
    local y = swish(doubled, 1)
    luda.no_grad(function() doubled:detach():add_(1) end)
    assert.raises("graph", "swish: its saved tensor .* was changed in place", function() y:sum():backward() end)
    assert.raises("graph", "swish: its backward is not recorded", function()
      luda.autograd.grad(swish(x, 1):sum(), x, { create_graph = true })
    end)
    assert.near(0.927670, swish(x, 1):sum():backward()[x][1]:item(), 1e-5) -- s + s (1 - s) at 1
    local released = luda.ones(1)
    released:release()
    assert.raises("closed", "it was released", swish, released, 1)
    assert.raises("invalid", "expected a function of ffi.load's result", native, print)
    assert.raises("invalid", "at least one output", native, library.own_swish, { outputs = 0 })
  end)

  it("leaves nothing behind in a loop", function()
    helper.no_leak(function()
      local x = luda.tensor({ 0.5, -1 }):requires_grad_()
      for _ = 1, 300 do
        luda.scope(function() swish(swish(x, 1), 2):sum():backward() end)
        pcall(swish, x:detach():to("f64"), 1)
      end
    end)
  end)

  it("is what the example shows", function()
    local program = build .. "/luda"
    local pipe = io.popen(("%s examples/own_operator.lua %s 2>&1"):format(program, path))
    local text = pipe:read("*a")
    pipe:close()
    assert.matches("as written with operators\n$", text)
  end)
end)
