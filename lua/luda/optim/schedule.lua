--- What learning rates have in common: counting, state, and the checks of their options.

local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"

local floor, huge = math.floor, math.huge

local M = {}

---@class luda.Schedule
---@field count integer steps taken; may be set
---@field options table
local Schedule = class("luda.Schedule")
M.Schedule = Schedule

--- The rate for the next update; counts. A Plateau, and what has one among its parts, takes a measurement.
---@param metric? number
---@return number
function Schedule:step(metric)
  self:measure(self.count, metric)
  local rate = self:at(self.count)
  self.count = self.count + 1
  return rate
end

--- Takes the measurement of step i, where it is followed.
function Schedule:measure() end -- luacheck: no self

--- The schedules that this one is made of.
---@return luda.Schedule[]
function Schedule:parts() -- luacheck: no self
  return {}
end

--- True where the rate is no function of the count alone.
function Schedule:follows()
  for _, part in ipairs(self:parts()) do
    if part:follows() then
      return true
    end
  end
  return false
end

--- The rate that the next step() returns.
---@return number
function Schedule:rate()
  return self:at(self.count)
end

--- The count, and the states of parts that follow measurements.
---@return table
function Schedule:state()
  local state = { count = self.count }
  for i, part in ipairs(self:parts()) do
    if part:follows() then
      state.parts = state.parts or {}
      state.parts[tostring(i)] = part:state()
    end
  end
  return state
end

---@param state table
---@return string[] found
function Schedule:check_state(state)
  local count = type(state) == "table" and state.count
  if type(count) ~= "number" or count < 0 or count ~= floor(count) then
    return { ("scheduler: a count of %s"):format(tostring(count)) }
  end
  local found = {}
  for i, part in ipairs(self:parts()) do
    local there = type(state.parts) == "table" and state.parts[tostring(i)]
    for _, sentence in ipairs(part:follows() and part:check_state(there) or {}) do
      found[#found + 1] = ("%s in part %d"):format(sentence, i)
    end
  end
  return found
end

---@param state table
---@return luda.Schedule self
function Schedule:load_state(state)
  local found = self:check_state(state)
  if #found > 0 then
    errors.raise_with("mismatch", "load_state: " .. found[1], { detail = found })
  end
  self.count = state.count
  for i, part in ipairs(self:parts()) do
    if part:follows() then
      part:load_state(state.parts[tostring(i)])
    end
  end
  return self
end

--- What must be the same for a count to mean the same, and the values that options have where nobody names them.
---@return table configuration
---@return table defaults
function Schedule:configuration()
  local configuration, defaults = { kind = self.class_name }, {}
  for name, value in pairs(self.options) do
    if type(value) == "table" and value.configuration then
      configuration[name], defaults[name] = value:configuration()
    else
      configuration[name], defaults[name] = value, self.defaults[name]
    end
  end
  return configuration, defaults
end

function Schedule:__tostring()
  return ("luda.optim.lr.%s(count %d, rate %g)"):format(self.class_name, self.count, self:rate())
end

--- Raises about an option.
function M.refuse(name, option, value, need)
  errors.raise("invalid", "optim.lr.%s: %s is %s, it must be %s", name, option, args.describe(value), need)
end

--- Tests that numbers must pass: what is needed in words, and the test.
M.tests = {
  not_negative = { "finite and at least 0", function(x) return x >= 0 and x < huge end },
  positive = { "finite and positive", function(x) return x > 0 and x < huge end },
  fraction = { "positive and at most 1", function(x) return x > 0 and x <= 1 end },
  share = { "between 0 and 1", function(x) return x >= 0 and x <= 1 end },
  steps = { "a whole number of at least 1", function(x) return x >= 1 and x < huge and x == floor(x) end },
  count = { "a whole number of at least 0", function(x) return x >= 0 and x < huge and x == floor(x) end },
}

function M.check_number(name, option, value, test)
  if type(value) ~= "number" or not test[2](value) then
    M.refuse(name, option, value, test[1])
  end
end

function M.check_schedule(name, option, value)
  if type(value) ~= "table" or type(value.at) ~= "function" then
    M.refuse(name, option, value, "a schedule")
  end
end

local function check_milestones(name, option, value)
  if type(value) ~= "table" then
    M.refuse(name, option, value, "a list of counts")
  end
  for i, count in ipairs(value) do
    M.check_number(name, ("%s[%d]"):format(option, i), count, M.tests.count)
  end
end

--- Makes a schedule class. `known` lists its options as {name, test, default}; the test "schedule" is for another
-- schedule, "milestones" for a list of counts, "choice" for one of the values that are keys of entry 4, with the choices
-- in words after it.
-- `at(options, i)` is the rate of step i, from 0; nil: the class has none.
function M.define(name, known, at, check)
  local made = class(name, Schedule)
  made.__tostring = Schedule.__tostring
  local defaults = {}
  made.defaults = {}
  for _, option in ipairs(known) do
    defaults[option[1]] = option[3] == nil and args.absent or option[3]
    made.defaults[option[1]] = option[3]
  end

  function made:init(given)
    local options = args.options("optim.lr." .. name, given, defaults)
    for _, option in ipairs(known) do
      local key, test = option[1], option[2]
      if test == "schedule" then
        M.check_schedule(name, key, options[key])
      elseif test == "milestones" then
        check_milestones(name, key, options[key])
      elseif test == "choice" then
        if not option[4][options[key]] then
          M.refuse(name, key, options[key], option[5])
        end
      else
        M.check_number(name, key, options[key], test)
      end
    end
    if check then
      check(options)
    end
    self.options, self.count = options, 0
  end

  if at then
    function made:at(i)
      return at(self.options, i)
    end
  end
  return made
end

return M
