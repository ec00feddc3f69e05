--- The backward walk over graphs of every form: order of creation, many uses, several roots, and more nodes than fit at once.

local luda = require "luda"
local helper = require "spec.helper"

describe("a walk", function()
  before_each(helper.before)
  after_each(helper.after)

  --- A random program of `count` operators over three leaves; every value is kept as numbers too, and its gradient is found
  --- by going back over the list.
  local function program(seed, count)
    local state = seed
    local function draw(n)
      state = (state * 16807) % 2147483647
      return state % n + 1
    end
    local values, steps = { 1.5, -0.75, 0.5 }, {}
    for i = 1, count do
      local step = { kind = draw(4), a = draw(#values), b = draw(#values) }
      -- young values are likelier, so that there are long chains too
      if draw(2) == 1 then
        step.a = #values
      end
      local a, b = values[step.a], values[step.b]
      step.out = step.kind == 1 and a + b or step.kind == 2 and a - b or step.kind == 3 and a * b * 0.25 or math.tanh(a)
      values[#values + 1], steps[i] = step.out, step
    end
    return values, steps
  end

  local function expected(values, steps)
    local g = {}
    for i = 1, #values do
      g[i] = 0
    end
    g[#values] = 1
    for i = #steps, 1, -1 do
      local step, up = steps[i], g[i + 3]
      local a, b = values[step.a], values[step.b]
      if step.kind == 1 or step.kind == 2 then
        g[step.a] = g[step.a] + up
        g[step.b] = g[step.b] + (step.kind == 1 and up or -up)
      elseif step.kind == 3 then
        g[step.a] = g[step.a] + up * b * 0.25
        g[step.b] = g[step.b] + up * a * 0.25
      else
        g[step.a] = g[step.a] + up * (1 - step.out ^ 2)
      end
    end
    return g
  end

  it("gives what reverse accumulation by hand gives, for random programs of every length", function()
    for seed = 1, 60 do
      luda.scope(function()
        local count = seed % 6 == 0 and 300 + seed or seed
        local values, steps = program(seed, count)
        local leaves, tensors = {}, {}
        for i = 1, 3 do
          leaves[i] = luda.tensor({ values[i] }, { dtype = "f64" }):requires_grad_()
          tensors[i] = leaves[i]
        end
        for i, step in ipairs(steps) do
          local a, b = tensors[step.a], tensors[step.b]
          tensors[i + 3] = step.kind == 1 and a + b or step.kind == 2 and a - b or step.kind == 3 and a * b * 0.25 or a:tanh()
        end
        local want, grads = expected(values, steps), tensors[#tensors]:sum():backward()
        for i = 1, 3 do
          local got = grads[leaves[i]] and grads[leaves[i]]:item() or 0
          assert.is_true(math.abs(got - want[i]) <= 1e-12 * math.max(1, math.abs(want[i])),
            ("seed %d, leaf %d: %.17g, expected %.17g"):format(seed, i, got, want[i]))
        end
      end)
    end
  end)

  it("adds what several roots give", function()
    luda.scope(function()
      local x = luda.tensor { 2, -3 }:requires_grad_()
      local first, second = (x * x):sum(), (x * luda.tensor { 5, 7 }):sum()
      assert.same({ 4 + 5, -6 + 7 }, luda.autograd.grad({ first, second }, x)[1]:totable())
    end)
  end)

  it("meets one node many times, and a wide one", function()
    luda.scope(function()
      local x = luda.tensor { 1, 2 }:requires_grad_()
      local list = {}
      for i = 1, 90 do
        list[i] = x
      end
      local grads = (luda.stack(list) * luda.arange(1, 91):reshape(90, 1)):sum():backward()
      assert.same({ 4095, 4095 }, grads[x]:totable())
      local sum = x
      for _ = 1, 70 do
        sum = sum + x
      end
      assert.same({ 71, 71 }, sum:sum():backward()[x]:totable())
    end)
  end)

  it("without an option and with one is the same, also where Lua takes part", function()
    luda.scope(function()
      local x, calls = luda.tensor { 1, -2, 3 }:requires_grad_(), 0
      local function loss(hooked)
        local y = x * x * x
        if hooked then
          y:register_hook(function(g)
            calls = calls + 1
            return g * 2
          end)
        end
        return y:sum()
      end
      assert.same({ 3, 12, 27 }, loss():backward()[x]:totable())
      assert.same({ 3, 12, 27 }, loss():backward({ retain = true })[x]:totable())
      assert.same({ 6, 24, 54 }, loss(true):backward()[x]:totable())
      assert.equal(1, calls)
      assert.raises("graph", "pass gradient=", function() (x * x):backward() end)
      assert.raises("graph", "was not recorded", function() luda.tensor(1):backward() end)
      local dead = x:sum()
      dead:release()
      assert.raises("closed", "released", function() dead:backward() end)
    end)
  end)
end)
