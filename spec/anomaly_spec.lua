local luda = require "luda"
local helper = require "spec.helper"

local autograd = luda.autograd
local detect = autograd.detect_anomaly

local function line()
  return debug.getinfo(2, "l").currentline
end

describe("detect_anomaly", function()
  before_each(helper.before)
  after_each(helper.after)

  it("names the operator, place, inputs and line of the first result that is not finite", function()
    local here
    local problem = assert.raises("graph", "exp: the result has inf at {2, 1} of %[2, 3%], f32, from finite inputs", function()
      detect(function()
        local x = luda.tensor { { 1, 2, 3 }, { 100, 4, 5 } }
        here = line() + 1
        local y = x:exp()
        return y * 0
      end)
    end)
    assert.matches("input 1: [2, 3], there 100", problem.message, 1, true)
    assert.matches(("anomaly_spec.lua:%d"):format(here), problem.where, 1, true)
    assert.raises("graph", "div: .*nan at {} of %[%], f32.*input 2: %[%], there 0", function()
      detect(function() return luda.tensor(0) / luda.tensor(0) end)
    end)
    assert.raises("graph", "log: the result has nan at {1}", function()
      detect(function() return luda.tensor { -1, 1 }:log_() end)
    end)
  end)

  it("names the node, input and line in backward", function()
    local x = luda.tensor { 4, 0, 1 }:requires_grad_()
    local here
    local problem = assert.raises("graph", "sqrt: in backward the gradient of input 1 has inf at {2} of %[3%]", function()
      detect(function()
        here = line() + 1
        local y = x:sqrt()
        return (y * 2):sum():backward()
      end)
    end)
    assert.matches(("recorded at spec/anomaly_spec.lua:%d"):format(here), problem.message, 1, true)
  end)

  it("says in backward what came in and what was kept there", function()
    local x = luda.tensor { { 1, 4 }, { 0, 9 } }:requires_grad_()
    local up = luda.tensor { { 1, 2 }, { -3, 0.5 } }
    local problem = assert.raises("graph", "div: in backward the gradient of input 2 has inf at {2, 1} of", function()
      detect(function()
        local wide = x:to("f64") + 1e-250
        local y = luda.full({ 2, 2 }, 1e-100, { dtype = "f64" }) / wide -- 1e150 there, and 1e400 is its slope
        local z = y:backward { gradient = up:to("f64") }
        return z
      end)
    end)
    assert.matches("gradient of result 1: [2, 2], there -3", problem.message, 1, true)
    assert.matches("input 2: [2, 2], there 1e-250", problem.message, 1, true)
  end)

  it("names the line of an operator in place, of one inside a function, of a function, of a checkpointed one", function()
    local x = luda.tensor { 4, 0, 1 }:requires_grad_()
    local here
    local identity = autograd.Function {
      forward = function(_, t) return t * 1 end,
      backward = function(_, g)
        local wrong = g:clone()
        wrong:data()[1] = 1 / 0
        return wrong
      end,
    }
    local function inner(t)
      here = line() + 1
      local y = t:sqrt()
      return y
    end
    for name, body in pairs {
      ["in place"] = function()
        local y = x * 1
        here = line() + 1
        y:sqrt_()
        return y
      end,
      ["inside a function"] = function()
        local y = inner(x)
        return y
      end,
      ["a function in Lua"] = function()
        here = line() + 1
        local y = identity(x)
        return y
      end,
      ["checkpointed"] = function()
        local y = autograd.checkpoint(inner, x)
        return y
      end,
    } do
      local problem = assert.raises("graph", "in backward the gradient of input 1 has inf at {%d} of %[3%]", function()
        detect(function()
          local grads = body():sum():backward()
          return grads
        end)
      end)
      local _, times = problem.message:gsub("recorded at", "")
      assert.equal(1, times, name)
      assert.matches(("recorded at spec/anomaly_spec.lua:%d$"):format(here), problem.message, nil, nil, name)
    end
  end)

  it("looks at functions in Lua too", function()
    local x = luda.tensor { 1, 2 }:requires_grad_()
    local bad = autograd.Function {
      name = "bad",
      forward = function(_, t) return t * 2 end,
      backward = function(_, g) return luda.full({ 2 }, 0 / 0) + g end,
    }
    assert.raises("graph", "bad: in backward", function()
      detect(function() return bad(x):sum():backward() end)
    end)
  end)

  it("lets values pass that were infinite before, and creation", function()
    local scores = detect(function()
      local mask = luda.full({ 2, 2 }, -math.huge):triu(1)
      return (luda.zeros(2, 2) + mask):softmax(-1)
    end)
    assert.is_true(scores:equal(luda.tensor { { 1, 0 }, { 0.5, 0.5 } }))
  end)

  it("ends with the function, also after an error, and passes results and errors through", function()
    assert.equal(7, detect(function(a, b) return a + b end, 3, 4))
    assert.has_error(function() detect(function() error("mine", 0) end) end, "mine")
    assert.is_true(luda.tensor(1000):exp():isinf():item())
    local x = luda.tensor { 0 }:requires_grad_()
    assert.is_true(x:sqrt():sum():backward()[x]:isinf():item())
  end)
end)

describe("dot", function()
  it("draws leaves, operators and shapes", function()
    local w = luda.ones(3, 2):requires_grad_()
    local x = luda.ones(4, 3)
    local text = autograd.dot(x:matmul(w):tanh():sum())
    assert.matches("^digraph {\n.*}\n$", text)
    assert.matches(('label="leaf %d"'):format(w.id), text, 1, true)
    for _, name in ipairs { "matmul", "tanh", "sum" } do
      assert.matches(('[label="%s"]'):format(name), text, 1, true)
    end
    assert.matches('[label="[3, 2]"]', text, 1, true)
    local _, edges = text:gsub("%->", "")
    assert.equal(3, edges)
    assert.raises("graph", "was not recorded", function() autograd.dot(x) end)
    assert.raises("invalid", "expected a tensor", function() autograd.dot(3) end)
  end)
end)
