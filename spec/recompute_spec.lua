--- Memory-bound results made again in backward: the same bits, less memory, and nothing repeated that should not be.

local luda = require "luda"
local nn = require "luda.nn"
local dist = require "luda.dist"
local lib = require "luda.ffi"
local ops = require "luda.ops"
local samples = require "spec.samples"
local helper = require "spec.helper"

local autograd = luda.autograd
local recompute = autograd.recompute

local function leaf(...)
  return luda.randn(...):requires_grad_()
end

local function plainly(fn, ...)
  return fn(...)
end

--- Native bytes that the graph of a recorded result holds beside its inputs.
local function held_by(call, fn, inputs)
  local before = helper.live_bytes()
  local y = luda.scope(call, fn, unpack(inputs))
  local bytes = helper.live_bytes() - before
  y:release()
  return bytes
end

--- The gradients of a mixed-sign sum of fn's result, recorded in both ways: the same bits, also of what a generator gives later.
-- Returns how many bytes the graph held each time.
local function both(fn, inputs, wanted)
  local results, bytes = {}, {}
  for way, call in ipairs { plainly, recompute } do
    luda.manual_seed(11)
    local y = luda.scope(call, fn, unpack(inputs))
    local upstream = luda.linspace(-1.5, 2, y.numel):reshape(y.shape)
    results[way] = { y = y, gradients = autograd.grad((y:to("f32") * upstream):sum(), wanted), after = luda.rand(3) }
    bytes[way] = held_by(call, fn, inputs)
  end
  assert.is_true(results[1].y:equal(results[2].y))
  assert.is_true(results[1].after:equal(results[2].after))
  for i, gradient in ipairs(results[1].gradients) do
    assert.is_true(gradient:equal(results[2].gradients[i]), ("gradient %d differs"):format(i))
  end
  return bytes[1], bytes[2]
end

describe("recompute", function()
  before_each(function()
    helper.before()
    luda.manual_seed(4)
  end)
  after_each(helper.after)

  for _, row in ipairs(ops.rows) do
    for _, case in ipairs(row.facts.recompute == "cheap" and samples.cases(row) or {}) do
      it("repeats " .. row.name .. ": " .. case.text, function()
        local list = samples.tensors(case, "f64", true)
        local wanted = {}
        for i, input in ipairs(case.inputs) do
          wanted[#wanted + 1] = input.kind == "value" and list[i] or nil
        end
        local w = luda.full({}, -1.75, { dtype = "f64" }):requires_grad_()
        wanted[#wanted + 1] = w
        local kept, repeated = both(function(...)
          return samples.call(row, case, { ... }):square() * w
        end, list, wanted)
        assert.is_true(repeated < kept, ("%d bytes, without %d"):format(repeated, kept))
      end)
    end
  end

  it("gives the same bits through views, norms, dropout and tied parameters", function()
    local x, w, v = leaf(6, 10), leaf(10, 10), leaf(10)
    local norm, dropout = nn.LayerNorm(10), nn.Dropout(0.4)
    local function block(t)
      local u = dropout(norm(t):matmul(w):tanh() * v + t)
      u = norm(u:reshape { 3, 2, 10 }:transpose(1, 2):contiguous():view { 6, 10 } * v)
      local p = dropout((u:matmul(w) * 0.3):softmax(-1))
      return t + dropout(p:matmul(w:t()):gelu())
    end
    local kept, repeated = both(function(t) return block(block(t)) end, { x }, { x, w, v, norm.weight, norm.bias })
    assert.is_true(repeated < 0.75 * kept, ("%d bytes, without %d"):format(repeated, kept))
  end)

  for _, activation in ipairs { "relu", "gelu_tanh" } do
    for dtype, bytes in pairs { f32 = 4, bf16 = 2, f16 = 2, f64 = 8 } do
      it("makes the " .. activation .. " of a linear layer again from its sums, in " .. dtype, function()
        local layer = nn.Linear(7, 65, { activation = activation }):to_dtype(dtype)
        local x = luda.randn(9, 7):to(dtype):requires_grad_()
        local w = luda.randn(65, 3):to(dtype):requires_grad_()
        local kept, repeated = both(function(t) return layer(t):matmul(w) end, { x }, { x, w, layer.weight, layer.bias })
        assert.is_true(repeated <= kept - 9 * 65 * bytes)
      end)
    end
  end

  it("repeats casts under autocast", function()
    local model = nn.TransformerBlock(16, 2, { dropout = 0.3 })
    local x, wanted = leaf(2, 5, 16), {}
    for _, parameter in model:named_parameters() do
      wanted[#wanted + 1] = parameter
    end
    wanted[#wanted + 1] = x
    for _, half in ipairs { "bf16", "f16" } do
      local kept, repeated = both(function(t)
        return luda.autocast(function() return model(model(t)) end, half)
      end, { x }, wanted)
      assert.is_true(repeated < 0.8 * kept, ("%d bytes, without %d"):format(repeated, kept))
    end
  end)

  it("keeps every ninth result of a long row, not one and not all", function()
    local x = leaf(1024)
    local function row(t)
      for _ = 1, 90 do
        t = (t:sin() * 1.5):tanh()
      end
      return t
    end
    local kept, repeated = both(row, { x }, { x })
    assert.is_true(repeated < 0.4 * kept and repeated > 0.3 * kept, ("%d bytes, without %d"):format(repeated, kept))
  end)

  it("calls nothing twice", function()
    local calls, comm = 0, dist.init()
    local cube = autograd.Function {
      forward = function(ctx, t)
        calls = calls + 1
        ctx:save(t)
        return t * t * t
      end,
      backward = function(ctx, g)
        return 3 * g * ctx.saved[1]:square()
      end,
    }
    local x = leaf(4, 6)
    local norm = nn.LayerNorm(6)
    both(function(t) return cube(norm(comm:all_reduce(cube(norm(t)):tanh(), "sum"))):exp() end, { x }, { x, norm.weight })
    assert.equal(8, calls) -- two in each of four calls
    comm:close()
  end)

  it("has a second derivative", function()
    local x = luda.randn(3, 4, { dtype = "f64" }):requires_grad_()
    local w = luda.randn(4, 4, { dtype = "f64" }):requires_grad_()
    assert.is_true(autograd.gradcheck(function(a, b)
      return recompute(function(s, t)
        return ((s:matmul(t) * s):tanh():exp() * s):matmul(t:sigmoid()):softmax(-1)
      end, a, b)
    end, { x, w }, { second = true }))
  end)

  it("walks twice where the graph is retained, and through one of several results", function()
    local x, w = leaf(5, 5), leaf(5, 5)
    local a, b = recompute(function(t)
      local u = (t * w):sigmoid():square()
      return u:matmul(w), u:sin()
    end, x)
    local root = a:sum() - 2 * b:sum()
    local first = root:backward { retain = true }
    local live = helper.live_bytes()
    local second = root:backward { retain = true }
    assert.is_true(first[x]:equal(second[x]) and first[w]:equal(second[w]))
    second:release()
    assert.equal(live, helper.live_bytes()) -- a walk takes with it what it made
    local u = (x * w):sigmoid():square()
    assert.is_true(b:sum():backward()[x]:equal(u:sin():sum():backward()[x]))
  end)

  it("nests with itself and with checkpoints", function()
    local x, w = leaf(4, 4), leaf(4, 4)
    local function inner(s)
      return ((s * w):tanh():square()):matmul(w):exp():tanh()
    end
    both(function(t)
      local u = (t * w):sigmoid()
      return recompute(inner, u) * u + autograd.checkpoint(inner, u) * u
        + autograd.checkpoint(function(s, v) return recompute(inner, s) * v:sin() end, u, u)
    end, { x }, { x, w })
    both(function(t) -- results of the outer region in a region of a segment that is called again
      local u = (t * w):sigmoid():keep()
      return autograd.checkpoint(function(s) return recompute(function(r) return (r * u):sin() * u end, s) end, t)
    end, { x }, { x, w })
    recompute(function()
      assert.is_false(pcall(recompute, error, "inside"))
      assert.is_true(lib.C.luda_set_recompute(0) ~= 0)
    end)
    assert.is_true(lib.C.luda_set_recompute(0) == 0) -- off again, after errors too
  end)
end)

describe("recompute and changes in place", function()
  before_each(helper.before)
  after_each(helper.after)

  it("of what is kept are noticed", function()
    local x, h = leaf(4), luda.randn(1)
    local y = recompute(function(t) return ((t + h):tanh() * t):sum() end, x)
    h:add_(1)
    assert.raises("graph", "add: its input 2 of shape %[1%] in f32, kept for backward, was changed in place", y.backward, y)
  end)

  it("of a result, before it is used, count", function()
    local x, w = luda.tensor({ 1, -2, 3 }):requires_grad_(), luda.tensor({ 2, 1, -1 }):requires_grad_()
    local y = recompute(function(t)
      local u = t * w
      luda.no_grad(function() u:add_(luda.tensor { 10 }) end)
      return (u * w):sum() -- sum of (x w + 10) w, where the graph knows nothing of the 10
    end, x)
    local gradients = y:backward()
    assert.same({ 4, 1, 1 }, gradients[x]:totable())
    assert.same({ 2 + 10 + 2, -2 + 10 - 2, -3 + 10 - 3 }, gradients[w]:totable())
  end)

  it("that are recorded make results of their own", function()
    local x = luda.tensor({ 1, -2, 3 }):requires_grad_()
    local y = recompute(function(t)
      local u = t * 2
      u:mul_(-3)
      return (u * t):sum() -- -6 x^2
    end, x)
    assert.same({ -12, 24, -36 }, y:backward()[x]:totable())
  end)

  it("of a result, after it was used, change nothing of what was computed", function()
    local x = luda.tensor({ 1, -2 }):requires_grad_()
    local y, u = recompute(function(t)
      local product = t * t
      return (product * t):sum(), product
    end, x)
    luda.no_grad(function() u:fill_(100) end)
    assert.same({ 3, 12 }, y:backward()[x]:totable())
  end)
end)

describe("an error in the walk", function()
  before_each(helper.before)
  after_each(helper.after)

  it("leaves nothing of what was made again", function()
    local x, w = leaf(64, 64), leaf(64, 64)
    local breaks = autograd.Function {
      forward = function(_, t) return t * 1 end,
      backward = function() error("broken on purpose") end,
    }
    local function once()
      local y = recompute(function(t)
        return breaks(t * w):sigmoid():square():tanh():matmul(w)
      end, x)
      local ok, problem = pcall(y.backward, y, { gradient = luda.ones(64, 64) })
      assert.is_false(ok)
      assert.matches("broken on purpose", tostring(problem), 1, true)
    end
    once()
    helper.no_leak(once)
    assert.is_true(recompute(function(t) return (t * w):sum() end, x):backward()[x]:equal(w:detach()))
  end)
end)

describe("nn.GPT with checkpoint = 'auto'", function()
  before_each(helper.before)
  after_each(helper.after)

  it("needs a third less memory at its peak, and gives the same bits", function()
    local peaks, results = {}, {}
    for way, option in ipairs { false, "auto" } do
      luda.manual_seed(2)
      local model = nn.GPT { vocab = 64, context = 64, layers = 12, heads = 2, width = 64, dropout = 0.1, checkpoint = option }
      local ids = luda.randint(1, 65, { 8, 64 }, { dtype = "i64" })
      local before = helper.live_bytes()
      luda.memory { reset_peak = true }
      local loss, gradients = luda.scope(function()
        local loss = model(ids, ids)
        return loss:detach(), loss:backward()
      end)
      peaks[way] = luda.memory("cpu").peak - before
      results[way] = { loss = loss:item() }
      for path, parameter in model:named_parameters() do
        results[way][path] = gradients[parameter]
      end
    end
    assert.equal(results[1].loss, results[2].loss)
    results[1].loss, results[2].loss = nil, nil
    for path, gradient in pairs(results[1]) do
      assert.is_true(gradient:equal(results[2][path]), path)
    end
    assert.is_true(peaks[2] < 2 / 3 * peaks[1], ("%d bytes, without %d"):format(peaks[2], peaks[1]))
  end)

  it("refuses other words", function()
    assert.raises("invalid", "GPT: checkpoint is false, true .* or 'auto'", function()
      nn.GPT { vocab = 4, context = 4, layers = 1, heads = 1, width = 4, checkpoint = "some" }
    end)
  end)
end)
