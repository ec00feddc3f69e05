--- Scaled gradients: in which order they are unscaled and clipped; training as in float32; any order of calls is either the
-- cycle or refused.

local luda = require "luda"
local helper = require "spec.helper"

local nn, optim = luda.nn, luda.optim
local Gradients = luda.autograd.Gradients

local seed = tonumber(os.getenv("LUDA_SEED")) or os.time()

local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype or "f32" }):requires_grad_()
end

local gradients = helper.gradients

--- One cycle over gradients made by hand.
local function cycle(scaler, opt, lr, grads)
  scaler:scale(luda.ones(1))
  local report = scaler:step(opt, lr, grads)
  scaler:update()
  return report
end

describe("scaled gradients", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are clipped by their true size, by the optimizer and by hand", function()
    for _, true_gradient in ipairs { { 0.3, 0.4 }, { 3, 4 } } do
      local norm = true_gradient[2] / 0.8
      local factor = math.min(1, 1 / norm)
      local want = { -true_gradient[1] * factor, -true_gradient[2] * factor }
      local scaled = { true_gradient[1] * 1024, true_gradient[2] * 1024 }
      for _, options in ipairs { { max_grad_norm = 1 }, { clip = { norm = 1 } } } do
        local p = leaf { 0, 0 }
        local report = cycle(optim.GradScaler { init_scale = 1024 }, optim.SGD({ p }, options), 1, gradients { p, scaled })
        assert.tensor_near(want, p, 1e-6, 0)
        assert.near(norm, report.grad_norm, 1e-6)
      end
      local p = leaf { 0, 0 }
      local scaler, opt, grads = optim.GradScaler { init_scale = 1024 }, optim.SGD { p }, gradients { p, scaled }
      scaler:scale(luda.ones(1))
      assert.equal(grads, scaler:unscale_(grads))
      assert.near(norm, grads:clip_norm_(1), 1e-6)
      assert.raises("invalid", "unscale_: step", scaler.unscale_, scaler, grads)
      local report = scaler:step(opt, 1, grads)
      assert.tensor_near(want, p, 1e-6, 0)
      assert.near(norm * factor, report.grad_norm, 1e-6)
      assert.equal(1024, scaler:update())
    end
  end)

  it("that are unscaled by hand are new tensors, wide enough for what half types lose", function()
    for _, dtype in ipairs { "f16", "bf16", "f32", "f64" } do
      local p = leaf({ 0, 0 }, dtype)
      local given = luda.tensor({ 2 ^ -14, -3 }, { dtype = dtype })
      local scaler, grads = optim.GradScaler {}, Gradients()
      grads:register(p, given)
      scaler:scale(luda.ones(1))
      scaler:unscale_(grads)
      assert.same({ 2 ^ -30, -3 / 65536 }, grads[p]:totable()) -- 2^-30 is no f16
      assert.equal(dtype == "f64" and "f64" or "f32", grads[p].dtype)
      assert.same({ 2 ^ -14, -3 }, given:totable())
    end
    -- what is not finite stays so, and the step is skipped
    local p = leaf { 1, 2 }
    local scaler, grads = optim.GradScaler {}, gradients { p, { math.huge, 1 } }
    scaler:scale(luda.ones(1))
    scaler:unscale_(grads)
    assert.is_true(scaler:step(optim.SGD { p }, 1, grads).skipped)
    assert.equal(32768, scaler:update())
    assert.same({ 1, 2 }, p:totable())
  end)

  it("multiply a scale of the optimizer's own", function()
    local p = leaf { 0 }
    local opt = optim.SGD({ p }, { gradient_scale = 16 })
    cycle(optim.GradScaler { init_scale = 8 }, opt, 1, gradients { p, { -32 } })
    assert.equal(0.25, p:item())
    assert.equal(16, opt:gradient_scale())
    opt:set_gradient_scale(2)
    cycle(optim.GradScaler { init_scale = 8 }, opt, 1, gradients { p, { 16 } })
    assert.same({ -0.75, 2 }, { p:item(), opt:gradient_scale() })
  end)

  it("keep what float16 loses in backward", function()
    -- y = f16(a w), loss = 2^-16 y: the gradient of y, 2^-16, times a = 2^-10 is 2^-26, below f16's smallest number
    local function gradient(scaler)
      local w = leaf { { 1 } }
      local opt = optim.SGD { w }
      luda.scope(function()
        local loss = luda.autocast({ dtype = "f16" }, luda.matmul, luda.tensor { { 2 ^ -10 } }, w):to("f32"):sum() * 2 ^ -16
        local grads = (scaler and scaler:scale(loss) or loss):backward()
        return scaler and scaler:step(opt, 2 ^ 20, grads) or opt:step(2 ^ 20, grads)
      end)
      return 1 - w:item()
    end
    assert.equal(0, gradient(nil))
    assert.equal(2 ^ -6, gradient(optim.GradScaler { init_scale = 2 ^ 12 }))
    assert.equal(0, gradient(optim.GradScaler { enabled = false }))
  end)

  it("of several micro-batches are one step", function()
    local layer = nn.Linear(2, 1):to_dtype("f16")
    local start = layer.weight:to("f32"):detach()
    local opt = optim.SGD(layer, { fp32_master = true })
    local scaler, sums = optim.GradScaler { init_scale = 4096 }, optim.Accumulator(layer)
    local rows = { { { 1, 2 }, { -0.5, 1 } }, { { 0.25, -1 } } }
    for _, x in ipairs(rows) do
      luda.scope(function()
        local loss = layer(luda.tensor(x, { dtype = "f16" })):to("f32"):sum() * (1 / #x)
        sums:accumulate(scaler:scale(loss):backward(), { weight = #x, dtype = "f32" })
      end)
    end
    scaler:step(opt, 0.5, sums:grads { mean = true })
    scaler:update()
    -- the mean of the three rows, (0.25, 2 / 3)
    local want = start - luda.tensor { { 0.25 }, { 2 / 3 } } * 0.5
    assert.tensor_near(want, opt:state().master.weight, 1e-6, 1e-6)
  end)
end)

--- Losses of a small GPT over some steps, each in two pieces.
local function train(steps, way)
  luda.manual_seed(5)
  local model = nn.GPT { vocab = 17, context = 16, layers = 2, heads = 2, width = 16, dropout = 0 }
  if way.dtype then
    model:to_dtype(way.dtype)
  end
  local opt = optim.AdamW(model, { max_grad_norm = 1, fp32_master = true })
  local scaler = way.scale and optim.GradScaler { init_scale = way.scale, growth_interval = 100 } or nil
  local sums = optim.Accumulator(model)
  local x = luda.randint(1, 18, { 6, 16 })
  local losses, skipped = {}, 0
  for step = 1, steps do
    luda.scope(function()
      losses[step] = sums:run({ x, x }, { size = 4, scaler = scaler, dtype = "f32" }, function(a, b)
        if way.autocast then
          return luda.autocast({ dtype = way.autocast }, model, a, b)
        end
        return nn.cross_entropy(model(a):to("f32"), b)
      end)
      local grads = sums:grads { mean = true }
      if scaler then
        skipped = skipped + (scaler:step(opt, 1e-2, grads).skipped and 1 or 0)
        scaler:update()
      else
        opt:step(1e-2, grads)
      end
    end)
  end
  return losses, skipped, scaler and scaler:get_scale()
end

describe("a GPT", function()
  before_each(helper.before)
  after_each(helper.after)

  local wide

  for _, way in ipairs {
    { name = "autocast to float16", autocast = "f16", scale = 2 ^ 14 },
    { name = "in float16 with masters", dtype = "f16", scale = 2 ^ 14 },
    { name = "in bfloat16 with masters, not scaled", dtype = "bf16" },
  } do
    it(way.name .. " learns as in float32", function()
      wide = wide or train(25, {})
      assert.is_true(wide[25] < 0.4 * wide[1])
      local losses, skipped = train(25, way)
      assert.equal(0, skipped)
      for step = 1, 25 do
        assert.near(wide[step], losses[step], 0.05 * wide[1], "step " .. step)
      end
    end)
  end

  it("finds its scale from far above, and learns then", function()
    local losses, skipped, scale = train(40, { autocast = "f16", scale = 2 ^ 24 })
    assert.is_true(skipped >= 3 and skipped <= 12, skipped .. " steps were skipped")
    assert.equal(2 ^ (24 - skipped), scale)
    for step = 1, 3 do
      assert.equal(losses[1], losses[step])
    end
    assert.is_true(losses[40] < 0.4 * losses[1])
  end)
end)

describe("scaled training", function()
  before_each(helper.before)
  after_each(helper.after)

  it("holds on to nothing", function()
    local model = nn.Linear(3, 2):to_dtype("f16")
    local opt = optim.AdamW(model, { fp32_master = true })
    local scaler, sums, ema = optim.GradScaler { init_scale = 2 ^ 10 }, optim.Accumulator(model), optim.EMA(model, 0.9)
    local x = luda.randn(7, 3):to("f16")
    local function steps(count)
      for step = 1, count do
        luda.scope(function()
          for _ = 1, 2 do
            sums:run(x, { size = 2, scaler = scaler, dtype = "f32" }, function(v)
              return model(v):to("f32"):square():mean()
            end)
          end
          local grads = sums:grads { mean = true }
          if step % 2 == 0 then
            scaler:unscale_(grads):clip_norm_(1)
          end
          scaler:step(opt, 1e-3, grads)
          scaler:update()
          ema:update(opt)
          ema:load_state(ema:state())
        end)
      end
    end
    steps(3)
    helper.no_leak(steps, 40)
    x:release()
  end)
end)

describe("calls in any order (seed " .. seed .. ")", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are the cycle, or refused without a trace", function()
    local draw = luda.generator(seed)
    local choices = luda.randint(1, 7, { 400 }, { generator = draw }):totable()
    local p = luda.zeros(1, { dtype = "f64" }):requires_grad_()
    local opt, scaler = optim.SGD { p }, optim.GradScaler { init_scale = 4, growth_interval = 2 }
    local grads, loss = Gradients(), luda.ones(1)
    -- the model: what is expected next, how often it went well, and what the parameter and the scale must be
    local place, good, value, scale = "between", 0, 0, 4
    local function fill(factor)
      grads:register(p, luda.tensor({ -factor }, { dtype = "f64" }))
    end
    local calls = {
      function() return scaler:scale(loss) end,
      function() return scaler:step(opt, 1, grads) end,
      function() return scaler:update() end,
      function() return scaler:unscale_(grads) end,
      function() return scaler:state() end,
      function() return scaler:load_state { scale = scale, good = good } end,
    }
    local allowed = {
      between = { [1] = true, [5] = true, [6] = true }, scaled = { [1] = true, [2] = true, [4] = true },
      unscaled = { [2] = true }, stepped = { [3] = true },
    }
    local done = 0
    for number, choice in ipairs(choices) do
      if place == "scaled" and choice ~= 1 then
        fill(scale) -- gradients of a loss whose true gradient is -1
      end
      local ok = pcall(calls[choice])
      assert.equal(allowed[place][choice] or false, ok, ("call %d: %d when %s"):format(number, choice, place))
      if ok and choice == 1 then
        place = "scaled"
      elseif ok and choice == 4 then
        place = "unscaled"
        assert.equal(-1, grads[p]:item())
      elseif ok and choice == 2 then
        place, value = "stepped", value + 1
      elseif ok and choice == 3 then
        place, good, done = "between", (good + 1) % 2, done + 1
        scale = good == 0 and math.min(scale * 2, 2 ^ 24) or scale
      end
      assert.same({ value, scale, 1 }, { p:item(), scaler:get_scale(), opt:gradient_scale() })
    end
    assert.is_true(done >= 10)
  end)
end)
