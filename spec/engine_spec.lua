--- The backward walk as an engine: order, final gradients, freeing as it goes, whose memory it writes, depth without a stack.

local luda = require "luda"
local nn = require "luda.nn"
local helper = require "spec.helper"

local autograd = luda.autograd

local function leaf(values)
  return luda.tensor(values, { requires_grad = true })
end

--- A function of any number of tensors, their sum times `factor`, that runs `seen` in backward.
local function watched(seen, factor)
  local fn = autograd.Function {
    forward = function(_, first, ...)
      local sum = first
      for i = 1, select("#", ...) do
        sum = sum + select(i, ...)
      end
      return sum * factor
    end,
    backward = function(ctx, g)
      seen()
      local list = {}
      for i = 1, #ctx.needs do
        list[i] = g * factor
      end
      return unpack(list)
    end,
  }
  return fn
end

describe("the order of backward", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is that of creation reversed, whatever the graph looks like", function()
    for seed = 1, 12 do
      local state = seed
      local function random(n)
        state = (state * 1103515245 + 12345) % 2147483648
        return math.floor(state / 65536) % n + 1
      end
      local made, ran, hooked = { leaf { 1, -2 }, leaf { 0.5, 3 } }, {}, {}
      for k = 3, 32 do
        local inputs = {}
        for i = 1, random(3) do
          inputs[i] = made[random(k - 1)]
        end
        inputs[#inputs + 1] = made[k - 1] -- so that the last one reaches all
        made[k] = watched(function() ran[#ran + 1] = k end, k % 2 == 0 and -0.5 or 0.75)(unpack(inputs))
        made[k]:register_hook(function() hooked[#hooked + 1] = k end)
      end
      made[32]:backward { gradient = luda.tensor { 1, -1 } }:release()
      local want = {}
      for k = 32, 3, -1 do
        want[#want + 1] = k
      end
      assert.same(want, ran)
      assert.same(want, hooked)
    end
  end)
end)

describe("gradients that are final", function()
  before_each(helper.before)
  after_each(helper.after)

  --- Ids of the leaves as they were reported, with a copy of each gradient at that time.
  local function reported(root, options)
    local order, values = {}, {}
    options = options or {}
    options.on_leaf = function(id, gradients)
      assert.is_nil(values[id], "reported twice")
      order[#order + 1], values[id] = id, gradients:get(id):clone()
    end
    local gradients = root:backward(options)
    assert.equal(#order, gradients:len())
    for id, value in pairs(values) do
      assert.is_true(value:equal(gradients:get(id)))
    end
    gradients:release()
    return order
  end

  it("are reported once each, from the last layer to the first, a shared one after its first use", function()
    local shared, a, b, c, unused = leaf { 2, 3 }, leaf { 1, 5 }, leaf { -1, 2 }, leaf { 4, 4 }, leaf { 0, 0 }
    local x = luda.tensor { 1, -1 }
    local first = (x * shared):sin() * a
    local second = (first * shared):tanh() * b
    local loss = ((second * shared) * c):sum() + (unused * 3):sum() * 0
    local order = reported(loss, { retain = true })
    assert.same({ unused.id, c.id, b.id, a.id, shared.id }, order)
    assert.same(order, reported(loss))
  end)

  it("come in the same order whichever leaf was made first and however often each is used", function()
    local orders = {}
    for way = 1, 2 do
      local names, layers = {}, {}
      for i = 1, 4 do
        layers[way == 1 and i or 5 - i] = leaf { i * 0.25 - 1, 0.5 }
      end
      for i, layer in ipairs(layers) do
        names[layer.id] = i
      end
      local y = luda.tensor { 1, 2 }
      for _, layer in ipairs(layers) do
        y = (y * layer + layer:square()):tanh()
      end
      orders[way] = {}
      for i, id in ipairs(reported(y:sum())) do
        orders[way][i] = names[id]
      end
    end
    assert.same({ 4, 3, 2, 1 }, orders[1])
    assert.same(orders[1], orders[2])
  end)

  it("are what hooks made of them: in the order of the hooks, once for all uses", function()
    local x, calls = leaf { 1, -2 }, 0
    x:register_hook(function(g)
      calls = calls + 1
      assert.same({ 3, -1 }, g:totable()) -- the sum over both uses
      return g * 10
    end)
    x:register_hook(function(g) return g + 1 end)
    local middle = x * 1
    middle:register_hook(function(g) return g * -1 end) -- goes on to what is before
    local seen
    local gradients = (middle * luda.tensor { -1, 3 } + x * 2):sum():backward { on_leaf = function(_, found)
      seen = found[x]:totable()
    end }
    assert.same({ 31, -9 }, seen)
    assert.same({ 31, -9 }, gradients[x]:totable())
    assert.equal(1, calls)
  end)
end)

describe("gradients that somebody sees", function()
  before_each(helper.before)
  after_each(helper.after)

  local layer = { weight = { { 1.5, -2 }, { 0.5, 1 } } }
  local activations = {
    relu = function(t) return t:relu() end,
    tanh = function(t) return t:tanh() end,
    sigmoid = function(t) return t:sigmoid() end,
    silu = function(t) return nn.silu(t) end,
    gelu = function(t) return t:gelu() end,
    gelu_tanh = function(t) return nn.gelu(t) end,
    ["a linear layer's"] = function(t)
      return luda.linear(t, luda.tensor(layer.weight), { activation = "gelu_tanh" })
    end,
  }

  for name, activation in pairs(activations) do
    it("are not written by the rule of " .. name, function()
      local x, upstream = leaf { { 1, -2 }, { 0.5, 3 } }, luda.tensor { { -1, 2 }, { 0.25, -3 } }
      local plain = activation(x):backward({ gradient = upstream })[x]
      assert.same({ { -1, 2 }, { 0.25, -3 } }, upstream:totable())
      -- a hook that keeps what it saw
      local seen
      local y = activation(x)
      y:register_hook(function(g) seen = g end)
      assert.is_true((y * upstream):sum():backward()[x]:equal(plain))
      assert.same({ { -1, 2 }, { 0.25, -3 } }, seen:totable())
      -- gradients in the middle that were asked for, and one that two branches share
      y = activation(x)
      local list = autograd.grad((y * upstream):sum(), { y, x })
      assert.same({ { -1, 2 }, { 0.25, -3 } }, list[1]:totable())
      assert.is_true(list[2]:equal(plain))
      local a, b = activation(x), activation(x)
      assert.is_true(((a + b) * upstream):sum():backward()[x]:equal(plain * 2))
      a, b = activation(x), x * 1
      list = autograd.grad(((a + b) * upstream):sum(), { a, b, x })
      assert.same({ list[1]:totable(), list[2]:totable() }, { upstream:totable(), upstream:totable() })
      assert.is_true(list[3]:equal(plain + upstream))
    end)
  end
end)

describe("the graph", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is freed as the walk goes", function()
    local size, live = 2 ^ 14, {}
    local root = luda.scope(function()
      local y = luda.ones(size):requires_grad_()
      for i = 1, 12 do
        y = watched(function()
          live[i] = helper.live_bytes()
        end, 1)(y):sin() -- each keeps its input, 64 KiB
      end
      return y:sum()
    end)
    root:backward():release()
    for i = 11, 1, -1 do
      assert.is_true(live[i] <= live[i + 1] - 4 * size, ("layer %d: %d bytes after %d"):format(i, live[i], live[i + 1]))
    end
  end)

  it("of a million operators is walked and dropped without a deep stack", function()
    assert.equal("done", helper.on_small_stack(256, [[
      local x = luda.tensor({ 1.5 }):requires_grad_()
      local function chain(step, count)
        local y = x
        for _ = 1, count / 1000 do
          y = luda.scope(function(t)
            for _ = 1, 1000 do t = step(t) end
            return t
          end, y)
        end
        return y
      end
      local before = luda.memory("cpu").live
      luda.scope(function()
        assert(chain(function(t) return -t end, 1e6 + 1000):backward()[x]:item() == 1)
        chain(function(t) return t + 0 end, 1e6) -- dropped
        luda.autograd.recompute(chain, function(t) return t:tanh() end, 1e5):backward():release()
        local broken = chain(function(t) return -t end, 1e5)
        x:register_hook(function() error("at the end") end)
        assert(not pcall(broken.backward, broken))
      end)
      assert(luda.memory("cpu").live == before)
      io.write("done")]]))
  end)
end)
