--- Common calls of operators without a table: the tensors, then numbers and booleans by position. Everything else, and
--- everything wrong, goes to the general function of the row.

local lib = require "luda.ffi"
local attributes = require "luda.attributes"
local memory = require "luda.memory"

local ffi, C, context, Tensor = lib.ffi, lib.C, lib.context, lib.Tensor
local istype, wrap = ffi.istype, memory.wrap
local Attrs = ffi.typeof("luda_attrs")
local ATTRS_BYTES = ffi.sizeof(Attrs)

local M = {}

local scalar = { number = true, boolean = true }
local handles = ffi.new("double[2]")

--- One or two tensors, then up to three numbers or booleans by position.
function M.with_attributes(row, otherwise)
  local op, name, defaults, two = row.op, row.name, row.defaults, row.inputs == 2
  local attrs = Attrs(defaults)
  local fill = {}
  for i, field in ipairs(row.positional) do
    fill[i] = attributes.filler(attrs[row.family], field.kind, field.name)
  end
  local first, second, third = fill[1], fill[1] and fill[2], fill[1] and fill[2] and fill[3]
  return function(a, b, c, d, e, f, g, h)
    local x, y, z, more = b, c, d, e
    if two then
      x, y, z, more = c, d, e, f
    end
    if more ~= nil or not istype(Tensor, a) or (two and not istype(Tensor, b)) or x == nil and y ~= nil or y == nil and z ~= nil
      or not (x == nil or first and scalar[type(x)]) or not (y == nil or second and scalar[type(y)])
      or not (z == nil or third and scalar[type(z)]) then
      return otherwise(a, b, c, d, e, f, g, h)
    end
    local given, other = defaults, two and b.handle or 0
    if x ~= nil then
      given = attrs
      ffi.copy(attrs, defaults, ATTRS_BYTES)
      first(x, name)
      if y ~= nil then
        second(y, name)
      end
      if z ~= nil then
        third(z, name)
      end
    end
    local handle = C.luda_call_attrs(context, op, a.handle, other, given)
    if handle == 0 then
      return memory.retry(C.luda_call_attrs, op, a.handle, other, given)
    end
    return wrap(handle)
  end
end

--- x:view(2, 3), x:permute(2, 1): one list, spread out.
function M.with_list(row, otherwise)
  local op, name, defaults = row.op, row.name, row.defaults
  local attrs = Attrs(defaults)
  local fill = attributes.list_filler(attrs[row.family], row.positional[1].kind, row.positional[1].name)
  return function(a, b, c, d, e, f, g, h)
    if f ~= nil or not istype(Tensor, a) or type(b) ~= "number" or not (c == nil or type(c) == "number")
      or not (d == nil or c ~= nil and type(d) == "number") or not (e == nil or d ~= nil and type(e) == "number") then
      return otherwise(a, b, c, d, e, f, g, h)
    end
    ffi.copy(attrs, defaults, ATTRS_BYTES)
    fill(name, b, c, d, e)
    local handle = C.luda_call_attrs(context, op, a.handle, 0, attrs)
    if handle == 0 then
      return memory.retry(C.luda_call_attrs, op, a.handle, 0, attrs)
    end
    return wrap(handle)
  end
end

--- x:add_(y) with a tensor or a number.
function M.in_place(row, otherwise)
  local op = row.op
  return function(a, b, more, ...)
    if more ~= nil or not istype(Tensor, a) then
      return otherwise(a, b, more, ...)
    end
    if type(b) == "number" then
      local status = C.luda_call_number_into(context, op, a.handle, b)
      if status ~= 0 then
        memory.retry_status(status, C.luda_call_number_into, context, op, a.handle, b)
      end
      return memory.noted(a)
    elseif not istype(Tensor, b) then
      return otherwise(a, b)
    end
    handles[0], handles[1] = a.handle, b.handle
    local status = C.luda_call_into(context, op, handles, 2, nil, a.handle)
    if status ~= 0 then
      memory.retry_status(status, C.luda_call_into, context, op, handles, 2, nil, a.handle)
    end
    return memory.noted(a)
  end
end

return M
