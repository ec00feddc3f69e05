--- The backward walk as an engine: order, final gradients, freeing as it goes, errors of every origin, depth without a stack.

local luda = require "luda"
local nn = require "luda.nn"
local dist = require "luda.dist"
local lib = require "luda.ffi"
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
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write [[
      package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path
      local luda = require "luda"
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
      io.write("done")]]
    file:close()
    local pipe = assert(io.popen("ulimit -s 256; luajit " .. path .. " 2>&1"))
    local output = pipe:read "*a"
    pipe:close()
    os.remove(path)
    assert.equal("done", output)
  end)
end)

describe("an error in backward", function()
  local x, w

  before_each(function()
    helper.before()
    x, w = leaf { { 1, -2 }, { 0.5, 3 } }, leaf { { 2, 1 }, { -1, 4 } }
  end)
  after_each(function()
    x, w = nil, nil
    helper.after()
  end)

  --- Runs a step that must fail in backward, twice, and sees that it leaves nothing; then that an ordinary step is right.
  local function fails(pattern, loss_of)
    local function once()
      local loss = loss_of(x:matmul(w))
      local ok, problem = pcall(loss.backward, loss)
      assert.is_false(ok)
      assert.matches(pattern, tostring(problem))
      assert.is_true(autograd.is_enabled())
      assert.equal(-1, lib.C.luda_autocast())
      assert.raises("graph", "", loss.backward, loss) -- what was consumed stays so; nothing half done is given out
    end
    once()
    helper.no_leak(once)
    local gradients = (x:matmul(w) * luda.tensor { { 1, -1 }, { 2, 0.5 } }):sum():backward()
    assert.same({ { 1, -5 }, { 4.5, 0 } }, gradients[x]:totable())
    assert.same({ { 2, -0.75 }, { 4, 3.5 } }, gradients[w]:totable())
  end

  it("of a hook", function()
    fails("hook says no", function(y)
      local z = y:tanh()
      z:register_hook(function() error("hook says no") end)
      return (z * y):sum()
    end)
  end)

  it("of a hook on a leaf, and of on_leaf", function()
    local hook = w:register_hook(function() error("leaf says no") end)
    local function once()
      local loss = x:matmul(w):sum()
      assert.matches("leaf says no", tostring(select(2, pcall(loss.backward, loss))))
    end
    once()
    helper.no_leak(once)
    hook:remove()
    helper.no_leak(function()
      local loss = x:matmul(w):sum()
      local ok, problem = pcall(loss.backward, loss, { on_leaf = function() error("listener says no") end })
      assert.is_false(ok)
      assert.matches("listener says no", tostring(problem))
    end)
  end)

  it("of a function", function()
    local breaks = autograd.Function {
      forward = function(ctx, t)
        ctx:save(t)
        return t * 2
      end,
      backward = function() error { "not even text" } end,
    }
    fails("", function(y) return (breaks(y):exp() * y):sum() end)
    local half = autograd.Function { -- the first of two gradients was given when the second is refused
      forward = function(_, a, b) return a + b end,
      backward = function(_, g) return g * 1, "a word" end,
    }
    fails("a tensor or nil is needed", function(y) return half(y:tanh(), y):sum() end)
  end)

  it("of a function inside a walk of another graph", function()
    fails("inner", function(y)
      local z = y:sin()
      z:register_hook(function()
        local t = leaf { 1, 2 }
        t:register_hook(function() error("inner") end)
        return autograd.enable_grad(function() return (t * t):sum():backward()[t] end)
      end)
      return z:sum()
    end)
  end)

  it("of a collective", function()
    local comm
    fails("closed", function(y)
      comm = dist.init()
      local loss = comm:all_reduce(y:tanh(), "sum"):square():sum()
      comm:close()
      return loss
    end)
  end)

  it("of an allocation, wherever it falls", function()
    local cpu, failures = lib.ffi.new("luda_device"), 0
    local norm = nn.LayerNorm(64)
    local big = luda.linspace(-1, 1, 4096):reshape { 64, 64 }:requires_grad_()
    local function loss_of()
      return luda.scope(function()
        return (norm(big:matmul(big):tanh() * big):softmax(-1):matmul(big) * big):sum()
      end)
    end
    local want = loss_of():backward()[big]
    for room = 0, 40 * 2 ^ 14, 2 ^ 13 do -- in steps of half a matrix
      local loss = loss_of()
      local before = helper.live_bytes()
      lib.check(lib.C.luda_set_memory_limit(cpu, before + room))
      local ok, result = pcall(loss.backward, loss)
      lib.check(lib.C.luda_set_memory_limit(cpu, 0))
      if ok then
        assert.is_true(result[big]:equal(want))
        result:release()
        assert.is_true(failures > 5)
        return
      end
      failures = failures + 1
      assert.equal("no_memory", result.code)
      assert.is_true(helper.live_bytes() <= before)
      assert.is_true(loss_of():backward()[big]:equal(want))
    end
    error("backward never had enough")
  end)
end)
