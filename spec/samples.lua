--- The sample column of the operator table as calls: inputs in float64 (or masks, or positions) and options.

local luda = require "luda"
local attributes = require "luda.attributes"
local ops = require "luda.ops"

local M = {}

--- Numbers in [0, 1) that only the seed decides, made without the library.
local function sequence(seed)
  local state = seed
  return function()
    state = (state * 1103515245 + 12345) % 2147483648
    return state / 2147483648
  end
end

local domains = {
  any = function(u) return 4 * u - 2 end,
  positive = function(u) return 0.3 + 2 * u end,
  nonzero = function(u) return u < 0.5 and -0.3 - 3 * u or 0.3 + 3 * (u - 0.5) end,
  above = function(u) return 1.2 + 2 * u end,
  unit = function(u) return 1.8 * u - 0.9 end,
}

--- `count` values at least 0.17 apart, in no order; `taken` of them are used up already.
local function distinct(count, taken)
  local list = {}
  for i = 1, count do
    list[i] = ((i + taken) * 37 % 101) * 0.17 - 8
  end
  return list
end

local function parse_shape(text)
  local shape = {}
  for size in text:gmatch("-?%d+") do
    shape[#shape + 1] = tonumber(size)
  end
  return shape
end

local function count_of(shape)
  local count = 1
  for i = 1, #shape do
    count = count * shape[i]
  end
  return count
end

--- One input: kind ("value", "mask", "position", "absent"), shape and a flat list of plain values.
local function parse_input(text, domain, random, taken)
  if text == "-" then
    return { kind = "absent", shape = {}, values = {} }
  end
  local kind, body, limit = "value", text, nil
  if text:sub(1, 1) == "b" then
    kind, body = "mask", text:sub(2)
  elseif text:sub(1, 1) == "i" then
    local sizes, below = text:match("^i([^<]*)<(%d+)$")
    kind, body, limit = "position", sizes, tonumber(below)
  end
  local shape, values = parse_shape(body), {}
  local count = count_of(shape)
  if kind == "value" and domain == "distinct" then
    values = distinct(count, taken)
  else
    for i = 1, count do
      local u = random()
      if kind == "mask" then
        values[i] = u < 0.5
      elseif kind == "position" then
        values[i] = 1 + math.floor(u * limit)
      else
        values[i] = domains[domain](u)
      end
    end
  end
  return { kind = kind, shape = shape, values = values }
end

local function from_zero(number)
  return number >= 0 and number + 1 or number
end

--- The Lua value of an attribute that the table writes as C counts.
local function attribute(name, kind, text)
  if kind == "choice" then
    for word, number in pairs(attributes.choices[name]) do
      if number == tonumber(text) then
        return word
      end
    end
  elseif kind == "flag" then
    return text == "1"
  elseif kind == "dim" or kind == "position" then
    return from_zero(tonumber(text))
  elseif kind == "dims" then
    local list = {}
    for number in text:gmatch("-?%d+") do
      list[#list + 1] = from_zero(tonumber(number))
    end
    return list
  elseif kind == "shape" then
    return parse_shape(text)
  elseif kind == "pair" and text:find(",") then
    return parse_shape(text)
  end
  return tonumber(text)
end

--- All cases of a row, or of a text like its sample: lists of inputs with options.
function M.cases(row, given)
  local cases = {}
  for text in (given or row.sample):gmatch("[^;]+") do
    local words = {}
    for word in text:gmatch("%S+") do
      words[#words + 1] = word
    end
    if #words > 0 then
      local random, taken = sequence(1000 + #row.name * 17 + #cases), 0
      local case = { inputs = {}, options = {}, text = text:match("^%s*(.-)%s*$") }
      for shape in (words[2] or ""):gmatch("[^,]+") do
        local input = parse_input(shape, words[1], random, taken)
        taken = taken + #input.values
        case.inputs[#case.inputs + 1] = input
      end
      for i = 3, #words do
        local name, value = words[i]:match("^([%w_]+)=(.*)$")
        case.options[name] = attribute(name, row.fields[name].kind, value)
      end
      cases[#cases + 1] = case
    end
  end
  return cases
end

local function nest(values, shape, dim, position)
  if dim > #shape then
    return values[position[1]], nil
  end
  local list = {}
  for i = 1, shape[dim] do
    list[i] = nest(values, shape, dim + 1, position)
    if dim == #shape then
      position[1] = position[1] + 1
    end
  end
  return list
end

--- A tensor of one input; leaves require gradients where asked.
function M.tensor(input, dtype, requires_grad)
  local kinds = { mask = "bool", position = "i64" }
  dtype = kinds[input.kind] or dtype
  if #input.values == 0 then -- nested tables cannot say every empty shape
    return luda.zeros(input.shape, { dtype = dtype, requires_grad = requires_grad and input.kind == "value" })
  end
  local nested = #input.shape == 0 and input.values[1] or nest(input.values, input.shape, 1, { 1 })
  local t = luda.tensor(nested, { dtype = dtype })
  return requires_grad and input.kind == "value" and t:requires_grad_() or t
end

--- The inputs of a case as tensors, without those that are absent.
function M.tensors(case, dtype, requires_grad)
  local list = {}
  for _, input in ipairs(case.inputs) do
    if input.kind ~= "absent" then
      list[#list + 1] = M.tensor(input, dtype, requires_grad)
    end
  end
  return list
end

--- The inputs as the row takes them, with nil for what is absent.
local function placed(row, case, list)
  local arguments, taken = {}, 0
  for i = 1, row.inputs do
    local input = case.inputs and case.inputs[i]
    if not (input and input.kind == "absent") then
      taken = taken + 1
      arguments[i] = list[taken]
    end
  end
  return arguments
end

--- Calls a row with a case's options on its inputs that are not absent; draws repeat.
function M.call(row, case, list)
  local options = {}
  for name, value in pairs(case.options) do
    options[name] = value
  end
  if row.facts.random then
    options.generator = luda.generator(5)
  end
  local fn = ops.functions[row.name]
  if row.inputs == -1 then
    return fn(list, options)
  end
  local arguments = placed(row, case, list)
  if next(options) == nil then
    return fn(unpack(arguments, 1, row.inputs))
  end
  arguments[row.inputs + 1] = options
  return fn(unpack(arguments, 1, row.inputs + 1))
end

--- A tensor of the same values whose elements lie apart and in another order.
function M.strided(t)
  local shape = t.shape
  if #shape == 0 then
    local wide = luda.zeros(3, { dtype = t.dtype })
    wide[2] = t
    return wide[2]
  end
  local wide = {}
  for i = 1, #shape do
    wide[i] = shape[#shape + 1 - i] * 2 + 1
  end
  local view = luda.zeros(wide, { dtype = t.dtype })
  local order = {}
  for i = 1, #shape do
    order[i] = #shape + 1 - i
    view = view:narrow(i, 2, shape[#shape + 1 - i], 2)
  end
  view = view:permute(order)
  view:copy_(t)
  return view
end

return M
