--- Gradients of linear algebra by differences, of first and second order.

local luda = require "luda"
local helper = require "spec.helper"

local function draw(seed, ...)
  local shape = { ... }
  return luda.randn(shape, { dtype = "f64", generator = luda.generator(seed) })
end

local function eye(size)
  return luda.eye(size, { dtype = "f64" })
end

local function positive(x)
  return x:matmul(x:transpose(-2, -1)) + eye(x:size(-2))
end

local function symmetric(x)
  return x + x:transpose(-2, -1)
end

describe("gradients", function()
  before_each(helper.before)
  after_each(helper.after)

  local function check(fn, ...)
    local inputs = { ... }
    for i, x in ipairs(inputs) do
      inputs[i] = x:requires_grad_()
    end
    luda.autograd.gradcheck(fn, inputs, { second = true, eps = 1e-5, atol = 5e-6 })
  end

  it("of cholesky", function()
    check(function(x) return positive(x):cholesky() end, draw(1, 2, 3, 3))
    check(function(x) return positive(x):cholesky(true) end, draw(2, 3, 4))
  end)

  it("of eigh", function()
    check(function(x) return symmetric(x):eigh() end, draw(3, 4, 4))
    check(function(x) return symmetric(x):eigh("U") end, draw(4, 2, 3, 3))
    check(function(x) return symmetric(x):eigvalsh() end, draw(5, 3, 3))
  end)

  it("of single factors, and of square and wide matrices", function()
    check(function(x) return (x:qr()) end, draw(6, 3, 3))
    check(function(x) return select(2, x:qr()) end, draw(6, 3, 4))
    check(function(x) return (x:svd()) end, draw(7, 4, 3))
    check(function(x) return select(3, x:svd()) end, draw(8, 2, 3))
    check(function(x) return x:svdvals() end, draw(9, 3, 3))
    check(function(x) return select(2, x:slogdet()) end, draw(9, 3, 3))
  end)

  it("of what is composed", function()
    check(function(x) return x:inv() end, draw(1, 3, 3))
    check(function(x, b) return x:solve(b, false) end, draw(2, 3, 3), draw(3, 2, 3))
    check(function(x, b) return x:solve(b) end, draw(2, 2, 2), draw(3, 2, 2, 3))
    check(function(x, b) return (x + eye(2) * 3):solve_triangular(b) end, draw(4, 2, 2), draw(5, 2, 2, 1))
    check(function(x) return x:pinv() end, draw(3, 4, 2))
    check(function(x) return x:pinv() end, draw(4, 2, 3))
    check(function(x, z) return x:matmul(z):pinv() end, draw(5, 4, 2), draw(6, 2, 3))
    check(function(x, z) return x:matmul(z):pinv() end, draw(7, 3, 1), draw(8, 1, 4))
    check(function(x, b) return (x:lstsq(b)) end, draw(9, 4, 2), draw(1, 4))
    check(function(x, b) return (x:lstsq(b, { driver = "gels" })) end, draw(2, 4, 2), draw(3, 4, 1))
    check(function(x) return x:matrix_norm("nuc") end, draw(4, 3, 2))
    check(function(x) return x:matrix_norm(2) end, draw(5, 3, 2))
    check(function(x) return x:cond(1) end, draw(6, 2, 2))
    check(function(x) return positive(x):logdet() end, draw(7, 3, 4))
    check(function(b, x) return b:cholesky_solve(positive(x):cholesky()) end, draw(8, 3, 2), draw(9, 3, 3))
  end)

  it("are right where singular values are equal, and determinants zero", function()
    local x = luda.eye(3, { dtype = "f64", requires_grad = true })
    assert.tensor_near(eye(3), x:matrix_norm("nuc"):backward()[x], 1e-15, 1e-15)
    local y = luda.tensor({ { 1, 2, 3 }, { 2, 4, 6 }, { 1, 0, -1 } }, { dtype = "f64" }):requires_grad_()
    assert.tensor_near({ { -4, 8, -4 }, { 2, -4, 2 }, { 0, 0, 0 } }, y:det():backward()[y], 1e-12, 1e-12) -- the cofactors
    check(function(t) return t:det() end, luda.stack { draw(1, 2, 2), luda.ones(2, 2, { dtype = "f64" }) })
  end)
end)
