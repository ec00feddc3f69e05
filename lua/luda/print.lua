--- tostring(t): values in aligned brackets, edges only where there are many, then type, shape and device.

local args = require "luda.args"
local lib = require "luda.ffi"
local elements = require "luda.values"
local tensors = require "luda.tensor"

local C, context = lib.C, lib.context

local MANY, LINE = 1000, 80

--- How many positions at each end of a dimension are shown where there are many elements: the fewer, the more dimensions.
local function edge_of(ndim)
  return ndim <= 3 and 3 or ndim == 4 and 2 or 1
end

--- The positions of a dimension to show; false stands for those left out.
local function shown(size, edge)
  local positions = {}
  if edge and size > 2 * edge then
    for i = 1, edge do
      positions[i], positions[edge + 1 + i] = i, size - edge + i
    end
    positions[edge + 1] = false
    return positions
  end
  for i = 1, size do
    positions[i] = i
  end
  return positions
end

--- Nested lists of the elements to show, and all of them in one list.
local function gather(t, shape, edge)
  local flat, read = {}
  if edge then
    read = function(offset)
      return elements.element(t, offset)
    end
  else
    local values, class = elements.read(t)
    read = function(offset)
      local value = values[offset]
      if class == "bool" then
        return value ~= 0
      end
      return class == "int" and args.unbox(value) or value
    end
  end
  local strides, stride = {}, 1
  for dim = #shape, 1, -1 do
    strides[dim], stride = stride, stride * shape[dim]
  end
  local function level(dim, offset)
    if dim > #shape then
      flat[#flat + 1] = read(offset)
      return #flat
    end
    local list = {}
    for i, position in ipairs(shown(shape[dim], edge)) do
      list[i] = position and level(dim + 1, offset + (position - 1) * strides[dim])
    end
    return list
  end
  return level(1, 0), flat
end

--- One format for all shown numbers: whole, fixed or scientific.
local function number_format(flat)
  local whole, low, high = true, math.huge, 0
  for _, value in ipairs(flat) do
    local size = type(value) == "number" and math.abs(value) or 0
    if size > 0 and size < math.huge then
      low, high = math.min(low, size), math.max(high, size)
      whole = whole and value == math.floor(value)
    end
  end
  if whole then
    return high < 1e8 and "%.0f." or "%.4e"
  end
  return (high >= 1e5 or low < 1e-4 or high / low > 1e5) and "%.4e" or "%.4f"
end

local function texts(flat, class)
  local format = class == "float" and number_format(flat)
  local list, width = {}, 0
  for i, value in ipairs(flat) do
    local text
    if format and value == value and math.abs(value) ~= math.huge then
      text = format:format(value)
    else
      text = tostring(value):gsub("U?LL$", ""):gsub("^%-nan$", "nan")
    end
    list[i], width = text, math.max(width, #text)
  end
  return list, width
end

--- The entries of one row, broken into lines; elements of one row stand below each other.
local function row(entries, width, indent)
  local lines, each = {}, math.max(math.floor((LINE - indent + 1) / (width + 2)), 1)
  for first = 1, #entries, each do
    lines[#lines + 1] = table.concat(entries, ", ", first, math.min(first + each - 1, #entries))
  end
  return table.concat(lines, ",\n" .. (" "):rep(indent + 1))
end

--- Text of nested lists, which have `depth` dimensions; matrices have blank lines between them.
local function layout(nested, depth, list, width, indent)
  if depth == 0 then
    return (" "):rep(width - #list[nested]) .. list[nested]
  end
  local parts = {}
  for i, item in ipairs(nested) do
    parts[i] = item and layout(item, depth - 1, list, width, indent + 1) or "..."
  end
  if depth == 1 then
    return "[" .. row(parts, width, indent) .. "]"
  end
  return "[" .. table.concat(parts, "," .. ("\n"):rep(depth - 1) .. (" "):rep(indent + 1)) .. "]"
end

function tensors.to_text(t)
  if C.luda_handle_alive(context, t.handle) == 0 then
    return "tensor (released)"
  end
  local shape = t.shape
  local numel = t.numel
  local nested, flat = {}, {}
  if numel > 0 then
    nested, flat = gather(t, shape, numel > MANY and edge_of(#shape) or nil)
  end
  local list, width = texts(flat, args.dtype_class(t.dtype))
  local sizes = #shape == 0 and "0-d" or table.concat(shape, "x")
  return ("%s\n[%s %s %s%s]"):format(layout(nested, numel > 0 and #shape or 1, list, width, 0), t.dtype, sizes, t.device,
    t.requires_grad and " requires_grad" or "")
end
