--- Attributes: how a Lua value of each kind (kernels/attrs.def) gets into the C struct.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"

local C = lib.C

local M = {}

--- Names of the enumerators of `choice` fields, from 0.
M.choices = {
  activation = { none = 0, relu = 1, gelu_tanh = 2 },
  reduction = { mean = 0, sum = 1, none = 2 },
  transform = { complex = 0, real = 1, hermitian = 2 },
}

--- Setters by kind of field: (struct, field name, value, operator).
local setters = {}
M.setters = setters

function setters.flag(cell, name, value, op)
  if type(value) ~= "boolean" then
    errors.raise("invalid", "%s: %s is true or false, not %s", op, name, args.describe(value))
  end
  cell[name] = value and 1 or 0
end

function setters.choice(cell, name, value, op)
  local number = M.choices[name][value]
  if not number then
    local known = {}
    for word in pairs(M.choices[name]) do
      known[#known + 1] = word
    end
    table.sort(known)
    errors.raise("invalid", "%s: %s is one of %s, not %s", op, name, table.concat(known, ", "), args.describe(value))
  end
  cell[name] = number
end

function setters.integer(cell, name, value, op)
  cell[name] = args.integer(op, name, value)
end

function setters.number(cell, name, value, op)
  cell[name] = args.number(op, name, value)
end

setters.base = setters.integer

function setters.dim(cell, name, value, op)
  cell[name] = args.dimension(op, name, value)
end

function setters.dims(cell, name, value, op)
  if type(value) ~= "table" then
    value = { value }
  end
  if #value > C.LUDA_MAX_DIMS then
    errors.raise("shape", "%s: %d dimensions; at most %d are possible", op, #value, tonumber(C.LUDA_MAX_DIMS))
  end
  local dims = cell[name]
  dims.count = #value
  for i = 1, #value do
    dims.dim[i - 1] = args.dimension(op, name, value[i])
  end
end

function setters.position(cell, name, value, op)
  cell[name] = args.position(op, name, value)
end

--- A height and a width; a number stands for both.
function setters.pair(cell, name, value, op)
  local height, width = value, value
  if type(value) == "table" then
    if #value ~= 2 then
      errors.raise("invalid", "%s: %s is a number or a list of two, height and width; the list has %d", op, name, #value)
    end
    height, width = value[1], value[2]
  end
  cell[name].height, cell[name].width = args.integer(op, name, height), args.integer(op, name, width)
end

function setters.shape(cell, name, value, op)
  args.sizes(op, value, true)
  local shape = cell[name]
  shape.ndim = #value
  for i = 1, #value do
    shape.size[i - 1] = value[i]
  end
end

function setters.dtype(cell, name, value, op)
  cell[name] = args.dtype(op, value)
end

function setters.device(cell, name, value, op)
  cell[name].type, cell[name].index = args.device(op, value)
end

function setters.random(cell, name, value, op)
  if type(value) ~= "table" or value.pointer == nil then
    errors.raise("invalid", "%s: %s must be a generator, not %s", op, name, args.describe(value))
  end
  cell[name].generator = value.pointer
end

-- The same for a struct that all calls of an operator share. Nothing is allocated while it is filled, since a finalizer
-- could then run the operator: what lies deeper in the struct is looked up once.

--- A function (value, operator) that fills a field, or nil for kinds that take more than a number or a boolean.
---@param struct any
---@param kind string
---@param name string
function M.filler(struct, kind, name)
  if kind == "dims" then
    local list, dims = struct[name], struct[name].dim
    return function(value, op)
      dims[0] = args.dimension(op, name, value)
      list.count = 1
    end
  elseif kind == "flag" or kind == "integer" or kind == "number" or kind == "dim" or kind == "position" then
    local set = setters[kind]
    return function(value, op)
      set(struct, name, value, op)
    end
  end
end

--- A function (operator, up to four numbers) that fills a list of sizes or dimensions.
function M.list_filler(struct, kind, name)
  local list = struct[name]
  local numbers = kind == "dims" and list.dim or list.size
  local check = kind == "dims" and args.dimension or args.size
  return function(op, a, b, c, d)
    numbers[0] = check(op, name, a)
    numbers[1] = b and check(op, name, b) or 0
    numbers[2] = c and check(op, name, c) or 0
    numbers[3] = d and check(op, name, d) or 0
    local count = d and 4 or c and 3 or b and 2 or 1
    if kind == "dims" then
      list.count = count
    else
      list.ndim = count
    end
  end
end

-- Kinds that are given by name only.
M.by_name_only = { base = true, random = true, dtype = true, device = true }

return M
