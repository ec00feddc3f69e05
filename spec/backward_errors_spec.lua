--- Errors in backward, from Lua, collectives and allocations: nothing of the walk stays, and the next step is right.

local luda = require "luda"
local nn = require "luda.nn"
local dist = require "luda.dist"
local lib = require "luda.ffi"
local helper = require "spec.helper"

local autograd = luda.autograd

local function leaf(values)
  return luda.tensor(values, { requires_grad = true })
end

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
