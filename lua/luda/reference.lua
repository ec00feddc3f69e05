--- The reference: every operator with its signature, shapes, types, gradient, errors and an example, from the operator table,
-- the comments of the Lua compositions, and the tables of examples in the folder of this name.

local luda = require "luda"
local attributes = require "luda.attributes"
local lib = require "luda.ffi"
local create = require "luda.create"
local ops = require "luda.ops"
local sources = require "luda.reference.sources"
local words = require "luda.reference.words"

local C = lib.C

local M = {}

local FAMILIES = {
  "creation", "draws", "arithmetic", "mathematics", "comparison", "activations", "shapes", "indexing", "reductions", "sorting",
  "matrices", "linalg", "networks", "functional", "gradients", "values",
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
  for _, file in ipairs { "init", "distances", "tokens", "volumes", "ctc", "vocabulary" } do
    for name, fn in pairs(file == "init" and luda.nn or require("luda.nn." .. file)) do
      if type(fn) == "function" and luda.nn[name] == fn and not NO_OPERATORS[name] and ops.functions[name] ~= fn then
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
    for word, value in pairs(attributes.choices[field.name]) do
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
    if attributes.by_name_only[field.kind] then
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
  if (row and (row.fields.dim or row.fields.dim0 or row.fields.dims)) or entry.call:find("%f[%a]dims?%f[^%w]") then
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

--- What an entry says, in the order of a page: {word, text}.
---@return {[1]: string, [2]: string}[]
function M.facts(entry)
  local facts = {
    { "shapes", entry.shape },
    { "types", ("takes %s; gives %s"):format(entry.takes, entry.returns) },
    { "gradient", entry.gradient },
    { "in place", entry.in_place },
  }
  if #entry.errors > 0 then
    facts[#facts + 1] = { "errors", table.concat(entry.errors, "; ") }
  end
  return facts
end

return M
