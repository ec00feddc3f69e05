--- The header of a .npy file: a Python literal, read by a strict parser of its own and never evaluated.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"

local ffi, C = lib.ffi, lib.C

local M = { MAGIC = "\147NUMPY" }

local MOST_HEADER = 0xffff

local stored = {
  f8 = "f64", f4 = "f32", f2 = "f16", V2 = "bf16", i8 = "i64", i4 = "i32", i2 = "i16", i1 = "i8", u1 = "u8", b1 = "bool",
}
-- Unsigned numbers take the next type that holds them all; of u8 those below 2^63.
local widened = { u2 = { "i32", "uint16_t *" }, u4 = { "i64", "uint32_t *" }, u8 = { "i64", "uint64_t *" } }

function M.corrupt(name, text, ...)
  errors.raise("corrupt", "npy.load: %s: %s", name, text:format(...))
end
local corrupt = M.corrupt

--- Sizes from the inside of a tuple: "", "3,", "2, 3", each perhaps with the L of Python 2.
local function parse_shape(name, text)
  local shape, rest = {}, text:match("^%s*(.-)%s*$")
  while rest ~= "" do
    local digits, after = rest:match("^(%d+)L?%s*(.*)$")
    local comma = after and after:match("^,%s*(.*)$")
    if not digits or #digits > 15 or (after ~= "" and not comma) or (after == "" and #shape == 0) then
      corrupt(name, "the shape (%s) is not a tuple of sizes", text:sub(1, 60))
    end
    shape[#shape + 1], rest = tonumber(digits), comma or ""
  end
  if #shape > C.LUDA_MAX_DIMS then
    errors.raise("unsupported", "npy.load: %s: %d dimensions; at most %d are possible", name, #shape, tonumber(C.LUDA_MAX_DIMS))
  end
  return shape
end

--- By key: (text, name of the file) to the value, nil where it is wrong, and what follows.
local values = {
  descr = function(text, name)
    local quoted, after = text:match("^'([^'\\]*)'(.*)$")
    if not quoted then
      quoted, after = text:match('^"([^"\\]*)"(.*)$')
    end
    if not quoted and text:find("^[%[%(]") then -- fields by name
      errors.raise("unsupported", "npy.load: %s: records of several fields; save each field by itself", name)
    end
    return quoted, after
  end,
  fortran_order = function(text)
    local word, after = text:match("^(%a+)(.*)$")
    if word == "True" or word == "False" then
      return word == "True" and "F" or "C", after
    end
  end,
  shape = function(text)
    return text:match("^%(([%d%sL,]*)%)(.*)$")
  end,
}

--- "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }" as a table; each key exactly once.
local function parse_header(name, text)
  local header, rest = {}, text:match("^{%s*(.*)$")
  while rest and not rest:find("^}%s*$") do
    local _, key, after = rest:match("^(['\"])([%a_]+)%1%s*:%s*(.*)$")
    if not values[key or ""] or header[key] then
      rest = nil
      break
    end
    header[key], rest = values[key](after, name)
    local separator = rest and rest:match("^%s*([,}])")
    rest = separator == "," and rest:match("^%s*,%s*(.*)$") or separator == "}" and rest:match("^%s*(}.*)$") or nil
  end
  if not rest or not (header.descr and header.fortran_order and header.shape) then
    corrupt(name, "its header is not what NumPy writes: %s", text:sub(1, 80):gsub("[^\32-\126]", "?"))
  end
  header.shape = parse_shape(name, header.shape)
  return header
end

local function read_text(reader, name, count)
  local buffer = ffi.new("uint8_t[?]", count)
  if reader:read(buffer, count) < count then
    corrupt(name, "it ends within its header")
  end
  return ffi.string(buffer, count)
end

--- Type, width and byte order of "<f8".
local function parse_type(name, descr)
  local order, kind, width = descr:match("^([<>|=])(%a)(%d+)$")
  local key = kind and kind .. width
  if not stored[key] and not widened[key] then
    errors.raise("dtype", "npy.load: %s: there is no element type for NumPy's %s; convert it there, to float32 say", name,
      args.describe(descr))
  end
  width = tonumber(width)
  if order == "|" and width > 1 and key ~= "V2" then
    corrupt(name, "the type %s has no byte order", descr)
  end
  return key, width, order == ">" and width > 1
end

--- Header and elements from a reader of `size` bytes, all of which must be used.
---@return {shape: integer[], columns_first: boolean, dtype: string, wider: string?, width: integer, swapped: boolean,
-- count: integer} header whose elements follow: `wider` is the pointer type of those that need a conversion
function M.read(reader, name, size)
  local start = size >= 10 and read_text(reader, name, 8) or ""
  if start:sub(1, 6) ~= M.MAGIC then
    corrupt(name, "it does not begin like a .npy file")
  end
  local version, wide = start:byte(7), start:byte(7) > 1
  if version < 1 or version > 3 then
    errors.raise("unsupported", "npy.load: %s: format version %d; 1 to 3 are known", name, version)
  end
  local length, taken = 0, wide and 12 or 10
  for i, byte in ipairs { read_text(reader, name, taken - 8):byte(1, -1) } do
    length = length + byte * 256 ^ (i - 1)
  end
  if length > MOST_HEADER or taken + length > size then
    corrupt(name, "a header of %.0f bytes", length)
  end
  local header = parse_header(name, read_text(reader, name, length))
  local key, width, swapped = parse_type(name, header.descr)
  local count = 1
  for _, extent in ipairs(header.shape) do
    count = count * extent
  end
  if count * width ~= size - taken - length then
    corrupt(name, "shape %s of %s needs %.0f bytes of elements, %.0f are there", args.shape_text(header.shape), header.descr,
      count * width, size - taken - length)
  end
  local wider = widened[key]
  return {
    shape = header.shape, columns_first = header.fortran_order == "F", dtype = wider and wider[1] or stored[key],
    wider = wider and wider[2], width = width, swapped = swapped, count = count,
  }
end

return M
