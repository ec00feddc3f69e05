local luda = require "luda"
local helper = require "spec.helper"

local autograd = luda.autograd

local function f64(list)
  return luda.tensor(list, { dtype = "f64" })
end

describe("derivatives of functions", function()
  before_each(helper.before)
  after_each(helper.after)

  -- f(x, y) = (x1^2 y, x1 x2, sin(y)): by hand
  local function f(x, y)
    return luda.stack { x[1] * x[1] * y, x[1] * x[2], y:sin() }
  end
  local x, y = { 3, -2 }, 0.5

  it("jacobian", function()
    local j = autograd.jacobian(f, { f64(x), f64(y) })
    assert.tensor_near(f64 { { 3, 0 }, { -2, 3 }, { 0, 0 } }, j[1], 1e-12)
    assert.tensor_near(f64 { 9, 0, math.cos(0.5) }, j[2], 1e-12)
    assert.same({ 2, 2, 2, 2 }, autograd.jacobian(function(t) return t:matmul(t) end, luda.randn(2, 2)).shape)
    assert.same({ 0, 3 }, autograd.jacobian(function(t) return t[{ {} }]:narrow(1, 1, 0) end, luda.randn(3)).shape)
    assert.tensor_near(f64 { { 0, 0 } }, autograd.jacobian(function() return f64 { 1 } end, f64(x)), 0)
  end)

  it("vjp and jvp", function()
    local value, list = autograd.vjp(f, { f64(x), f64(y) }, f64 { 1, -2, 0.5 })
    assert.tensor_near(f64 { 4.5, -6, math.sin(0.5) }, value, 1e-12)
    assert.tensor_near(f64 { 3 + 4, -6 }, list[1], 1e-12)
    assert.tensor_near(f64(9 + 0.5 * math.cos(0.5)), list[2], 1e-12)
    local same, forward = autograd.jvp(f, { f64(x), f64(y) }, { f64 { 1, 2 }, f64(-1) })
    assert.is_true(same:equal(value))
    assert.tensor_near(f64 { 3 - 9, -2 + 6, -math.cos(0.5) }, forward, 1e-12)
  end)

  it("hvp and hessian", function()
    local function g(t) -- t1^3 t2 + t2^2
      return t[1] * t[1] * t[1] * t[2] + t[2] * t[2]
    end
    local at = f64 { 2, -1 }
    local hessian = f64 { { 6 * 2 * -1, 3 * 4 }, { 3 * 4, 2 } }
    assert.tensor_near(hessian, autograd.hessian(g, at), 1e-12)
    local value, product = autograd.hvp(g, at, f64 { 1, -3 })
    assert.equal(-7, value:item())
    assert.tensor_near(hessian:matmul(f64 { 1, -3 }), product, 1e-12)
    assert.tensor_near(f64 { 0, 0 }, select(2, autograd.hvp(function(t) return (t * 3):sum() end, at, f64 { 1, 1 })), 0)
  end)

  it("goes on through create_graph", function()
    local t = f64 { 2 }:requires_grad_()
    local _, gradient = autograd.vjp(function(s) return (s * s * s):sum() end, t, nil, { create_graph = true })
    assert.tensor_near(f64 { 12 }, gradient:sum():backward()[t], 1e-12)
  end)

  it("says what is wrong", function()
    assert.raises("invalid", "jacobian: expected a tensor or a list", function() autograd.jacobian(f, 3) end)
    assert.raises("invalid", "vjp: the function must return a tensor", function() autograd.vjp(function() end, f64(x)) end)
    assert.raises("shape", "hessian: the function must return one element, not %[2%]", function()
      autograd.hessian(function(t) return t * 2 end, f64(x))
    end)
  end)
end)
