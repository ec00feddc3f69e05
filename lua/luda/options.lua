--- Options of a script: each has a name, a default that gives its type, and a sentence.

local errors = require "luda.error"

local M = {}

local function help(spec)
  local lines, width = {}, 0
  for _, option in ipairs(spec) do
    width = math.max(width, #option[1])
  end
  for i, option in ipairs(spec) do
    local default = option[2] ~= false and option[2] ~= "" and (" (%s)"):format(tostring(option[2])) or ""
    lines[i] = ("  --%s%s  %s%s"):format(option[1], (" "):rep(width - #option[1]), option[3], default)
  end
  return table.concat(lines, "\n")
end

local function find(spec, name)
  for _, option in ipairs(spec) do
    if option[1] == name then
      return option
    end
  end
  errors.raise("invalid", "options: there is no option --%s; these are known:\n%s", name, help(spec))
end

local function convert(option, text)
  if text == nil then
    errors.raise("invalid", "options: --%s needs a value", option[1])
  end
  if type(option[2]) ~= "number" then
    return text
  end
  return tonumber(text) or errors.raise("invalid", "options: --%s needs a number, not '%s'", option[1], text)
end

--- Reads "--name value", "--name=value" and (where the default is false) "--name"; a dash in a name becomes an underscore
-- in the result. "--help" prints the options and gives nil.
---@param list string[] arguments of the script
---@param spec {[1]: string, [2]: any, [3]: string}[] name, default, sentence
---@return table<string, any>?
function M.parse(list, spec)
  local values, i = {}, 1
  for _, option in ipairs(spec) do
    values[option[1]:gsub("-", "_")] = option[2]
  end
  while list[i] ~= nil do
    local name, value = list[i]:match("^%-%-([%w-]+)=?(.*)$")
    if name == "help" then
      print(help(spec))
      return nil
    elseif not name then
      errors.raise("invalid", "options: '%s' is not an option; these are known:\n%s", list[i], help(spec))
    end
    local option = find(spec, name)
    if option[2] == false then
      value = true
    elseif not list[i]:find("=", 1, true) then
      i = i + 1
      value = convert(option, list[i])
    else
      value = convert(option, value)
    end
    values[name:gsub("-", "_")] = value
    i = i + 1
  end
  return values
end

return M
