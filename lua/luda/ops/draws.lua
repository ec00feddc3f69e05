--- Random numbers of other distributions, made from uniform and normal draws: like those they depend on the generator's seed,
-- its counter and the position only, not on threads.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local values = require "luda.values"

local functions, methods, absent = ops.functions, tensors.methods, args.absent
local define, need_tensor = values.define, values.need_tensor

--- A draw of the shape and device of `t`, in f32 or, for f64, in f64.
local function draw(name, t, generator, dtype)
  dtype = dtype or t.dtype == "f64" and "f64" or "f32"
  return create[name](t.shape, { dtype = dtype, device = t.device, generator = generator })
end

--- Defines name_(t, numbers…, { generator = }), which fills t with what compute(t, generator, numbers…) gives.
local function filling(name, names, defaults, compute)
  define(name, function(t, ...)
    need_tensor(name, t)
    if args.dtype_class(t.dtype) ~= "float" then
      errors.raise("dtype", "%s: %s is not possible here, a floating type is needed", name, t.dtype)
    end
    local known = { unpack(names) }
    known[#known + 1] = "generator"
    local given, numbers = args.named(name, known, defaults, ...), {}
    for i, key in ipairs(names) do
      numbers[i] = args.number(name, key, given[key])
    end
    local drawn = compute(t, given.generator, unpack(numbers, 1, #names))
    return sugar.assign(name, t, methods.to(drawn, t.dtype))
  end)
end

--- Uniform numbers from `from`, below `to`.
filling("uniform_", { "from", "to" }, { from = 0, to = 1 }, function(t, generator, from, to)
  if from > to then
    errors.raise("invalid", "uniform_: from %g is above to %g", from, to)
  end
  return draw("rand", t, generator) * (to - from) + from
end)

--- Normal numbers.
filling("normal_", { "mean", "std" }, { mean = 0, std = 1 }, function(t, generator, mean, std)
  if std < 0 then
    errors.raise("invalid", "normal_: std is %g; it must not be negative", std)
  end
  return draw("randn", t, generator) * std + mean
end)

--- -log(1 - u): the mean is 1.
local function exponential(t, generator, dtype)
  return -functions.log1p(-draw("rand", t, generator, dtype))
end

--- Exponential numbers of rate lambd.
filling("exponential_", { "lambd" }, { lambd = 1 }, function(t, generator, lambd)
  if lambd <= 0 or lambd ~= lambd then
    errors.raise("invalid", "exponential_: lambd is %g; it must be positive", lambd)
  end
  return exponential(t, generator) / lambd
end)

--- Standard Gumbel numbers, -log of exponential ones; the smallest of those is not 0.
local function gumbel(t, generator, dtype)
  return -functions.log(functions.clamp_min(exponential(t, generator, dtype), 1e-30))
end

--- Gumbel numbers.
filling("gumbel_", { "loc", "scale" }, { loc = 0, scale = 1 }, function(t, generator, loc, scale)
  if scale <= 0 or scale ~= scale then
    errors.raise("invalid", "gumbel_: scale is %g; it must be positive", scale)
  end
  return gumbel(t, generator) * scale + loc
end)

--- Normal numbers within a .. b, by inverting the distribution function.
filling("trunc_normal_", { "mean", "std", "a", "b" }, { mean = 0, std = 1, a = -2, b = 2 },
  function(t, generator, mean, std, a, b)
    if std <= 0 or a >= b then
      errors.raise("invalid", "trunc_normal_: std %g must be positive and a %g below b %g", std, a, b)
    end
    local ends = functions.erf(create.tensor({ (a - mean) / std, (b - mean) / std }, { dtype = "f64" }) * math.sqrt(0.5))
    local low, high = ends[1]:item(), ends[2]:item()
    local normal = functions.erfinv(draw("rand", t, generator, "f64") * (high - low) + low) * math.sqrt(2)
    return functions.clamp(normal * std + mean, a, b)
  end)

--- Gumbel numbers of a shape, or like a tensor.
---@param ... integer|integer[]|table sizes, then options dtype, device, generator
function create.gumbel(...)
  local list = { n = select("#", ...), ... }
  local given = args.options("gumbel", args.take_options(list), { dtype = "f32", device = "cpu", generator = absent })
  local shape = list.n == 1 and type(list[1]) == "table" and list[1] or { unpack(list, 1, list.n) }
  local target = create.empty(args.sizes("gumbel", shape), { dtype = given.dtype, device = given.device })
  return functions.gumbel_(target, { generator = given.generator })
end

--- Whole numbers from low, below high, of the shape, type and device of t.
function create.randint_like(t, low, high, given)
  local options = { dtype = need_tensor("randint_like", t).dtype, device = t.device }
  for name, value in pairs(given or {}) do
    options[name] = value
  end
  if high == nil or type(high) == "table" then
    errors.raise("invalid", "randint_like: a low and a high are needed, high is %s", args.describe(high))
  end
  return create.randint(low, high, t.shape, options)
end

--- 1 with a probability, else 0: of each element of t, or one for all elements.
define("bernoulli", function(t, ...)
  local given = args.named("bernoulli", { "p", "generator" }, {}, ...)
  local p = given.p or need_tensor("bernoulli", t)
  if args.dtype_class(need_tensor("bernoulli", t).dtype) ~= "float" then
    errors.raise("dtype", "bernoulli: probabilities of type %s; a floating type is needed", t.dtype)
  end
  local bad = given.p and (given.p < 0 or given.p > 1) or not given.p and t.numel > 0
    and not (functions.amin(t):item() >= 0 and functions.amax(t):item() <= 1)
  if bad then
    errors.raise("invalid", "bernoulli: a probability is not within 0 .. 1")
  end
  return methods.to(functions.lt(draw("rand", t, given.generator), methods.detach(create.zeros_like(t) + p)), t.dtype)
end)

--- Filled with 1 with probability p, else 0.
define("bernoulli_", function(t, ...)
  local given = args.named("bernoulli_", { "p", "generator" }, { p = 0.5 }, ...)
  local drawn = functions.bernoulli(create.empty(need_tensor("bernoulli_", t).shape, { device = t.device }), given)
  return sugar.assign("bernoulli_", t, methods.to(drawn, t.dtype))
end)

local BLOCK = 2 ^ 22

--- Positions of the largest of scores + noise, anew for each of `count` draws: [count, ...].
local function independent(scores, count, generator)
  local shape, drawn, done = scores.shape, nil, 0
  local most = math.max(math.floor(BLOCK / math.max(scores.numel, 1)), 1)
  while done < count do
    local part = math.min(most, count - done)
    local wide = methods.expand(scores, { part, unpack(shape) })
    local places = functions.argmax(wide + gumbel(wide, generator, "f64"), -1)
    drawn, done = drawn and functions.cat({ drawn, places }, 1) or places, done + part
  end
  return drawn
end

--- Positions of the `count` largest of a list, the largest first.
local function largest(list, count)
  local order, result = {}, {}
  for i = 1, #list do
    order[i] = i
  end
  table.sort(order, function(i, j)
    return list[i] > list[j] or (list[i] == list[j] and i < j)
  end)
  for i = 1, count do
    result[i] = order[i]
  end
  return result
end

local function exclusive(scores, count, generator)
  local list = (scores + gumbel(scores, generator, "f64")):totable()
  local result = scores.ndim == 1 and largest(list, count) or {}
  for i = 1, scores.ndim == 2 and #list or 0 do
    result[i] = largest(list[i], count)
  end
  return create.tensor(result, { dtype = "i64", device = scores.device })
end

--- Positions drawn with probabilities in proportion to the last dimension of t: count of them, each at most once unless
-- `replacement`. Positions count from `base`, 1 where not given. The largest of log weights plus Gumbel noise wins.
define("multinomial", function(t, count, ...)
  local given = args.named("multinomial", { "replacement", "generator", "base" }, { replacement = false, base = 1 }, ...)
  count = args.integer("multinomial", "the number of draws", count)
  local shape = need_tensor("multinomial", t).shape
  local floating = args.dtype_class(t.dtype) == "float"
  if #shape < 1 or #shape > 2 or not floating then
    errors.raise(floating and "shape" or "dtype", "multinomial: %s %s; weights are floating, of one or two dimensions", t.dtype,
      args.shape_text(shape))
  end
  local weights = methods.detach(methods.to(t, "f64"))
  local positive = functions.gt(weights, 0)
  local fewest = t.numel > 0 and functions.amin(functions.sum(positive, #shape)):item() or 0
  if t.numel > 0 and not (functions.amin(weights):item() >= 0 and functions.amax(weights):item() < math.huge) then
    errors.raise("invalid", "multinomial: a weight is negative, infinite or NaN")
  elseif count < 1 or fewest < (given.replacement and 1 or count) then
    errors.raise("invalid", "multinomial: %d draws%s where %d weights are above 0", count,
      given.replacement and "" or " without replacement", fewest)
  end
  local scores = functions.where(positive, functions.log(functions.where(positive, weights, 1)), -math.huge)
  local places
  if given.replacement or count == 1 then
    places = independent(scores, count, given.generator)
    places = #shape == 2 and functions.transpose(places, 1, 2) or places
  else
    places = exclusive(scores, count, given.generator)
  end
  return places + (args.integer("multinomial", "base", given.base) - 1)
end)

-- Poisson numbers: where the rate is below 10 the distribution function is inverted term by term, above numbers are refused
-- until one is accepted (PTRS, Hoermann 1993). Each round draws for all elements, so that positions stay independent.

local SMALL = 10

local function poisson_small(rate, generator)
  local u, term = draw("rand", rate, generator), functions.exp(-rate)
  local sum, result = term, create.zeros_like(rate)
  for k = 1, 80 do
    local above = functions.ge(u, sum)
    if functions.sum(above):item() == 0 then
      break
    end
    result = functions.where(above, k, result)
    term = term * rate / k
    sum = sum + term
  end
  return result
end

local function poisson_large(rate, generator)
  local b = functions.sqrt(rate) * 2.53 + 0.931
  local a = b * 0.02483 - 0.059
  local inverse_alpha, fast = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)
  local result, waiting = create.zeros_like(rate), create.ones_like(rate, { dtype = "bool" })
  while functions.sum(waiting):item() > 0 do
    local u, v = draw("rand", rate, generator) - 0.5, draw("rand", rate, generator)
    local us = 0.5 - functions.abs(u)
    local k = functions.floor((a * 2 / us + b) * u + rate + 0.43)
    local quick = functions.logical_and(functions.ge(us, 0.07), functions.le(v, fast))
    local hopeless = functions.logical_or(functions.lt(k, 0),
      functions.logical_and(functions.lt(us, 0.013), functions.gt(v, us)))
    local left = functions.log(v * inverse_alpha / (a / (us * us) + b))
    local right = k * functions.log(rate) - rate - functions.lgamma(k + 1)
    local taken = functions.logical_and(functions.logical_not(hopeless), functions.le(left, right))
    taken = functions.logical_and(waiting, functions.logical_or(quick, taken))
    result = functions.where(taken, k, result)
    waiting = functions.logical_and(waiting, functions.logical_not(taken))
  end
  return result
end

--- Numbers of events at the rates of t.
define("poisson", function(t, ...)
  local generator = args.named("poisson", { "generator" }, {}, ...).generator
  if args.dtype_class(need_tensor("poisson", t).dtype) ~= "float" then
    errors.raise("dtype", "poisson: rates of type %s; a floating type is needed", t.dtype)
  end
  if t.numel == 0 then
    return create.zeros_like(t)
  end
  local rate = methods.detach(methods.to(t, "f64"))
  local most = functions.amax(rate):item()
  if not (functions.amin(rate):item() >= 0 and most < math.huge) then
    errors.raise("invalid", "poisson: a rate is negative, infinite or NaN")
  end
  local result = poisson_small(functions.clamp_max(rate, SMALL), generator)
  if most > SMALL then
    local large = functions.gt(rate, SMALL)
    result = functions.where(large, poisson_large(functions.where(large, rate, 2 * SMALL), generator), result)
  end
  return methods.to(result, t.dtype)
end)
