--- Every row, element type and layout against the same row on contiguous float64 (or i64) copies, rounded once.

local luda = require "luda"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local helper = require "spec.helper"
local samples = require "spec.samples"
local gradient_cases = require "spec.gradient_cases"

local nan, inf = 0 / 0, math.huge

-- Digits and the exponent of the least number.
local floats = { f64 = { 52, -1074 }, f32 = { 23, -149 }, f16 = { 10, -24 }, bf16 = { 7, -133 } }
local dtypes = { "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool" }

-- Errors in units of the last place that rows may have beyond BOUND: f32 and f64 first, then halves, which round more than once
-- where the second is above 1. `scale`: of the largest element of the result, because terms cancel.
local BOUND = { 8, 1 }
local function row_bound(wide, half, scale)
  return { wide, half, scale = scale }
end
local bounds = {}

--- Whole numbers of a sample's values that fit every type and stay apart.
local function whole(input, domain, dtype)
  local list = {}
  for k, value in ipairs(input.values) do
    local number = domain == "distinct" and math.floor(value / 0.17 + 0.5)
      or (value < 0 and -1 or 1) * math.ceil(math.abs(value) * 2)
    if dtype == "u8" then
      number = domain == "distinct" and number + 48 or math.abs(number)
    end
    if dtype == "bool" then
      list[k] = value > 0
    else
      list[k] = number
    end
  end
  return list
end

--- An input as the element type sees it.
local function input_tensor(row, case, input, dtype)
  if input.kind == "position" and (row.types == "INTEGER" or row.types == "BITS") then
    return samples.tensor(input):to(dtype)
  elseif input.kind ~= "value" then
    return samples.tensor(input)
  elseif floats[dtype] then
    return samples.tensor(input, dtype)
  end
  local copy = { kind = "value", shape = input.shape, values = whole(input, case.text:match("^%w+"), dtype) }
  return samples.tensor(copy, dtype)
end

local function turned(t)
  return t.ndim > 1 and t:transpose(1, -1):clone():transpose(1, -1) or samples.strided(t)
end

local function stepped(t)
  if t.ndim == 0 then
    return samples.strided(t)
  end
  local shape = t.shape
  shape[#shape] = shape[#shape] * 3 + 1
  local view = luda.zeros(shape, { dtype = t.dtype }):narrow(-1, 2, t:size(-1), 3)
  view:copy_(t)
  return view
end

--- The first slice of the leading dimension instead of all.
local function expanded(t)
  return t.ndim > 0 and t:size(1) > 0 and t:narrow(1, 1, 1):expand(t.shape) or t
end

local layouts = { contiguous = function(t) return t end, turned = turned, stepped = stepped, expanded = expanded,
  scattered = samples.strided }

local function wide_type(dtype)
  return floats[dtype] and "f64" or "i64"
end

--- The same values, contiguous, in the widest type of the kind; masks and positions as they are.
local function wide_copy(row, i, t, dtype)
  local is_mask = row.name == "where" and i == 1
  return t.dtype == dtype and not is_mask and t:clone():to(wide_type(dtype)) or t:clone()
end

local function spacing(value, dtype)
  local digits, least = unpack(floats[dtype])
  local _, exponent = math.frexp(math.abs(value))
  return 2 ^ math.max(exponent - 1 - digits, least)
end

local function numbers(t)
  local list = t:reshape(-1):totable()
  for k, value in ipairs(list) do
    list[k] = type(value) == "boolean" and (value and 1 or 0) or value
  end
  return list
end

--- The first place where `have` is not `want`, rounded once to the type of `have`, within the bound; as text.
local function difference(have, want, bound)
  local dtype = have.dtype
  if not floats[dtype] or not floats[want.dtype] then
    want = want:to(dtype)
  end
  local a, b, top = numbers(have), numbers(want), 0
  local rounded = floats[dtype] and numbers(want:to(dtype)) or b
  for _, value in ipairs(b) do
    top = bound.scale and value == value and math.abs(value) < inf and math.max(top, math.abs(value)) or top
  end
  for k = 1, #b do
    local same = a[k] == rounded[k] or a[k] == b[k] or (a[k] ~= a[k] and b[k] ~= b[k])
    if not same and floats[dtype] and math.abs(b[k]) < inf and math.abs(a[k]) < inf then
      local allowed = (dtype == "f64" or dtype == "f32") and bound[1] or bound[2]
      same = math.abs(a[k] - rounded[k]) <= allowed * spacing(math.max(math.abs(b[k]), top), dtype)
    end
    if not same then
      return ("element %d is %.9g, not %.17g"):format(k, tonumber(a[k]), tonumber(b[k]))
    end
  end
end

local function compare(row, case, list, dtype, problems, what)
  local copies = {}
  for i, t in ipairs(list) do
    copies[i] = wide_copy(row, i, t, dtype)
  end
  local want, have = { samples.call(row, case, copies) }, { samples.call(row, case, list) }
  for o = 1, #want do
    local problem
    if table.concat(want[o].shape, " ") ~= table.concat(have[o].shape, " ") then
      problem = "another shape"
    else
      problem = difference(have[o], want[o], bounds[row.name] or BOUND)
    end
    if problem then
      problems[#problems + 1] = ("%s %s %s: %s"):format(dtype, what, case.text, problem)
    end
  end
end

local function check_row(row, dtype, problems)
  for _, case in ipairs(samples.cases(row)) do
    for name, layout in pairs(layouts) do
      if not (row.name == "view" and name ~= "contiguous") then
        luda.scope(function()
          local list = {}
          for i, input in ipairs(case.inputs) do
            local t = layout(input_tensor(row, case, input, dtype))
            list[i] = t
          end
          compare(row, case, list, dtype, problems, name)
        end)
      end
    end
  end
end

local function is_elementwise(row)
  return row.shape == "broadcast" and row.inputs > 0
end

local function filled(row, i, values, shape, dtype)
  local t = luda.tensor(values, { dtype = "f64" }):reshape(shape)
  return (row.name == "where" and i == 1) and t:ne(0) or t:to(dtype)
end

local function check_sizes(row, dtype, problems)
  for what, shape in pairs { empty = { 2, 0 }, ["0-d"] = {} } do
    local list = {}
    for i = 1, row.inputs do
      list[i] = filled(row, i, what == "empty" and {} or { i }, shape, dtype)
    end
    compare(row, { options = {}, text = "" }, list, dtype, problems, what)
  end
end

local specials = { nan, inf, -inf, -0.0, 0, 1, -1, 0.5, -2, 3 }

local function check_specials(row, dtype, problems)
  local lists = {}
  for i = 1, row.inputs do
    local list = {}
    for a = 1, #specials do
      for b = 1, #specials do
        list[#list + 1] = specials[i == 1 and a or b]
      end
    end
    lists[i] = filled(row, i, list, { #specials, #specials }, dtype)
  end
  compare(row, { options = {}, text = "" }, lists, dtype, problems, "special values")
end

for name, bound in pairs {
  matmul = row_bound(4, 1, true), linear = row_bound(4, 2, true), sum = row_bound(4, 1, true), mean = row_bound(4, 1, true),
  layer_norm_backward = row_bound(8, 2, true), rms_norm_backward = row_bound(8, 2, true),
  scaled_dot_product_attention_backward = row_bound(16, 2, true), conv2d = row_bound(4, 1, true),
  conv2d_input = row_bound(4, 1, true), conv2d_weight = row_bound(4, 1, true),
} do
  bounds[name] = bound
end

describe("every element type and layout of", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, row in ipairs(ops.rows) do
    row = setmetatable({ sample = gradient_cases.untracked[row.name] or row.sample }, { __index = row })
    if row.sample ~= "" and row.types ~= "MATRIX" then -- LAPACK's, with bounds and layouts of their own in linalg_spec
      it(row.name, function()
        local problems, tried = {}, 0
        for _, dtype in ipairs(dtypes) do
          if sugar.supported(row.name, dtype) and not (row.types == "VIEW" and dtype == "f64") then
            tried = tried + 1
            check_row(row, dtype, problems)
            if is_elementwise(row) and floats[dtype] then
              check_specials(row, dtype, problems)
            end
            if is_elementwise(row) then
              check_sizes(row, dtype, problems)
            end
          end
        end
        assert.is_true(tried > 0)
        assert(#problems == 0, ("%d differ, the first: %s"):format(#problems, table.concat(problems, "\n", 1,
          math.min(#problems, 4))))
      end)
    end
  end
end)
