--- Fused rows under create_graph, where options meet: both orders of gradient against differences.

local luda = require "luda"
local helper = require "spec.helper"

local nn = luda.nn

local function random(...)
  return luda.randn({ ... }, { dtype = "f64" }):requires_grad_()
end

local function ids(list)
  return luda.tensor(list, { dtype = "i64" })
end

local function check(fn, ...)
  assert.is_true(luda.autograd.gradcheck(fn, { ... }, { second = true, eps = 1e-5, atol = 2e-6 }))
end

describe("cross entropy", function()
  before_each(function()
    helper.before()
    luda.manual_seed(11)
  end)
  after_each(helper.after)

  for _, reduction in ipairs { "mean", "sum", "none" } do
    for _, smoothing in ipairs { 0, 0.2 } do
      for _, weighted in ipairs { false, true } do
        it(("with ignored rows, %s, smoothing %g, weights %s"):format(reduction, smoothing, tostring(weighted)), function()
          local weight = weighted and luda.tensor({ 0.5, 2, 1.5 }, { dtype = "f64" }) or nil
          for _, labels in ipairs { { 3, -100, 1, 2 }, { -100, -100, -100, 1 }, { 1, 1, 2, 3 } } do
            check(function(x)
              return nn.cross_entropy(x, ids(labels), { reduction = reduction, label_smoothing = smoothing, weight = weight })
            end, random(4, 3))
          end
          -- a row that is ignored has no slope, recorded or not
          local x = random(3, 3)
          local options = { reduction = reduction, label_smoothing = smoothing, weight = weight }
          local loss = nn.cross_entropy(x, ids { 1, -100, 2 }, options)
          local g = luda.autograd.grad(loss:sum(), { x }, { create_graph = true, retain = true })[1]
          assert.same({ 0, 0, 0 }, g[2]:totable())
          assert.tensor_near(luda.autograd.grad(loss:sum(), { x })[1], g, 1e-12, 1e-12)
        end)
      end
    end
  end

  it("of ignored rows alone has no slope of any order", function()
    local x = random(2, 3)
    local loss = nn.cross_entropy(x, ids { -100, -100 })
    local g = luda.autograd.grad(loss, { x }, { create_graph = true })[1]
    assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, g:totable())
    assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, luda.autograd.grad(g:sum(), { x })[1]:totable())
  end)
end)

-- The square makes the gradient from above depend on the output, so that both reach the rule.
describe("the square of", function()
  before_each(function()
    helper.before()
    luda.manual_seed(12)
  end)
  after_each(helper.after)

  for _, activation in ipairs { "none", "relu", "gelu_tanh" } do
    it("linear with " .. activation .. ", with and without a bias", function()
      local options = { activation = activation }
      check(function(x, w, b) return luda.linear(x, w, b, options):square() end, random(2, 3), random(3, 4), random(4))
      check(function(x, w) return luda.linear(x, w, options):square() end, random(3), random(3, 2))
    end)
  end

  it("normalised rows, with and without weight and bias", function()
    check(function(x, w, b) return luda.layer_norm(x, w, b):square() end, random(2, 5), random(5), random(5))
    check(function(x, w) return luda.layer_norm(x, w):square() end, random(2, 5), random(5))
    check(function(x) return luda.layer_norm(x):square() end, random(2, 5))
    check(function(x, w) return luda.rms_norm(x, w):square() end, random(2, 5), random(5))
    check(function(x) return luda.rms_norm(x):square() end, random(2, 5))
  end)

  it("activations and gates", function()
    for _, name in ipairs { "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "softplus" } do
      check(function(x) return luda[name](x):square() end, random(2, 3))
    end
    check(function(x, y) return luda.silu_mul(x, y):square() end, random(2, 3), random(2, 3))
    check(function(x, y) return luda.silu_mul(x, y):square() end, random(2, 3), random(3))
    check(function(x) return luda.swiglu(x):square() end, random(2, 4))
  end)

  it("softmax and attention", function()
    for dim = 1, 2 do
      check(function(x) return x:softmax(dim):square() end, random(2, 3))
      check(function(x) return x:log_softmax(dim):square() end, random(2, 3))
    end
    for _, is_causal in ipairs { false, true } do
      check(function(q, k, v)
        return luda.scaled_dot_product_attention(q, k, v, { is_causal = is_causal }):square()
      end, random(1, 3, 2), random(1, 4, 2), random(1, 4, 2))
    end
  end)

  it("convolutions, with strides, padding, groups and a bias", function()
    local options = { stride = 2, padding = 1, groups = 2 }
    check(function(x, w, b) return luda.conv2d(x, w, b, options):square() end, random(1, 2, 4, 3), random(2, 1, 2, 2), random(2))
    check(function(x, w) return luda.conv2d(x, w):square() end, random(1, 1, 3, 3), random(2, 1, 2, 2))
  end)
end)
