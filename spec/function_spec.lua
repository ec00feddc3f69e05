--- Functions with a backward of their own, written in Lua: what passes through them, and what they cost the compiler.

local luda = require "luda"
local helper = require "spec.helper"

local autograd = luda.autograd

local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype or "f32" }):requires_grad_()
end

describe("a Function in Lua", function()
  before_each(helper.before)
  after_each(helper.after)

  --- The sum of k times argument k; every other argument is a number.
  local weighted = autograd.Function {
    name = "weighted",
    forward = function(ctx, ...)
      local count, sum = select("#", ...), 0
      ctx.count = count
      for k = 1, count do
        assert(ctx.needs[k] == (k % 2 == 1), "argument " .. k)
        sum = sum + (select(k, ...)) * k
      end
      return sum
    end,
    backward = function(ctx, g)
      local list = {}
      for k = 1, ctx.count do
        assert(ctx.needs[k] == (k % 2 == 1), "argument " .. k)
        list[k] = k % 2 == 1 and g * k or nil
      end
      return unpack(list, 1, ctx.count)
    end,
  }

  it("takes any number of arguments", function()
    for _, count in ipairs { 1, 2, 3, 4, 5, 9, 31, 32, 33, 40 } do
      local given, total = {}, 0
      for k = 1, count do
        given[k] = k % 2 == 1 and leaf { k, -k } or 0.5
        total = total + (k % 2 == 1 and k or 0.5) * k
      end
      local sum = weighted(unpack(given))
      assert.equal(total, sum[1]:item())
      local grads = sum:backward { gradient = luda.tensor { 2, -3 } }
      for k = 1, count, 2 do
        assert.same({ 2 * k, -3 * k }, grads[given[k]]:totable())
      end
    end
  end)

  --- Results 1 … n: the argument times 1 … n, each saved; result 2 is whole numbers.
  local function multiples(n)
    return autograd.Function {
      forward = function(ctx, x)
        local list = {}
        for k = 1, n do
          list[k] = x * k
        end
        ctx:save(x, unpack(list))
        list[2] = list[2]:to("i64")
        return unpack(list, 1, n)
      end,
      backward = function(ctx, ...)
        assert(select("#", ...) == n and #ctx.saved == n + 1)
        assert((select(2, ...)) == nil)
        local sum
        for k = 1, n do
          local g = select(k, ...)
          assert(ctx.saved[k + 1][1]:item() == 3 * k)
          sum = g and (sum and sum + g * k or g * k) or sum
        end
        return sum
      end,
    }
  end

  it("returns and saves any number of tensors", function()
    for _, n in ipairs { 2, 3, 7, 20 } do
      local x = leaf { 3, 4 }
      local list = { multiples(n)(x) }
      assert.equal(n, #list)
      assert.equal("i64", list[2].dtype)
      assert.is_false(list[2].requires_grad)
      local last = n == 2 and 1 or n
      local sum = last == 1 and list[1] or list[1] + list[last]
      assert.same(last == 1 and { 1, 1 } or { n + 1, n + 1 }, sum:sum():backward()[x]:totable())
    end
  end)

  it("without a result that can have a gradient is no part of the graph", function()
    local place = autograd.Function {
      forward = function(ctx, x)
        ctx:save(x)
        return x:argmax(), "text"
      end,
      backward = function() error("never") end,
    }
    local position, text = place(leaf { 1, 5, 2 })
    assert.equal(2, position:item())
    assert.equal("text", text)
    assert.is_false(position.requires_grad)
  end)

  local square = autograd.Function {
    name = "square",
    forward = function(ctx, x)
      ctx:save(x)
      return x * x
    end,
    backward = function(ctx, g) return g * ctx.saved[1] * 2 end,
  }

  it("may call others in forward and walk other graphs in backward", function()
    local z = leaf { 5 }
    local inner
    local outer = autograd.Function {
      forward = function(ctx, x, w)
        local y, u = square(x), square(w)
        ctx:save(x, w)
        assert(not y.requires_grad and not u.requires_grad)
        return y * u
      end,
      backward = function(ctx, g)
        inner = luda.autograd.enable_grad(function() return square(z):backward()[z]:item() end)
        local x, w = ctx.saved[1], ctx.saved[2]
        return g * x * 2 * w * w, g * w * 2 * x * x
      end,
    }
    local x, w = leaf { 3 }, leaf { -2 }
    local grads = square(outer(x, w)):backward() -- (x w)^4
    assert.near(4 * 27 * 16, grads[x]:item(), 1e-2)
    assert.near(4 * 81 * -8, grads[w]:item(), 1e-2)
    assert.equal(10, inner)
  end)

  it("keeps what it wrote into ctx, apart from what others wrote", function()
    local scaled = autograd.Function {
      forward = function(ctx, x, factor)
        ctx.factor, ctx.called = factor, "mine"
        return x * factor
      end,
      backward = function(ctx, g)
        assert(ctx.called == "mine" and not ctx.saved[1])
        return g * ctx.factor
      end,
    }
    local x = leaf { 1 }
    local y = scaled(scaled(scaled(x, 2), 3), 5)
    assert.equal(30, y:backward { retain = true }[x]:item())
    assert.equal(30, y:backward()[x]:item())
    assert.raises("graph", "consumed", y.backward, y)
  end)

  it("notices that a saved tensor was changed", function()
    local x = leaf { 1, 2 }
    local double = x * 2
    local y = square(double)
    luda.no_grad(function() double:detach():add_(1) end)
    assert.raises("graph", "square: its saved tensor 1 of shape %[2%] in f32.*was changed in place", function()
      y:sum():backward()
    end)
    local product = autograd.Function {
      name = "product",
      forward = function(ctx, a, b)
        ctx:save(a, b)
        return a * b
      end,
      backward = function() error("never") end,
    }
    double = x * 2
    y = product(x, double)
    luda.no_grad(function() double:detach():add_(1) end)
    assert.raises("graph", "product: its saved tensor", function() y:sum():backward() end)
  end)

  it("that computes with numbers in backward has no second derivative, and says so", function()
    local loop = autograd.Function {
      name = "cube", once = true,
      forward = function(ctx, x)
        ctx:save(x)
        return x ^ 3
      end,
      backward = function(ctx, g)
        local x, result = ctx.saved[1], g:clone()
        local from, to = x:data(), result:data()
        for i = 0, x.numel - 1 do
          to[i] = to[i] * 3 * from[i] ^ 2
        end
        return result
      end,
    }
    local x = leaf({ 2, -1.5, 0.25 }, "f64")
    assert.is_true(autograd.gradcheck(loop, { x }))
    assert.raises("graph", "cube: its backward is not recorded", function()
      autograd.grad(loop(x):sum(), x, { create_graph = true })
    end)
  end)
end)
