--- Optimizers that look at a whole parameter, over plain Lua numbers: what the specs compare trajectories with.

local sqrt, abs, max, min = math.sqrt, math.abs, math.max, math.min

local M = {}

--- A rule takes the options `o`, the rate, lists of values and gradients (changed in place; row-major), rows and columns (a
-- vector has none), a table `s` that starts empty and the count of updates, from 1.

local function norm(list)
  local sum = 0
  for i = 1, #list do
    sum = sum + list[i] * list[i]
  end
  return sqrt(sum)
end

local function zeros(n)
  local list = {}
  for i = 1, n do
    list[i] = 0
  end
  return list
end

local function turned(a, rows, columns)
  local b = {}
  for i = 1, rows do
    for j = 1, columns do
      b[(j - 1) * rows + i] = a[(i - 1) * columns + j]
    end
  end
  return b
end

--- [n, m] times [m, k].
local function product(a, b, n, m, k)
  local c = zeros(n * k)
  for i = 1, n do
    for j = 1, k do
      local sum = 0
      for l = 1, m do
        sum = sum + a[(i - 1) * m + l] * b[(l - 1) * k + j]
      end
      c[(i - 1) * k + j] = sum
    end
  end
  return c
end

--- An odd polynomial of the singular values, `ns_steps` times.
function M.orthogonalize(o, u, rows, columns)
  if rows > columns then
    return turned(M.orthogonalize(o, turned(u, rows, columns), columns, rows), columns, rows)
  end
  local size, x = max(norm(u), o.eps), {}
  for i = 1, #u do
    x[i] = u[i] / size
  end
  local a, b, c = unpack(o.ns_coefficients)
  for _ = 1, o.ns_steps do
    local gram = product(x, turned(x, rows, columns), rows, columns, rows)
    local square = product(gram, gram, rows, rows, rows)
    for i = 1, #gram do
      gram[i] = b * gram[i] + c * square[i]
    end
    local more = product(gram, x, rows, rows, columns)
    for i = 1, #x do
      x[i] = a * x[i] + more[i]
    end
  end
  return x
end

function M.Muon(o, lr, p, g, rows, columns, s)
  local ema = o.momentum_mode == "ema"
  local first, u = not s.v, {}
  s.v = s.v or zeros(#p)
  for i = 1, #p do
    local new = ema and (1 - o.momentum) * g[i] or g[i]
    if ema then
      s.v[i] = o.momentum * s.v[i] + new
    else
      s.v[i] = first and g[i] or (1 - o.dampening) * g[i] + o.momentum * s.v[i]
    end
    u[i] = o.nesterov and new + o.momentum * s.v[i] or s.v[i]
  end
  local x = M.orthogonalize(o, u, rows, columns)
  local high, wide = rows, columns
  if o.layout == "input_output" then
    high, wide = columns, rows
  end
  local factor = o.adjust_lr_fn == "match_rms_adamw" and 0.2 * sqrt(max(high, wide)) or sqrt(max(1, high / wide))
  for i = 1, #p do
    p[i] = p[i] * (1 - lr * o.weight_decay) - lr * factor * x[i]
  end
end

function M.LAMB(o, lr, p, g, _, _, s, t)
  s.m, s.n = s.m or zeros(#p), s.n or zeros(#p)
  local u = {}
  for i = 1, #p do
    s.m[i] = o.beta1 * s.m[i] + (1 - o.beta1) * g[i]
    s.n[i] = o.beta2 * s.n[i] + (1 - o.beta2) * g[i] * g[i]
    u[i] = s.m[i] / (1 - o.beta1 ^ t) / (sqrt(s.n[i] / (1 - o.beta2 ^ t)) + o.eps) + o.weight_decay * p[i]
  end
  local size, length = norm(p), norm(u)
  local trust = size > 0 and length > 0 and size / length or 1
  for i = 1, #p do
    p[i] = p[i] - lr * trust * u[i]
  end
end

function M.Adafactor(o, lr, p, g, rows, columns, s, t)
  local part, v, n = t ^ o.beta2_decay, {}, sqrt(#p)
  if rows then
    s.rows, s.columns = s.rows or zeros(rows), s.columns or zeros(columns)
    local mean = 0
    for i = 1, rows do
      local sum = 0
      for j = 1, columns do
        sum = sum + g[(i - 1) * columns + j] ^ 2 / columns
      end
      s.rows[i] = (1 - part) * s.rows[i] + part * sum
      mean = mean + s.rows[i] / rows
    end
    for j = 1, columns do
      local sum = 0
      for i = 1, rows do
        sum = sum + g[(i - 1) * columns + j] ^ 2 / rows
      end
      s.columns[j] = (1 - part) * s.columns[j] + part * sum
    end
    for i = 1, rows do
      for j = 1, columns do
        v[(i - 1) * columns + j] = s.rows[i] * s.columns[j] / max(mean, o.eps1)
      end
    end
  else
    s.v = s.v or zeros(#p)
    for i = 1, #p do
      s.v[i] = (1 - part) * s.v[i] + part * g[i] ^ 2
      v[i] = s.v[i]
    end
  end
  local u = {}
  for i = 1, #p do
    u[i] = g[i] / sqrt(max(v[i], o.eps1 ^ 2))
  end
  local rate = max(o.eps2, norm(p) / n) * min(lr, 1 / sqrt(t)) / max(1, norm(u) / (n * o.d))
  for i = 1, #p do
    p[i] = p[i] * (1 - lr * o.weight_decay) - rate * u[i]
  end
end

--- The largest difference of two lists.
function M.difference(a, b)
  local most = 0
  for i = 1, #a do
    local d = abs(a[i] - b[i])
    most = d <= most and most or d
  end
  return most
end

return M
