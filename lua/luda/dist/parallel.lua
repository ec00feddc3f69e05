--- Replicated training: equal replicas at the start, one token-weighted mean of the gradients a step.

local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local Gradients = require "luda.autograd.gradients"
local create = require "luda.create"
local no_grad = require("luda.autograd").no_grad
local scope = require "luda.scope"
local functions = require("luda.ops").functions

local HALVES = { f16 = true, bf16 = true }

---@class luda.DataParallel
local DataParallel = class("luda.DataParallel")

--- Parameters in walk order; a tied one once. Each is {path, parameter, alias = place of the first occurrence}.
local function walk(model)
  local rows, first = {}, {}
  for path, parameter in model:named_parameters() do
    local id = parameter.id
    rows[#rows + 1] = { path = path, parameter = parameter, alias = first[id] or #rows + 1 }
    first[id] = first[id] or #rows
  end
  return rows
end

local function structure(rows)
  local lines = {}
  for i, row in ipairs(rows) do
    local p = row.parameter
    lines[i] = ("%s %s %s %s %d"):format(row.path, args.shape_text(p.shape), p.dtype, tostring(p.requires_grad), row.alias)
  end
  return table.concat(lines, "\n")
end

--- Raises on every rank unless all ranks sent the same; `names` says what differs.
local function agree(comm, op, mine, explain)
  local all = comm:exchange(mine)
  local culprits, detail, differs = {}, {}, false
  for rank, text in ipairs(all) do
    detail[rank] = { rank = rank - 1, asked = text }
    if text ~= all[1] then
      differs = true
      culprits[#culprits + 1] = rank - 1
    end
  end
  if differs then
    errors.raise_with("mismatch", ("%s: %s"):format(op, explain(all)), { rank = comm.rank, culprits = culprits, detail = detail })
  end
end

--- The first line in which two ranks differ.
local function first_difference(all)
  for rank = 2, #all do
    local theirs = all[rank]:gmatch("[^\n]*")
    for line in all[1]:gmatch("[^\n]*") do
      local other = theirs()
      if line ~= other then
        return ("ranks disagree about the model: rank 0 has '%s', rank %d has '%s'"):format(line, rank - 1, other or "nothing")
      end
    end
  end
  return "ranks disagree about the model"
end

--- Checks that all ranks hold the same structure and gives them the root's values. Call it before the optimizer is made.
---@param comm luda.Comm
---@param model table
---@param options? {root: integer?, buffers: boolean?}
function DataParallel:init(comm, model, options)
  options = args.options("DataParallel", options, { root = 0, buffers = false })
  self.comm, self.model, self.rows, self.buckets = comm, model, walk(model), {}
  self.structure = structure(self.rows)
  local header = ("root %s, buffers %s\n"):format(tostring(options.root), tostring(options.buffers))
  agree(comm, "DataParallel", header .. self.structure, first_difference)
  no_grad(function()
    for i, row in ipairs(self.rows) do
      if row.alias == i then
        row.parameter:copy_(comm:broadcast(row.parameter:detach(), options.root))
      end
    end
    if options.buffers then
      for _, buffer in model:named_buffers() do
        buffer:copy_(comm:broadcast(buffer, options.root))
      end
    end
  end)
end

--- The error of this rank's own gradients, or nil.
local function local_problem(self, grads, weight, options)
  if type(weight) ~= "number" or weight < 0 or weight ~= math.floor(weight) then
    return ("the local weight must be a whole number of samples or tokens, not %s"):format(args.describe(weight))
  end
  if structure(walk(self.model)) ~= self.structure then
    return "the model's structure has changed since DataParallel was made"
  end
  local known = 0
  for i, row in ipairs(self.rows) do
    local p = row.parameter
    local g = row.alias == i and grads[p] or nil
    if g then
      known = known + 1
      if args.shape_text(g.shape) ~= args.shape_text(p.shape) then
        return ("the gradient of %s has shape %s, the parameter %s"):format(row.path, args.shape_text(g.shape),
          args.shape_text(p.shape))
      end
      if g.dtype ~= p.dtype and not (options.fp32 and g.dtype == "f32") then
        return ("the gradient of %s is %s, the parameter %s"):format(row.path, g.dtype, p.dtype)
      end
    elseif row.alias == i and p.requires_grad and weight > 0 and options.missing == "error" then
      return ("%s has no gradient; pass missing=\"zero\" if that is right"):format(row.path)
    end
  end
  if known ~= grads:len() then
    return ("%d gradients belong to no trainable parameter of the model"):format(grads:len() - known)
  end
end

local function presence(self, grads, weight)
  local bits = {}
  for i, row in ipairs(self.rows) do
    bits[i] = weight > 0 and row.alias == i and grads[row.parameter] and "1" or "0"
  end
  return table.concat(bits)
end

--- Exchanges {options, problem, weight, presence}; the sum of weights and which parameters somebody has.
local function negotiate(self, grads, weight, options)
  local problem = local_problem(self, grads, weight, options)
  local mode = ("%s %s"):format(options.missing, tostring(options.fp32))
  local all = self.comm:exchange(table.concat({ mode, problem or "", ("%.17g"):format(tonumber(weight) or 0),
    problem and "" or presence(self, grads, weight) }, "\0"))
  local total, present, complaints, modes = 0, {}, {}, {}
  for rank, text in ipairs(all) do
    local their_mode, their_problem, their_weight, bits = text:match("^(%Z*)%z(%Z*)%z(%Z*)%z(%Z*)$")
    modes[their_mode] = true
    if their_problem ~= "" then
      complaints[#complaints + 1] = ("rank %d: %s"):format(rank - 1, their_problem)
    end
    total = total + tonumber(their_weight)
    for i = 1, #bits do
      present[i] = present[i] or bits:sub(i, i) == "1"
    end
  end
  if next(modes, next(modes)) then
    complaints[#complaints + 1] = "ranks chose different options for missing= or fp32="
  end
  if #complaints == 0 and total == 0 then
    complaints[1] = "the weights of all ranks are 0"
  end
  if #complaints > 0 then
    errors.raise_with("mismatch", "reduce: " .. table.concat(complaints, "; "), { rank = self.comm.rank })
  end
  return total, present
end

--- This rank's contribution to one parameter, flat, in float32 (float64 for float64).
local function contribution(row, grads, weight)
  local p = row.parameter
  local wide = p.dtype == "f64" and "f64" or "f32"
  local g = weight > 0 and grads[row.parameter] or nil
  if not g then
    return create.zeros({ p.numel }, { dtype = wide, device = p.device })
  end
  return g:to(wide):reshape(-1)
end

--- The sum of all ranks' values, in memory that the ranks of a host share. A bucket is used again only after a success: a rank
--- that came late to a call that failed may still write into it.
local function sum_of(self, flat, dtype)
  local numel, start = 0, 1
  for _, values in ipairs(flat) do
    if values.device ~= "cpu" then
      return self.comm:all_reduce(functions.cat(flat, 1), "sum")
    end
    numel = numel + values.numel
  end
  local bucket = self.buckets[dtype]
  self.buckets[dtype] = nil
  if bucket and bucket.numel ~= numel then
    scope.release(bucket)
    bucket = nil
  end
  bucket = bucket or scope.keep(self.comm:empty({ numel }, { dtype = dtype }))
  for _, values in ipairs(flat) do
    bucket:narrow(1, start, values.numel):copy_(values)
    start = start + values.numel
  end
  self.comm:all_reduce_(bucket, "sum")
  self.buckets[dtype] = bucket
  return bucket
end

--- One collective for all gradients of a dtype.
local function reduce_bucket(self, rows, dtype, grads, weight, total, options, reduced)
  local flat = {}
  for i, row in ipairs(rows) do
    flat[i] = contribution(row, grads, weight)
  end
  local sum = sum_of(self, flat, dtype) / total
  local start = 1
  for _, row in ipairs(rows) do
    local p = row.parameter
    local g = sum:narrow(1, start, p.numel):reshape(p.shape)
    reduced:register(p, (HALVES[p.dtype] and not options.fp32 and g:to(p.dtype) or g):clone())
    start = start + p.numel
  end
end

--- (sum of gradients of all ranks) / (sum of their weights): for gradients of the *sum* of local losses, and weights that
--- count samples or tokens, the gradient of the global mean. A gradient that no rank has stays absent.
---@param grads luda.Gradients
---@param weight integer
---@param options? {missing: "error"|"zero"?, fp32: boolean?}
---@return luda.Gradients reduced
---@return integer global_weight
function DataParallel:reduce(grads, weight, options)
  options = args.options("reduce", options, { missing = "error", fp32 = false })
  if options.missing ~= "error" and options.missing ~= "zero" then
    errors.raise("invalid", "reduce: missing must be \"error\" or \"zero\", not %s", args.describe(options.missing))
  end
  return scope.scope(no_grad, function()
    local total, present = negotiate(self, grads, weight, options)
    local buckets, reduced = { f32 = {}, f64 = {} }, Gradients()
    for i, row in ipairs(self.rows) do
      if present[i] then
        table.insert(buckets[row.parameter.dtype == "f64" and "f64" or "f32"], row)
      end
    end
    for _, dtype in ipairs { "f32", "f64" } do
      if #buckets[dtype] > 0 then
        reduce_bucket(self, buckets[dtype], dtype, grads, weight, total, options, reduced)
      end
    end
    return reduced, total
  end)
end

return DataParallel
