--- Other names of functions, joining and cutting by other rules; which functions take out= and have in-place forms.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local tensors = require "luda.tensor"
local values = require "luda.values"
local into = require "luda.ops.into"

local functions, methods, is_tensor = ops.functions, tensors.methods, tensors.is_tensor
local define, need_tensor = values.define, values.need_tensor

-- Joining and cutting.

--- Tensors of one dimension as columns beside each other, others as they are.
define("column_stack", function(...)
  local list = is_tensor((...)) and { ... } or (...)
  if type(list) ~= "table" or #list == 0 then
    errors.raise("invalid", "column_stack: expected tensors, got %s", args.describe(list))
  end
  local columns = {}
  for i, t in ipairs(list) do
    columns[i] = need_tensor("column_stack", t).ndim < 2 and methods.reshape(t, { t.numel, 1 }) or t
  end
  return functions.hstack(columns)
end)

--- A number of pieces, the first ones longer by one where it does not divide; or a list of how many positions lie before
-- each cut (negative: behind it).
define("tensor_split", function(t, cuts, dim)
  dim = sugar.positive("tensor_split", need_tensor("tensor_split", t), dim or 1)
  local size, sizes = methods.size(t, dim), {}
  if type(cuts) ~= "table" then
    local count = args.integer("tensor_split", "the number of pieces", is_tensor(cuts) and cuts:item() or cuts)
    if count < 1 then
      errors.raise("invalid", "tensor_split: %d pieces; at least one is needed", count)
    end
    for i = 1, count do
      sizes[i] = math.floor(size / count) + (i <= size % count and 1 or 0)
    end
    return methods.split(t, sizes, dim)
  end
  local pieces, start = {}, 0
  for i = 1, #cuts + 1 do
    local cut = cuts[i] and args.integer("tensor_split", "a cut", cuts[i]) or size
    cut = math.max(math.min(cut < 0 and cut + size or cut, size), 0)
    pieces[i] = methods.narrow(t, dim, start + 1, math.max(cut - start, 0))
    start = cut
  end
  return pieces
end)

--- hsplit: tensor_split along dimension 2, of vectors 1; a number of pieces has to divide the dimension.
--- vsplit: tensor_split along dimension 1; a number of pieces has to divide the dimension.
--- dsplit: tensor_split along dimension 3; a number of pieces has to divide the dimension.
for name, place in pairs { hsplit = 2, vsplit = 1, dsplit = 3 } do
  define(name, function(t, cuts)
    local ndim = need_tensor(name, t).ndim
    local dim = place == 2 and ndim == 1 and 1 or place
    if ndim < math.max(dim, place == 1 and 2 or 1) then
      errors.raise("shape", "%s: %s has too few dimensions", name, args.shape_text(t.shape))
    elseif type(cuts) == "number" and methods.size(t, dim) % cuts ~= 0 then
      errors.raise("shape", "%s: dimension %d of %s does not divide into %d", name, dim, args.shape_text(t.shape), cuts)
    end
    return functions.tensor_split(t, cuts, dim)
  end)
end

--- Coordinates of the elements of a matrix on one side of a diagonal, row by row: [2, count], from `base` (1).
for name, triangle in pairs { tril_indices = "tril", triu_indices = "triu" } do
  create[name] = function(rows, columns, offset, given)
    if type(offset) == "table" then
      offset, given = nil, offset
    end
    given = args.options(name, given, { base = 1, device = "cpu" })
    local shape = args.sizes(name, { rows, columns == nil and rows or columns })
    local mask = functions[triangle](create.full(shape, true, { device = given.device }), offset or 0)
    local places = functions.argwhere(mask) + (args.integer(name, "base", given.base) - 1)
    return methods.contiguous(functions.transpose(places, 1, 2))
  end
end

-- out= and in-place forms.

into.take_out [[
  any all count_nonzero nansum nanmean var std var_mean std_mean logsumexp norm prod cumsum cumprod logcumsumexp
  sort argsort msort topk kthvalue median nanmedian quantile nanquantile mode histc bucketize max min argmax argmin aminmax
  cummax cummin lerp addcmul addcdiv ldexp frac deg2rad rad2deg sinc logit clamp clip nan_to_num softplus
  masked_select take take_along_dim scatter scatter_add scatter_reduce index_add index_copy tril triu diag diff
  stack hstack vstack dstack column_stack
]]

into.in_place [[
  cumsum cumprod lerp addcmul addcdiv ldexp frac deg2rad rad2deg sinc logit nan_to_num
  leaky_relu elu selu celu mish hardtanh relu6 hardsigmoid hardswish threshold
]]

-- Other names, with those of in-place forms.

for name, other in pairs {
  absolute = "abs", negative = "neg", subtract = "sub", multiply = "mul", divide = "div", true_divide = "div", fix = "trunc",
  greater = "gt", greater_equal = "ge", less = "lt", less_equal = "le", not_equal = "ne",
  arcsin = "asin", arccos = "acos", arctan = "atan", arctan2 = "atan2", arcsinh = "asinh", arccosh = "acosh",
  arctanh = "atanh", take_along_axis = "take_along_dim", expand_dims = "unsqueeze", concatenate = "cat", concat = "cat",
  row_stack = "vstack", tolist = "totable",
} do
  define(name, functions[other])
  if functions[other .. "_"] then
    define(name .. "_", functions[other .. "_"])
  end
end
