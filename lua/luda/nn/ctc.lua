--- The loss of a sequence of labels under all its alignments with a longer sequence of steps (Graves et al. 2006).

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local reduction = require "luda.nn.reduction"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

local M = {}

-- The logarithm of nothing: finite, so that differences of two of them have gradients.
local NOTHING = -1e30

--- Lengths as a list of `count` numbers, each at most `most`.
local function lengths_of(name, lengths, count, most)
  lengths = is_tensor(lengths) and methods.totable(lengths) or lengths
  lengths = type(lengths) == "table" and { unpack(lengths) } or { lengths }
  if #lengths ~= count then
    errors.raise("shape", "ctc_loss: %d %s for a batch of %d", #lengths, name, count)
  end
  for i, length in ipairs(lengths) do
    if args.integer("ctc_loss", "a length", length) < 0 or length > most then
      errors.raise("shape", "ctc_loss: entry %d of the %s is %d; 0 to %d are possible", i, name, length, most)
    end
  end
  return lengths
end

--- Labels [N, S] with `blank` behind each sequence, as lists. Given as such a tensor or one sequence behind the other.
local function padded(targets, lengths, blank, classes, base)
  local flat, rows, longest, start = targets.ndim == 1, {}, 0, 0
  local given = methods.totable(targets)
  for _, length in ipairs(lengths) do
    longest = math.max(longest, length)
  end
  for n, length in ipairs(lengths) do
    rows[n] = {}
    for i = 1, longest do
      local label = i <= length and (flat and given[start + i] or given[n][i]) or blank
      if label < base or label >= base + classes then
        errors.raise("index", "ctc_loss: label %d of sequence %d is %d; %d classes count from %d", i, n, label, classes, base)
      end
      rows[n][i] = label
    end
    start = start + length
  end
  return rows, longest
end

--- Blanks around and between the labels, [N, 2 S + 1], and where a step may pass over the blank before a label.
local function extended(rows, longest, blank)
  local states, passes = {}, {}
  for n, labels in ipairs(rows) do
    states[n], passes[n] = { blank }, { false }
    for i = 1, longest do
      states[n][2 * i], states[n][2 * i + 1] = labels[i], blank
      passes[n][2 * i], passes[n][2 * i + 1] = i > 1 and labels[i] ~= labels[i - 1] and labels[i] ~= blank, false
    end
  end
  return states, passes
end

--- The states moved `by` places towards the end, nothing before them.
local function shifted(alpha, nothing, by)
  local width = methods.size(alpha, 2)
  return functions.cat({ methods.narrow(nothing, 2, 1, by), methods.narrow(alpha, 2, 1, width - by) }, 2)
end

--- log of the sum over alignments, [N]: alpha of a state at a step is the sum over alignments that are there by then.
local function log_likelihood(x, rows, longest, steps, lengths, blank, base)
  local count, total, width = #rows, methods.size(x, 1), 2 * longest + 1
  local here = { dtype = "i64", device = x.device }
  local states, passes = extended(rows, longest, blank)
  local index = methods.expand(create.tensor({ states }, here), { total, count, width })
  local emitted = methods.maximum(methods.gather(x, index, { dim = 3, base = base }), NOTHING)
  local may_pass = create.tensor(passes, { device = x.device })
  local nothing = create.full({ count, width }, NOTHING, { dtype = x.dtype, device = x.device })
  local step_count = methods.unsqueeze(create.tensor(steps, here), 2)
  local alpha = functions.cat({ create.zeros({ count, 1 }, { dtype = x.dtype, device = x.device }),
    methods.narrow(nothing, 2, 1, width - 1) }, 2)
  for t = 1, total do
    local reached = alpha
    if longest > 0 then
      local one = shifted(alpha, nothing, 1)
      local two = functions.where(may_pass, shifted(alpha, nothing, 2), NOTHING)
      reached = functions.logaddexp(functions.logaddexp(alpha, one), two)
    end
    local moved = reached + methods.select(emitted, 1, t)
    alpha = functions.where(methods.ge(step_count, t), moved, alpha)
  end
  local last = {}
  for n, length in ipairs(lengths) do
    last[n] = { 2 * length + 1, math.max(2 * length, 1) }
  end
  local ends = methods.gather(alpha, create.tensor(last, here), { dim = 2 })
  local only = methods.eq(create.tensor(lengths, here), 0)
  return functions.where(only, methods.select(ends, 2, 1), functions.logaddexp(methods.select(ends, 2, 1),
    methods.select(ends, 2, 2)))
end

--- Negative log likelihood of sequences of labels under log probabilities [T, N, C] (or [T, C]) of each step, which may
-- also be a blank. Targets are [N, S], or one sequence behind the other; lengths are tensors or lists. Classes count from
-- `base`, and the blank is the first of them unless given. A mean is over sequences, each divided by its length.
---@param log_probs luda.Tensor
---@param targets luda.Tensor
---@param input_lengths luda.Tensor|integer[]|integer
---@param target_lengths luda.Tensor|integer[]|integer
---@param given? {blank: integer, reduction: string, zero_infinity: boolean, base: integer}
---@return luda.Tensor
function M.ctc_loss(log_probs, targets, input_lengths, target_lengths, given)
  local options = args.options("ctc_loss", given, {
    blank = args.absent, reduction = "mean", zero_infinity = false, base = 1,
  })
  reduction.need_tensors("ctc_loss", log_probs, targets)
  local single = log_probs.ndim == 2
  local x = single and methods.unsqueeze(log_probs, 2) or log_probs
  if x.ndim ~= 3 or targets.ndim < 1 or targets.ndim > 2 or x.numel == 0 then
    errors.raise("shape", "ctc_loss: log probabilities %s and targets %s; [T, N, C] and [N, S] are needed",
      args.shape_text(log_probs.shape), args.shape_text(targets.shape))
  elseif args.dtype_class(x.dtype) ~= "float" then
    errors.raise("dtype", "ctc_loss: the log probabilities are %s; a floating type is needed, convert with :to(\"f32\")", x.dtype)
  elseif args.dtype_class(targets.dtype) ~= "int" then
    errors.raise("dtype", "ctc_loss: the targets are %s; class labels are integers, convert them with to(\"i64\")", targets.dtype)
  end
  local shape, base = x.shape, options.base
  local blank = options.blank or base
  if blank < base or blank >= base + shape[3] then
    errors.raise("index", "ctc_loss: blank is %d; %d classes count from %d", blank, shape[3], base)
  elseif targets.ndim == 2 and methods.size(targets, 1) ~= shape[2] then
    errors.raise("shape", "ctc_loss: targets %s for a batch of %d", args.shape_text(targets.shape), shape[2])
  end
  local steps = lengths_of("input lengths", input_lengths, shape[2], shape[1])
  local lengths = lengths_of("target lengths", target_lengths, shape[2], methods.size(targets, -1))
  local total = 0
  for _, length in ipairs(lengths) do
    total = total + length
  end
  if targets.ndim == 1 and total ~= targets.numel then
    errors.raise("shape", "ctc_loss: the target lengths add up to %d, there are %d labels", total, targets.numel)
  end
  local rows, longest = padded(targets, lengths, blank, shape[3], base)
  local wide = (x.dtype == "bf16" or x.dtype == "f16") and methods.to(x, "f32") or x
  local losses = -log_likelihood(wide, rows, longest, steps, lengths, blank, base)
  local impossible = methods.gt(losses, -0.5 * NOTHING)
  losses = functions.where(impossible, options.zero_infinity and 0 or math.huge, losses)
  if options.reduction == "mean" then
    for n, length in ipairs(lengths) do
      lengths[n] = math.max(length, 1)
    end
    losses = losses / create.tensor(lengths, { dtype = losses.dtype, device = losses.device })
  end
  local result = reduction.reduce("ctc_loss", losses, options.reduction)
  return single and options.reduction == "none" and methods.select(result, 1, 1) or result
end

return M
