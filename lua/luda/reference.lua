--- The reference: every operator with its signature, shapes, types, gradient, errors and an example, from the operator table,
-- the comments of the Lua compositions, and the tables of examples beside this file; and what is supported, asked and measured
-- at run time.

local luda = require "luda"
local lib = require "luda.ffi"
local args = require "luda.args"
local create = require "luda.create"
local ops = require "luda.ops"
local sources = require "luda.reference.sources"
local words = require "luda.reference.words"

local C = lib.C

local M = { dtypes = words.dtypes }

local FAMILIES = {
  "creation", "draws", "arithmetic", "mathematics", "comparison", "activations", "shapes", "indexing", "reductions", "sorting",
  "matrices", "networks", "functional", "gradients", "values",
}

local NO_OPERATORS = { is_module = true, module = true, parameter = true }

--- Public operators: functions of the table and of the compositions that the modules luda and luda.nn have.
---@return table<string, boolean>
function M.public()
  local names = {}
  for _, list in ipairs { ops.functions, create } do
    for name in pairs(list) do
      names[name] = luda[name] ~= nil or nil
    end
  end
  for _, list in ipairs { luda.nn, require "luda.nn.distances", require "luda.nn.tokens" } do
    for name, fn in pairs(list) do
      if type(fn) == "function" and not NO_OPERATORS[name] and ops.functions[name] ~= fn then
        names["nn." .. name] = true
      end
    end
  end
  return names
end

-- Entries.

local letters = { "x", "y", "z", "u", "v", "w" }

--- The Lua text of a default, which the table writes as C counts.
local function default_text(field, text)
  local number = tonumber(text)
  if field.kind == "flag" then
    return number == 1 and "true" or "false"
  elseif field.kind == "choice" then
    for word, value in pairs(require("luda.attributes").choices[field.name]) do
      if value == number then
        return ('"%s"'):format(word)
      end
    end
  elseif field.kind == "dim" and number >= 0 then
    return tostring(number + 1)
  end
  return text
end

--- "softmax(x, dim=-1)" from a row.
local function signature(row)
  local parts, defaults, named = {}, { base = "1" }, {}
  for i = 1, math.max(row.inputs, 0) do
    parts[i] = letters[i] .. (i > row.inputs - row.optional and "=" or "")
  end
  if row.inputs == C.LUDA_VARIADIC then
    parts[1] = "tensors…"
  end
  for name, text in (row.facts.attrs or ""):gmatch("([%w_]+):([^,]+)") do
    defaults[name] = default_text(row.fields[name], text)
  end
  for _, field in ipairs(row.fields) do
    local required = field.kind ~= "dims" and field.kind ~= "random" and not defaults[field.name]
    local text = field.name .. (defaults[field.name] and "=" .. defaults[field.name] or required and "" or "=")
    if require("luda.attributes").by_name_only[field.kind] then
      named[#named + 1] = text
    else
      parts[#parts + 1] = text
    end
  end
  parts[#parts + 1] = #named > 0 and "{" .. table.concat(named, ", ") .. "}" or nil
  return ("%s(%s)"):format(row.name, table.concat(parts, ", "))
end

local gradient_words = { zero = "zero by definition", none = "none: a tracked tensor is refused" }

--- What goes wrong, by code.
local function errors_of(entry, row, rule)
  local list = {}
  if #rule.accepts < #words.dtypes then
    list[#list + 1] = "dtype: other types"
  end
  local shape = words.shapes[entry.shape_rule]
  if shape and shape[2] then
    list[#list + 1] = "shape: " .. shape[2]
  end
  if row and (row.fields.dim or row.fields.dim0 or row.fields.dims) then
    list[#list + 1] = "index: a dimension that is not there"
  end
  if row and row.fields.base then
    list[#list + 1] = "index: a position outside the dimension"
  end
  if entry.gradient == gradient_words.none then
    list[#list + 1] = "graph: a tracked tensor"
  end
  for _, text in ipairs(sources.raises[entry.name] or {}) do
    list[#list + 1] = text
  end
  return list
end

--- Completes a line of a table: { name, example, gives, call=, types=, gradient=, shape= }.
local function complete(line)
  local row = ops.rows[line[1]]
  local entry = {
    name = line[1], example = line[2], gives = line[3], row = row,
    call = line.call or signature(row),
    types = line.types or row.types,
    shape_rule = line.shape or row.shape,
    doc = row and row.facts.doc or sources.docs[line[1]],
  }
  local rule = words.types[entry.types]
  local gradient = line.gradient or row.gradient
  entry.gradient = gradient_words[gradient] or "yes"
  entry.takes, entry.returns, entry.accepts = rule.takes, rule.gives, rule.accepts
  entry.shape = words.shapes[entry.shape_rule] and words.shapes[entry.shape_rule][1] or entry.shape_rule
  entry.in_place = entry.name:sub(-1) == "_" and "always" or ops.functions[entry.name .. "_"] and entry.name .. "_" or "no"
  entry.errors = errors_of(entry, row, rule)
  return entry
end

---@class luda.ReferenceFamily
---@field name string
---@field title string
---@field text string
---@field entries table[]

--- All families with their entries complete.
---@return luda.ReferenceFamily[]
function M.families()
  local list = {}
  for i, name in ipairs(FAMILIES) do
    local source = require("luda.reference." .. name)
    list[i] = { name = name, title = source.title, text = source.text, entries = {} }
    for k, line in ipairs(source) do
      list[i].entries[k] = complete(line)
    end
  end
  return list
end

-- Examples.

local function text_of(value)
  if luda.is_tensor(value) then
    local dtype = value.dtype
    local text = text_of(value:totable())
    return (dtype == "f32" or dtype == "bool") and text or text .. " " .. dtype
  elseif type(value) == "table" then
    local parts = {}
    for i, item in ipairs(value) do
      parts[i] = text_of(item)
    end
    return "{" .. table.concat(parts, ", ") .. "}"
  elseif type(value) == "number" then
    return value ~= value and "nan" or ("%.5g"):format(value == 0 and 0 or value)
  end
  return tostring(value)
end

--- Runs an example; its values as text, one after the other.
---@param example string
---@param environment? table
---@return string text
---@return any first
function M.run(example, environment)
  local chunk = assert(loadstring("return " .. example, "=example"))
  setfenv(chunk, environment or { luda = luda, math = math })
  local values = { n = 0 }
  local function take(...)
    values = { n = select("#", ...), ... }
  end
  take(chunk())
  for i = 1, values.n do
    values[i] = { text_of(values[i]), values[i] }
  end
  local texts = {}
  for i = 1, values.n do
    texts[i] = values[i][1]
  end
  return values.n == 0 and "nothing" or table.concat(texts, "; "), values[1] and values[1][2]
end

-- Support.

--- Numbers that a type can hold, from nested lists; nil where they are not numbers.
local function fitting(values, dtype)
  if type(values) == "table" then
    local list = {}
    for i, value in ipairs(values) do
      list[i] = fitting(value, dtype)
    end
    return (#list > 0 or #values == 0) and list or nil
  elseif type(values) ~= "number" then
    return nil
  elseif args.dtype_class(dtype) ~= "float" and values - values ~= 0 then
    return 0 -- infinite, or no number
  end
  return dtype == "u8" and math.abs(values) or values
end

--- `luda` for an example whose numbers shall have another type, device, or a gradient: of the leaves that it lists.
local function variant(entry, dtype, device, leaves)
  local whole = entry.types:find("^INTEGER") or entry.types == "BITS"
  return setmetatable({
    tensor = function(values, options)
      local numbers = fitting(values, dtype)
      if not numbers or (options and not whole) then
        return luda.tensor(values, options):to(device)
      end
      local t = luda.tensor(numbers, { dtype = dtype }):to(device)
      if not leaves then
        return t
      end
      leaves[#leaves + 1] = t:requires_grad_()
      return t:clone() -- which may be changed in place
    end,
  }, { __index = luda })
end

local function try(entry, dtype, device, leaves)
  return pcall(function()
    local _, first = M.run(entry.example, { luda = variant(entry, dtype, device, leaves), math = math })
    return type(first) == "table" and luda.is_tensor(first[1]) and first[1] or first
  end)
end

--- Runs an operator's example with numbers of a type on a device.
---@return boolean accepted
---@return any result the first, or the error
function M.try(entry, dtype, device)
  return try(entry, dtype, device)
end

--- What an operator's example does with the gradient: "yes", "zero" (none arrives) or "none" (refused).
function M.gradient(entry)
  local leaves = {}
  local fine, result = try(entry, "f64", "cpu", leaves)
  if not fine then
    return result.code == "graph" and "none" or tostring(result)
  elseif not luda.is_tensor(result) or not result.requires_grad then
    return "zero"
  end
  local gradients = result:sum():backward()
  for _, leaf in ipairs(leaves) do
    if gradients[leaf] then
      return "yes"
    end
  end
  return "zero"
end

--- True where the example has a tensor whose type can be varied.
function M.varies(entry)
  return entry.example:find("luda.tensor", 1, true) ~= nil and entry.types ~= "CREATE"
end

--- "kernel" (of that type), "converted" (to another) or nil, for one operator on one device.
function M.support(entry, dtype, device)
  local row = entry.row
  if row then
    local kind, index = args.device("support", device)
    if C.luda_op_supported(row.op, args.dtype("support", dtype), lib.ffi.new("luda_device", kind, index)) ~= 0 then
      return "kernel"
    end
  end
  local accepted = M.varies(entry) and M.try(entry, dtype, device)
  if not M.varies(entry) and not row then
    for _, name in ipairs(entry.accepts) do
      accepted = accepted or name == dtype
    end
  end
  return accepted and (row and "converted" or "kernel") or nil
end

--- Devices of this machine: one of each type.
---@return string[]
function M.devices()
  return luda.has("cuda") and { "cpu", "cuda:0" } or { "cpu" }
end

return M
