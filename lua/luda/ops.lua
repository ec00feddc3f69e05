--- Operators: every row of the table becomes a function, bound here at load time; none is written out.
--
-- A call is `op(inputs…, attributes…)`: attributes by position in the row's order, or by name in a last table, which
-- also takes `out=`. In-place forms end in an underscore.

local lib = require "luda.ffi"
local args = require "luda.args"
local calls = require "luda.calls"
local errors = require "luda.error"
local memory = require "luda.memory"
local rows = require "luda.rows"
local tensors = require "luda.tensor"

local ffi, C, context, Tensor = lib.ffi, lib.C, lib.context, lib.Tensor
local istype, wrap = ffi.istype, memory.wrap
local Attrs = ffi.typeof("luda_attrs")

local M = {}

---@type table<string, table> the rows by name, and in order
M.rows = {}

local handles, handle_capacity = ffi.new("double[8]"), 8
local results = ffi.new("double[?]", C.LUDA_MAX_OUTPUTS)

--- Options are a plain table without a list part; `{}` counts as none.
local function is_options(value)
  return type(value) == "table" and value[1] == nil and getmetatable(value) == nil
end

--- The tensors of a row with any number of inputs: a list, or spread out.
local function take_list(row, given)
  local list, place = given[1], 2
  if type(list) ~= "table" then
    list, place = {}, 1
    while istype(Tensor, given[place]) do
      list[place], place = given[place], place + 1
    end
  end
  if #list == 0 then
    errors.raise("invalid", "%s: at least one tensor is needed", row.name)
  end
  for i = 1, #list do
    if not istype(Tensor, list[i]) then
      errors.raise("invalid", "%s: entry %d must be a tensor, not %s", row.name, i, args.describe(list[i]))
    end
  end
  return list, #list, place
end

--- The tensor among the arguments that says what type a plain number takes: the first that is no mask.
local function example(row, given)
  local found
  for i = row.types == "SELECT" and 2 or 1, row.inputs do
    if istype(Tensor, given[i]) and (not found or found.dtype == "bool") then
      found = given[i]
    end
  end
  return found
end

--- The inputs (false where an optional one is absent), their number, and the place of the first attribute.
local function take_inputs(row, given)
  if row.inputs == C.LUDA_VARIADIC then
    return take_list(row, given)
  end
  if row.inputs == 1 and istype(Tensor, given[1]) then
    return { given[1] }, 1, 2
  end
  local inputs, place = {}, 1
  for i = 1, row.inputs do
    local value, may_lack = given[place], i > row.inputs - row.optional
    if istype(Tensor, value) then
      inputs[i], place = value, place + 1
    elseif may_lack and value == nil then
      inputs[i], place = false, place + 1
    elseif may_lack and type(value) == "table" then
      inputs[i] = false
    elseif value == nil then
      errors.raise("invalid", "%s: input %d of %d is missing%s", row.name, i, row.inputs,
        place == 1 and ("; methods are called with a colon, x:%s(...)"):format(row.name) or "")
    else
      inputs[i], place = tensors.scalar(row.name, value, example(row, given)), place + 1
    end
  end
  return inputs, row.inputs, place
end

--- Named attributes; returns the `out` option.
local function take_options(row, struct, options)
  for name in pairs(options) do
    if not row.known[name] then
      args.unknown_option(row.name, name, row.known)
    end
  end
  for _, field in ipairs(row.fields) do
    if options[field.name] ~= nil then
      field.set(struct, field.name, options[field.name], row.name)
    end
  end
  return options.out
end

--- The attributes from what follows the inputs, and the `out` option.
local function take_attributes(row, given, place)
  local value = given[place]
  if value == nil and given[place + 1] == nil and given[place + 2] == nil then
    return row.defaults, nil
  end
  local attrs, struct, out
  if row.family then
    attrs = Attrs(row.defaults) -- one for each call: a finalizer may run this operator while it is filled
    struct = attrs[row.family]
  end
  local order, next_field = row.positional, 1
  -- x:view(2, 3), x:permute(2, 1): a row whose only attribute is a list takes it spread out.
  if #order == 1 and (order[1].kind == "shape" or order[1].kind == "dims") and type(value) == "number" then
    local list = {}
    while type(given[place]) == "number" do
      list[#list + 1], place = given[place], place + 1
    end
    order[1].set(struct, order[1].name, list, row.name)
    next_field = 2
  end
  while place <= 8 do
    local field = order[next_field]
    value = given[place]
    if is_options(value) and not (next(value) == nil and field and field.kind == "shape") then
      out = take_options(row, struct, value)
    elseif value ~= nil then
      if not field then
        errors.raise("invalid", "%s: unexpected argument %s", row.name, args.describe(value))
      end
      field.set(struct, field.name, value, row.name)
    end
    place, next_field = place + 1, next_field + 1
  end
  return attrs, out
end

--- Nothing is allocated between this and the call, nor between the call and the reading of `results`: a collection there
-- could sweep the inputs, or run a finalizer that uses the same cells.
local function fill_handles(inputs, count)
  if count > handle_capacity then
    handle_capacity = count * 2
    handles = ffi.new("double[?]", handle_capacity)
  end
  local a, b, c = inputs[1], inputs[2], inputs[3] -- written out: short loops do not compile
  handles[0] = a and a.handle or 0
  handles[1] = b and b.handle or 0
  handles[2] = c and c.handle or 0
  for i = 4, count do
    handles[i - 1] = inputs[i] and inputs[i].handle or 0
  end
end

local function call_into(row, inputs, count, attrs, into)
  if not istype(Tensor, into) then
    errors.raise("invalid", "%s: the target must be a tensor, not %s", row.name, args.describe(into))
  end
  fill_handles(inputs, count)
  local status = C.luda_call_into(context, row.op, handles, count, attrs, into.handle)
  if status ~= 0 then
    memory.retry_status(status, C.luda_call_into, context, row.op, handles, count, attrs, into.handle)
  end
  return memory.noted(into)
end

--- Runs a row without attributes into a target, recorded or not: what in-place forms are made of.
function M.write(name, target, ...)
  local inputs, count = take_inputs(M.rows[name], { ... })
  return call_into(M.rows[name], inputs, count, nil, target)
end

--- For calls with `out`, set by luda.ops.into: before (row, inputs, count, out), and after (row, out, handles).
M.check_out, M.finish_out = nil, nil

--- The general function of a row; `in_place` writes into the first input.
local function general(row, in_place)
  return function(a, b, c, d, e, f, g, h)
    local given = { a, b, c, d, e, f, g, h }
    if row.types == "TAKE" and istype(Tensor, c) and not istype(Tensor, b) then -- PyTorch's order: dim, index
      given[2], given[3] = c, b
    end
    local inputs, count, place = take_inputs(row, given)
    local attrs, out = take_attributes(row, given, place)
    if out ~= nil then
      M.check_out(row, inputs, count, out)
    end
    if in_place or (out ~= nil and row.alone) then
      return call_into(row, inputs, count, attrs, in_place and a or out)
    end
    fill_handles(inputs, count)
    local status = C.luda_call_full(context, row.op, handles, count, attrs, results)
    if status ~= 0 then
      memory.retry_status(status, C.luda_call_full, context, row.op, handles, count, attrs, results)
    end
    local first, second, third = results[0], results[1], results[2]
    if out ~= nil then
      return M.finish_out(row, out, first, second, third)
    elseif row.outputs == 1 then
      return wrap(first)
    elseif row.outputs == 2 then
      return wrap(first), wrap(second)
    end
    return wrap(first), wrap(second), wrap(third)
  end
end

local function bind(row)
  local list = row.positional[1] and (row.positional[1].kind == "shape" or row.positional[1].kind == "dims")
  if row.family and row.inputs == 1 and row.outputs == 1 and row.optional == 0 and #row.positional == 1 and list then
    return calls.with_list(row, general(row, false))
  elseif row.family and (row.inputs == 1 or row.inputs == 2) and row.outputs == 1 and row.optional == 0 then
    return calls.with_attributes(row, general(row, false))
  end
  if not row.family and row.inputs == 1 and row.outputs == 1 then
    return tensors.unary(row.op, row.name, general(row, false))
  elseif not row.family and row.inputs == 2 and row.outputs == 1 and row.optional == 0 then
    return tensors.binary(row.op, row.name, general(row, false))
  end
  return general(row, false)
end

---@type table<string, function> luda.<name>, for every row and its in-place form
M.functions = {}

for op = 0, math.huge do
  local row = rows.read(op)
  if not row then
    break
  end
  M.rows[op + 1], M.rows[row.name] = row, row
  M.functions[row.name] = bind(row)
  if row.inplace then
    local slow = general(row, true)
    M.functions[row.name .. "_"] = not row.family and row.inputs == 2 and calls.in_place(row, slow) or slow
  end
  for _, name in ipairs { row.name, row.name .. "_" } do
    if row.inputs ~= 0 then
      tensors.methods[name] = M.functions[name]
    end
  end
end

--- The row's sentence for help and reference.
---@param name string
---@return string?
function M.doc(name)
  return M.rows[name] and M.rows[name].facts.doc
end

return M
