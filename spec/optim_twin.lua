--- Optimizers over plain Lua numbers, one element at a time: what the specs compare trajectories with.

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

--- What clipping to a norm multiplies by.
function M.clip(norm, limit)
  return min(1, limit / abs(norm))
end

return M
