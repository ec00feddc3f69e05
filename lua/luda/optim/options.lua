--- Options of optimizers: what a rule of kernels/optim.def knows, parameter groups, clipping.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"

local ffi, C = lib.ffi, lib.C

local M = {}

---@class luda.OptimizerRow
---@field kind integer
---@field name string "adamw"
---@field options string[] in the order of C
---@field defaults table<string, number>

--- All rules of this library.
---@return luda.OptimizerRow[]
function M.rows()
  local rows = {}
  for kind = 0, tonumber(C.LUDA_OPTIM_COUNT) - 1 do
    local row = { kind = kind, name = ffi.string(C.luda_optim_name(kind)), options = {}, defaults = {} }
    local index = 0
    local option = C.luda_optim_option(kind, index)
    while option ~= nil do
      local name = ffi.string(option.name)
      row.options[index + 1], row.defaults[name] = name, option.value
      index = index + 1
      option = C.luda_optim_option(kind, index)
    end
    rows[#rows + 1] = row
  end
  return rows
end

--- Options that are words, and the numbers that C knows them by.
local words = {
  adjust_lr_fn = { original = 0, match_rms_adamw = 1 },
  momentum_mode = { sgd = 0, ema = 1 },
  layout = { as_stored = 0, input_output = 1 },
}

--- A value as C takes it.
local function number_of(op, name, value)
  if words[name] then
    local number = words[name][value]
    if not number then
      local known = {}
      for word, place in pairs(words[name]) do
        known[place + 1] = "'" .. word .. "'"
      end
      errors.raise("invalid", "%s: %s is %s, it must be %s", op, name,
        type(value) == "string" and "'" .. value .. "'" or args.describe(value), table.concat(known, " or "))
    end
    return number
  elseif type(value) == "boolean" then
    return value and 1 or 0
  end
  return args.number(op, name, value)
end

local lists = { beta = "betas", eps = "eps", ns_coefficient = "ns_coefficients" }

--- The list that may stand for an option, and its place there: betas = {a, b} for beta1 and beta2.
local function list_of(name)
  local stem, place = name:match("^(.-)(%d)$")
  return lists[stem], tonumber(place)
end

--- The rule's options among `given`, over those of `base`.
local function rule_options(op, row, given, base)
  local values = {}
  for _, name in ipairs(row.options) do
    local value = given[name]
    local list, place = list_of(name)
    if value == nil and list and given[list] then
      value = type(given[list]) == "table" and given[list][place] or nil
      if value == nil and list ~= "eps" then
        errors.raise("invalid", "%s: %s must be a list with an entry %d", op, list, place)
      end
    end
    values[name] = value == nil and base[name] or number_of(op, name, value)
  end
  return values
end

local function known_options(row, more)
  local known = {}
  for _, name in ipairs(row.options) do
    known[name] = args.absent
    local list = list_of(name)
    if list then
      known[list] = args.absent
    end
  end
  for name, default in pairs(more) do
    known[name] = default
  end
  return known
end

local function positive(op, name, value)
  local fine = args.number(op, name, value) > 0
  if not fine then
    errors.raise("invalid", "%s: %s is %g, it must be positive", op, name, value)
  end
  return value
end

--- What holds for all groups, with every field; 0 says "none".
---@return table<string, number>
local function read_settings(op, given)
  local settings = {
    max_grad_norm = given.max_grad_norm and positive(op, "max_grad_norm", given.max_grad_norm) or 0,
    clip_norm = 0, clip_value = 0,
    gradient_scale = positive(op, "gradient_scale", given.gradient_scale),
    fp32_master = given.fp32_master and 1 or 0,
  }
  if given.clip then
    local clip = args.options(op, given.clip, { norm = args.absent, value = args.absent })
    settings.clip_norm = clip.norm and positive(op, "clip.norm", clip.norm) or 0
    settings.clip_value = clip.value and positive(op, "clip.value", clip.value) or 0
    if not (clip.norm or clip.value) then
      errors.raise("invalid", "%s: clip is {norm = limit} or {value = limit}", op)
    end
  end
  return settings
end

M.setting_defaults = { max_grad_norm = 0, clip_norm = 0, clip_value = 0, gradient_scale = 1, fp32_master = 0 }

function M.names_text(list)
  local names = {}
  for i = 1, math.min(#list, 20) do
    names[i] = list[i].name
  end
  return table.concat(names, ", ") .. (#list > 20 and (", … (%d in all)"):format(#list) or "")
end

--- Whether a name matches a pattern; a pattern that is none is the caller's error.
function M.matches(op, pattern, name)
  local ok, found = pcall(string.find, name, pattern)
  if not ok then
    errors.raise("invalid", "%s: '%s' is not a Lua pattern (%s)", op, tostring(pattern), (found:gsub("^.-: ", "")))
  end
  return found ~= nil
end

--- Whether one of the names, or the pattern, is a parameter's.
function M.belongs(op, match, name)
  if type(match) == "string" then
    return M.matches(op, match, name)
  end
  for _, other in ipairs(match) do
    if other == name then
      return true
    end
  end
  return false
end

--- Puts the names that a group's pattern matches, and no earlier group has, into it.
local function take_members(op, pattern, index, list, members)
  if type(pattern) ~= "string" and type(pattern) ~= "table" then
    errors.raise("invalid", "%s: group %d needs match, a pattern for names of parameters, or a list of names", op, index)
  end
  local matched, taken = false, false
  for _, entry in ipairs(list) do
    if M.belongs(op, pattern, entry.name) then
      matched = true
      if not members[entry.name] then
        members[entry.name], taken = index, true
      end
    end
  end
  if not taken then
    errors.raise("invalid", "%s: group %d ('%s') matches no parameter%s; they are %s", op, index,
      type(pattern) == "table" and table.concat(pattern, "', '") or pattern,
      matched and " that earlier groups left" or "", M.names_text(list))
  end
end

---@class luda.OptimizerOptions
---@field options table<string, number> of parameters in no group
---@field groups {match: string|string[], options: table<string, number>}[]
---@field members table<string, integer> name of a parameter to its group
---@field settings table<string, number>

--- Reads an optimizer's options.
---@param op string
---@param row luda.OptimizerRow
---@param given? table
---@param list luda.Named[]
---@return luda.OptimizerOptions
function M.read(op, row, given, list)
  local absent = args.absent
  if type(given) == "table" and given.lr ~= nil then
    errors.raise("invalid", "%s: there is no option 'lr'; the rate is the first argument of every step(rate, grads)", op)
  end
  given = args.options(op, given, known_options(row, {
    clip = absent, max_grad_norm = absent, fp32_master = false, gradient_scale = 1, groups = absent,
  }))
  local result = {
    options = rule_options(op, row, given, row.defaults),
    groups = {}, members = {}, settings = read_settings(op, given),
  }
  local known = known_options(row, { match = absent })
  for index, group in ipairs(given.groups or {}) do
    group = args.options(op, group, known)
    take_members(op, group.match, index, list, result.members)
    result.groups[index] = { match = group.match, options = rule_options(op, row, group, result.options) }
  end
  return result
end

--- The options as C takes them: values by group (0: of parameters in no group), and the group of each parameter.
---@return any options, any group, integer ngroups
function M.to_c(row, read, list)
  local width, ngroups = #row.options, #read.groups + 1
  local values = ffi.new("double[?]", width * ngroups)
  for g = 0, #read.groups do
    local options = g == 0 and read.options or read.groups[g].options
    for i, name in ipairs(row.options) do
      values[g * width + i - 1] = options[name]
    end
  end
  local group = ffi.new("int32_t[?]", math.max(#list, 1))
  for i, entry in ipairs(list) do
    group[i - 1] = read.members[entry.name] or 0
  end
  return values, group, ngroups
end

return M
