--- Named tensors and plain data as records see them: lists of what there is, and sentences about what differs.

local args = require "luda.args"
local errors = require "luda.error"
local scope = require "luda.scope"
local tensors = require "luda.tensor"

local M = {}

--- The keys of some tables together, sorted.
local function keys_of(...)
  local seen, keys = {}, {}
  for i = 1, select("#", ...) do
    for key in pairs((select(i, ...))) do
      if not seen[key] then
        seen[key] = true
        keys[#keys + 1] = key
      end
    end
  end
  table.sort(keys, function(a, b)
    if type(a) == type(b) then
      return a < b
    end
    return type(a) == "number"
  end)
  return keys
end
M.keys_of = keys_of

---@class luda.Named
---@field name string its path in the model, or its place in the list
---@field tensor luda.Tensor

--- The parameters of a model, or of a list of tensors; a shared one stands once, under its first name.
---@param op string
---@param source any
---@return luda.Named[] list
---@return boolean from_model
function M.parameters(op, source)
  local list, seen = {}, {}
  local function add(name, tensor)
    if not tensors.is_tensor(tensor) then
      errors.raise("invalid", "%s: parameter %s must be a tensor, not %s", op, name, args.describe(tensor))
    end
    local id = tensor.id
    if not seen[id] then
      seen[id] = true
      list[#list + 1] = { name = name, tensor = scope.keep(tensor) }
    end
  end
  if type(source) == "table" and source.named_parameters then
    for path, parameter in source:named_parameters() do
      add(path, parameter)
    end
    return list, true
  end
  if type(source) ~= "table" or (source[1] == nil and next(source) ~= nil) then
    errors.raise("invalid", "%s: expected a module or a list of parameters, got %s", op, args.describe(source))
  end
  for i, parameter in ipairs(source) do
    add(tostring(i), parameter)
  end
  return list, false
end

--- Type and shape by name.
---@param list luda.Named[]
---@return table<string, {dtype: string, shape: integer[]}>
function M.describe(list)
  local described = {}
  for _, entry in ipairs(list) do
    described[entry.name] = { dtype = entry.tensor.dtype, shape = args.shape_text(entry.tensor.shape) }
  end
  return described
end

local function text_of(value)
  if type(value) == "table" then
    return "a table"
  elseif type(value) == "number" then
    local short = ("%.14g"):format(value)
    return tonumber(short) == value and short or ("%.17g"):format(value)
  end
  return tostring(value)
end

--- Adds a sentence for each place where plain data differs. What only the live side has, with the value in `defaults`,
-- is no difference: its place goes to `upgraded`.
---@param found string[] sentences
---@param where string
---@param stored any
---@param live any
---@param defaults? any
---@param upgraded? string[]
function M.compare(found, where, stored, live, defaults, upgraded)
  if type(stored) == "table" and type(live) == "table" then
    for _, key in ipairs(keys_of(stored, live)) do
      local default
      if type(defaults) == "table" then
        default = defaults[key]
      end
      M.compare(found, where .. "." .. tostring(key), stored[key], live[key], default, upgraded)
    end
  elseif stored == nil and upgraded and defaults ~= nil and live == defaults then
    upgraded[#upgraded + 1] = ("%s (%s here)"):format(where, text_of(live))
  elseif stored ~= live and not (stored ~= stored and live ~= live) then
    local there = stored == nil and "is not in the file" or "is " .. text_of(stored) .. " in the file"
    found[#found + 1] = ("%s %s, %s here"):format(where, there, live == nil and "missing" or text_of(live))
  end
end

--- Adds a sentence for each named tensor that differs: in being there at all, or in its facts.
---@param found string[]
---@param what string "model"
---@param stored table<string, table>
---@param live table<string, table>
function M.compare_named(found, what, stored, live)
  for _, name in ipairs(keys_of(stored, live)) do
    local there, here = stored[name], live[name]
    if not here then
      found[#found + 1] = ("%s: '%s' is in the file and not here"):format(what, name)
    elseif not there then
      found[#found + 1] = ("%s: '%s' is here and not in the file"):format(what, name)
    else
      for _, fact in ipairs(keys_of(there, here)) do
        if there[fact] ~= here[fact] then
          found[#found + 1] = ("%s: '%s': %s is %s in the file, %s here"):format(what, name, fact,
            tostring(there[fact] == nil and "none" or there[fact]), tostring(here[fact] == nil and "none" or here[fact]))
        end
      end
    end
  end
end

--- Raises `mismatch` with all sentences, if there are any.
---@param op string
---@param what string "the state and the optimizer"
---@param found string[]
function M.refuse(op, what, found)
  if #found > 0 then
    errors.raise_with("mismatch", ("%s: %s differ in %d place%s; nothing was changed:\n  %s"):format(op, what, #found,
      #found == 1 and "" or "s", table.concat(found, "\n  ")), { detail = found })
  end
end

return M
