--- Learning rates, against values derived by hand.

local luda = require "luda"
local helper = require "spec.helper"

local lr = luda.optim.lr

--- The next rates of a schedule.
local function rates(schedule, count)
  local list = {}
  for i = 1, count do
    list[i] = schedule:step()
  end
  return list
end

local function near(expected, actual, atol)
  assert.equal(#expected, #actual)
  for i = 1, #expected do
    assert.near(expected[i], actual[i], atol or 1e-15)
  end
end

describe("schedules", function()
  before_each(helper.before)
  after_each(helper.after)

  it("return the first rate first", function()
    assert.same({ 0.3, 0.3, 0.3 }, rates(lr.Constant { lr = 0.3 }, 3))
    near({ 1, 1, 0.1, 0.1, 0.01 }, rates(lr.Step { lr = 1, size = 2 }, 5))
    near({ 1, 2, 4 }, rates(lr.Step { lr = 1, size = 1, gamma = 2 }, 3))
    near({ 0.5, 0.5, 0.5 }, rates(lr.Step { lr = 0.5, size = 1, gamma = 1 }, 3))
    near({ 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5 }, rates(lr.Linear { from = 0.9, to = 0.5, steps = 4 }, 7))
    near({ 3, 1.5, 0, 0 }, rates(lr.Linear { from = 3, to = 0, steps = 2 }, 4))
    near({ 0.8, 0.08, 0.008 }, rates(lr.Exponential { lr = 0.8, gamma = 0.1 }, 3))
    near({ 0.0625, 0.125, 0.1875, 0.25, 0.2236068, 0.2041241 },
      rates(lr.Noam { factor = 2, width = 16, warmup = 4 }, 6), 5e-8)
    assert.near(512 ^ -0.5 * 4000 ^ -1.5, lr.Noam({}):step(), 1e-18)
  end)

  it("of half a cosine start again, or stay", function()
    near({ 0.5, 0.3, 0.1, 0.5, 0.3, 0.1, 0.5 }, rates(lr.Cosine { lr = 0.5, min = 0.1, steps = 2 }, 7))
    near({ 0.5, 0.3, 0.1, 0.1, 0.1 }, rates(lr.Cosine { lr = 0.5, min = 0.1, steps = 2, restart = false }, 5))
    -- 1 + cos(pi / 3) = 3/2, 1 + cos(2 pi / 3) = 1/2
    near({ 4, 3, 1, 0 }, rates(lr.Cosine { lr = 4, steps = 3 }, 4))
  end)

  it("warm up, then begin", function()
    near({ 0.5, 1, 1.5, 2, 2, 1, 0.5 },
      rates(lr.Warmup { steps = 4, after = lr.Exponential { lr = 2, gamma = 0.5 } }, 7))
  end)

  it("of one cycle rise to the maximum and fall below the start", function()
    -- 10 steps: the top is at 0.3 · 10 - 1 = 2, the end at 9
    local list = rates(lr.OneCycle { max = 1, steps = 10 }, 12)
    near({ 0.04, 0.52, 1 }, { list[1], list[2], list[3] })
    local low = 0.04 / 1e4
    for i = 3, 8 do
      assert.near(low + (1 - low) / 2 * (1 + math.cos(math.pi * (i - 2) / 7)), list[i + 1], 1e-15)
    end
    near({ low, low, low }, { list[10], list[11], list[12] }, 1e-15)
    near({ low }, rates(lr.OneCycle { max = 1, steps = 1 }, 1))
  end)

  it("follow one another and combine", function()
    local sequence = lr.Sequential {
      { lr.Linear { from = 1, to = 3, steps = 2 }, 2 }, { lr.Constant { lr = 9 }, 0 },
      { lr.Step { lr = 8, size = 1, gamma = 0.5 } },
    }
    near({ 1, 2, 8, 4, 2 }, rates(sequence, 5))
    local a, b = lr.Step { lr = 2, size = 1, gamma = 0.5 }, lr.Constant { lr = 3 }
    near({ 6, 3, 1.5 }, rates(lr.Composed { a, b }, 3))
    near({ 5, 4, 3.5 }, rates(lr.Composed { a, b, how = "sum" }, 3))
    near({ 2.5, 2, 1.75 }, rates(lr.Composed { a, b, how = "avg" }, 3))
    near({ 12, 6 }, rates(lr.Composed { lr.Composed { a, b }, lr.Constant { lr = 2 } }, 2))
    assert.equal(0, a.count)
  end)

  it("are functions of the count", function()
    local schedule = lr.Warmup { steps = 3, after = lr.Cosine { lr = 1, steps = 5 } }
    local list = rates(schedule, 8)
    assert.equal(8, schedule.count)
    schedule.count = 2
    assert.equal(list[3], schedule:rate())
    assert.equal(list[3], schedule:step())
    assert.equal(3, schedule.count)
    -- counts beyond 32 bits
    local long = lr.Step { lr = 1, size = 2 ^ 31, gamma = 0.5 }
    long.count = 2 ^ 31
    assert.equal(0.5, long:step())
    assert.equal(2 ^ 31 + 1, long.count)
  end)

  it("go on where they were saved", function()
    local function make()
      return lr.Exponential { lr = 0.001, gamma = 0.999 }
    end
    local schedule = make()
    assert.equal(0.001, schedule:step())
    local restored = make():load_state(schedule:state())
    assert.near(0.000999, restored:rate(), 1e-18)
    assert.equal(schedule:step(), restored:step())
    for _, state in ipairs { { count = -1 }, { count = 1.5 }, {}, { count = "3" } } do
      assert.raises("mismatch", "a count of", restored.load_state, restored, state)
    end
    assert.equal(2, restored.count)
  end)

  it("count updates, not micro-batches", function()
    local schedule, used = lr.Step { lr = 1, size = 2, gamma = 0.5 }, {}
    for micro = 1, 16 do
      if micro % 4 == 0 then
        used[#used + 1] = schedule:step()
      end
    end
    assert.same({ 1, 1, 0.5, 0.5 }, used)
  end)

  it("refuse wrong configurations", function()
    for _, row in ipairs {
      { "Step", { lr = 1, size = 0 }, "size is 0, it must be a whole number of at least 1" },
      { "Step", { lr = 0, size = 1 }, "lr is 0" },
      { "Step", { lr = 1, size = 1, gamma = 0 }, "gamma is 0" },
      { "Step", { lr = 1 }, "size is nil" },
      { "Constant", { lr = -1 }, "lr is %-1" },
      { "Constant", { lr = math.huge }, "lr is inf, it must be finite" },
      { "Linear", { from = 0, to = 0.5, steps = 1 }, "from is 0" },
      { "Linear", { from = 1, to = -0.5, steps = 1 }, "to is %-0.5" },
      { "Linear", { from = 1, to = 0.5, steps = 0 }, "steps is 0" },
      { "Linear", { from = 0 / 0, to = 0.5, steps = 1 }, "from is %-?nan" },
      { "Exponential", { lr = 1, gamma = 1.5 }, "gamma is 1.5, it must be positive and at most 1" },
      { "Exponential", { lr = 0, gamma = 1 }, "lr is 0" },
      { "Cosine", { lr = 0, steps = 1 }, "lr is 0" },
      { "Cosine", { lr = 1, min = 2, steps = 1 }, "min is 2, it must be at most lr, which is 1" },
      { "Cosine", { lr = 1, steps = 0 }, "steps is 0" },
      { "Noam", { warmup = 0 }, "warmup is 0" },
      { "Noam", { width = 0 }, "width is 0" },
      { "Warmup", { steps = 1 }, "after is nil, it must be a schedule" },
      { "Warmup", { steps = 1, after = { lr = 1 } }, "after is a table, it must be a schedule" },
      { "MultiStep", { lr = 1, milestones = 3 }, "milestones is 3, it must be a list of counts" },
      { "MultiStep", { lr = 1, milestones = { 1, 2.5 } }, "milestones%[2%] is 2.5, it must be a whole number" },
      { "Polynomial", { lr = 1, steps = 2, power = 0 }, "power is 0, it must be finite and positive" },
      { "Plateau", { lr = 1, threshold_mode = "relative" }, "it must be 'rel' or 'abs'" },
      { "OneCycle", { max = 1, steps = 10, up = 2 }, "up is 2" },
      { "Plateau", { lr = 1, mode = "low" }, "mode is the string 'low', it must be 'min' or 'max'" },
      { "Plateau", { lr = 1, patience = -1 }, "patience is %-1" },
      { "Sequential", {}, "a list of schedules" },
      { "Sequential", { lr.Constant { lr = 1 } }, "entry 1 is a table, it must be {schedule, steps}" },
      { "Sequential", { { lr.Constant { lr = 1 } }, { lr.Constant { lr = 1 } } }, "the steps of entry 1 is nil" },
      { "Composed", { lr.Constant { lr = 1 }, how = "max" }, "how is the string 'max'" },
      { "Composed", { 3 }, "schedule 1 is 3" },
      { "Step", { lr = 1, size = 1, factor = 2 }, "unknown option 'factor'; it knows gamma, lr, size" },
    } do
      assert.raises("invalid", row[3], lr[row[1]], row[2])
    end
    -- rates above 1 are fine
    assert.equal(20, lr.Cosine({ lr = 20, steps = 1 }):step())
    assert.equal("luda.optim.lr.Step(count 0, rate 2)", tostring(lr.Step { lr = 2, size = 1 }))
  end)
end)

describe("a plateau", function()
  before_each(helper.before)
  after_each(helper.after)

  it("lowers the rate after more than `patience` steps that are not better", function()
    local schedule = lr.Plateau { lr = 1, factor = 0.5, patience = 2 }
    local metrics = { 5, 5, 5, 5, 5, 4, 4, 4, 4, 0 / 0, 1 }
    local expected = { 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25 }
    for i, metric in ipairs(metrics) do
      assert.equal(expected[i], schedule:step(metric))
    end
    assert.equal(11, schedule.count)
    assert.raises("invalid", "the metric must be a number", schedule.step, schedule)
  end)

  it("knows thresholds, directions, cooling and a floor", function()
    local schedule = lr.Plateau { lr = 1, factor = 0.5, patience = 0, mode = "max", threshold = 0.1, min = 0.3, cooldown = 1 }
    -- 10.5 is not 10 % better than 10; the step after a fall does not count
    local metrics, expected = { 10, 10.5, 10, 12, 11, 11, 11 }, { 1, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3 }
    for i, metric in ipairs(metrics) do
      assert.equal(expected[i], schedule:step(metric))
    end
  end)

  it("goes on where it was saved", function()
    local function make()
      return lr.Plateau { lr = 1, factor = 0.5, patience = 1 }
    end
    local schedule = make()
    schedule:step(3)
    schedule:step(4)
    local other = make():load_state(schedule:state())
    assert.equal(schedule:step(4), other:step(4))
    assert.equal(0.5, other:rate())
    assert.raises("mismatch", "no lr", other.load_state, other, { count = 3 })
  end)
end)
