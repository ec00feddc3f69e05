--- tostring(module): one line a module, with the shapes of what it holds and how many numbers that is.

local args = require "luda.args"
local modules = require "luda.nn.module"

local M = {}

--- The module's own tensors as text; tied ones are named, not counted again.
local function own_text(module, path, first)
  local fields, kinds, texts = rawget(module, "_fields"), rawget(module, "_kinds"), {}
  for _, name in ipairs(rawget(module, "_order")) do
    if kinds[name] then
      local tensor, place = fields[name], path == "" and tostring(name) or path .. "." .. name
      local id, note = tensor.id, ""
      first[id] = first[id] or place
      if first[id] ~= place then
        note = " (tied to " .. first[id] .. ")"
      elseif kinds[name] == "buffer" then
        note = " (buffer)"
      elseif not tensor.requires_grad then
        note = " (frozen)"
      end
      texts[#texts + 1] = ("%s %s%s"):format(name, args.shape_text(tensor.shape), note)
    end
  end
  return table.concat(texts, ", ")
end

local function line(module, name, path, depth, first)
  local label = (name and name .. ": " or "") .. getmetatable(module).class_name
  local own = own_text(module, path, first)
  local count = module:count()
  return ("%s%s%s%s"):format(("  "):rep(depth), label, own ~= "" and "  " .. own or "",
    count > 0 and ("  %d parameter%s"):format(count, count == 1 and "" or "s") or "")
end

---@param module luda.nn.Module
---@return string
function M.describe(module)
  local lines, first, above = {}, {}, {}
  local function add(part, name, path, depth)
    if above[part] then
      return
    end
    above[part] = true
    lines[#lines + 1] = line(part, name, path, depth, first)
    local names, inner = modules.parts(part)
    for i, child in ipairs(inner) do
      add(child, names[i], path == "" and names[i] or path .. "." .. names[i], depth + 1)
    end
    above[part] = nil
  end
  add(module, nil, "", 0)
  return table.concat(lines, "\n")
end

return M
