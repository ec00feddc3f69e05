--- An update is one pass over all parameters: what it gives is what the same steps one after the other give.

local luda = require "luda"
local helper = require "spec.helper"
local twin = require "spec.optim_twin"

local nn, optim = luda.nn, luda.optim
local Gradients = luda.autograd.Gradients
local inf = math.huge

local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype or "f32" }):requires_grad_()
end

local function register(parameters, tensors)
  local grads = Gradients()
  for i, p in ipairs(parameters) do
    grads:register(p, tensors[i])
  end
  return grads
end

local shapes = { { 3, 5 }, {}, { 0, 2 }, { 1023 }, { 129, 67 }, { 7 } }

--- Parameters of these shapes, and gradients for two steps.
local function drawn(seed, dtype)
  luda.manual_seed(seed)
  local parameters, first, second = {}, {}, {}
  for i, shape in ipairs(shapes) do
    parameters[i] = luda.randn(shape):to(dtype):requires_grad_()
    first[i], second[i] = luda.randn(shape):to(dtype), luda.randn(shape):to(dtype) * 3
  end
  return parameters, { first, second }
end

describe("one pass over all parameters", function()
  before_each(helper.before)
  after_each(helper.after)

  it("gives the bits of a pass for each", function()
    for _, dtype in ipairs { "f32", "f16", "bf16", "f64" } do
      for _, options in ipairs { { amsgrad = true, weight_decay = 0.1 }, { cautious = true, clip = { norm = 2 } } } do
        luda.scope(function()
          options.fp32_master = true
          local together, steps = drawn(5, dtype)
          local alone = drawn(5, dtype)
          local opt, each = optim.AdamW(together, options), {}
          for i, p in ipairs(alone) do
            each[i] = optim.AdamW({ p }, options)
          end
          for _, list in ipairs(steps) do
            opt:step(0.01, register(together, list))
            for i, p in ipairs(alone) do
              each[i]:step(0.01, register({ p }, { list[i] }))
            end
          end
          for i, p in ipairs(together) do
            assert.is_true(p:detach():equal(alone[i]:detach()), dtype .. " " .. i)
            assert.is_true(opt:state().exp_avg_sq[tostring(i)]:equal(each[i]:state().exp_avg_sq["1"]))
          end
        end)
      end
    end
  end)

  it("unscales, clips and updates as the three steps by themselves do", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "AdaGrad", "RMSProp", "Adan" } do
      luda.scope(function()
        local fused, steps = drawn(6, "f64")
        local staged = drawn(6, "f64")
        local a = optim[name](fused, { max_grad_norm = 1.5, gradient_scale = 48 })
        local b = optim[name](staged, {})
        for _, list in ipairs(steps) do
          local scaled = {}
          for i, g in ipairs(list) do
            scaled[i] = g * 48
          end
          local report = a:step(0.02, register(fused, scaled))
          local grads = register(staged, list)
          local norm = grads:clip_norm_(1.5)
          b:step(0.02, grads)
          assert.near(norm, report.grad_norm, 1e-12 * norm)
          assert.near(1.5 / norm, report.clip_coef, 1e-14)
        end
        for i, p in ipairs(fused) do
          assert.tensor_near(staged[i], p, 1e-12, 1e-13, name)
        end
      end)
    end
  end)

  it("leaves gradients below the limit as they are, to the bit", function()
    for _, options in ipairs { { max_grad_norm = 1e3 }, { clip = { norm = 1e3 } }, { clip = { value = 1e3 } } } do
      luda.scope(function()
        local clipped, steps = drawn(7, "f32")
        local plain = drawn(7, "f32")
        local a, b = optim.Adam(clipped, options), optim.Adam(plain)
        for _, list in ipairs(steps) do
          assert.equal(1, a:step(0.1, register(clipped, list)).clip_coef)
          b:step(0.1, register(plain, list))
        end
        for i, p in ipairs(clipped) do
          assert.is_true(p:detach():equal(plain[i]:detach()))
        end
        local grads, before = register(clipped, steps[1]), {}
        for i in ipairs(clipped) do
          before[i] = steps[1][i]:clone()
        end
        grads:clip_norm_(1e3)
        for i, p in ipairs(clipped) do
          assert.is_true(grads[p]:equal(before[i]))
        end
      end)
    end
  end)
end)

describe("the norm of all gradients", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is right where squares overflow or vanish", function()
    for _, row in ipairs {
      { "f32", { 3e30, -4e30 }, 5e30 }, { "f32", { 3e-30, -4e-30 }, 5e-30 }, { "f16", { 48000, -36000 }, 60000 },
      { "f64", { 3e300, -4e300 }, 5e300 }, { "bf16", { 3 * 2 ^ 120, -2 ^ 122 }, 5 * 2 ^ 120 },
      { "f16", { 3 * 2 ^ -24, 2 ^ -22 }, 5 * 2 ^ -24 },
    } do
      local p = leaf({ 0, 0 }, row[1])
      local opt = optim.SGD({ p }, { max_grad_norm = 5 })
      local report = opt:step(1, register({ p }, { luda.tensor(row[2], { dtype = row[1] }) }))
      assert.is_false(report.skipped)
      assert.near(row[3], report.grad_norm, 1e-6 * row[3])
      local factor = math.min(1, 5 / row[3])
      assert.tensor_near({ -row[2][1] * factor, -row[2][2] * factor }, p, row[1] == "bf16" and 2 ^ -8 or 2 ^ -10, 0)
    end
  end)

  it("is that of a float64 sum over many tensors and long ones, of any number of threads", function()
    luda.scope(function()
      local parameters, tensors, sum = {}, {}, 0
      for i = 1, 1500 do
        local values = {}
        for k = 1, i % 7 do
          values[k] = twin.noise(i, k)
          sum = sum + values[k] ^ 2
        end
        parameters[i] = luda.zeros(#values, { dtype = "f64" }):requires_grad_()
        tensors[i] = luda.tensor(values, { dtype = "f64" })
      end
      local long = luda.full({ 1025 * 64 + 3 }, 0.5, { dtype = "f64" }) -- more parts than one level of a tree has
      parameters[1501], tensors[1501] = luda.zeros(long.shape, { dtype = "f64" }):requires_grad_(), long
      sum = sum + long.numel * 0.25
      local norms = {}
      for _, threads in ipairs { 1, 2 } do
        luda.set_threads(threads)
        norms[threads] = optim.SGD(parameters):step(0, register(parameters, tensors)).grad_norm
      end
      assert.near(math.sqrt(sum), norms[1], 1e-12 * math.sqrt(sum))
      assert.equal(norms[1], norms[2])
    end)
  end)
end)

describe("steps of training", function()
  before_each(helper.before)
  after_each(helper.after)

  it("of a linear layer by the square of its error are as by hand", function()
    -- x is the unit matrix, the targets 2 and -3, the weights 0: the loss is (4 + 9) / 2, its gradient (-2, 3)
    local layer = nn.Linear(2, 1, { bias = false }):to_dtype("f64")
    luda.no_grad(layer.weight.zero_, layer.weight)
    local x, y = luda.eye(2, { dtype = "f64" }), luda.tensor({ { 2 }, { -3 } }, { dtype = "f64" })
    local opt = optim.SGD(layer)
    local loss = nn.mse_loss(layer(x), y)
    assert.equal(6.5, loss:item())
    opt:step(0.1, loss:backward())
    assert.tensor_near({ { 0.2 }, { -0.3 } }, layer.weight, 1e-15, 0)
    assert.near((1.8 ^ 2 + 2.7 ^ 2) / 2, nn.mse_loss(layer(x), y):item(), 1e-12)
  end)

  it("go on for long without states that are lost or not numbers", function()
    for _, row in ipairs {
      { "Adam", { beta1 = 0.9, beta2 = 0.999, eps = 1e-8, amsgrad = true }, { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" } },
      { "AdamW", { beta1 = 0.9, beta2 = 0.99, eps = 1e-5, weight_decay = 0.1, amsgrad = true },
        { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" } },
      { "RMSProp", { alpha = 0.9, eps = 1e-6, momentum = 0.9, centered = true }, nil },
      { "RMSProp", { alpha = 0.9, eps = 1e-6, momentum = 0.9, centered = false }, nil },
      { "RMSProp", { alpha = 0.9, eps = 1e-6, momentum = 0, centered = true }, nil },
      { "RMSProp", { alpha = 0.9, eps = 1e-6, momentum = 0, centered = false }, nil },
    } do
      local name, options, states = unpack(row)
      local p = leaf({ 1, -2, 0.5 }, "f64")
      local opt = optim[name]({ p }, options)
      assert.same({}, opt:state().steps)
      local function gradient(step, i)
        return step % 10 == 0 and 0 or twin.noise(step, i) * (i == 3 and 1e-9 or 1)
      end
      local right = twin.run(twin[name], options, 0.01, { 1, -2, 0.5 }, 50, gradient)
      local count
      for step = 1, 50 do
        local g = luda.tensor({ gradient(step, 1), gradient(step, 2), gradient(step, 3) }, { dtype = "f64" })
        opt:step(0.01, register({ p }, { g }))
        assert.tensor_near(right[step], p, 1e-12, 1e-12)
        local names = {}
        for key, value in pairs(opt:state()) do
          if type(value) == "table" and luda.is_tensor(value["1"]) then
            names[#names + 1] = key
            assert.is_true(value["1"]:isfinite():all():item())
          end
        end
        assert.equal(count or #names, #names)
        count = #names
        table.sort(names)
        assert.same(states or names, names)
      end
      assert.equal(50, opt:steps "1")
    end
  end)

  it("are skipped by all ranks where one overflowed", function()
    local job = { steps = 6, bad = { [2] = 0, [5] = 1 } }
    local seen = luda.dist.spawn(2, "spec/work/scaled.lua", job, { timeout = 60 })
    local want = { { false, 256 }, { true, 128 }, { false, 128 }, { false, 256 }, { true, 128 }, { false, 128 } }
    for rank = 1, 2 do
      for step, row in ipairs(want) do
        assert.same({ skipped = row[1], scale = row[2] }, seen[rank].seen[step])
      end
      assert.same(seen[1].master, seen[rank].master)
      assert.is_true(seen[rank].weight[1][1] < 0.5 and seen[rank].weight[1][1] > -inf)
    end
  end)
end)
