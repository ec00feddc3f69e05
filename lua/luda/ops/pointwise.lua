--- Elementwise mathematics composed from rows: bounds, tests, quotients that round, products that add.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local values = require "luda.values"
local into = require "luda.ops.into"

local functions, is_tensor = ops.functions, tensors.is_tensor
local define, need_tensor = values.define, values.need_tensor

-- The rows that the functions below extend under the same name.
local row = {}
for _, name in ipairs { "div", "div_", "bitwise_not", "bitwise_not_" } do
  row[name] = assert(functions[name], name)
end

local function is_plain_table(value)
  return type(value) == "table" and getmetatable(value) == nil
end

-- Arithmetic.

--- add and sub with a multiple of the second operand: x:add(y, { alpha = 2 }).
for _, name in ipairs { "add", "sub", "add_", "sub_" } do
  local plain = assert(functions[name])
  define(name, function(a, b, options)
    if is_plain_table(options) and options.alpha ~= nil then
      local given = args.options(name, options, { alpha = 1, out = args.absent })
      return plain(a, functions.mul(b, given.alpha), given.out and { out = given.out } or nil)
    end
    return plain(a, b, options)
  end)
end

local function is_whole(value)
  if is_tensor(value) then
    return args.dtype_class(value.dtype) ~= "float"
  end
  return args.is_boxed(value) or type(value) == "boolean" or (type(value) == "number" and value == math.floor(value))
end

--- The whole quotient of a rounding_mode.
local function whole_quotient(a, b, mode)
  if mode == "floor" then
    return functions.floor_divide(a, b)
  elseif mode ~= "trunc" then
    errors.raise("invalid", "div: rounding_mode is \"floor\" or \"trunc\", not %s", args.describe(mode))
  elseif is_whole(a) and is_whole(b) then
    return functions.floor_divide(functions.sub(a, functions.fmod(a, b)), b)
  end
  return functions.trunc(row.div(a, b))
end

--- True quotient; with rounding_mode "floor" or "trunc" it is whole, and whole numbers keep their type.
define("div", function(a, b, options)
  if not is_plain_table(options) or options.rounding_mode == nil then
    return row.div(a, b, options)
  end
  local given = args.options("div", options, { rounding_mode = args.absent, out = args.absent })
  local result = whole_quotient(a, b, given.rounding_mode)
  return given.out and into.write_results("div", given.out, result) or result
end)

define("div_", function(a, b, options)
  if not is_plain_table(options) or options.rounding_mode == nil then
    return row.div_(a, b, options)
  end
  local mode = args.options("div_", options, { rounding_mode = args.absent }).rounding_mode
  return sugar.assign("div_", need_tensor("div_", a), whole_quotient(a, b, mode))
end)

--- start + weight * (finish - start), which is finish where the weight is 1.
define("lerp", function(start, finish, weight)
  need_tensor("lerp", start)
  local way = functions.sub(finish, start)
  if type(weight) == "number" then
    return weight < 0.5 and start + way * weight or finish - way * (1 - weight)
  end
  need_tensor("lerp", weight)
  return functions.where(functions.lt(functions.abs(weight), 0.5), start + way * weight, finish - way * (1 - weight))
end)

--- t + value * a * b.
define("addcmul", function(t, a, b, ...)
  local product = functions.mul(a, b)
  local value = args.named("addcmul", { "value" }, { value = 1 }, ...).value
  return functions.add(t, value == 1 and product or product * value)
end)

--- t + value * a / b.
define("addcdiv", function(t, a, b, ...)
  local quotient = row.div(a, b)
  local value = args.named("addcdiv", { "value" }, { value = 1 }, ...).value
  return functions.add(t, value == 1 and quotient or quotient * value)
end)

--- t * 2^exponent.
define("ldexp", function(t, exponent)
  return functions.mul(t, functions.exp2(exponent))
end)

--- The part behind the whole number, with the sign of t.
define("frac", function(t)
  return functions.sub(t, functions.trunc(need_tensor("frac", t)))
end)

--- Degrees as radians.
define("deg2rad", function(t)
  return functions.mul(t, math.pi / 180)
end)

--- Radians as degrees.
define("rad2deg", function(t)
  return functions.mul(t, 180 / math.pi)
end)

--- sin(pi t) / (pi t), 1 at 0.
define("sinc", function(t)
  local turn = functions.mul(need_tensor("sinc", t), math.pi)
  local at_zero = functions.eq(turn, 0)
  local safe = functions.where(at_zero, 1, turn)
  return functions.where(at_zero, 1, functions.sin(safe) / safe)
end)

--- log(t / (1 - t)); with eps, of t within eps of the ends.
define("logit", function(t, ...)
  local eps = args.named("logit", { "eps" }, {}, ...).eps
  if eps ~= nil then
    t = functions.clamp(t, args.number("logit", "eps", eps), 1 - eps)
  end
  return functions.log(t) - functions.log1p(-t) -- a quotient would make 0 · inf of the slope at 0
end)

-- Bounds.

local function clamp(suffix)
  return function(t, ...)
    local given = args.named("clamp", { "min", "max" }, {}, ...)
    if given.min == nil and given.max == nil then
      errors.raise("invalid", "clamp: neither min nor max is given; at least one is needed")
    end
    if given.min ~= nil then
      t = functions["clamp_min" .. suffix](t, given.min)
    end
    if given.max ~= nil then
      t = functions["clamp_max" .. suffix](t, given.max)
    end
    return t
  end
end

--- Elements within min and max, numbers or tensors; where min is above max, max. At a bound the gradient is 0.
define("clamp", clamp(""))
--- clip: Another name of clamp.
define("clip", clamp(""))
define("clamp_", clamp("_"))
define("clip_", clamp("_"))

local largest = { f64 = 1.7976931348623157e308, f32 = 3.4028234663852886e38, f16 = 65504, bf16 = 3.3895313892515355e38 }

--- NaN, infinity and -infinity replaced: by 0 and the ends of the type where no numbers are given.
define("nan_to_num", function(t, ...)
  local most = largest[need_tensor("nan_to_num", t).dtype]
  local given = args.named("nan_to_num", { "nan", "posinf", "neginf" }, { nan = 0, posinf = most, neginf = most and -most },
    ...)
  if not most then
    return functions.clone(t)
  end
  local result = functions.where(functions.isnan(t), given.nan, t)
  result = functions.where(functions.eq(result, math.huge), given.posinf, result)
  return functions.where(functions.eq(result, -math.huge), given.neginf, result)
end)

-- Tests.

--- True where |a - b| <= atol + rtol |b|, or both are the same infinity, or with equal_nan both are NaN.
define("isclose", function(a, b, ...)
  local given = args.named("isclose", { "rtol", "atol", "equal_nan" }, { rtol = 1e-5, atol = 1e-8, equal_nan = false }, ...)
  need_tensor("isclose", a)
  need_tensor("isclose", b)
  if args.number("isclose", "rtol", given.rtol) < 0 or args.number("isclose", "atol", given.atol) < 0 then
    errors.raise("invalid", "isclose: rtol %g and atol %g must not be negative", given.rtol, given.atol)
  end
  local x, y = a, b
  if is_whole(a) and is_whole(b) then
    x, y = functions.to(a, "f64"), functions.to(b, "f64")
  end
  local distance = functions.abs(x - y)
  local near = functions.logical_and(functions.isfinite(distance),
    functions.le(distance, functions.abs(y) * given.rtol + given.atol))
  near = functions.logical_or(functions.eq(a, b), near)
  if given.equal_nan then
    near = functions.logical_or(near, functions.logical_and(functions.isnan(x), functions.isnan(y)))
  end
  return near
end)

--- Whether isclose holds everywhere, as a Lua boolean.
define("allclose", function(a, b, ...)
  return functions.sum(functions.logical_not(functions.isclose(a, b, ...))):item() == 0
end)

-- Bits.

--- Every bit turned over; of booleans the other one.
for suffix, name in pairs { [""] = "bitwise_not", _ = "bitwise_not_" } do
  define(name, function(t, ...)
    if is_tensor(t) and t.dtype == "bool" and select("#", ...) == 0 then
      return functions["logical_not" .. suffix](t)
    end
    return row[name](t, ...)
  end)
end
