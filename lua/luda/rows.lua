--- Rows of the operators' table as Lua tables.

local lib = require "luda.ffi"
local attributes = require "luda.attributes"

local ffi, C = lib.ffi, lib.C

local M = {}

--- "key=value; flag; doc=a sentence to the end" as a table.
local function parse_facts(text)
  local before, doc = text:match("^(.-)doc=(.*)$")
  local facts = { doc = doc }
  for fact in (before or text):gmatch("[^;]*%w[^;]*") do
    local key, value = fact:match("^%s*([%w_]+)=?(.*)$")
    facts[key] = value
  end
  return facts
end

-- Facts are read when somebody asks: a start of the program needs few.
local Row = {}

function Row.__index(row, key)
  if key == "facts" then
    row.facts = parse_facts(ffi.string(C.luda_op_get(row.op).facts))
    return row.facts
  end
end

--- Reads row `op`, or nil beyond the last.
---@param op integer
---@return table?
function M.read(op)
  local info = C.luda_op_get(op)
  if info == nil then
    return nil
  end
  local facts = ffi.string(info.facts)
  local row = setmetatable({
    op = op,
    name = ffi.string(info.name),
    types = ffi.string(info.types),
    shape = ffi.string(info.shape),
    gradient = ffi.string(info.gradient),
    sample = ffi.string(info.sample),
    inputs = info.inputs,
    optional = info.optional,
    outputs = info.outputs - info.hidden,
    alone = info.outputs == 1,
    fields = {},
    positional = {},
    known = { out = true },
    inplace = (facts:match("^(.-)doc=") or facts):find("inplace", 1, true) ~= nil,
  }, Row)
  local family = tonumber(info.attrs)
  for index = 0, math.huge do
    local field = C.luda_attrs_field(family, index)
    if field == nil then
      break
    end
    local entry = { kind = ffi.string(field.kind), name = ffi.string(field.name) }
    entry.set = attributes.setters[entry.kind]
    row.fields[index + 1], row.known[entry.name], row.fields[entry.name] = entry, true, entry
    if not attributes.by_name_only[entry.kind] then
      row.positional[#row.positional + 1] = entry
    end
  end
  if #row.fields > 0 then
    row.family = ffi.string(info.family)
    row.defaults = ffi.new("luda_attrs")
    lib.check(C.luda_attrs_default(op, row.defaults))
    if row.fields.base then
      row.defaults[row.family].base = 1
    end
  end
  return row
end

return M
