--- Optimizers over plain Lua numbers, one element at a time: what the specs compare trajectories with.

local luda = require "luda"

local sqrt, abs, max, min = math.sqrt, math.abs, math.max, math.min

local M = {}

--- An update rule takes the options `o`, the rate, parameter, gradient, a table `s` that starts empty and the count of
-- updates, from 1; it returns the new parameter.

local function with_decay(o, p, g)
  return g + (o.weight_decay or 0) * p
end

function M.SGD(o, lr, p, g, s)
  g = with_decay(o, p, g)
  local d = g
  if (o.momentum or 0) > 0 then
    s.v = s.v and (1 - (o.dampening or 0)) * g + o.momentum * s.v or g
    d = o.nesterov and g + o.momentum * s.v or s.v
  end
  return p - lr * d
end

local function moments(o, g, s, t)
  s.m = o.beta1 * (s.m or 0) + (1 - o.beta1) * g
  s.n = o.beta2 * (s.n or 0) + (1 - o.beta2) * g * g
  s.top = max(s.top or 0, s.n)
  local second = (o.amsgrad and s.top or s.n) / (1 - o.beta2 ^ t)
  return s.m / (1 - o.beta1 ^ t) / (sqrt(second) + o.eps)
end

function M.Adam(o, lr, p, g, s, t)
  return p - lr * moments(o, with_decay(o, p, g), s, t)
end

function M.AdamW(o, lr, p, g, s, t)
  local u = moments(o, g, s, t)
  if not o.cautious or (p >= 0) == (s.m >= 0) then
    p = p * (1 - lr * o.weight_decay)
  end
  return p - lr * u
end

function M.AdaGrad(o, lr, p, g, s, t)
  g = with_decay(o, p, g)
  s.sum = (s.sum or 0) + g * g
  return p - lr / (1 + (t - 1) * o.lr_decay) * g / (sqrt(s.sum) + o.eps)
end

function M.RMSProp(o, lr, p, g, s)
  g = with_decay(o, p, g)
  s.v = o.alpha * (s.v or 0) + (1 - o.alpha) * g * g
  local a = s.v
  if o.centered then
    s.mean = o.alpha * (s.mean or 0) + (1 - o.alpha) * g
    a = max(s.v - s.mean * s.mean, 0)
  end
  local u = g / (sqrt(a) + o.eps)
  if o.momentum > 0 then
    s.b = s.b and o.momentum * s.b + u or u
    u = s.b
  end
  return p - lr * u
end

function M.Adan(o, lr, p, g, s, t)
  local change = s.g and g - s.g or 0
  s.g = g
  s.m = o.beta1 * (s.m or 0) + (1 - o.beta1) * g
  s.d = o.beta2 * (s.d or 0) + (1 - o.beta2) * change
  s.n = o.beta3 * (s.n or 0) + (1 - o.beta3) * (g + o.beta2 * change) ^ 2
  local den = sqrt(s.n) / sqrt(1 - o.beta3 ^ t) + o.eps
  local u = s.m / (1 - o.beta1 ^ t) / den + o.beta2 * s.d / (1 - o.beta2 ^ t) / den
  local decay = o.weight_decay or 0
  if o.no_prox then
    return p * (1 - lr * decay) - lr * u
  end
  return (p - lr * u) / (1 + lr * decay)
end

--- With the sign of a mixture; the moment is mixed by another share.
function M.Lion(o, lr, p, g, s)
  local mixture = o.beta1 * (s.m or 0) + (1 - o.beta1) * g
  s.m = o.beta2 * (s.m or 0) + (1 - o.beta2) * g
  local sign = mixture > 0 and 1 or mixture < 0 and -1 or 0
  return p * (1 - lr * (o.weight_decay or 0)) - lr * sign
end

function M.Adamax(o, lr, p, g, s, t)
  g = with_decay(o, p, g)
  s.m = o.beta1 * (s.m or 0) + (1 - o.beta1) * g
  s.top = max(o.beta2 * (s.top or 0), abs(g) + o.eps)
  return p - lr / (1 - o.beta1 ^ t) * s.m / s.top
end

function M.NAdam(o, lr, p, g, s, t)
  g = with_decay(o, p, g)
  s.m = o.beta1 * (s.m or 0) + (1 - o.beta1) * g
  s.n = o.beta2 * (s.n or 0) + (1 - o.beta2) * g * g
  local function momentum(step)
    return o.beta1 * (1 - 0.96 ^ (step * o.momentum_decay) / 2)
  end
  local product = 1
  for step = 1, t do
    product = product * momentum(step)
  end
  local den = sqrt(s.n / (1 - o.beta2 ^ t)) + o.eps
  local ahead = momentum(t + 1) * s.m / (1 - product * momentum(t + 1))
  return p - lr * (ahead + (1 - momentum(t)) * g / (1 - product)) / den
end

function M.RAdam(o, lr, p, g, s, t)
  g = with_decay(o, p, g)
  s.m = o.beta1 * (s.m or 0) + (1 - o.beta1) * g
  s.n = o.beta2 * (s.n or 0) + (1 - o.beta2) * g * g
  local mean, rest = s.m / (1 - o.beta1 ^ t), 1 - o.beta2 ^ t
  local limit = 2 / (1 - o.beta2) - 1
  local length = limit - 2 * t * o.beta2 ^ t / rest
  if length <= 5 then
    return p - lr * mean
  end
  local rectified = sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length))
  return p - lr * mean * rectified * sqrt(rest) / (sqrt(s.n) + o.eps)
end

function M.AdaDelta(o, lr, p, g, s)
  g = with_decay(o, p, g)
  s.n = o.rho * (s.n or 0) + (1 - o.rho) * g * g
  local change = sqrt((s.u or 0) + o.eps) / sqrt(s.n + o.eps) * g
  s.u = o.rho * (s.u or 0) + (1 - o.rho) * change * change
  return p - lr * change
end

--- Whole-number noise of mixed sign in [-2, 2], the same for the same arguments.
function M.noise(step, index)
  local x = (step * 7919 + index * 104729 + 12345) % 65521
  x = (x * 31469 + 271) % 65521
  return x / 65521 * 4 - 2
end

--- Runs a rule over a list; `gradient(step, i)` may return nil (no gradient). Returns the values after each step.
function M.run(rule, options, lr, values, steps, gradient)
  local states, counts, after = {}, {}, {}
  values = { unpack(values) }
  for i = 1, #values do
    states[i], counts[i] = {}, 0
  end
  for step = 1, steps do
    for i = 1, #values do
      local g = gradient(step, i)
      if g then
        counts[i] = counts[i] + 1
        values[i] = rule(options, lr, values[i], g, states[i], counts[i])
      end
    end
    after[step] = { unpack(values) }
  end
  return after
end

--- A tensor of such noise, [rows, columns].
function M.matrix(rows, columns, dtype)
  local list = {}
  for i = 1, rows * columns do
    list[i] = M.noise(rows, columns * 31 + i)
  end
  return luda.tensor(list, { dtype = dtype or "f64" }):reshape(rows, columns)
end

--- What clipping to a norm multiplies by.
function M.clip(norm, limit)
  return min(1, limit / abs(norm))
end

return M
