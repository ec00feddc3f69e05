--- Whole paths of learning rates: as PyTorch goes, as plain formulas go, and from any place where one was saved.

local luda = require "luda"
local helper = require "spec.helper"
local json = require "luda.json"

local lr, record = luda.optim.lr, luda.record

local golden = helper.golden "schedules"
local cos, pi, min, max = math.cos, math.pi, math.min, math.max

local STEPS = 50

--- A schedule as a fixture writes it.
local function made(text)
  return setfenv(assert(loadstring("return " .. text)), { lr = lr })()
end

describe("schedules of PyTorch", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, case in ipairs(golden.cases) do
    it(case.lua, function()
      local schedule = made(case.lua)
      assert.equal(STEPS, #case.rates)
      for i, want in ipairs(case.rates) do
        assert.near(want, schedule:step(case.metrics and case.metrics[i]), 1e-13 * want, "step " .. i)
      end
    end)
  end
end)

-- Every schedule with the formula that it stands for; i counts from 0.

local function half_cosine(from, to, part)
  return to + (from - to) * (1 + cos(pi * part)) / 2
end

local rows = {
  { "lr.Constant { lr = 0.7 }", function() return 0.7 end },
  { "lr.Step { lr = 0.7, size = 9 }", function(i) return 0.7 * 0.1 ^ math.floor(i / 9) end },
  { "lr.Step { lr = 0.7, size = 4, gamma = 1.25 }", function(i) return 0.7 * 1.25 ^ ((i - i % 4) / 4) end },
  { "lr.MultiStep { lr = 5, milestones = { 4, 17 }, gamma = 0.3 }", function(i)
    return i < 4 and 5 or i < 17 and 1.5 or 0.45
  end },
  { "lr.Linear { from = 0.9, to = 0.5, steps = 4 }", function(i) return max(0.9 - 0.1 * i, 0.5) end },
  { "lr.Linear { from = 0.2, to = 3, steps = 49 }", function(i) return 0.2 + 2.8 / 49 * i end },
  { "lr.Polynomial { lr = 2, to = 0.5, steps = 40, power = 3 }", function(i)
    return 0.5 + 1.5 * (max(40 - i, 0) / 40) ^ 3
  end },
  { "lr.Exponential { lr = 0.8, gamma = 0.9 }", function(i)
    local rate = 0.8
    for _ = 1, i do
      rate = rate * 0.9
    end
    return rate
  end },
  { "lr.Cosine { lr = 0.5, min = 0.1, steps = 7 }", function(i) return half_cosine(0.5, 0.1, i % 8 / 7) end },
  { "lr.Cosine { lr = 0.5, min = 0.1, steps = 33, restart = false }", function(i)
    return half_cosine(0.5, 0.1, min(i, 33) / 33)
  end },
  { "lr.Noam { factor = 2, width = 16, warmup = 12 }", function(i)
    return 2 / 4 * (i + 1 < 12 and (i + 1) / 12 ^ 1.5 or 1 / math.sqrt(i + 1))
  end },
  { "lr.OneCycle { max = 2, steps = 50, up = 0.2, div = 4, final_div = 8 }", function(i)
    return i <= 9 and half_cosine(0.5, 2, i / 9) or half_cosine(2, 0.0625, (i - 9) / 40)
  end },
  { "lr.Warmup { steps = 5, after = lr.Step { lr = 2, size = 10, gamma = 0.5 } }", function(i)
    return i < 5 and 0.4 * (i + 1) or 2 * 0.5 ^ math.floor((i - 5) / 10)
  end },
  { "lr.Sequential { { lr.Constant { lr = 1 }, 3 }, { lr.Warmup { steps = 2, after = lr.Constant { lr = 8 } }, 10 }, "
    .. "{ lr.Composed { lr.Constant { lr = 4 }, lr.Exponential { lr = 1, gamma = 0.5 }, how = \"sum\" } } }", function(i)
    if i < 3 then
      return 1
    elseif i < 13 then
      return i == 3 and 4 or 8
    end
    return 4 + 0.5 ^ (i - 13)
  end },
  { "lr.Composed { lr.Linear { from = 1, to = 2, steps = 10 }, lr.Step { lr = 3, size = 20 }, lr.Constant { lr = 0.5 } }",
    function(i) return (1 + min(i, 10) / 10) * (i < 20 and 3 or i < 40 and 0.3 or 0.03) * 0.5 end },
  { "lr.Composed { lr.Linear { from = 1, to = 2, steps = 10 }, lr.Constant { lr = 4 }, lr.Constant { lr = 7 }, how = \"avg\" }",
    function(i) return (1 + min(i, 10) / 10 + 11) / 3 end },
}

describe("schedules over 50 steps", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are covered", function()
    local seen = {}
    for _, row in ipairs(rows) do
      for name in row[1]:gmatch "lr%.(%u%w+)" do
        seen[name] = true
      end
    end
    for name in pairs(lr) do
      assert.is_true(seen[name] or name == "Plateau", name)
    end
  end)

  for _, row in ipairs(rows) do
    it(row[1] .. " is its formula, from any count", function()
      local schedule, other = made(row[1]), made(row[1])
      for i = 0, STEPS - 1 do
        local want = row[2](i)
        assert.near(want, schedule:rate(), 1e-14 * want)
        -- saved here and restored in another, by a state and by a number
        assert.equal(schedule:rate(), made(row[1]):load_state(schedule:state()):step())
        other.count = i
        assert.equal(schedule:step(), other:step())
        assert.same({ i + 1, i + 1 }, { schedule.count, other.count })
        assert.same({ count = i + 1 }, schedule:state())
      end
      -- far beyond 32 bits it still counts, and stays what it became
      schedule.count = 2 ^ 40
      assert.is_true(schedule:step() >= 0)
      assert.equal(2 ^ 40 + 1, schedule:state().count)
    end)
  end

  it("Noam rises as long as it warms up, then falls", function()
    local schedule = lr.Noam { width = 32, warmup = 10 }
    local before = 0
    for i = 1, STEPS do
      local rate = schedule:step()
      assert.is_true(i <= 10 and rate > before or i > 10 and rate < before)
      before = rate
    end
  end)
end)

describe("a plateau among other schedules", function()
  before_each(helper.before)
  after_each(helper.after)

  local function falling()
    return lr.Plateau { lr = 2, factor = 0.5, patience = 1 }
  end

  local ways = {
    -- the same metrics reach the plateau, or only those after the warm-up, and the rate is a product or stands alone
    { function() return lr.Warmup { steps = 3, after = falling() } end,
      { 9, 9, 9, 5, 5, 5, 5, 5 }, { 2 / 3, 4 / 3, 2, 2, 2, 1, 1, 0.5 } },
    { function() return lr.Composed { falling(), lr.Exponential { lr = 1, gamma = 0.5 } } end,
      { 5, 5, 5, 4, 4, 4, 3, 3 }, { 2, 1, 0.25, 0.125, 0.0625, 0.015625, 0.0078125, 0.00390625 } },
    { function() return lr.Sequential { { lr.Constant { lr = 7 }, 2 }, { falling(), 4 }, { lr.Constant { lr = 3 } } } end,
      { 1, 1, 5, 5, 5, 5, 1, 1 }, { 7, 7, 2, 2, 1, 1, 3, 3 } },
    { function() return lr.Composed { lr.Warmup { steps = 1, after = falling() }, lr.Constant { lr = 1 }, how = "sum" } end,
      { 1, 5, 5, 5, 5, 5, 5, 5 }, { 3, 3, 3, 2, 2, 1.5, 1.5, 1.25 } },
  }

  it("gets the metric of its steps, and is saved with them", function()
    local file = os.tmpname()
    for number, way in ipairs(ways) do
      local schedule = way[1]()
      for i, metric in ipairs(way[2]) do
        assert.near(way[3][i], schedule:step(metric), 1e-15, ("%d: step %d"):format(number, i))
        local path = record.save(file, { scheduler = schedule })
        schedule = way[1]()
        record.load(path):restore { scheduler = schedule }
        assert.equal(i, schedule.count)
      end
    end
    os.remove(file)
    os.remove(file .. ".safetensors")
  end)

  it("asks for the metric, and changes nothing without one", function()
    local schedule = lr.Composed { lr.Constant { lr = 1 }, falling() }
    assert.raises("invalid", "the metric must be a number, not nil", schedule.step, schedule)
    assert.equal(0, schedule.count)
    assert.equal(2, schedule:step(1))
  end)

  it("must be in the state", function()
    local schedule = lr.Composed { falling(), lr.Constant { lr = 3 }, lr.Warmup { steps = 1, after = falling() } }
    schedule:step(1)
    local state = schedule:state()
    assert.same({ count = 1 }, { count = state.count })
    for _, wrong in ipairs {
      { count = 4 }, { count = 4, parts = { ["1"] = state.parts["1"] } }, { count = 4, parts = { ["1"] = { count = 1 } } },
    } do
      assert.raises("mismatch", "in part %d", schedule.load_state, schedule, wrong)
    end
    assert.same(state, schedule:state())
  end)
end)

describe("a schedule in a record", function()
  before_each(helper.before)
  after_each(helper.after)

  it("of other parts or another kind is refused, and leaves the live one alone", function()
    local file = os.tmpname()
    local function steps(...)
      return lr.Composed { lr.Constant { lr = 2 }, ... }
    end
    local saved = steps(lr.Step { lr = 1, size = 3 }, lr.Exponential { lr = 1, gamma = 0.5 })
    saved:step()
    local path = record.save(file, { scheduler = saved })
    for _, row in ipairs {
      { steps(lr.Step { lr = 1, size = 3 }), "scheduler%.parts%.3 is a table in the file, missing here" },
      { steps(lr.Exponential { lr = 1, gamma = 0.5 }, lr.Step { lr = 1, size = 3 }), "parts%.2%.kind is Step in the file" },
      { steps(lr.Step { lr = 1, size = 4 }, lr.Exponential { lr = 1, gamma = 0.5 }), "parts%.2%.size is 3 in the file, 4 here" },
      { lr.Constant { lr = 2 }, "the file has 'Composed', here is 'Constant'" },
    } do
      row[1].count = 7
      local rate = row[1]:rate()
      assert.raises("mismatch", row[2], function()
        record.load(path):restore { scheduler = row[1] }
      end)
      assert.same({ 7, rate }, { row[1].count, row[1]:rate() })
    end
    os.remove(file)
    os.remove(path)
  end)

  it("of an older library may lack options, where they stand at their defaults", function()
    local file = os.tmpname()
    local function make(mode)
      return lr.Sequential {
        { lr.Warmup { steps = 2, after = lr.Cosine { lr = 1, min = 0.5, steps = 3 } }, 4 },
        { lr.Composed { lr.Plateau { lr = 1, threshold_mode = mode } } },
      }
    end
    local path = record.save(file, { scheduler = make() })
    local tensors, metadata = luda.load(path)
    local stored = json.decode(metadata["luda.record.scheduler"])
    stored.configuration.parts[1].schedule.after.restart = nil
    stored.configuration.parts[2].schedule.parts[1].threshold_mode = nil
    metadata["luda.record.scheduler"] = json.encode(stored)
    luda.save(path, tensors, metadata)
    local _, report = record.load(path):restore { scheduler = make() }
    assert.same({
      "scheduler.parts.1.schedule.after.restart (true here)",
      "scheduler.parts.2.schedule.parts.1.threshold_mode (rel here)",
    }, report.upgraded)
    assert.raises("mismatch", "parts.1.threshold_mode is not in the file, abs here", function()
      record.load(path):restore { scheduler = make "abs" }
    end)
    os.remove(file)
    os.remove(path)
  end)
end)
