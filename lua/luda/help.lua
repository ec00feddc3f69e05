--- luda.help(name): the entry of an operator in the reference, printed; without a name, the families and their operators.

local args = require "luda.args"
local errors = require "luda.error"

---@param name? string
return function(name)
  local reference, lines = require "luda.reference", {}
  for _, family in ipairs(reference.families()) do
    local names = {}
    for i, entry in ipairs(family.entries) do
      names[i] = entry.name
      if entry.name == name then
        lines = { entry.call, "  " .. entry.doc }
        for _, fact in ipairs(reference.facts(entry)) do
          lines[#lines + 1] = ("  %s: %s"):format(fact[1], fact[2])
        end
        lines[#lines + 1] = ("  > %s\n  %s"):format(entry.example, entry.gives)
        return print(table.concat(lines, "\n"))
      end
    end
    lines[#lines + 1] = ("%s: %s"):format(family.title, table.concat(names, " "))
  end
  if name ~= nil then
    errors.raise("invalid", "help: there is no operator %s; luda.help() lists them", args.describe(name))
  end
  print(table.concat(lines, "\n"))
end
