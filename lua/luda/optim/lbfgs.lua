--- L-BFGS: all parameters as one vector, directions from the last differences of gradients, and a closure that is called as
-- often as needed.

local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local manifest = require "luda.manifest"
local scope = require "luda.scope"
local vector = require "luda.optim.vector"
local wolfe = require "luda.optim.wolfe"

---@class luda.LBFGS
---@field list luda.Named[]
---@field options table
local LBFGS = class("LBFGS")

local DEFAULTS = {
  max_iter = 20, max_eval = args.absent, history_size = 100, tolerance_grad = 1e-7, tolerance_change = 1e-9,
  line_search_fn = args.absent,
}

--- An optimizer of a module's parameters, or of a list of tensors.
---@param source any
---@param given? table max_iter, max_eval, history_size, tolerance_grad, tolerance_change, line_search_fn = "strong_wolfe"
function LBFGS:init(source, given)
  local op = "optim.LBFGS"
  self.list, self.from_model = manifest.parameters(op, source)
  local o = args.options(op, given, DEFAULTS)
  o.max_eval = o.max_eval or math.max(math.floor(args.number(op, "max_iter", o.max_iter) * 5 / 4), 2)
  for name, low in pairs { max_iter = 0, max_eval = 1, history_size = 1, tolerance_grad = 0, tolerance_change = 0 } do
    local value, whole = args.number(op, name, o[name]), not name:match("^tol")
    if not (value >= low and value < math.huge) or (whole and value ~= math.floor(value)) then
      errors.raise("invalid", "%s: %s is %g, it must be a %snumber of at least %d", op, name, value,
        whole and "whole " or "", low)
    end
  end
  if o.line_search_fn ~= nil and o.line_search_fn ~= "strong_wolfe" then
    errors.raise("invalid", "%s: line_search_fn is %s, it must be 'strong_wolfe' or nil", op, tostring(o.line_search_fn))
  end
  o.line_search_fn = o.line_search_fn or "none"
  self.options, self.memory = o, { pairs = {}, iterations = 0, members = {} }
  self.dtype, self.device = "f32", self.list[1] and self.list[1].tensor.device
  for _, entry in ipairs(self.list) do
    self.dtype = entry.tensor.dtype == "f64" and "f64" or self.dtype
    if entry.tensor.device ~= self.device then
      errors.raise("device", "%s: '%s' is on %s, '%s' on %s; all parameters must be on one device", op, entry.name,
        entry.tensor.device, self.list[1].name, self.device)
    end
  end
end

function LBFGS:__tostring()
  return ("luda.optim.LBFGS(%d parameters)"):format(#self.list)
end

-- Directions.

local function largest(x)
  return x.numel > 0 and x:abs():amax():item() or 0
end

local function dot(a, b)
  return a:dot(b):item()
end

--- Takes the last difference into the history where it curves upwards.
local function remember(state, gradient, limit)
  local y, s = gradient - state.gradient, state.direction * state.t
  local product = dot(y, s)
  if product > 1e-10 then
    if #state.pairs == limit then
      table.remove(state.pairs, 1)
    end
    state.pairs[#state.pairs + 1] = { y = y, s = s, rho = 1 / product, scale = product / dot(y, y) }
  end
end

--- Minus the gradient through the inverse curvature that the history tells of.
local function direction_of(history, gradient)
  local q, alpha = -gradient, {}
  for i = #history, 1, -1 do
    alpha[i] = dot(history[i].s, q) * history[i].rho
    q = q - history[i].y * alpha[i]
  end
  if #history > 0 then
    q = q * history[#history].scale
  end
  for i = 1, #history do
    q = q + history[i].s * (alpha[i] - dot(history[i].y, q) * history[i].rho)
  end
  return q
end

local function same_members(state, members)
  local same = #state.members == #members
  for i, entry in ipairs(members) do
    same = same and state.members[i] == entry.name
  end
  return same
end

--- The state that a step goes on from: the history is of the parameters that it was made with.
local function begin(self, members)
  local last = self.memory
  local state = { pairs = {}, iterations = 0, members = {} }
  for i, entry in ipairs(members) do
    state.members[i] = entry.name
  end
  if same_members(last, members) then
    for name, value in pairs(last) do
      state[name] = value
    end
    state.pairs = { unpack(last.pairs) }
  end
  return state
end

--- Moves along the direction by a line search, or by the step as it is, and evaluates there if that is asked for.
local function move(self, at, state, start, left, again)
  if self.options.line_search_fn == "strong_wolfe" then
    return wolfe.search(start, state.t, at,
      { size = largest(state.direction), tolerance = self.options.tolerance_change, left = left })
  elseif again then
    return at(state.t), 1
  end
  return { t = state.t, loss = start.loss, gradient = start.gradient }, 0
end

local function is_finite(x)
  return x - x == 0
end

--- Whether there is nothing more to be gained.
local function is_done(o, point, state)
  return largest(point.gradient) <= o.tolerance_grad or largest(state.direction) * math.abs(state.t) <= o.tolerance_change
    or math.abs(point.loss - state.loss) < o.tolerance_change
end

--- Iterates; returns the new state and counts, or nil where a value was not finite.
local function minimize(self, lr, closure, members, point)
  local o, state = self.options, begin(self, members)
  local evaluations, iterations = 1, 0
  while iterations < o.max_iter and evaluations < o.max_eval do
    iterations, state.iterations = iterations + 1, state.iterations + 1
    if state.iterations > 1 then
      remember(state, point.gradient, o.history_size)
    end
    local direction = scope.scope(direction_of, state.pairs, point.gradient)
    state.direction, state.gradient, state.loss = direction, point.gradient, point.loss
    state.t = state.iterations == 1 and math.min(1, 1 / point.gradient:abs():sum():item()) * lr or lr
    local slope = dot(point.gradient, direction)
    if slope > -o.tolerance_change then
      break
    end
    local origin = vector.values(members, self.dtype)
    local function at(t)
      vector.assign(members, origin + direction * t)
      local loss, gradient = vector.evaluate(closure, members, self.dtype)
      return { t = t, loss = loss, gradient = gradient, slope = dot(gradient, direction) }
    end
    local found, count = move(self, at, state, { t = 0, loss = point.loss, gradient = point.gradient, slope = slope },
      o.max_eval - evaluations, iterations < o.max_iter)
    vector.assign(members, origin + direction * found.t)
    point, evaluations, state.t = found, evaluations + count, found.t
    if not is_finite(point.loss) or not is_finite(largest(point.gradient)) then
      return nil
    elseif is_done(o, point, state) then
      break
    end
  end
  return state, { evaluations = evaluations, iterations = iterations, final_loss = point.loss }
end

local function each_tensor(state, fn)
  for _, name in ipairs { "direction", "gradient" } do
    if state[name] then
      fn(state[name], state, name)
    end
  end
  for _, pair in ipairs(state.pairs) do
    fn(pair.y, pair, "y")
    fn(pair.s, pair, "s")
  end
end

local function run(self, lr, closure)
  local members = {}
  local loss, gradient = vector.evaluate(closure, members, self.dtype, function(grads)
    for _, entry in ipairs(self.list) do
      if grads:get(entry.tensor) and (entry.tensor.requires_grad or not self.from_model) then
        members[#members + 1] = entry
      end
    end
  end)
  local size = largest(gradient)
  local report = {
    skipped = not (is_finite(loss) and is_finite(size)), updated = 0, loss = loss, final_loss = loss, clip_coef = 1,
    grad_norm = math.sqrt(dot(gradient, gradient)), evaluations = 1, iterations = 0,
  }
  if report.skipped or #members == 0 or size <= self.options.tolerance_grad then
    return report
  end
  local before = vector.values(members, self.dtype)
  local ok, state, counts = pcall(minimize, self, lr, closure, members, { loss = loss, gradient = gradient })
  if not (ok and state) then
    vector.assign(members, before)
    if not ok then
      error(state, 0)
    end
    report.skipped = true
    return report
  end
  each_tensor(state, scope.keep)
  self.memory, report.updated = state, counts.iterations > 0 and #members or 0
  report.evaluations, report.iterations, report.final_loss = counts.evaluations, counts.iterations, counts.final_loss
  return report
end

--- Minimizes for up to max_iter iterations. The closure computes loss and gradients of the parameters as they are:
-- `return loss, loss:backward()`. A loss or gradient that is not finite changes nothing and is reported as skipped.
---@param lr number
---@param closure fun(): luda.Tensor|number, luda.Gradients
---@return luda.OptimizerReport report also loss (before), final_loss (the last evaluated), evaluations, iterations
function LBFGS:step(lr, closure)
  if type(closure) ~= "function" then
    errors.raise("invalid", "step: expected a function that returns the loss and its gradients, got %s; call opt:step(rate, "
      .. "function() … return loss, loss:backward() end)", args.describe(closure))
  end
  if not (args.number("step", "the rate", lr) >= 0 and lr < math.huge) then
    errors.raise("invalid", "step: the rate is %g, it must be finite and not negative", lr)
  end
  return scope.scope(vector.unrecorded, run, self, lr, closure)
end

-- State.

--- What goes on where the optimizer stands.
---@return table
function LBFGS:state()
  local memory = self.memory
  local state = {
    kind = "lbfgs", parameters = manifest.describe(self.list), iterations = memory.iterations, members = memory.members,
    t = memory.t, loss = memory.loss, direction = memory.direction, gradient = memory.gradient, pairs = {},
  }
  for i, pair in ipairs(memory.pairs) do
    state.pairs[i] = { y = pair.y, s = pair.s, rho = pair.rho, scale = pair.scale }
  end
  each_tensor(state, function(tensor, owner, name)
    owner[name] = tensor:detach()
  end)
  return state
end

---@param state table
---@return string[] found
function LBFGS:check_state(state)
  if type(state) ~= "table" or state.kind ~= "lbfgs" or type(state.parameters) ~= "table" or type(state.pairs) ~= "table" then
    return { "optimizer: the state is not one of L-BFGS" }
  end
  local found, sizes, total = {}, {}, 0
  manifest.compare_named(found, "optimizer", state.parameters, manifest.describe(self.list))
  for _, entry in ipairs(self.list) do
    sizes[entry.name] = entry.tensor.numel
  end
  for _, name in ipairs(state.members) do
    total = total + (sizes[name] or 0)
  end
  each_tensor(state, function(tensor, _, name)
    if #found == 0 and (tensor.ndim ~= 1 or tensor.numel ~= total or tensor.dtype ~= self.dtype) then
      found[1] = ("optimizer: %s is %s %s in the file, %s [%d] here"):format(name, tensor.dtype,
        args.shape_text(tensor.shape), self.dtype, total)
    end
  end)
  return found
end

---@param state table
---@return luda.LBFGS self
function LBFGS:load_state(state)
  manifest.refuse("load_state", "the state and the optimizer", self:check_state(state))
  local memory = {
    iterations = state.iterations, members = state.members, t = state.t, loss = state.loss, direction = state.direction,
    gradient = state.gradient, pairs = {},
  }
  for i, pair in ipairs(state.pairs) do
    memory.pairs[i] = { y = pair.y, s = pair.s, rho = pair.rho, scale = pair.scale }
  end
  each_tensor(memory, function(tensor, owner, name)
    owner[name] = scope.keep(tensor:to(self.device):clone())
  end)
  self.memory = memory
  return self
end

---@return table
function LBFGS:configuration()
  return { kind = "lbfgs", options = self.options }
end

return LBFGS
