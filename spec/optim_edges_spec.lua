--- Optimizers, accumulation, schedules and records where conventions differ or numbers end.

local luda = require "luda"
local helper = require "spec.helper"

local optim, record, nn = luda.optim, luda.record, luda.nn
local Gradients = luda.autograd.Gradients
local nan, inf = 0 / 0, math.huge

local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype or "f64" }):requires_grad_()
end

local gradients = helper.gradients

--- Values after each of some steps of one parameter.
local function path(name, options, lr, start, list, dtype)
  local p, values = leaf({ start }, dtype), {}
  local opt = optim[name]({ p }, options)
  for i, g in ipairs(list) do
    opt:step(lr, gradients { p, { g } })
    values[i] = p:item()
  end
  return values
end

local function near(want, have, atol)
  assert.equal(#want, #have)
  for i = 1, #want do
    assert.near(want[i], have[i], atol)
  end
end

describe("conventions of update rules", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, dtype in ipairs { "f64", "f32" } do
    local atol = dtype == "f64" and 1e-9 or 1e-6

    it("AdamW decays first and corrects before epsilon, Adam adds the decay to the gradient: " .. dtype, function()
      near({ 0.890000002 }, path("AdamW", { weight_decay = 0.1 }, 0.1, 1, { 0.5 }, dtype), atol)
      near({ -0.990099 }, path("AdamW", { weight_decay = 0 }, 1, 0, { 1e-6 }, dtype), 1e-6)
      near({ -0.990099 }, path("Adam", {}, 1, 0, { 1e-6 }, dtype), 1e-6)
      -- by L2 the sign alone counts in the first step: 1 - lr (g / (g + eps))
      near({ 0.900000002 }, path("Adam", { weight_decay = 0.1 }, 0.1, 1, { 0.5 }, dtype), 10 * atol)
      -- the largest raw second moment is kept
      for _, name in ipairs { "Adam", "AdamW" } do
        near({ 0.9, 0.8259, 0.7626 }, path(name, { weight_decay = 0, amsgrad = true }, 0.1, 1, { 1, 0.1, 0.1 }, dtype), 5e-5)
      end
    end)

    it("SGD's buffer begins as the gradient, whatever the dampening: " .. dtype, function()
      near({ 0.9, 0.76, 0.584 }, path("SGD", { momentum = 0.9, dampening = 0.5 }, 0.1, 1, { 1, 1, 1 }, dtype), atol)
      near({ 0.81, 0.539, 0.1951 }, path("SGD", { momentum = 0.9, nesterov = true }, 0.1, 1, { 1, 1, 1 }, dtype), atol)
      near({ 0.99 }, path("SGD", { weight_decay = 0.1 }, 0.1, 1, { 0 }, dtype), atol)
      assert.raises("invalid", "nesterov", optim.SGD, { leaf { 1 } }, { momentum = 0.9, nesterov = true, dampening = 0.5 })
    end)
  end

  it("centred RMSProp stays finite where the mean of squares falls below the square of the mean", function()
    for _, g in ipairs { 10, 12345.678 } do
      for _, options in ipairs { { centered = true }, { centered = true, momentum = 0.9 } } do
        local list = {}
        for i = 1, 2000 do
          list[i] = g
        end
        for _, value in ipairs(path("RMSProp", options, 1e-3, 0.5, list, "f32")) do
          assert.is_true(value == value and math.abs(value) < inf)
        end
      end
    end
  end)

  it("a parameter without gradient keeps its value and its state, with a zero gradient it moves", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "RMSProp", "AdaGrad", "Adan" } do
      for _, dtype in ipairs { "f32", "f64" } do
        local options = { weight_decay = 0.1 }
        if name == "SGD" or name == "RMSProp" then
          options.momentum = 0.9
        end
        local a, b, c = leaf({ 1 }, dtype), leaf({ 1 }, dtype), leaf({ 1 }, dtype)
        local opt = optim[name]({ a, b, c }, options)
        opt:step(0.1, gradients { a, { 1 }, b, { 1 }, c, { 1 } })
        local value, kept = b:item(), {}
        for key, states in pairs(opt:state()) do
          if type(states) == "table" and luda.is_tensor(states["2"]) then
            kept[key] = states["2"]:clone()
          end
        end
        opt:step(0.1, gradients { a, { 1 }, c, { 0 } })
        assert.equal(value, b:item())
        assert.not_equal(value, c:item())
        local states = 0
        for key, tensor in pairs(kept) do
          assert.is_true(tensor:equal(opt:state()[key]["2"]), name .. " " .. key)
          states = states + 1
        end
        assert.is_true(states >= 1)
        assert.same({ 2, 1, 2 }, { opt:steps "1", opt:steps "2", opt:steps "3" })
      end
    end
  end)
end)

describe("clipping", function()
  before_each(helper.before)
  after_each(helper.after)

  it("of gradients together: norms that are 0, infinite, not a number; limits that are odd", function()
    local p, unused = leaf { 0, 0 }, leaf { 0 }
    local function clipped(list, limit)
      local grads = gradients { p, list }
      local norm = grads:clip_norm_(limit)
      assert.is_nil(grads[unused])
      return grads[p]:totable(), norm
    end
    local values, norm = clipped({ 3, 4 }, 1)
    assert.tensor_near({ 0.6, 0.8 }, values, 1e-12, 0)
    assert.equal(5, norm)
    values, norm = clipped({ 0, 0 }, 1)
    assert.same({ 0, 0, 0 }, { values[1], values[2], norm })
    values, norm = clipped({ 3, 4 }, inf)
    assert.same({ 3, 4, 5 }, { values[1], values[2], norm })
    -- what is not finite is reported and left as it is, never replaced by zeros
    values, norm = clipped({ inf, 1 }, 1)
    assert.same({ inf, 1, inf }, { values[1], values[2], norm })
    values, norm = clipped({ nan, 1 }, 1)
    assert.tensor_near({ nan, 1, nan }, { values[1], values[2], norm }, 0, 0)
    for _, limit in ipairs { -1, 0, nan } do
      local grads = gradients { p, { 3, 4 } }
      assert.raises("invalid", "must be positive", grads.clip_norm_, grads, limit)
      assert.raises("invalid", "must be positive", grads.clip_value_, grads, limit)
      assert.same({ 3, 4 }, grads[p]:totable())
    end
    local empty = Gradients()
    assert.equal(0, empty:clip_norm_(1))
    -- large gradients whose squares overflow, small ones whose squares vanish
    local f = leaf({ 0, 0 }, "f32")
    local grads = gradients { f, { 3e30, 4e30 } }
    assert.near(5e30, grads:clip_norm_(1), 1e24)
    assert.tensor_near({ 0.6, 0.8 }, grads[f], 1e-6, 0)
    grads = gradients { f, { 3e-30, 4e-30 } }
    assert.near(5e-30, grads:norm(), 1e-36)
    local h = leaf({ 0, 0 }, "f16")
    grads = gradients { h, { 30000, 40000 } }
    assert.near(50000, grads:clip_norm_(1), 50)
    assert.tensor_near({ 0.6, 0.8 }, grads[h], 1e-3, 0)
  end)

  it("of elements keeps NaN visible", function()
    local p = leaf { 0, 0, 0 }
    local grads = gradients { p, { nan, inf, -0.25 } }
    grads:clip_value_(0.5)
    assert.tensor_near({ nan, 0.5, -0.25 }, grads[p], 0, 0)
  end)

  it("sees the true size of scaled gradients, and a scale may reach the ends of its range", function()
    local function stepped(scale)
      local p = leaf({ 0, 0 }, "f32")
      local opt = optim.SGD({ p }, { max_grad_norm = 1, gradient_scale = scale })
      local report = opt:step(1, gradients { p, { 0.3 * scale, 0.4 * scale } })
      return p:totable(), report
    end
    for _, scale in ipairs { 1, 1024, 2 ^ 126, 2 ^ -120 } do
      local values, report = stepped(scale)
      assert.tensor_near({ -0.3, -0.4 }, values, 1e-6, 0)
      assert.near(0.5, report.grad_norm, 1e-6)
    end
    local p = leaf({ 1, 2 }, "f32")
    local opt = optim.AdamW({ p }, { gradient_scale = 1024 })
    opt:step(0.1, gradients { p, { 1, 1 } })
    local before, steps = p:totable(), opt:steps "1"
    local moment = opt:state().exp_avg["1"]:totable()
    assert.is_true(opt:step(0.1, gradients { p, { inf, 1 } }).skipped)
    assert.same({ before, steps, moment }, { p:totable(), opt:steps "1", opt:state().exp_avg["1"]:totable() })
  end)
end)

describe("uneven parts", function()
  before_each(helper.before)
  after_each(helper.after)

  it("weigh by what they counted, however they are cut", function()
    local p = leaf { 0 }
    --- Means over the tokens of each part, by their numbers.
    local function mean(parts)
      local sums = optim.Accumulator { p }
      for _, part in ipairs(parts) do
        local total = 0
        for _, g in ipairs(part) do
          total = total + g
        end
        local grads = #part > 0 and gradients { p, { total / #part } } or Gradients()
        sums:accumulate(grads, { weight = #part })
      end
      return sums:grads({ mean = true })[p]:item()
    end
    for _, parts in ipairs {
      { { 3 }, { 1, 1, 1 }, {} }, { {}, { 1, 1, 1 }, { 3 } }, { { 3, 1, 1, 1 } }, { { 3 }, { 1 }, { 1 }, { 1 } },
      { { 3, 1 }, {}, { 1, 1 } },
    } do
      assert.near(1.5, mean(parts), 1e-12)
    end
    local sums = optim.Accumulator { p }
    sums:accumulate(Gradients(), { weight = 0 })
    assert.raises("invalid", "sum to 0, there is no mean", sums.grads, sums, { mean = true })
    assert.equal(0, sums:grads():len())
  end)

  it("of a batch whose every label is ignored add nothing", function()
    local layer = nn.Linear(2, 2)
    local sums = optim.Accumulator(layer)
    local x = luda.tensor { { 1, 2 } }
    for _, row in ipairs { { 2, 1 }, { -100, 0 } } do
      local loss = nn.cross_entropy(layer(x), luda.tensor({ row[1] }, { dtype = "i64" }))
      sums:accumulate(loss:backward(), { weight = row[2] })
    end
    local want = nn.cross_entropy(layer(x), luda.tensor { 2LL }):backward()[layer.weight]
    assert.tensor_near(want, sums:grads({ mean = true })[layer.weight], 1e-6, 1e-7)
  end)

  it("leave the last window its update", function()
    local p = leaf { 0 }
    local sums, opt, updates = optim.Accumulator { p }, optim.SGD { p }, 0
    for micro = 1, 5 do
      sums:accumulate(gradients { p, { 1 } })
      if micro % 2 == 0 or micro == 5 then
        opt:step(1, sums:grads { mean = true })
        updates = updates + 1
      end
    end
    assert.equal(3, updates)
    assert.equal(-3, p:item())
    assert.equal(0, sums:count())
  end)
end)

describe("restoring", function()
  before_each(helper.before)
  after_each(helper.after)

  it("a schedule moves no rate, in whichever order", function()
    local function make()
      local p = leaf { 1 }
      return p, optim.SGD({ p }, { momentum = 0.9 }), optim.lr.Exponential { lr = 0.001, gamma = 0.999 }
    end
    local file = os.tmpname()
    local p, opt, schedule = make()
    opt:step(schedule:step(), gradients { p, { 1 } })
    local written = record.save(file, { optimizer = opt, scheduler = schedule })
    for _, order in ipairs { { "optimizer", "scheduler" }, { "scheduler", "optimizer" } } do
      local _, other, again = make()
      local parts = { optimizer = other, scheduler = again }
      for _, name in ipairs(order) do
        record.load(written):restore { [name] = parts[name] }
      end
      assert.near(0.000999, again:rate(), 1e-15)
      assert.equal(1, other:steps "1")
    end
    os.remove(written)
    os.remove(file)
  end)
end)
