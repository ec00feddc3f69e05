--- The scaling of losses: its cycle, its limits, what a skipped step leaves alone, and its state.

local luda = require "luda"
local helper = require "spec.helper"

local optim, record = luda.optim, luda.record
local Gradients = luda.autograd.Gradients
local nan, inf = 0 / 0, math.huge

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

local seed = tonumber(os.getenv("LUDA_SEED")) or os.time()

describe("a scaler", function()
  before_each(helper.before)
  after_each(helper.after)

  it("names what was skipped in its cycle", function()
    local p = leaf { 1 }
    local opt, grads, loss = optim.SGD { p }, gradients { p, { 1 } }, luda.ones(1)
    local step = "step%(optimizer, rate, grads%) was skipped; the cycle is scale%(loss%) for each micro%-batch, step"
    local scaler = optim.GradScaler {}
    local function refuses(text, method, ...)
      assert.raises("invalid", method .. ": " .. text, scaler[method], scaler, ...)
    end
    for _ = 1, 2 do
      refuses("scale%(loss%) was skipped", "step", opt, 0, grads)
      refuses("scale%(loss%) was skipped", "update")
      refuses("scale%(loss%) was skipped", "unscale_", grads)
      scaler:scale(loss)
      scaler:scale(loss)
      refuses(step, "update")
      refuses(step, "state")
      scaler:unscale_(gradients { p, { 1 } }) -- of another window, to be refused below
      refuses(step, "unscale_", grads)
      refuses(step, "scale", loss)
      refuses("these are not the gradients that unscale_ was called with", "step", opt, 0, grads)
      scaler = optim.GradScaler {}
      scaler:scale(loss)
      scaler:step(opt, 0, grads)
      refuses("update%(%) was skipped", "step", opt, 0, grads)
      refuses("update%(%) was skipped", "step", optim.SGD { p }, 0, grads)
      refuses("update%(%) was skipped", "scale", loss)
      refuses("update%(%) was skipped", "unscale_", grads)
      refuses("update%(%) was skipped", "state")
      scaler:update()
    end
  end)

  it("refuses what it cannot scale or step, and stays where it was", function()
    local p = leaf { 1 }
    local opt, scaler = optim.SGD { p }, optim.GradScaler {}
    assert.raises("invalid", "expected a loss of one element, got a tensor of shape %[2%]", scaler.scale, scaler, luda.ones(2))
    assert.raises("invalid", "expected a loss of one element, got 3", scaler.scale, scaler, 3)
    assert.raises("dtype", "the loss is f16, it must be f32 %(or f64%); convert it first", scaler.scale, scaler,
      luda.ones(1, { dtype = "f16" }))
    assert.equal("f64", scaler:scale(luda.ones(1, 1, { dtype = "f64" })).dtype)
    assert.raises("invalid", "there are no gradients", scaler.step, scaler, opt, 1, Gradients())
    assert.raises("invalid", "there are no gradients", scaler.unscale_, scaler, Gradients())
    assert.raises("unsupported", "closures have no scaled step", scaler.step, scaler, opt, 1, function() end)
    assert.raises("invalid", "expected gradients, as backward returns them, got a table", scaler.step, scaler, opt, 1, { p })
    assert.raises("invalid", "expected an optimizer that takes scaled gradients, got a table", scaler.step, scaler, {}, 1,
      gradients { p, { 1 } })
    assert.raises("shape", "%[2%]", scaler.step, scaler, opt, 1, gradients { p, { 1, 2 } })
    -- after all of that, the optimizer has its own scale, and the step is still to be done
    assert.equal(1, opt:gradient_scale())
    scaler:step(opt, 1, gradients { p, { 65536 / 4 } })
    assert.equal(0.75, p:item())
    opt:step(1, gradients { p, { 0.5 } })
    assert.equal(0.25, p:item())
    for given, text in pairs {
      [{ init_scale = 0 }] = "init_scale is 0, it must be between 2^%-126 and 2^126",
      [{ init_scale = nan }] = "init_scale is",
      [{ init_scale = inf }] = "init_scale is inf",
      [{ init_scale = 8, max = 4 }] = "max is 4, it must be between init_scale and",
      [{ init_scale = 8, min = 16 }] = "min is 16, it must be between 2^%-126 and init_scale",
      [{ growth_factor = 1 }] = "growth_factor is 1, it must be finite and greater than 1",
      [{ backoff_factor = 1 }] = "backoff_factor is 1",
      [{ backoff_factor = 0 }] = "backoff_factor is 0",
      [{ growth_interval = 1.5 }] = "growth_interval is 1.5, it must be a whole number",
      [{ growth = 2 }] = "unknown option 'growth'; it knows backoff_factor, enabled, growth_factor, growth_interval",
    } do
      assert.raises("invalid", text, optim.GradScaler, given)
    end
    assert.equal("luda.optim.GradScaler(scale 65536, 0 good steps)", tostring(optim.GradScaler()))
  end)

  it("grows after good steps and backs off after a bad one", function()
    local p = leaf { 1 }
    local opt = optim.SGD { p }
    local scaler = optim.GradScaler { init_scale = 8, growth_interval = 3, growth_factor = 4, backoff_factor = 0.25 }
    -- good (1) and bad (0) steps with the scale after each, by hand
    for _, row in ipairs {
      { 1, 8 }, { 1, 8 }, { 1, 32 }, { 1, 32 }, { 1, 32 }, { 0, 8 }, { 1, 8 }, { 1, 8 }, { 0, 2 }, { 0, 0.5 }, { 1, 0.5 },
      { 1, 0.5 }, { 1, 2 },
    } do
      local before = scaler:get_scale()
      local report = cycle(scaler, opt, 0.1, gradients { p, { row[1] == 1 and 1 or inf } })
      assert.same({ row[1] == 0, before, row[2] }, { report.skipped, report.scale, scaler:get_scale() })
    end
  end)

  it("follows the rule over a long run of good and bad steps (seed " .. seed .. ")", function()
    local draw = luda.generator(seed)
    local p = leaf { 1 }
    local opt = optim.SGD { p }
    local scaler = optim.GradScaler { init_scale = 2 ^ 10, growth_interval = 4, min = 1, max = 2 ^ 14 }
    local exponent, good, ends = 10, 0, {}
    local choices = luda.randint(0, 8, { 600 }, { generator = draw }):totable()
    for i, choice in ipairs(choices) do
      -- bad steps are rare in some stretches and common in others, so that both ends are reached
      local bad = choice < (math.floor(i / 100) % 2 == 0 and 1 or 6)
      cycle(scaler, opt, 0, gradients { p, { bad and nan or 1 } })
      good = bad and 0 or good + 1
      if bad then
        exponent = math.max(exponent - 1, 0)
      elseif good == 4 then
        exponent, good = math.min(exponent + 1, 14), 0
      end
      ends[exponent] = true
      assert.same({ 2 ^ exponent, good }, { scaler:state().scale, scaler:state().good })
    end
    assert.is_true(ends[0])
  end)

  it("stays finite and positive, and right, at both ends of its range", function()
    local p = leaf { 0 }
    local opt = optim.SGD { p }
    local scaler = optim.GradScaler { init_scale = 2 ^ 126, growth_interval = 1 }
    for i = 1, 10 do
      cycle(scaler, opt, 1, gradients { p, { -0.25 * scaler:get_scale() } })
      assert.equal(2 ^ 126, scaler:get_scale())
      assert.equal(0.25 * i, p:item())
    end
    for _, row in ipairs { { {}, 2 ^ -24 }, { { min = 2 ^ -126 }, 2 ^ -126 } } do
      row[1].init_scale = 1
      scaler = optim.GradScaler(row[1])
      for _ = 1, 400 do
        assert.is_true(cycle(scaler, opt, 1, gradients { p, { inf } }).skipped)
      end
      assert.equal(row[2], scaler:get_scale())
      assert.equal(2.5, p:item())
    end
    -- and comes back from there
    cycle(scaler, opt, 1, gradients { p, { 0.5 * 2 ^ -126 } })
    assert.equal(2, p:item())
    scaler = optim.GradScaler { init_scale = 2 ^ -24, growth_interval = 1 }
    for _ = 1, 60 do
      cycle(scaler, opt, 0, gradients { p, { 1 } })
    end
    assert.equal(2 ^ 24, scaler:get_scale())
  end)

  it("leaves everything but the scale as it was after a skipped step", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "AdaGrad", "RMSProp", "Adan" } do
      for _, dtype in ipairs { "f32", "f16", "bf16" } do
        local p, q = leaf({ 1, -2 }, dtype), leaf({ 3 }, dtype)
        local opt = optim[name]({ p, q }, { weight_decay = 0.1, fp32_master = true, max_grad_norm = 1 })
        local scaler = optim.GradScaler { init_scale = 16, growth_interval = 2 }
        assert.is_true(cycle(scaler, opt, 0.1, gradients { p, { 1, inf }, q, { 1 } }).skipped)
        assert.same({}, opt:state().steps) -- no state on a first overflow
        cycle(scaler, opt, 0.1, gradients { p, { 3, -1 }, q, { 2 } })
        local function seen()
          local all = { p:totable(), q:totable(), opt:state().steps }
          for key, tensors in pairs(opt:state()) do
            if type(tensors) == "table" and luda.is_tensor(tensors["1"]) then
              all[key] = { tensors["1"]:totable(), tensors["2"]:totable() }
            end
          end
          return all
        end
        local before = seen()
        for _, bad in ipairs { inf, -inf, nan } do
          local report = cycle(scaler, opt, 0.1, gradients { p, { 1, 1 }, q, { bad } })
          assert.same({ true, 0 }, { report.skipped, report.updated })
          assert.same(before, seen())
        end
        assert.same({ scale = 1, good = 0 }, scaler:state())
      end
    end
  end)
end)

describe("a scaler's state", function()
  before_each(helper.before)
  after_each(helper.after)

  it("goes on in a record, and is refused where it does not fit", function()
    local dir = helper.new_folder()
    local p = leaf { 1 }
    local opt, options = optim.SGD { p }, { init_scale = 8, growth_interval = 3 }
    local scaler = optim.GradScaler(options)
    cycle(scaler, opt, 0.1, gradients { p, { inf } })
    cycle(scaler, opt, 0.1, gradients { p, { 1 } })
    local path = record.save(dir .. "/scaler", { scaler = scaler })
    options.init_scale = 1024
    local other = optim.GradScaler(options)
    record.load(path):restore { scaler = other }
    assert.same({ scale = 4, good = 1 }, other:state())
    for _, want in ipairs { 4, 8, 8 } do
      for _, s in ipairs { scaler, other } do
        cycle(s, opt, 0.1, gradients { p, { 1 } })
        assert.equal(want, s:get_scale())
      end
    end
    assert.raises("mismatch", "scaler%.growth_interval is 3 in the file, 4 here", function()
      record.load(path):restore { scaler = optim.GradScaler { init_scale = 8, growth_interval = 4 } }
    end)
    -- in the middle of a cycle nothing is saved, and nothing is restored
    local loader = luda.data.batches(luda.arange(40, { dtype = "i64" }), { batch = 2, length = 3 })
    local both = record.save(dir .. "/both", { scaler = other, loader = loader })
    loader:next()
    local position = loader:state()
    other:scale(luda.ones(1))
    assert.raises("invalid", "state: step%(optimizer, rate, grads%) was skipped", record.save, dir .. "/no", { scaler = other })
    assert.raises("mismatch", "a cycle is open here, step%(optimizer, rate, grads%) was skipped", function()
      record.load(both):restore { scaler = other, loader = loader }
    end)
    assert.same(position, loader:state())
    other:step(opt, 0, gradients { p, { 1 } })
    other:update()
    for state, text in pairs {
      [{ scale = 2 ^ 30, good = 0 }] = "the scale is 1073741824 in the file, it must be between",
      [{ scale = nan, good = 0 }] = "the scale is",
      [{ scale = 4, good = 3 }] = "3 good steps in the file, the scale grows after 3 here",
      [{ good = 3 }] = "not one of a scaler",
    } do
      assert.raises("mismatch", text, other.load_state, other, state)
    end
    assert.same({ scale = 8, good = 2 }, other:state())
  end)
end)
