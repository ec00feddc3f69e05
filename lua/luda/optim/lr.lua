--- Learning rates. Every schedule but Plateau is a function of `count`, the steps taken so far; setting it is restoring.
-- A Plateau may be a part of others, which then take its measurement: schedule:step(metric).

local args = require "luda.args"
local class = require "luda.class"
local schedule = require "luda.optim.schedule"

local Schedule, refuse, check_schedule = schedule.Schedule, schedule.refuse, schedule.check_schedule
local tests = schedule.tests
local not_negative, positive, fraction, steps = tests.not_negative, tests.positive, tests.fraction, tests.steps
local cos, pi, floor = math.cos, math.pi, math.floor

local M = { Plateau = require "luda.optim.plateau" }

local function define(name, known, at, check)
  M[name] = schedule.define(name, known, at, check)
end

-- Curves.

define("Constant", { { "lr", not_negative } }, function(o)
  return o.lr
end)

--- Multiplied by gamma every `size` steps.
define("Step", { { "lr", positive }, { "size", steps }, { "gamma", positive, 0.1 } }, function(o, i)
  return o.lr * o.gamma ^ floor(i / o.size)
end)

--- Multiplied by gamma at each of the counts in `milestones`.
define("MultiStep", { { "lr", positive }, { "milestones", "milestones" }, { "gamma", positive, 0.1 } }, function(o, i)
  local passed = 0
  for _, count in ipairs(o.milestones) do
    passed = passed + (i >= count and 1 or 0)
  end
  return o.lr * o.gamma ^ passed
end)

--- From one rate to another in `steps` steps; then it stays.
define("Linear", { { "from", positive }, { "to", not_negative }, { "steps", steps } }, function(o, i)
  if i >= o.steps then
    return o.to
  end
  return o.from + (o.to - o.from) * (i / o.steps)
end)

--- From lr to `to` in `steps` steps, by a power of what is left; then it stays.
define("Polynomial", {
  { "lr", positive }, { "to", not_negative, 0 }, { "steps", steps }, { "power", positive, 1 },
}, function(o, i)
  return o.to + (o.lr - o.to) * (1 - math.min(i, o.steps) / o.steps) ^ o.power
end)

define("Exponential", { { "lr", positive }, { "gamma", fraction } }, function(o, i)
  return o.lr * o.gamma ^ i
end)

--- Half a cosine from lr to min in `steps` steps; then it starts again, or with restart = false stays.
define("Cosine", {
  { "lr", positive }, { "min", not_negative, 0 }, { "steps", steps },
  { "restart", "choice", true, { [true] = true, [false] = true }, "true or false" },
}, function(o, i)
  local k = o.restart and i % (o.steps + 1) or math.min(i, o.steps)
  return o.min + 0.5 * (o.lr - o.min) * (1 + cos(pi * k / o.steps))
end, function(o)
  if o.min > o.lr then
    refuse("Cosine", "min", o.min, ("at most lr, which is %g"):format(o.lr))
  end
end)

--- Rises for `warmup` steps, then falls with the root of the count.
define("Noam", { { "factor", positive, 1 }, { "width", positive, 512 }, { "warmup", positive, 4000 } }, function(o, i)
  local s = i + 1
  return o.factor * o.width ^ -0.5 * math.min(s ^ -0.5, s * o.warmup ^ -1.5)
end)

--- Cosine from max / div up to max, and down to max / div / final_div; then it stays.
define("OneCycle", {
  { "max", positive }, { "steps", steps }, { "up", tests.share, 0.3 }, { "div", positive, 25 }, { "final_div", positive, 1e4 },
}, function(o, i)
  local function between(a, b, part)
    return b + (a - b) / 2 * (1 + cos(pi * part))
  end
  local low, top, last = o.max / o.div, o.up * o.steps - 1, o.steps - 1
  if i <= top and top > 0 then
    return between(low, o.max, i / top)
  elseif i >= last then
    return low / o.final_div
  end
  return between(o.max, low / o.final_div, (i - top) / (last - top))
end)

-- Schedules of schedules. Children are asked for the rate at a count; their own counts are not used.

--- Rises in `steps` steps to the first rate of `after`, which then begins.
define("Warmup", { { "steps", steps }, { "after", "schedule" } }, function(o, i)
  if i < o.steps then
    return o.after:at(0) * ((i + 1) / o.steps)
  end
  return o.after:at(i - o.steps)
end)

function M.Warmup:parts()
  return { self.options.after }
end

function M.Warmup:measure(i, metric)
  if i >= self.options.steps then
    self.options.after:measure(i - self.options.steps, metric)
  end
end

local function children(name, list)
  if type(list) ~= "table" or #list == 0 then
    refuse(name, "the list", list, "a list of schedules")
  end
  return list
end

--- {{schedule, steps}, …}: one after the other, each from its beginning; the last goes on for ever.
local Sequential = class("Sequential", Schedule)
Sequential.__tostring = Schedule.__tostring
M.Sequential = Sequential

function Sequential:init(list)
  self.options, self.count = {}, 0
  for i, entry in ipairs(children("Sequential", list)) do
    if type(entry) ~= "table" or entry.at then
      refuse("Sequential", "entry " .. i, entry, "{schedule, steps}")
    end
    check_schedule("Sequential", "schedule " .. i, entry[1])
    if entry[2] ~= nil or i < #list then
      schedule.check_number("Sequential", "the steps of entry " .. i, entry[2], tests.count)
    end
    self.options[i] = { entry[1], entry[2] }
  end
end

--- The schedule of step i, and which of its steps that is.
local function current(self, i)
  local last = #self.options
  for k = 1, last - 1 do
    local length = self.options[k][2]
    if i < length then
      return self.options[k][1], i
    end
    i = i - length
  end
  return self.options[last][1], i
end

function Sequential:at(i)
  local schedule_now, step = current(self, i)
  return schedule_now:at(step)
end

function Sequential:measure(i, metric)
  local schedule_now, step = current(self, i)
  schedule_now:measure(step, metric)
end

function Sequential:parts()
  local parts = {}
  for i, entry in ipairs(self.options) do
    parts[i] = entry[1]
  end
  return parts
end

function Sequential:configuration()
  local configuration, defaults = { kind = "Sequential", parts = {} }, { parts = {} }
  for i, entry in ipairs(self.options) do
    configuration.parts[i], defaults.parts[i] = { steps = entry[2] }, {}
    configuration.parts[i].schedule, defaults.parts[i].schedule = entry[1]:configuration()
  end
  return configuration, defaults
end

local combine = {
  prod = function(a, b) return a * b end,
  sum = function(a, b) return a + b end,
  avg = function(a, b) return a + b end,
}

--- {a, b, …, how = "prod"|"sum"|"avg"}: the rates of all, at the same count, made one.
local Composed = class("Composed", Schedule)
Composed.__tostring = Schedule.__tostring
M.Composed = Composed

function Composed:init(list)
  self.options, self.count = { how = "prod" }, 0
  for key, value in pairs(children("Composed", list)) do
    if key == "how" then
      if not combine[value] then
        refuse("Composed", "how", value, "'prod', 'sum' or 'avg'")
      end
    elseif type(key) ~= "number" then
      args.unknown_option("optim.lr.Composed", key, { how = true })
    else
      check_schedule("Composed", "schedule " .. key, value)
    end
    self.options[key] = value
  end
end

function Composed:at(i)
  local options = self.options
  local rate, fold = options[1]:at(i), combine[options.how]
  for k = 2, #options do
    rate = fold(rate, options[k]:at(i))
  end
  return options.how == "avg" and rate / #options or rate
end

function Composed:measure(i, metric)
  for _, child in ipairs(self.options) do
    child:measure(i, metric)
  end
end

function Composed:parts()
  return self.options
end

function Composed:configuration()
  local configuration, defaults = { kind = "Composed", how = self.options.how, parts = {} }, { how = "prod", parts = {} }
  for i, child in ipairs(self.options) do
    configuration.parts[i], defaults.parts[i] = child:configuration()
  end
  return configuration, defaults
end

return M
