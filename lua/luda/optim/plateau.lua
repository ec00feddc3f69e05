--- A learning rate that follows a measurement.

local args = require "luda.args"
local schedule = require "luda.optim.schedule"

local Schedule, tests = schedule.Schedule, schedule.tests

---@class luda.Plateau : luda.Schedule
---@field best number
---@field bad integer steps since the metric was better by the threshold
local Plateau = schedule.define("Plateau", {
  { "lr", tests.positive }, { "factor", tests.fraction, 0.1 }, { "patience", tests.count, 10 },
  { "threshold", tests.not_negative, 1e-4 },
  { "cooldown", tests.count, 0 }, { "min", tests.not_negative, 0 },
  { "mode", "choice", "min", { min = true, max = true }, "'min' or 'max'" },
  { "threshold_mode", "choice", "rel", { rel = true, abs = true }, "'rel' or 'abs'" },
}, nil)

local begin = Plateau.init
function Plateau:init(given)
  begin(self, given)
  self.lr, self.best, self.bad, self.cooling = self.options.lr, nil, 0, 0
end

function Plateau:at()
  return self.lr
end

function Plateau:follows() -- luacheck: no self
  return true
end

local function better(o, metric, best)
  if best == nil then
    return metric == metric
  end
  local margin = o.threshold_mode == "rel" and math.abs(best) * o.threshold or o.threshold
  if o.mode == "min" then
    return metric < best - margin
  end
  return metric > best + margin
end

--- The rate falls by `factor` after more than `patience` measurements in a row that are not better.
function Plateau:measure(_, metric)
  local o = self.options
  args.number("optim.lr.Plateau", "the metric", metric)
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

return Plateau
