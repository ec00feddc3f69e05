--- Sums of gradients over several backward passes: windows of micro-batches, and batches that are cut into pieces.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local memory = require "luda.memory"
local scope = require "luda.scope"
local manifest = require "luda.manifest"
local tensors = require "luda.tensor"
local Gradients = require "luda.autograd.gradients"

local ffi, C, context = lib.ffi, lib.C, lib.context
local methods, is_tensor = tensors.methods, tensors.is_tensor

---@class luda.Accumulator
---@field pointer any luda_accumulator*
---@field list luda.Named[]
local Accumulator = class("luda.Accumulator")

--- For a module's parameters, or a list of tensors; gradients of others are left out.
---@param source any
function Accumulator:init(source)
  self.list = manifest.parameters("optim.Accumulator", source)
  local parameters = ffi.new("luda_tensor *[?]", math.max(#self.list, 1))
  for i, entry in ipairs(self.list) do
    parameters[i - 1] = memory.pointer(entry.tensor)
  end
  local out = ffi.new("luda_accumulator *[1]")
  lib.check(C.luda_accumulator_new(parameters, #self.list, out))
  self.pointer = ffi.gc(out[0], C.luda_accumulator_release)
end

function Accumulator:__tostring()
  return ("luda.optim.Accumulator(%d parameters, %d additions)"):format(#self.list, self:count())
end

--- What a mean is over: a number, or a tensor of one element, like labels:ne(-100):sum().
local function weight_of(op, weight)
  return args.number(op, "the weight", is_tensor(weight) and methods.item(weight) or weight)
end

--- Adds weight · gradient. Without dtype a sum has the type of its first gradient; "f32" adds halves without rounding.
---@param grads luda.Gradients
---@param given? {dtype: string?, weight: number|luda.Tensor?}
---@return luda.Accumulator self
function Accumulator:accumulate(grads, given)
  local options = args.options("accumulate", given, { dtype = args.absent, weight = 1 })
  if getmetatable(grads) ~= Gradients or not rawget(grads, "pointer") then
    errors.raise("invalid", "accumulate: expected gradients, as backward returns them, got %s", args.describe(grads))
  end
  local dtype = options.dtype and args.dtype("accumulate", options.dtype) or -1
  C.luda_context_use(context)
  local status = C.luda_accumulator_add(self.pointer, grads.pointer, weight_of("accumulate", options.weight), dtype)
  if status ~= 0 then
    memory.raise(status)
  end
  return self
end

--- Takes the sums out; what comes is a new start. `mean` divides by the sum of the weights.
---@param given? {mean: boolean?}
---@return luda.Gradients
function Accumulator:grads(given)
  local options = args.options("grads", given, { mean = false })
  local out = ffi.new("luda_gradients *[1]")
  C.luda_context_use(context)
  lib.check(C.luda_accumulator_take(self.pointer, options.mean and 1 or 0, out))
  return Gradients.adopt(out[0])
end

--- Additions since the last grads().
---@return integer
function Accumulator:count()
  return tonumber(C.luda_accumulator_count(self.pointer))
end

--- The sum of their weights.
---@return number
function Accumulator:weight()
  return C.luda_accumulator_weight(self.pointer)
end

-- Batches in pieces.

--- The rows that all tensors of a batch have.
local function rows_of(batch)
  local rows
  for i, tensor in ipairs(type(batch) == "table" and batch or {}) do
    if not is_tensor(tensor) or tensor.ndim == 0 then
      errors.raise("invalid", "run: entry %d of the batch must be a tensor with rows, not %s", i, args.describe(tensor))
    end
    rows = rows or tensor:size(1)
    if tensor:size(1) ~= rows then
      errors.raise("shape", "run: entry %d of the batch has shape %s, the first one has %d rows", i,
        args.shape_text(tensor.shape), rows)
    end
  end
  return rows or errors.raise("invalid", "run: the batch must be a tensor or a list of tensors, not %s", args.describe(batch))
end

--- How many rows each piece has.
local function sizes_of(options, rows)
  if (options.size == nil) == (options.sizes == nil) then
    errors.raise("invalid", "run: give size, the rows of a piece, or sizes, a list")
  end
  local sizes, total = options.sizes or {}, 0
  if options.size then
    local size = args.integer("run", "size", options.size)
    if size < 1 then
      errors.raise("invalid", "run: size is %d, it must be at least 1", size)
    end
    for start = 0, rows - 1, size do
      sizes[#sizes + 1] = math.min(size, rows - start)
    end
  end
  for _, size in ipairs(sizes) do
    if args.integer("run", "a size", size) < 0 then
      errors.raise("invalid", "run: a size is %d", size)
    end
    total = total + size
  end
  if total ~= rows then
    errors.raise("shape", "run: the sizes %s sum to %d, the batch has %d rows", args.shape_text(sizes), total, rows)
  end
  return sizes
end

--- One piece: its loss as a number, and what that is a mean over.
local function run_piece(self, batch, options, fn, start, size)
  local piece = {}
  for i, tensor in ipairs(batch) do
    piece[i] = methods.narrow(tensor, 1, start, size)
  end
  local loss, weight = fn(unpack(piece))
  if not is_tensor(loss) then
    errors.raise("invalid", "run: the function must return a loss, and what it is a mean over; it returned %s",
      args.describe(loss))
  end
  weight = weight_of("run", type(weight) == "nil" and size or weight)
  local grads = (options.scaler and options.scaler:scale(loss) or loss):backward()
  self:accumulate(grads, { weight = weight, dtype = options.dtype })
  return methods.item(loss), weight
end

local function run_all(self, batch, options, fn, sizes)
  local sum, total, start = 0, 0, 1
  for _, size in ipairs(sizes) do
    if size > 0 then
      local loss, weight = scope.scope(run_piece, self, batch, options, fn, start, size)
      if weight > 0 then
        sum, total = sum + loss * weight, total + weight
      end
      start = start + size
    end
  end
  return total > 0 and sum / total or 0, total
end

--- Calls fn(self, …); the sums are as before after an error.
local function or_nothing(self, fn, ...)
  local before = self:state()
  for name, sum in pairs(before.sums) do
    before.sums[name] = methods.clone(sum)
  end
  local ok, loss, weight = pcall(fn, self, ...)
  if not ok then
    self:load_state(before)
    error(loss, 0)
  end
  return loss, weight
end

--- Adds the gradients of a batch piece by piece: grads{mean = true} is the gradient of the whole batch, however it was cut.
-- fn gets the rows of a piece and returns its loss, a mean, and what it is a mean over: samples or tokens that count,
-- labels:ne(-100):sum(); without that, the rows. The memory is that of one piece. After an error the sums are as before.
---@param batch luda.Tensor|luda.Tensor[]
---@param given {size: integer?, sizes: integer[]?, dtype: string?, scaler: luda.GradScaler?}
---@param fn fun(...: luda.Tensor): luda.Tensor, number|luda.Tensor?
---@return number loss of the whole batch
---@return number weight what it is a mean over
function Accumulator:run(batch, given, fn)
  local absent = args.absent
  local options = args.options("run", given, { size = absent, sizes = absent, dtype = absent, scaler = absent })
  if type(fn) ~= "function" then
    errors.raise("invalid", "run: the third argument must be a function, not %s", args.describe(fn))
  end
  batch = is_tensor(batch) and { batch } or batch
  local sizes = sizes_of(options, rows_of(batch))
  return scope.scope(or_nothing, self, run_all, batch, options, fn, sizes)
end

-- State.

--- Plain data with the sums themselves.
---@return table
function Accumulator:state()
  local state = { count = self:count(), weight = self:weight(), sums = {} }
  for i, entry in ipairs(self.list) do
    local sum = C.luda_accumulator_sum(self.pointer, i - 1)
    if sum ~= nil then
      C.luda_tensor_retain(sum)
      state.sums[entry.name] = memory.adopt(sum)
    end
  end
  return state
end

---@param state table
---@return string[] found sentences about what does not fit
function Accumulator:check_state(state)
  if type(state) ~= "table" or type(state.sums) ~= "table" or type(state.count) ~= "number"
    or type(state.weight) ~= "number" then
    return { "accumulator: the state is not one of an accumulator" }
  end
  local found, here = {}, manifest.describe(self.list)
  for _, name in ipairs(manifest.keys_of(state.sums)) do
    local sum = state.sums[name]
    local shape = args.shape_text(sum.shape)
    if not here[name] then
      found[#found + 1] = ("accumulator: '%s' is in the file and not here"):format(name)
    elseif here[name].shape ~= shape or args.dtype_class(sum.dtype) ~= "float" then
      found[#found + 1] = ("accumulator: '%s': the sum is %s %s in the file, the parameter %s %s"):format(name, sum.dtype,
        shape, here[name].dtype, here[name].shape)
    end
  end
  return found
end

--- Goes on where a state was taken: what was pending here is replaced.
---@param state table
---@return luda.Accumulator self
function Accumulator:load_state(state)
  manifest.refuse("load_state", "the state and the accumulator", self:check_state(state))
  local sums = ffi.new("luda_tensor *[?]", math.max(#self.list, 1))
  for i, entry in ipairs(self.list) do
    local sum = state.sums[entry.name]
    sums[i - 1] = sum and memory.pointer(sum) or nil
  end
  C.luda_context_use(context)
  lib.check(C.luda_accumulator_set(self.pointer, sums, state.count, state.weight))
  return self
end

return Accumulator
