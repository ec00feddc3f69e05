--- What users of PyTorch or numpy may look for and LUDA has not: names that are promised, and why those that are missing are.
--
-- The spec compares this with what there is: a hole without an entry fails it, and so does an entry without a hole.

local lib = require "luda.ffi"
local luda = require "luda"
local ops = require "luda.ops"
local words = require "luda.reference.words"

local M = {}

--- Operators and layers by PyTorch's names.
M.promised = [[
  tensor empty zeros ones full empty_like zeros_like ones_like full_like arange linspace eye from_ptr clone logspace tri
  meshgrid diag_embed rand randn randint randperm bernoulli multinomial uniform_ normal_ exponential_ trunc_normal_ gumbel
  poisson rand_like randn_like randint_like view reshape flatten squeeze unsqueeze transpose t permute expand expand_as
  narrow select split chunk unbind cat stack contiguous detach as_strided unflatten movedim unfold diagonal flip roll tile
  repeat_interleave pad broadcast_tensors hstack vstack index_select gather scatter scatter_add masked_fill masked_select
  where nonzero one_hot index_add index_put index_copy index_fill scatter_reduce masked_scatter take put argwhere
  searchsorted bucketize tril_indices to copy_ fill_ zero_ item totable to_dlpack from_dlpack pin_memory neg abs sign sqrt
  rsqrt square reciprocal exp expm1 log log1p sin cos tanh sigmoid erf floor ceil round trunc clamp tan asin acos atan sinh
  cosh asinh acosh atanh exp2 log2 log10 frac erfinv lgamma digamma sinc deg2rad rad2deg logit softsign isnan isinf isfinite
  logical_not signbit isclose allclose equal nan_to_num add sub mul div pow maximum minimum remainder fmod floor_divide
  atan2 hypot logaddexp lerp addcmul addcdiv xlogy copysign ldexp gcd lcm eq ne lt le gt ge logical_and logical_or
  logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift sum mean prod var std
  amax amin max min argmax argmin all any logsumexp norm var_mean std_mean median quantile count_nonzero cumsum cumprod
  cummax cummin logcumsumexp histc bincount unique nansum nanmean sort argsort topk kthvalue msort matmul mm bmm mv dot
  outer addmm linear tril triu baddbmm einsum tensordot diag trace kron cross cholesky qr svd eigh solve triangular_solve
  inv det slogdet lstsq matrix_norm matrix_power relu gelu silu leaky_relu softplus softmax log_softmax layer_norm rms_norm
  dropout cross_entropy scaled_dot_product_attention conv2d max_pool2d avg_pool2d elu selu celu mish hardtanh hardsigmoid
  hardswish glu swiglu prelu nn.nll_loss nn.mse_loss nn.l1_loss nn.bce_with_logits nn.kl_div nn.smooth_l1_loss nn.huber_loss
  nn.hinge_embedding_loss nn.margin_ranking_loss nn.cosine_embedding_loss nn.triplet_margin_loss nn.gaussian_nll_loss
  nn.poisson_nll_loss nn.linear_cross_entropy nn.batch_norm nn.group_norm nn.instance_norm nn.conv1d nn.conv3d
  nn.conv_transpose1d nn.conv_transpose2d nn.unfold nn.fold nn.adaptive_avg_pool2d nn.interpolate nn.pixel_shuffle nn.rope
  nn.embedding_bag nn.Embedding nn.LSTM nn.GRU
]]

--- { what kind of hole, names, reason }; the kinds are "operators", and "on cuda" or "on cpu" for rows without some kernels.
M.list = {
  { what = "on cuda", names = { "cholesky", "qr", "svd", "eigh", "solve", "solve_triangular", "slogdet", "det", "dft" },
    reason = "Linear algebra rests on LAPACK and Fourier transforms on kernels of the processor's; move with :to(\"cpu\")." },
  { what = "operators", names = { "pin_memory" },
    reason = "Copies keep their order with the work around them and none overlaps it, so that pinned memory would gain little." },
}

local function words_of(text)
  local list = {}
  for word in text:gmatch("%S+") do
    list[#list + 1] = word
  end
  return list
end

--- The holes that there are, as "what: name" → true.
---@param devices string[]
function M.find(devices)
  local found = {}
  for _, name in ipairs(words_of(M.promised)) do
    local part = name:match("^nn%.(.*)$")
    local there = part and luda.nn[part] or not part and (rawget(luda, name) or ops.functions[name])
    if not there then
      found["operators: " .. name] = true
    end
  end
  for _, device in ipairs(devices) do
    local kind = device:match("^%a+")
    local place = lib.ffi.new("luda_device", kind == "cpu" and lib.C.LUDA_CPU or lib.C.LUDA_CUDA, 0)
    for _, row in ipairs(ops.rows) do
      for _, dtype in ipairs(words.types[row.types].kernels) do
        if lib.C.luda_op_supported(row.op, require("luda.args").dtype_numbers[dtype], place) == 0 then
          found[("on %s: %s"):format(kind, row.name)] = true
        end
      end
    end
  end
  return found
end

--- The same from the list of explanations, with its reason.
function M.explained()
  local explained = {}
  for _, hole in ipairs(M.list) do
    for _, name in ipairs(hole.names) do
      explained[hole.what .. ": " .. name] = hole.reason
    end
  end
  return explained
end

return M
