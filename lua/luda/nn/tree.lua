--- tostring(module): one line a module, with the shapes of what it holds and how many numbers that is.

local args = require "luda.args"
local fields = require "luda.nn.fields"

local M = {}

--- What a module holds itself, as text.
local function own_text(module, prefix, aliases)
  local values, kinds, texts = rawget(module, "_fields"), rawget(module, "_kinds"), {}
  for _, name in ipairs(rawget(module, "_order")) do
    local kind, tensor = kinds[name], values[name]
    if kind then
      local note, tied = "", aliases[prefix .. name]
      if tied then
        note = " (tied to " .. tied .. ")"
      elseif kind == "buffer" then
        note = " (buffer)"
      elseif not tensor.requires_grad then
        note = " (frozen)"
      end
      texts[#texts + 1] = ("%s %s%s"):format(name, args.shape_text(tensor.shape), note)
    end
  end
  return #texts > 0 and "  " .. table.concat(texts, ", ") or ""
end

local function line(module, prefix, label, aliases)
  local count = module:count()
  return label .. getmetatable(module).class_name .. own_text(module, prefix, aliases)
    .. (count > 0 and ("  %d parameter%s"):format(count, count == 1 and "" or "s") or "")
end

---@param module luda.nn.Module
---@return string
function M.describe(module)
  local lines, above, aliases = {}, {}, module:aliases()
  local function add(part, prefix, label, depth)
    if above[part] then
      return
    end
    above[part] = true
    lines[#lines + 1] = ("  "):rep(depth) .. line(part, prefix, label, aliases)
    local names, inner = fields.parts(part)
    for i, name in ipairs(names) do
      add(inner[i], prefix .. name .. ".", name .. ": ", depth + 1)
    end
    above[part] = nil
  end
  add(module, "", "", 0)
  return table.concat(lines, "\n")
end

return M
