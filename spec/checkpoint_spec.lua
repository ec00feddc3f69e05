local luda = require "luda"
local nn = require "luda.nn"
local dist = require "luda.dist"
local memory = require "luda.memory"
local helper = require "spec.helper"

local autograd = luda.autograd
local checkpoint = autograd.checkpoint

local function leaf(...)
  return luda.randn(...):requires_grad_()
end

--- The gradients of a mixed-sign sum of fn's first result for the tensors, with and without a checkpoint.
local function both(fn, inputs, wanted)
  local results = {}
  for way, call in ipairs { function(...) return fn(...) end, function(...) return checkpoint(fn, ...) end } do
    luda.manual_seed(11)
    local y = call(unpack(inputs))
    local upstream = luda.linspace(-1.5, 2, y.numel):reshape(y.shape)
    local list = autograd.grad((y * upstream):sum(), wanted, { retain = true })
    results[way] = { y = y, gradients = list, after = luda.rand(3) }
  end
  assert.is_true(results[1].y:equal(results[2].y))
  assert.is_true(results[1].after:equal(results[2].after)) -- the generator goes on as if nothing were repeated
  for i, gradient in ipairs(results[1].gradients) do
    assert.is_true(gradient:equal(results[2].gradients[i]))
  end
end

describe("checkpoint", function()
  before_each(function()
    helper.before()
    luda.manual_seed(4)
  end)
  after_each(helper.after)

  it("gives the same bits, with dropout, for arguments and for what the function captures", function()
    local x, w, b = leaf(5, 3), leaf(3, 7), leaf(7)
    local dropout = nn.Dropout(0.4)
    both(function(t)
      return dropout((t:matmul(w) + b):tanh()) * 1.5
    end, { x }, { x, w, b })
  end)

  it("adds to other uses of the same tensors, before and after", function()
    local x, w = leaf(4), leaf(4)
    local h = (x * w):sin() -- no leaf, captured below
    both(function(t)
      return t * w + h * t
    end, { h * 2 }, { x, w })
    local y = checkpoint(function(t) return t * w end, x)
    local gradients = autograd.grad((y * w + w * 3):sum(), { w })
    assert.is_true(gradients[1]:allclose(2 * x * w + 3))
  end)

  it("gives back an argument that was recorded last before as it is", function()
    local x = leaf(3)
    local h = x * 2
    local same, square = checkpoint(function(t) return t, t * t end, h)
    assert.is_true(same == h)
    local gradient = autograd.grad((same * luda.tensor { 1, -2, 3 } + square):sum(), { x })[1]
    assert.tensor_near(luda.tensor { 2, -4, 6 } + x:detach() * 8, gradient)
  end)

  it("passes other values through and takes several results", function()
    local x = leaf(3)
    local plain = luda.ones(2)
    local a, text, b, same, none, nothing = checkpoint(function(t, word)
      return t * 2, word .. "!", t:exp(), plain, nil, false
    end, x, "word")
    assert.equal("word!", text)
    assert.is_true(same == plain)
    assert.is_nil(none)
    assert.is_false(nothing)
    local gradients = (a:sum() - b:sum() * 0.5):backward { retain = true }
    assert.is_true(gradients[x]:allclose(2 - 0.5 * x:exp()))
    assert.is_true(b:sum():backward()[x]:allclose(x:exp())) -- another walk through one result
  end)

  it("nests", function()
    local x, w = leaf(3, 3), leaf(3, 3)
    both(function(t)
      local u = checkpoint(function(s) return s:matmul(w):tanh() end, t)
      return checkpoint(function(s) return (s * w):sigmoid() end, u)
    end, { x }, { x, w })
  end)

  it("has a second derivative", function()
    local w = luda.randn(3, { dtype = "f64" }):requires_grad_()
    local x = luda.randn(3, { dtype = "f64" }):requires_grad_()
    assert.is_true(autograd.gradcheck(function(a, b)
      return checkpoint(function(s, t) return (s * t):tanh() * t end, a, b)
    end, { x, w }, { second = true }))
  end)

  it("keeps nothing but the arguments", function()
    local function peak(through)
      local layers = {}
      for i = 1, 6 do
        layers[i] = leaf(64, 64)
      end
      local function run(t)
        for _ = 1, 8 do
          for _, w in ipairs(layers) do
            local function layer(s) return (s:matmul(w) * 0.1):tanh():exp():tanh() end
            t = through and checkpoint(layer, t) or layer(t)
          end
        end
        return t:sum()
      end
      local x = luda.randn(512, 64)
      memory.collect_all()
      local before = luda.memory("cpu").live
      luda.memory { reset_peak = true }
      luda.scope(function() run(x):backward() end)
      return luda.memory("cpu").peak - before
    end
    local kept, repeated = peak(false), peak(true)
    assert.is_true(repeated < 0.5 * kept, ("%d bytes, without %d"):format(repeated, kept))
  end)

  it("leaves nothing behind, also after an error in the second call", function()
    local x = leaf(4)
    local calls = 0
    local function fails_later(t)
      calls = calls + 1
      if calls == 2 then
        error("the second call")
      end
      return t * 2
    end
    local function once()
      luda.scope(function()
        calls = 0
        local y = checkpoint(fails_later, x)
        local ok, problem = pcall(function() y:sum():backward() end)
        assert.is_false(ok)
        assert.matches("the second call", tostring(problem), 1, true)
        assert.is_true(autograd.is_enabled())
      end)
    end
    once()
    memory.collect_all()
    local before = luda.memory("cpu").tensors
    once()
    memory.collect_all()
    assert.equal(before, luda.memory("cpu").tensors)
    assert.is_true(checkpoint(function(t) return t * 3 end, x):sum():backward()[x]:equal(luda.full({ 4 }, 3)))
  end)

  it("notices an argument that was changed in place and a function that does something else", function()
    local x, h = leaf(4), luda.randn(4)
    local y = checkpoint(function(t, u) return t * u end, x, h)
    h:add_(1)
    assert.raises("graph", "checkpoint.*changed in place", function() y:sum():backward() end)
    local w, first = leaf(4), true
    y = checkpoint(function(t)
      if first then
        first = false
        return t * 2
      end
      return t * w
    end, x)
    assert.raises("graph", "must do the same", function() y:sum():backward() end)
  end)

  it("refuses collectives", function()
    local comm = dist.init()
    local x = leaf(4)
    assert.raises("graph", "not repeated", function()
      checkpoint(function(t) return comm:all_reduce(t, "sum") end, x)
    end)
    comm:close()
  end)

  it("repeats generators among the arguments and autocast", function()
    local x, w = leaf(6, 6), leaf(6, 6)
    local generator = luda.generator(9)
    local function noisy(t, g)
      return t * luda.rand(6, 6, { generator = g })
    end
    local y = checkpoint(noisy, x, generator)
    local gradient = y:sum():backward()[x]
    generator:set_state { 9, 1 }
    assert.is_true(gradient:equal(luda.rand(6, 6, { generator = luda.generator(9) })))
    local results = {}
    for i, call in ipairs { function(f, ...) return f(...) end, checkpoint } do
      local out = luda.autocast(function() return call(function(t) return t:matmul(w) end, x) end)
      results[i] = autograd.grad(out:to("f32"):square():sum(), { w })[1]
    end
    assert.is_true(results[1]:equal(results[2]))
  end)

  it("is a plain call where nothing is recorded", function()
    local x = leaf(3)
    local y = luda.no_grad(function() return checkpoint(function(t) return t * 2 end, x) end)
    assert.is_false(y.requires_grad)
    assert.is_false(checkpoint(function(t) return t:detach() * 2 end, x).requires_grad)
  end)

  it("is an option of nn.GPT", function()
    local results = {}
    for i, option in ipairs { false, true } do
      luda.manual_seed(2)
      local model = nn.GPT { vocab = 11, context = 6, layers = 3, heads = 2, width = 8, dropout = 0.2, checkpoint = option }
      local ids = luda.randint(1, 12, { 2, 6 }, { dtype = "i64" })
      local loss = model(ids, ids)
      local gradients = loss:backward()
      results[i] = { loss = loss:item(), weight = gradients[model.tokens.weight] }
    end
    assert.equal(results[1].loss, results[2].loss)
    assert.is_true(results[1].weight:equal(results[2].weight))
  end)
end)
