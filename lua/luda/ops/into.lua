--- out=, and the in-place forms of functions that are composed from rows: the result is computed, then written.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local tensors = require "luda.tensor"
local values = require "luda.values"

local C, context, functions, wrap = lib.C, lib.context, ops.functions, memory.wrap
local is_tensor = tensors.is_tensor
local define, need_tensor = values.define, values.need_tensor

local M = {}

-- Rows.

--- Raises where something of a call with out= is tracked: what is overwritten has no gradient.
local function refuse_tracked(op, tensor)
  if is_tensor(tensor) and tensor.requires_grad and C.luda_grad_enabled() ~= 0 then
    errors.raise("graph", "%s: with out= no gradient is recorded, but a tensor requires one; leave out= away, detach it or "
      .. "use luda.no_grad", op)
  end
end

function ops.check_out(row, inputs, count, out)
  C.luda_context_use(context)
  for i = 1, count do
    refuse_tracked(row.name, inputs[i])
  end
  refuse_tracked(row.name, out)
end

--- Writes results into the out= of a call: a tensor, or a list of as many.
---@param op string
---@param out any
---@param ... luda.Tensor
function M.write_results(op, out, ...)
  local count, made = select("#", ...), { ... }
  local targets = (count > 1 or type(out) == "table") and out or { out }
  if type(targets) ~= "table" or #targets ~= count then
    errors.raise("invalid", "%s: out is %s; it has %d results, each of which needs a tensor", op, args.describe(out), count)
  end
  C.luda_context_use(context)
  for i = 1, count do
    if not is_tensor(targets[i]) then
      errors.raise("invalid", "%s: the target must be a tensor, not %s", op, args.describe(targets[i]))
    end
    refuse_tracked(op, made[i])
    refuse_tracked(op, targets[i])
  end
  for i = 1, count do
    made[i] = errors.speak_of(op, pcall(ops.write, "clone", targets[i], made[i]))
  end
  return unpack(made)
end

--- Rows with several results, hidden ones too, compute apart.
function ops.finish_out(row, out, ...)
  local made = { ... }
  for i = 1, row.outputs do
    made[i] = wrap(made[i])
  end
  return M.write_results(row.name, out, unpack(made, 1, row.outputs))
end

-- Compositions.

local function without_out(options)
  local rest = {}
  for name, value in pairs(options) do
    if name ~= "out" then
      rest[name] = value
    end
  end
  return rest
end

--- Makes functions take out= among the options that end their arguments.
---@param names string
function M.take_out(names)
  for name in names:gmatch("%S+") do
    local fn = assert(functions[name], name)
    define(name, function(...)
      local count = select("#", ...)
      local last = select(count, ...)
      if type(last) ~= "table" or getmetatable(last) ~= nil or last.out == nil then
        return fn(...)
      end
      local given = { ... }
      local rest = without_out(last)
      given[count] = rest
      if next(rest) == nil then
        count = count - 1
      end
      return M.write_results(name, last.out, fn(unpack(given, 1, count)))
    end)
  end
end

--- Defines the in-place forms of functions whose result has the shape of their first argument.
---@param names string
function M.in_place(names)
  for name in names:gmatch("%S+") do
    local fn = assert(functions[name], name)
    define(name .. "_", function(t, ...)
      return sugar.assign(name .. "_", need_tensor(name .. "_", t), fn(t, ...))
    end)
  end
end

return M
