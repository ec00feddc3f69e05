--- Autocast: which types come out, gradients of f32 parameters, and the rounded copy of a parameter that is made once.

local luda = require "luda"
local lib = require "luda.ffi"
local helper = require "spec.helper"
local nn, optim = luda.nn, luda.optim

local C = lib.C

local function runs(op)
  return tonumber(C.luda_op_runs(C["LUDA_OP_" .. op]))
end

--- How many casts fn() ran.
local function casts(fn, ...)
  local before = runs "to"
  fn(...)
  return runs "to" - before
end

local function in_place(fn, ...)
  return luda.no_grad(fn, ...)
end

describe("autocast", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is on inside, off outside, nests, and comes back after an error", function()
    assert.is_nil(luda.autocast_dtype())
    local seen = { luda.autocast(function(...)
      local inner = luda.autocast({ dtype = "f16" }, luda.autocast_dtype)
      local off = luda.autocast({ enabled = false }, function() return luda.autocast_dtype() or "off" end)
      assert.raises("invalid", "stop", luda.autocast, { dtype = "f16" }, function()
        require("luda.error").raise("invalid", "stop")
      end)
      return luda.autocast_dtype(), inner, off, ...
    end, 7, nil, 8) }
    assert.same({ "bf16", "f16", "off", 7, nil, 8 }, seen)
    assert.has_error(function() luda.autocast(error, "inside") end)
    assert.is_nil(luda.autocast_dtype())
    assert.raises("dtype", "it is to bf16 or f16", luda.autocast, { dtype = "f32" }, print)
    assert.raises("invalid", "unknown option 'type'", luda.autocast, { type = "f16" }, print)
    assert.raises("invalid", "must be a function", luda.autocast, 5)
    assert.raises("invalid", "must be a function", luda.autocast, { dtype = "f16" })
  end)

  it("gives products in the low type, what needs range in f32, and leaves the others", function()
    luda.scope(function()
      local x, half, double = luda.randn(2, 3), luda.randn(2, 3):to("f16"), luda.randn(2, 3):to("f64")
      local labels = luda.tensor({ 1, 3 }, { dtype = "i64" })
      for _, low in ipairs { "bf16", "f16" } do
        luda.autocast({ dtype = low }, function()
          assert.equal(low, luda.matmul(x, x:transpose(1, 2)).dtype)
          assert.equal(low, luda.matmul(half, x:transpose(1, 2)).dtype)
          assert.equal("f64", luda.matmul(double, x:transpose(1, 2)).dtype)
          assert.equal(low, luda.scaled_dot_product_attention(x, x, half).dtype)
          for _, name in ipairs { "exp", "log", "sum", "mean", "softmax", "log_softmax", "layer_norm", "rsqrt", "reciprocal" } do
            assert.equal("f32", luda[name](half).dtype, name)
            assert.equal("f32", luda[name](x).dtype, name)
            assert.equal("f64", luda[name](double).dtype, name)
          end
          assert.equal("f32", luda.pow(half, half).dtype)
          assert.equal("f32", nn.cross_entropy(half, labels).dtype)
          assert.equal("f32", nn.nll_loss(half, labels).dtype)
          for _, loss in ipairs { "mse_loss", "l1_loss", "bce_with_logits" } do
            assert.equal("f32", nn[loss](half, half, { reduction = "none" }).dtype, loss)
          end
          assert.equal("f16", (half + half).dtype)
          assert.equal("f32", (half + x).dtype)
          assert.equal("f16", luda.relu(half).dtype)
          assert.equal("i64", luda.sum(labels).dtype)
          assert.equal("f32", luda.matmul(x, luda.eye(3), { out = luda.zeros(2, 3) }).dtype)
          assert.equal("f16", half:clone():exp_().dtype)
        end)
      end
      assert.equal("f32", luda.matmul(x, x:transpose(1, 2)).dtype)
    end)
  end)

  it("keeps out= and in-place forms as they are without it", function()
    luda.scope(function()
      local a = luda.tensor { { 1 + 2 ^ -12 } } -- bf16 has 8 bits
      luda.autocast(function()
        assert.equal(1 + 2 ^ -12, luda.matmul(a, luda.ones(1, 1), { out = luda.zeros(1, 1) }):item())
        assert.equal(1, luda.matmul(a, luda.ones(1, 1)):item())
      end)
    end)
  end)

  it("has f32 gradients, within bf16's rounding of the double ones", function()
    luda.scope(function()
      luda.manual_seed(2)
      local x, w, v = luda.randn(5, 7), luda.randn(7, 6) * 0.5, luda.randn(6, 3) * 0.5
      local function loss(a, b, c)
        return (luda.tanh(luda.matmul(a, b)):matmul(c)):to("f32"):square():mean()
      end
      w:requires_grad_()
      v:requires_grad_()
      local l = luda.autocast(loss, x, w, v)
      assert.equal("f32", l.dtype)
      local grads = l:backward()
      local W, V = w:detach():to("f64"):requires_grad_(), v:detach():to("f64"):requires_grad_()
      local right = (luda.tanh(luda.matmul(x:to("f64"), W)):matmul(V)):square():mean():backward()
      for low, double in pairs { [w] = W, [v] = V } do
        assert.equal("f32", grads[low].dtype)
        local size = right[double]:abs():amax():item()
        local off = (grads[low]:to("f64") - right[double]):abs():amax():item()
        assert.is_true(off < 8 * 2 ^ -8 * size, ("off by %g of %g"):format(off, size))
        assert.is_true(off > 2 ^ -20 * size) -- it was rounded at all
      end
    end)
  end)

  it("runs backward without it, also what is written in Lua", function()
    luda.scope(function()
      local seen
      local twice = luda.autograd.Function {
        forward = function(_, x) return x * 2 end,
        backward = function(_, g)
          seen = { luda.autocast_dtype() or "off", luda.matmul(g, g:transpose(1, 2)).dtype }
          return g * 2
        end,
      }
      local w = luda.randn(2, 2):requires_grad_()
      local hooked
      luda.autocast(function()
        local y = twice(w)
        y:register_hook(function() hooked = luda.autocast_dtype() or "off" end)
        y:sum():backward()
        assert.equal("bf16", luda.autocast_dtype())
      end)
      assert.same({ "off", "f32" }, seen)
      assert.equal("off", hooked)
    end)
  end)

  it("has second derivatives", function()
    luda.scope(function()
      local w, x = luda.tensor({ { 0.5, -1 }, { 2, 0.25 } }):requires_grad_(), luda.tensor { { 1, 2 }, { -1, 0.5 } }
      local loss = luda.autocast(function()
        local y = luda.matmul(x, w)
        return (y * y * y):sum()
      end)
      local first = luda.autograd.grad(loss, { w }, { create_graph = true })[1]
      assert.equal("f32", first.dtype)
      local y = luda.matmul(x, w:detach()) -- dL/dw = x' 3 y^2, and the derivative of its sum is x' (6 y (x 1))
      assert.tensor_near(luda.matmul(x:transpose(1, 2), y:square() * 3), first, 2 ^ -7, 1e-6)
      local second = luda.autograd.grad(first:sum(), { w })[1]
      assert.equal("f32", second.dtype)
      local columns = x:sum(2):unsqueeze(2)
      assert.tensor_near(luda.matmul(x:transpose(1, 2), y * columns * 6), second, 2 ^ -6, 1e-6)
    end)
  end)
end)

describe("the rounded copy of a parameter", function()
  before_each(helper.before)
  after_each(helper.after)

  --- A parameter, an input in bf16 already, and the product of both under autocast.
  local function product(shape)
    local w = luda.keep(luda.randn(shape)):requires_grad_()
    local x = luda.keep(luda.ones(1, shape[1]):to("bf16"))
    return w, x, function()
      return luda.autocast(luda.matmul, x, w)
    end
  end

  --- The copy: rows of the unit matrix pick it out.
  local function copy_of(w)
    return luda.autocast(luda.matmul, luda.eye(w:size(1)):to("bf16"), w)
  end

  it("is made once, with and without recording, through views, and in each region", function()
    luda.scope(function()
      local w, x, multiply = product { 4, 3 }
      assert.equal(1, casts(multiply))
      assert.equal(0, casts(multiply))
      assert.equal(0, casts(luda.no_grad, multiply))
      luda.autocast(function()
        local y = luda.ones(2, 3):to("bf16")
        assert.equal(0, casts(luda.matmul, y, w:transpose(1, 2)))
        assert.equal(0, casts(luda.matmul, x, w:narrow(2, 2, 2)))
        assert.tensor_near(w:detach():transpose(1, 2):to("bf16"):sum(1), luda.matmul(y, w:transpose(1, 2))[1], 2 ^ -7, 0.05)
      end)
      assert.equal(1, casts(luda.autocast, { dtype = "f16" }, luda.matmul, x:to("f16"), w))
      local plain = luda.randn(4, 3)
      assert.equal(1, casts(luda.autocast, luda.matmul, x, plain))
      assert.equal(1, casts(luda.autocast, luda.matmul, x, plain)) -- not a parameter: no copy is kept
      w:release()
      x:release()
    end)
  end)

  it("follows changes by hand, and leaves recorded graphs what they saw", function()
    luda.scope(function()
      local w, x, multiply = product { 2, 2 }
      local g = luda.tensor({ { 1, -2 } }, { dtype = "bf16" })
      in_place(w.copy_, w, luda.tensor { { 1, 2 }, { 3, 4 } })
      local before = multiply()
      in_place(w.mul_, w, 2)
      assert.equal(1, casts(multiply))
      assert.tensor_near({ { 8, 12 } }, multiply():to("f32"), 0, 0)
      local y = luda.tensor({ { 5, 6 } }):requires_grad_()
      local z = luda.autocast(luda.matmul, y, w)
      in_place(w.mul_, w, 0)
      assert.tensor_near({ { 2 - 2 * 4, 6 - 2 * 8 } }, z:backward({ gradient = g })[y], 0, 0)
      assert.tensor_near({ { 1, -2 }, { 1, -2 } }, before:backward({ gradient = g })[w], 0, 0)
      assert.tensor_near({ { 0, 0 } }, multiply():to("f32"), 0, 0)
      w:release()
      x:release()
    end)
  end)

  it("adds the gradients of tied uses in f32", function()
    luda.scope(function()
      local w = luda.tensor({ { 1 } }):requires_grad_()
      luda.autocast(function()
        local a, b = luda.tensor { { 1 } }, luda.tensor { { 2 ^ -9 } } -- their sum is no bf16
        local y = luda.matmul(a, w) * 1 + luda.matmul(b, w):to("f32")
        assert.equal(1 + 2 ^ -9, y:sum():backward()[w]:item())
      end)
    end)
  end)

  it("is renewed by the optimizer, to the bit, in one pass", function()
    luda.scope(function()
      for _, name in ipairs { "SGD", "Adam", "AdamW", "AdaGrad", "RMSProp", "Adan" } do
        for _, dtype in ipairs { "bf16", "f16" } do
          local w = luda.randn(63, 67):requires_grad_()
          local opt = optim[name]({ w }, name == "SGD" and { momentum = 0.9 } or {})
          local unit = luda.eye(63):to(dtype)
          local function loss()
            return luda.autocast({ dtype = dtype }, luda.matmul, unit, w)
          end
          local grads = loss():to("f32"):square():sum():backward()
          assert.equal(0, casts(opt.step, opt, 0.01, grads))
          local copy
          assert.equal(0, casts(function() copy = loss() end), name)
          assert.is_true(copy:equal(w:detach():to(dtype)), name .. " " .. dtype)
          opt:step(0.01, grads)
          assert.is_true(loss():equal(w:detach():to(dtype)), name .. " " .. dtype)
        end
      end
    end)
  end)

  it("goes when no forward used it since the last step, and with the parameter", function()
    local w, x, multiply = product { 256, 256 }
    local opt = optim.SGD { w }
    local grads = luda.scope(function()
      return (w * 1):sum():backward()
    end)
    local before = helper.live_bytes()
    luda.scope(multiply)
    assert.equal(before + 256 * 256 * 2, helper.live_bytes())
    opt:step(0.1, grads)
    assert.equal(before + 256 * 256 * 2, helper.live_bytes())
    opt:step(0.1, grads)
    assert.equal(before, helper.live_bytes())
    luda.scope(multiply)
    w:release()
    grads:release()
    opt, grads = nil, nil -- luacheck: ignore
    x:release()
    assert.equal(before - 2 * 256 * 256 * 4 - 256 * 2, helper.live_bytes()) -- w, its gradient, and x
  end)

  it("a step that is skipped leaves it", function()
    luda.scope(function()
      local w, x, multiply = product { 3, 2 }
      local opt = optim.AdamW { w }
      multiply()
      local grads = luda.autograd.Gradients()
      grads:register(w, luda.full({ 3, 2 }, math.huge))
      assert.is_true(opt:step(0.1, grads).skipped)
      assert.equal(0, casts(multiply))
      assert.is_true(copy_of(w):equal(w:detach():to("bf16")))
      w:release()
      x:release()
    end)
  end)

  it("does not let backward see newer values than forward did", function()
    luda.scope(function()
      local w = luda.randn(2, 2):requires_grad_()
      local x = luda.randn(2, 2):requires_grad_()
      local y = luda.autocast(luda.matmul, x, w)
      local grads = luda.autograd.Gradients()
      grads:register(w, luda.ones(2, 2))
      optim.SGD({ w }):step(0.1, grads)
      assert.raises("graph", "changed in place", function() y:to("f32"):sum():backward() end)
    end)
  end)
end)

describe("a GPT under autocast", function()
  before_each(helper.before)
  after_each(helper.after)

  local function train(steps, around)
    luda.manual_seed(5)
    local model = nn.GPT { vocab = 17, context = 16, layers = 2, heads = 2, width = 16, dropout = 0 }
    local opt = optim.AdamW(model, { max_grad_norm = 1 })
    local x = luda.randint(1, 18, { 4, 16 })
    local losses, counts = {}, {}
    for step = 1, steps do
      luda.scope(function()
        counts[step] = casts(function()
          local loss = around(model, x, x)
          losses[step] = loss:item()
          opt:step(1e-2, loss:backward())
        end)
      end)
    end
    for _, parameter in ipairs(model:parameters()) do
      assert.equal("f32", parameter.dtype)
    end
    return losses, counts
  end

  it("learns as in f32, and casts no parameter after the first step", function()
    local wide = train(20, function(model, ...) return model(...) end)
    local low, counts = train(20, function(model, ...) return luda.autocast(model, ...) end)
    assert.is_true(wide[20] < 0.5 * wide[1])
    for step = 1, 20 do
      assert.near(wide[step], low[step], 0.05 * wide[1], "step " .. step)
    end
    assert.is_true(low[3] ~= wide[3])
    -- two layers of four matrices with their biases, and the head, which is tied to the embedding
    assert.equal(17, counts[1] - counts[2])
    for step = 3, 20 do
      assert.equal(counts[2], counts[step])
    end
  end)
end)
