--- Learning rates. Every schedule but Plateau is a function of `count`, the steps taken so far; setting it is restoring.

local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"

local cos, pi, floor, huge = math.cos, math.pi, math.floor, math.huge

---@class luda.Schedule
---@field count integer steps taken; may be set
---@field options table
local Schedule = class("luda.Schedule")

--- The rate for the next update; counts.
---@return number
function Schedule:step()
  local rate = self:at(self.count)
  self.count = self.count + 1
  return rate
end

--- The rate that the next step() returns.
---@return number
function Schedule:rate()
  return self:at(self.count)
end

---@return table
function Schedule:state()
  return { count = self.count }
end

---@param state table
---@return string[] found
function Schedule:check_state(state) -- luacheck: no self
  local count = type(state) == "table" and state.count
  if type(count) ~= "number" or count < 0 or count ~= floor(count) then
    return { ("scheduler: a count of %s"):format(tostring(count)) }
  end
  return {}
end

---@param state table
---@return luda.Schedule self
function Schedule:load_state(state)
  local found = self:check_state(state)
  if #found > 0 then
    errors.raise_with("mismatch", "load_state: " .. found[1], { detail = found })
  end
  self.count = state.count
  return self
end

--- What must be the same for a count to mean the same.
---@return table
function Schedule:configuration()
  local configuration = { kind = self.class_name }
  for name, value in pairs(self.options) do
    configuration[name] = type(value) == "table" and value.configuration and value:configuration() or value
  end
  return configuration
end

function Schedule:__tostring()
  return ("luda.optim.lr.%s(count %d, rate %g)"):format(self.class_name, self.count, self:rate())
end

local M = {}

local function refuse(name, option, value, need)
  errors.raise("invalid", "optim.lr.%s: %s is %s, it must be %s", name, option, args.describe(value), need)
end

-- Tests that options must pass: what is needed in words, and the test.
local number = { "a finite number", function(x) return x > -huge and x < huge end }
local not_negative = { "finite and at least 0", function(x) return x >= 0 and x < huge end }
local positive = { "finite and positive", function(x) return x > 0 and x < huge end }
local fraction = { "positive and at most 1", function(x) return x > 0 and x <= 1 end }
local steps = { "a whole number of at least 1", function(x) return x >= 1 and x < huge and x == floor(x) end }
local count = { "a whole number of at least 0", function(x) return x >= 0 and x < huge and x == floor(x) end }

local function check_number(name, option, value, test)
  if type(value) ~= "number" or not test[2](value) then
    refuse(name, option, value, test[1])
  end
end

local function check_schedule(name, option, value)
  if type(value) ~= "table" or type(value.at) ~= "function" then
    refuse(name, option, value, "a schedule that is a function of the count")
  end
end

--- Makes a schedule class. `known` lists its options as {name, test, default}; the test "schedule" is for another schedule,
-- a table of names for a choice, false for anything. `at(options, i)` is the rate of step i, from 0.
local function define(name, known, at, check)
  local made = class(name, Schedule)
  made.__tostring = Schedule.__tostring
  local defaults = {}
  for _, option in ipairs(known) do
    defaults[option[1]] = option[3] == nil and args.absent or option[3]
  end

  function made:init(given)
    local options = args.options("optim.lr." .. name, given, defaults)
    for _, option in ipairs(known) do
      local key, test = option[1], option[2]
      if test == "schedule" then
        check_schedule(name, key, options[key])
      elseif test == "choice" then
        if not option[4][options[key]] then
          refuse(name, key, options[key], option[5])
        end
      elseif test then
        check_number(name, key, options[key], test)
      end
    end
    if check then
      check(options)
    end
    self.options, self.count = options, 0
  end

  function made:at(i)
    return at(self.options, i)
  end
  M[name] = made
  return made
end

-- Curves.

define("Constant", { { "lr", not_negative } }, function(o)
  return o.lr
end)

--- Multiplied by gamma every `size` steps.
define("Step", { { "lr", positive }, { "size", steps }, { "gamma", positive, 0.1 } }, function(o, i)
  return o.lr * o.gamma ^ floor(i / o.size)
end)

--- From one rate to another in `steps` steps; then it stays.
define("Linear", { { "from", positive }, { "to", not_negative }, { "steps", steps } }, function(o, i)
  if i >= o.steps then
    return o.to
  end
  return o.from + (o.to - o.from) * (i / o.steps)
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
  { "max", positive }, { "steps", steps }, { "up", number, 0.3 }, { "div", positive, 25 }, { "final_div", positive, 1e4 },
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
end, function(o)
  if not (o.up >= 0 and o.up <= 1) then
    refuse("OneCycle", "up", o.up, "between 0 and 1")
  end
end)

-- Schedules of schedules. Children are asked for the rate at a count; their own counts are not used.

--- Rises in `steps` steps to the first rate of `after`, which then begins.
define("Warmup", { { "steps", steps }, { "after", "schedule" } }, function(o, i)
  if i < o.steps then
    return o.after:at(0) * ((i + 1) / o.steps)
  end
  return o.after:at(i - o.steps)
end)

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
      check_number("Sequential", "the steps of entry " .. i, entry[2], count)
    end
    self.options[i] = { entry[1], entry[2] }
  end
end

function Sequential:at(i)
  local last = #self.options
  for k = 1, last - 1 do
    local length = self.options[k][2]
    if i < length then
      return self.options[k][1]:at(i)
    end
    i = i - length
  end
  return self.options[last][1]:at(i)
end

function Sequential:configuration()
  local configuration = { kind = "Sequential", parts = {} }
  for i, entry in ipairs(self.options) do
    configuration.parts[i] = { schedule = entry[1]:configuration(), steps = entry[2] }
  end
  return configuration
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

function Composed:configuration()
  local configuration = { kind = "Composed", how = self.options.how, parts = {} }
  for i, child in ipairs(self.options) do
    configuration.parts[i] = child:configuration()
  end
  return configuration
end

-- A rate that follows a measurement.

---@class luda.Plateau : luda.Schedule
---@field best number
---@field bad integer steps since the metric was better by the threshold
local Plateau = define("Plateau", {
  { "lr", positive }, { "factor", fraction, 0.1 }, { "patience", count, 10 }, { "threshold", not_negative, 1e-4 },
  { "cooldown", count, 0 }, { "min", not_negative, 0 },
  { "mode", "choice", "min", { min = true, max = true }, "'min' or 'max'" },
}, nil)

local begin = Plateau.init
function Plateau:init(given)
  begin(self, given)
  self.lr, self.best, self.bad, self.cooling = self.options.lr, nil, 0, 0
end
Plateau.at = nil

function Plateau:rate()
  return self.lr
end

local function better(o, metric, best)
  if best == nil then
    return metric == metric
  elseif o.mode == "min" then
    return metric < best - math.abs(best) * o.threshold
  end
  return metric > best + math.abs(best) * o.threshold
end

--- Takes a measurement; the rate falls by `factor` after more than `patience` in a row that are not better.
---@param metric number
---@return number
function Plateau:step(metric)
  local o = self.options
  args.number("optim.lr.Plateau", "the metric", metric)
  self.count = self.count + 1
  if better(o, metric, self.best) then
    self.best, self.bad = metric, 0
  else
    self.bad = self.bad + 1
  end
  if self.cooling > 0 then
    self.cooling, self.bad = self.cooling - 1, 0
  end
  if self.bad > o.patience then
    self.lr, self.bad, self.cooling = math.max(self.lr * o.factor, o.min), 0, o.cooldown
  end
  return self.lr
end

function Plateau:state()
  return { count = self.count, lr = self.lr, best = self.best, bad = self.bad, cooling = self.cooling }
end

function Plateau:check_state(state)
  local found = Schedule.check_state(self, state)
  for _, name in ipairs { "lr", "bad", "cooling" } do
    if #found == 0 and type(state[name]) ~= "number" then
      found[1] = ("scheduler: the state has no %s"):format(name)
    end
  end
  return found
end

function Plateau:load_state(state)
  Schedule.load_state(self, state)
  self.lr, self.best, self.bad, self.cooling = state.lr, state.best, state.bad, state.cooling
  return self
end

return M
