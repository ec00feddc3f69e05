--- Automatic differentiation as scripts use it: backward, gradients, functions and hooks in Lua, gradcheck.

local luda = require "luda"
local lib = require "luda.ffi"
local helper = require "spec.helper"

local autograd = luda.autograd

local function leaf(values, options)
  options = options or {}
  options.requires_grad = true
  return luda.tensor(values, options)
end

describe("backward", function()
  before_each(helper.before)
  after_each(helper.after)

  it("returns gradients by leaf", function()
    local a, b = leaf { { 1 }, { 2 } }, leaf { 10, 20, 30 }
    local unused = leaf { 1 }
    local grads = (a * b):sum():backward()
    assert.same({ { 60 }, { 60 } }, grads[a]:totable())
    assert.same({ 3, 3, 3 }, grads:get(b):totable())
    assert.is_nil(grads[unused])
    assert.equal(2, grads:len())
  end)

  it("adds up the gradients of overlapping parts of a tensor", function()
    local x = leaf { { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 9 }, { 10, 11, 12 } }
    local h = x * 2
    local rows = h:narrow(1, 2, 2) * luda.tensor { { 1, -1, 2 }, { 3, 0.5, -4 } }
    local column = h:select(2, 2) * luda.tensor { 10, 20, 30, 40 }
    local chosen = h:index_select(luda.tensor({ 4, 1, 4 }, { dtype = "i64" }), 1) * luda.tensor { { 1 }, { 100 }, { -3 } }
    local strided = h[{ { 1, 4, 3 }, { 3, 3 } }] * -5
    local loss = rows:sum() + column:sum() + chosen:sum() + strided:sum() + (h * 0.25):sum()
    -- a quarter everywhere; each part where it lies
    local expected = { { 100.25, 110.25, 95.25 }, { 1.25, 19.25, 2.25 }, { 3.25, 30.75, -3.75 }, { -1.75, 38.25, -6.75 } }
    local middle = autograd.grad(loss, { h }, { retain = true })[1]
    assert.same(expected, middle:totable())
    local grads = loss:backward()
    for i = 1, 4 do
      for j = 1, 3 do
        assert.equal(2 * expected[i][j], grads[x]:totable()[i][j])
      end
    end
    assert.same(expected, middle:totable())
  end)

  it("needs a gradient for roots of several elements", function()
    local x = leaf { 1, 2, 3 }
    assert.raises("graph", "pass gradient=", (x * 2).backward, x * 2)
    local grads = (x * x):backward { gradient = luda.tensor { 1, -0.5, 2 } }
    assert.same({ 2, -2, 12 }, grads[x]:totable())
    assert.raises("shape", "gradient has shape", (x * 2).backward, x * 2, { gradient = luda.ones(2) })
    assert.raises("invalid", "must be a tensor", (x * 2).backward, x * 2, { gradient = 1 })
    assert.raises("invalid", "unknown option 'retain_graph'", (x * 2).backward, x * 2, { retain_graph = true })
  end)

  it("consumes the graph unless told to retain it", function()
    local x = leaf { 2 }
    local y = (x * x * x):sum()
    assert.equal(12, y:backward { retain = true }[x]:item())
    assert.equal(12, y:backward()[x]:item())
    assert.raises("graph", "", y.backward, y)
  end)

  it("refuses roots without a graph", function()
    assert.raises("graph", "not recorded", luda.ones(1).backward, luda.ones(1))
    local x = leaf { 1 }
    local y = luda.no_grad(function() return x * 2 end)
    assert.is_false(y.requires_grad)
    assert.raises("graph", "not recorded", y.backward, y)
  end)

  it("notices kept tensors that were changed", function()
    local x = leaf { 0, 0 }
    local y = x:exp()
    local loss = y:sum()
    y:detach():view(2):add_(1)
    assert.raises("graph", "exp", loss.backward, loss)
    assert.raises("graph", "made by exp was changed in place", y.sum, y)
  end)

  it("gives derivatives of derivatives", function()
    local x = leaf({ 2, -3 }, { dtype = "f64" })
    local g = autograd.grad((x * x * x):sum(), { x }, { create_graph = true })[1]
    assert.same({ 12, 27 }, g:totable())
    local h = autograd.grad((g * luda.tensor({ 1, -2 }, { dtype = "f64" })):sum(), x)[1]
    assert.same({ 12, 36 }, h:totable()) -- 6 x · (1, -2)
  end)

  it("walks deep chains without the C stack", function()
    local x = leaf { 1 }
    local grads = luda.scope(function()
      local y = x
      for _ = 1, 30000 do
        y = y * 1
      end
      return y:sum():backward()
    end)
    assert.same({ 1 }, grads[x]:totable())
    luda.scope(function()
      local y = x
      for _ = 1, 30000 do
        y = y + 0
      end
    end)
  end)

  it("reports final leaves as it goes", function()
    local a, b = leaf { 1 }, leaf { 2 }
    local seen = {}
    local grads = (a * b):backward { on_leaf = function(id, so_far)
      seen[#seen + 1] = id
      assert.is_truthy(so_far:get(id))
    end }
    table.sort(seen)
    assert.same({ a.id, b.id }, seen)
    assert.equal(2, grads:len())
  end)
end)

describe("autograd.grad", function()
  before_each(helper.before)
  after_each(helper.after)

  it("returns a list in the order of the inputs", function()
    local x, y = leaf { 2 }, leaf { 5 }
    local list = autograd.grad(x * y, { y, x })
    assert.equal(2, list[1]:item())
    assert.equal(5, list[2]:item())
  end)

  it("reaches results in the middle of the graph", function()
    local x = leaf { 3 }
    local y = x * 2
    local list = autograd.grad(y * y, { y, x })
    assert.equal(12, list[1]:item())
    assert.equal(24, list[2]:item())
  end)

  it("complains of inputs that took no part, or gives false", function()
    local x, z = leaf { 2 }, leaf { 1 }
    assert.raises("graph", "input 2 took no part", autograd.grad, x * 2, { x, z })
    local list = autograd.grad(x * 2, { z, x }, { allow_unused = true })
    assert.is_false(list[1])
    assert.equal(2, list[2]:item())
  end)
end)

describe("modes", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are restored after errors", function()
    local x = leaf { 1 }
    assert.is_true(autograd.is_enabled())
    local a, b = luda.no_grad(function(...)
      assert.is_false(autograd.is_enabled())
      assert.is_true(luda.enable_grad(function() return (x * 2).requires_grad end))
      return ...
    end, 1, nil)
    assert.equal(1, a)
    assert.is_nil(b)
    local ok, err = pcall(luda.no_grad, function() error("inside", 0) end)
    assert.is_false(ok)
    assert.equal("inside", err)
    assert.is_true(autograd.is_enabled())
    assert.raises("invalid", "must be a function", luda.no_grad, 1)
  end)

  it("allow leaves to be changed in place only without recording", function()
    local x = leaf { 1, 2 }
    assert.raises("graph", "no_grad", x.add_, x, 1)
    luda.no_grad(function() x:sub_(1) end)
    assert.same({ 0, 1 }, x:totable())
    assert.is_true(x.requires_grad and x.is_leaf)
  end)

  it("refuse leaves of whole numbers", function()
    assert.raises("dtype", "", luda.tensor, { 1 }, { dtype = "i64", requires_grad = true })
    local x = leaf { 1 }
    assert.is_false(x:requires_grad_(false).requires_grad)
  end)
end)

describe("a Gradients container", function()
  local x, y, grads
  before_each(helper.before)
  before_each(function()
    x, y = leaf { 1, 2 }, leaf { 3 }
    grads = (x:sum() * 3 + y * 4):backward()
  end)
  after_each(function()
    x, y, grads = nil, nil, nil
    helper.after()
  end)

  it("takes, registers and iterates in ascending order", function()
    assert.same({ 3, 3 }, grads[x]:totable())
    local ids = {}
    for id, gradient in grads:pairs() do
      ids[#ids + 1] = id
      assert.is_true(luda.is_tensor(gradient))
    end
    assert.same({ x.id, y.id }, ids)
    assert.is_true(x.id < y.id)
    assert.equal(4, grads:take(y):item())
    assert.is_nil(grads[y])
    assert.equal(1, grads:len())
    grads:register(y, luda.tensor { -1 })
    assert.equal(-1, grads[y]:item())
    assert.raises("invalid", "must be a tensor", grads.register, grads, x, 3)
  end)

  it("measures and clips", function()
    assert.near(math.sqrt(9 + 9 + 16), grads:norm(), 1e-12)
    assert.near(math.sqrt(34), grads:clip_norm_(1), 1e-12)
    assert.near(1, grads:norm(), 1e-6)
    grads:clip_value_(0.55)
    assert.tensor_near({ 3 / math.sqrt(34), 3 / math.sqrt(34) }, grads[x])
    assert.tensor_near({ 0.55 }, grads[y])
  end)

  it("chooses those of a module", function()
    local module = { parameters = function() return { y } end }
    local chosen = grads:of(module)
    assert.equal(1, chosen:len())
    assert.equal(4, chosen[y]:item())
  end)

  it("raises once released", function()
    grads:release()
    grads:release()
    assert.raises("closed", "released", function() return grads[x] end)
    assert.equal("luda.Gradients (released)", tostring(grads))
  end)
end)

describe("a Function", function()
  before_each(helper.before)
  after_each(helper.after)

  local scaled = autograd.Function {
    name = "scaled",
    forward = function(ctx, x, factor)
      ctx.factor = factor
      ctx:save(x)
      return x * x * factor
    end,
    backward = function(ctx, g)
      assert(ctx.needs[1] and not ctx.needs[2])
      return g * ctx.saved[1] * (2 * ctx.factor)
    end,
  }

  it("has its own backward", function()
    local x = leaf { 1, -2 }
    local y = scaled(x, 3)
    assert.same({ 3, 12 }, y:totable())
    assert.is_true(y.requires_grad)
    assert.same({ 6, 24 }, y:backward { gradient = luda.tensor { 1, -2 } }[x]:totable())
  end)

  it("passes untracked calls through", function()
    assert.is_false(scaled(luda.ones(2), 2).requires_grad)
    local x = leaf { 1 }
    assert.is_false(luda.no_grad(scaled, x, 2).requires_grad)
  end)

  it("is differentiated twice by what its backward does", function()
    local x = leaf({ 2, -1.5, 0.5 }, { dtype = "f64" })
    assert.is_true(autograd.gradcheck(function(t) return scaled(t, 3) end, { x }, { second = true }))
  end)

  it("may save its results, also for second derivatives", function()
    local exponential = autograd.Function {
      forward = function(ctx, x)
        local y = x:exp()
        ctx:save(y)
        return y
      end,
      backward = function(ctx, g) return g * ctx.saved[1] end,
    }
    local x = leaf({ 0.3, -1.2 }, { dtype = "f64" })
    assert.is_true(autograd.gradcheck(exponential, { x }, { second = true }))
  end)

  it("takes and returns several values", function()
    local swap = autograd.Function {
      forward = function(_, a, name, b) return b * 2, name, a * 3 end,
      backward = function(ctx, gb, gname, ga)
        assert(gname == nil and ctx.needs[2] == false)
        return ga and ga * 3, nil, gb and gb * 2
      end,
    }
    local a, b = leaf { 1 }, leaf { 10 }
    local twice, name, thrice = swap(a, "n", b)
    assert.equal("n", name)
    local grads = (twice + thrice):backward()
    assert.equal(3, grads[a]:item())
    assert.equal(2, grads[b]:item())
    local only = select(3, swap(a, "n", b))
    grads = only:backward()
    assert.equal(3, grads[a]:item())
    assert.is_nil(grads[b])
  end)

  it("that fails in backward leaves nothing behind", function()
    local failing = autograd.Function {
      forward = function(_, x) return x * 1 end,
      backward = function() error({ "mine" }) end,
    }
    local x = leaf { 1 }
    local loss = failing(x * 2):sum()
    local ok, err = pcall(loss.backward, loss)
    assert.is_false(ok)
    assert.equal("mine", err[1])
    assert.is_true(autograd.is_enabled())
    assert.equal(2, (x * 2):backward()[x]:item())
  end)

  it("that returns nonsense is told so", function()
    local wrong = autograd.Function { forward = function(_, x) return x * 1 end, backward = function() return 3 end }
    local shape = autograd.Function { forward = function(_, x) return x * 1 end, backward = function() return luda.ones(9) end }
    local x = leaf { 1 }
    assert.raises("invalid", "backward returned 3 for argument 1", function() wrong(x):backward() end)
    assert.raises("shape", "shape %[9%] was given where %[1%]", function() shape(x):backward() end)
    assert.raises("invalid", "forward must be a function", autograd.Function, {})
  end)

  it("that fails in forward restores the mode", function()
    local failing = autograd.Function { forward = function() error("early", 0) end, backward = function() end }
    assert.has_error(function() failing(leaf { 1 }) end, "early")
    assert.is_true(autograd.is_enabled())
  end)
end)

describe("a hook", function()
  before_each(helper.before)
  after_each(helper.after)

  it("sees the gradient, and may replace it", function()
    local x = leaf { 1, 2 }
    local y = x * 2
    local seen
    y:register_hook(function(g) seen = g:totable() end)
    x:register_hook(function(g) return g * 10 end)
    local grads = (y * 3):sum():backward()
    assert.same({ 3, 3 }, seen)
    assert.same({ 60, 60 }, grads[x]:totable())
  end)

  it("can be removed", function()
    local x = leaf { 1 }
    local hook = x:register_hook(function(g) return g * 10 end)
    assert.equal(20, (x * 2):backward()[x]:item())
    hook:remove()
    hook:remove()
    assert.equal(2, (x * 2):backward()[x]:item())
  end)

  it("that fails releases the walk, and the next one works", function()
    local x = leaf { 1 }
    local hook = x:register_hook(function() error("hooked", 0) end)
    assert.has_error(function() (x * 2):backward() end, "hooked")
    hook:remove()
    assert.equal(2, (x * 2):backward()[x]:item())
  end)

  it("may walk another graph", function()
    local x, z = leaf { 1 }, leaf { 5 }
    local inner
    local square = z * z
    x:register_hook(function() inner = square:backward()[z]:item() end)
    assert.equal(2, (x * 2):backward()[x]:item())
    assert.equal(10, inner)
  end)

  it("needs a tracked tensor and a function", function()
    assert.raises("graph", "requires_grad_", luda.ones(1).register_hook, luda.ones(1), print)
    local x = leaf { 1 }
    assert.raises("invalid", "expected a function", x.register_hook, x, 1)
  end)
end)

describe("gradcheck", function()
  before_each(helper.before)
  after_each(helper.after)

  it("accepts right gradients", function()
    local x = leaf({ { 0.5, -1.5 }, { 2, 0.25 } }, { dtype = "f64" })
    assert.is_true(autograd.gradcheck(function(t) return (t * t):exp() end, { x }, { second = true }))
  end)

  it("names the worst position of wrong ones", function()
    local wrong = autograd.Function {
      forward = function(_, x) return x * x end,
      backward = function(_, g) return g * luda.tensor({ 2, 2, 5 }, { dtype = "f64" }) end,
    }
    local x = leaf({ 1, 1, 1 }, { dtype = "f64" })
    local err = select(2, pcall(autograd.gradcheck, wrong, { x }))
    assert.equal("graph", err.code)
    assert.equal("{3}", err.detail.position)
    assert.is_truthy(tostring(err):find("input 1 at {3}", 1, true))
    assert.raises("dtype", "input 1 is f32", autograd.gradcheck, wrong, { leaf { 1 } })
  end)

  it("sees a gradient of the wrong sign only where the upstream one is positive", function()
    local rectified = autograd.Function {
      forward = function(_, x) return x * 2 end,
      backward = function(_, g) return g:abs() * 2 end,
    }
    local x = leaf({ 1, 2 }, { dtype = "f64" })
    assert.raises("graph", "differences give", autograd.gradcheck, rectified, { x })
  end)
end)

it("keeps no memory of dead graphs", function()
  helper.no_leak(function()
    for _ = 1, 50 do
      luda.scope(function()
        local x = leaf { 1, 2, 3 }
        for _ = 1, 20 do
          x = x:exp():neg():exp()
        end
        return x:sum():backward():len()
      end)
    end
  end)
  assert.equal(0, lib.signals.depth)
end)
