--- Shapes and memory at their edges: dimensions of size 0, tensors that overlap themselves or each other, targets full of NaN.

local luda = require "luda"
local helper = require "spec.helper"

local nan, inf = 0 / 0, math.huge

local function leaf(values, options)
  return luda.tensor(values, options):requires_grad_()
end

--- Freed blocks are handed out again: what is not written shows.
local function poison(...)
  for _ = 1, 3 do
    luda.full({ ... }, nan):release()
  end
end

describe("a dimension of size 0", function()
  before_each(helper.before)
  after_each(helper.after)

  it("reduced along the other one gives nothing, reduced itself its identity or an error", function()
    local z = luda.zeros(2, 0)
    for _, name in ipairs { "max", "min" } do
      local values, positions = z[name](z, 1)
      assert.same({ 0 }, values.shape)
      assert.same({ 0 }, positions.shape)
      assert.equal("i64", positions.dtype)
      assert.raises("shape", name, z[name], z, 2)
      assert.raises("shape", "a" .. name, z[name], z)
      assert.raises("shape", name, luda["arg" .. name], z)
      assert.same({ 0 }, luda["a" .. name](z, 1).shape)
    end
    assert.same({ 0, 0 }, z:sum(2):totable())
    assert.same({ 1, 1 }, z:prod(2):totable())
    assert.tensor_near({ nan, nan }, z:mean(2), 0, 0)
    assert.tensor_near({ nan, nan }, z:var(2), 0, 0)
    assert.same({ 0, 0 }, z:norm(2, 2):totable())
    assert.same({ -inf, -inf }, z:logsumexp(2):totable())
    assert.same({ true, true }, z:all(2):totable())
    assert.same({ false, false }, z:any(2):totable())
    for _, dtype in ipairs { "i64", "i8", "bool", "bf16" } do
      local e = luda.zeros(0, 3, { dtype = dtype })
      assert.same({ 0, 0, 0 }, e:sum(1):to("i64"):totable())
      assert.same({ 0 }, e:sum(2).shape)
      assert.equal(0, e:sum():to("f32"):item())
      assert.same({ 1, 1, 1 }, e:prod(1):to("i64"):totable())
    end
  end)

  it("has gradients of its own shape", function()
    for _, fn in ipairs {
      function(x) return x:sum() end, function(x) return x:sum(2):sum() end, function(x) return x:prod() end,
      function(x) return x:mean(2):sum() end, function(x) return (x:max(1)):sum() end, function(x) return x:softmax(2):sum() end,
      function(x) return x:cumsum(2):sum() end, function(x) return x:norm() end, function(x) return (x:sort(2)):sum() end,
      function(x) return luda.layer_norm(x:t(), luda.ones(2)):sum() end, function(x) return x:logsumexp(1):sum() end,
      function(x) return luda.cat({ x, luda.ones(2, 3) }, 2):sum() end, function(x) return x:square():reshape(0, 5):sum() end,
      function(x) return x:index_select(1, luda.tensor { 1LL, 1LL }):sum() end, function(x) return x:var(2):sum() end,
    } do
      local x = luda.zeros(2, 0):requires_grad_()
      local gradient = fn(x):backward()[x]
      assert.same({ 2, 0 }, gradient.shape)
    end
    local x, b = luda.zeros(0, 3):requires_grad_(), leaf { 1, 2, 3 }
    local grads = ((x + b) * 2):sum():backward()
    assert.same({ 0, 0, 0 }, grads[b]:totable())
    assert.same({ 0, 3 }, grads[x].shape)
  end)

  it("multiplied away leaves zeros, over whatever lay there", function()
    local zeros = { { 0, 0 }, { 0, 0 }, { 0, 0 } }
    for _, dtype in ipairs { "f32", "f64", "bf16", "f16", "i64", "i32" } do
      local a, b = luda.zeros(3, 0, { dtype = dtype }), luda.zeros(0, 2, { dtype = dtype })
      poison(3, 2)
      assert.same(zeros, a:matmul(b):totable())
      local target = luda.full({ 3, 2 }, 7, { dtype = dtype })
      luda.matmul(a, b, { out = target })
      assert.same(zeros, target:totable())
      local batched = luda.zeros(2, 3, 0, { dtype = dtype }):matmul(luda.zeros(2, 0, 2, { dtype = dtype }))
      assert.same({ zeros, zeros }, batched:totable())
      assert.same({ 0, 3, 2 }, luda.zeros(0, 3, 4, { dtype = dtype }):matmul(luda.zeros(4, 2, { dtype = dtype })).shape)
      assert.same({ 3, 0 }, luda.zeros(3, 4, { dtype = dtype }):matmul(luda.zeros(4, 0, { dtype = dtype })).shape)
    end
    local a, b = luda.zeros(3, 0):requires_grad_(), luda.zeros(0, 2):requires_grad_()
    local grads = a:matmul(b):backward { gradient = luda.ones(3, 2) }
    assert.same({ 3, 0 }, grads[a].shape)
    assert.same({ 0, 2 }, grads[b].shape)
    local target = luda.full({ 3, 2 }, nan)
    luda.matmul(a:detach(), b:detach(), { out = target })
    assert.same(zeros, target:totable())
  end)

  it("goes through layers, losses and attention", function()
    local nn = luda.nn
    local weight, bias = luda.ones(0, 2):requires_grad_(), leaf { 1, -2 }
    local y = luda.linear(luda.zeros(3, 0), weight, bias)
    assert.same({ { 1, -2 }, { 1, -2 }, { 1, -2 } }, y:totable())
    local grads = y:sum():backward()
    assert.same({ 3, 3 }, grads[bias]:totable())
    assert.same({ 0, 2 }, grads[weight].shape)
    local layer = nn.Linear(4, 2)
    local none = layer(luda.zeros(0, 4)):sum():backward()
    assert.same({ { 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 0 } }, none[layer.weight]:totable())
    assert.same({ 0, 0 }, none[layer.bias]:totable())
    local logits = luda.zeros(0, 5):requires_grad_()
    local loss = nn.cross_entropy(logits, luda.zeros(0, { dtype = "i64" }))
    assert.equal(0, loss:item())
    assert.same({ 0, 5 }, loss:backward()[logits].shape)
    local v = luda.ones(1, 0, 4):requires_grad_()
    poison(1, 3, 4)
    local out = luda.scaled_dot_product_attention(luda.ones(1, 3, 2), luda.ones(1, 0, 2), v)
    assert.tensor_near(luda.zeros(1, 3, 4), out, 0, 0)
    assert.same({ 1, 0, 4 }, out:sum():backward()[v].shape)
    assert.same({ 0, 4 }, nn.Embedding(3, 4)(luda.zeros(0, { dtype = "i64" })).shape)
    assert.same({ 0, 3, 2, 2 }, luda.conv2d(luda.zeros(0, 1, 4, 4), luda.ones(3, 1, 3, 3)).shape)
    assert.same({ 0, 1, 2, 2 }, (luda.max_pool2d(luda.zeros(0, 1, 4, 4), { kernel = 2 })).shape)
  end)

  it("divides nothing", function()
    local z = luda.zeros(3, 0)
    assert.equal(1, #z:split(2, 2))
    assert.equal(3, #z:chunk(3, 2)) -- as many as were asked for
    assert.same({ 3, 0 }, z:flip(2).shape)
    assert.same({ 3, 0 }, z:roll(2, 2).shape)
    assert.same({ 0 }, z:reshape(-1).shape)
    assert.raises("shape", "reshape", z.reshape, z, -1, 0)
    assert.same({ 0, 3 }, z:t().shape)
    assert.same({ 6, 0 }, z:tile(2, 1).shape)
    assert.same({ 3, 2 }, z:pad({ 1, 1 }).shape)
    assert.raises("shape", "unfold", z.unfold, z, 2, 1)
    assert.same({ 3, 0 }, z:cumsum(2).shape)
    assert.same({ 0 }, z:t():argmax(2).shape)
    assert.raises("shape", "", z.median, z)
    assert.same({ 0, 2 }, z:nonzero().shape)
    assert.same({ 3, 0 }, (z % 3).shape)
    assert.same({ 3, 0 }, luda.zeros(3, 0, { dtype = "i32" }):floor_divide(0).shape)
  end)
end)

describe("writing in place", function()
  before_each(helper.before)
  after_each(helper.after)

  it("into an expanded tensor is refused, and the cell keeps its value", function()
    for _, change in ipairs {
      function(b) b:add_(1) end, function(b) b:fill_(3) end, function(b) b:zero_() end, function(b) b[2] = 5 end,
      function(b) b:copy_(luda.ones(4, 5)) end, function(b) b[b:eq(1)] = 9 end, function(b) luda.add(b, 1, { out = b }) end,
      function(b) b:mul_(b) end, function(b) b:index_fill_(1, luda.tensor { 1LL }, 4) end, function(b) b:clamp_(2, 3) end,
    } do
      local a = luda.tensor { { 1 } }
      assert.raises("invalid", "share memory", change, a:expand(4, 5))
      assert.equal(1, a:item())
    end
    local a = luda.tensor { { 1 } }
    a:expand(1, 1):add_(1) -- of one element there is no overlap
    assert.equal(2, a:item())
  end)

  it("what is read from another view of the same memory sees the old values", function()
    local function check(want, fn)
      for _, size in ipairs { 2, 67 } do -- beyond one vector the order of elements would show
        local n = size
        local x = luda.arange(n * n):reshape(n, n)
        local copy = x:clone()
        fn(x, x)
        assert.tensor_near(want(copy), x, 0, 0)
      end
    end
    check(function(c) return c + c:t() end, function(x) x:add_(x:t()) end)
    check(function(c) return c:t() - c end, function(x) luda.sub(x:t(), x, { out = x }) end)
    check(function(c) return c:t():clone() end, function(x) x:copy_(x:t()) end)
    check(function(c) return c:t():clone() end, function(x) luda.transpose(x, { dim0 = 1, dim1 = 2, out = x }) end)
    check(function(c) return c * c:select(1, 1) end, function(x) x:mul_(x:select(1, 1)) end)
    check(function(c) return c + c:flip(1) end, function(x) x:add_(x:flip(1)) end)
    check(function(c) return c:matmul(c) end, function(x) luda.matmul(x, x, { out = x }) end)
    check(function(c) return c:cumsum(1) end, function(x) x:copy_(x:cumsum(1)) end)
    local a = luda.tensor { { 1, 2 }, { 3, 4 } }
    a:add_(a:t())
    assert.same({ { 2, 5 }, { 5, 8 } }, a:totable())
    local line = luda.arange(10)
    line[{ { 2, 10 } }] = line[{ { 1, 9 } }]
    assert.same({ 0, 0, 1, 2, 3, 4, 5, 6, 7, 8 }, line:totable())
    line[{ { 1, 9 } }] = line[{ { 2, 10 } }]
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 8 }, line:totable())
  end)

  it("of an optimizer only reads an expanded gradient, and sums have memory of their own", function()
    local p = leaf { { 1, 2 }, { 3, 4 } }
    local opt = luda.optim.SGD({ p }, { momentum = 0.9 })
    for _, want in ipairs { { { 0.5, 1.5 }, { 2.5, 3.5 } }, { { -0.45, 0.55 }, { 1.55, 2.55 } } } do
      local grads = p:sum():backward()
      opt:step(0.5, grads)
      assert.tensor_near(want, p, 1e-6, 1e-6)
      assert.same({ { 1, 1 }, { 1, 1 } }, grads[p]:totable())
    end
    local sums = luda.optim.Accumulator { p }
    local one = luda.tensor { 2 }
    local grads = luda.autograd.Gradients()
    grads:register(p, one:expand(2, 2))
    sums:accumulate(grads):accumulate(grads)
    one:fill_(100)
    assert.same({ { 4, 4 }, { 4, 4 } }, sums:grads()[p]:totable())
    grads:register(p, luda.tensor({ 3 }):expand(2, 2))
    assert.near(6, grads:clip_norm_(1), 1e-6)
    assert.tensor_near({ { 0.5, 0.5 }, { 0.5, 0.5 } }, grads[p], 1e-6, 0)
  end)
end)

describe("targets full of NaN", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are overwritten, not added to", function()
    local x = luda.randn(5, 7)
    local y = luda.randn(7, 3)
    local target = luda.full({ 5, 3 }, nan)
    luda.matmul(x, y, { out = target })
    assert.tensor_near(x:matmul(y), target, 0, 0)
    for name, shape in pairs { sum = { 5 }, mean = { 5 }, amax = { 5 } } do
      target = luda.full(shape, nan)
      luda[name](x, { dim = 2, out = target })
      assert.tensor_near(luda[name](x, 2), target, 0, 0)
    end
    target = luda.full({ 5, 7 }, nan)
    luda.mul(x, 0, { out = target })
    assert.equal(0, target:abs():sum():item())
    target = luda.full({ 7, 5 }, nan):t()
    luda.softmax(x, { dim = 2, out = target })
    assert.tensor_near(x:softmax(2), target, 0, 0)
  end)
end)
