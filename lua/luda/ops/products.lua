--- Products of vectors and matrices under PyTorch's names, composed from matmul. Unlike matmul they take one shape each.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local scope = require "luda.scope"
local sugar = require "luda.sugar"
local values = require "luda.values"

local functions, methods = ops.functions, tensors.methods
local define, need_tensor, positive = values.define, values.need_tensor, sugar.positive

--- Raises about two shapes that do not go together.
local function refuse(op, a, b, hint)
  errors.raise("shape", "%s: shapes %s and %s; %s", op, args.shape_text(a.shape), args.shape_text(b.shape), hint)
end

--- Raises unless the tensors have so many dimensions; `names` says what they are.
local function need_dims(op, a, first, b, second, hint)
  if need_tensor(op, a).ndim ~= first or need_tensor(op, b).ndim ~= second then
    refuse(op, a, b, hint)
  end
end

--- Raises unless the last size of a is the size of b that is multiplied with it.
local function need_inner(op, a, b)
  local inner, other = methods.size(a, -1), methods.size(b, b.ndim > 1 and -2 or 1)
  if inner ~= other then
    refuse(op, a, b, ("the inner sizes %d and %d differ"):format(inner, other))
  end
end

--- mm: The product of two matrices.
local function mm(op, a, b)
  need_dims(op, a, 2, b, 2, "two matrices are needed; bmm takes batches [B, N, M], matmul any number of dimensions")
  need_inner(op, a, b)
  return functions.matmul(a, b)
end

--- bmm: The products of two batches of matrices; batches do not broadcast.
local function bmm(op, a, b)
  need_dims(op, a, 3, b, 3, "two batches [B, N, M] are needed; mm takes matrices, matmul broadcasts")
  if methods.size(a, 1) ~= methods.size(b, 1) then
    refuse(op, a, b, ("batches of %d and %d do not broadcast here; matmul does that"):format(methods.size(a, 1),
      methods.size(b, 1)))
  end
  need_inner(op, a, b)
  return functions.matmul(a, b)
end

--- mv: The product of a matrix and a vector.
local function mv(op, a, b)
  need_dims(op, a, 2, b, 1, "a matrix and a vector are needed; matmul takes other shapes")
  need_inner(op, a, b)
  return functions.matmul(a, b)
end

--- outer: Every product of an element of one vector and one of the other.
local function outer(op, a, b)
  need_dims(op, a, 1, b, 1, "two vectors are needed; flatten() makes one")
  return methods.unsqueeze(a, 2) * b
end

for name, product in pairs { mm = mm, bmm = bmm, mv = mv, outer = outer } do
  define(name, function(a, b)
    return product(name, a, b)
  end)
end

--- The sum of the products of two vectors. The numbers are real: the conjugate of vdot changes nothing.
for _, name in ipairs { "dot", "vdot" } do
  define(name, function(a, b)
    need_dims(name, a, 1, b, 1, "two vectors are needed; mv, mm and matmul multiply matrices, mul elements")
    need_inner(name, a, b)
    return functions.matmul(a, b)
  end)
end

-- beta * input + alpha * product.

--- The input broadcasts to the product. With beta = 0 it is not read: NaN in it stay there.
local function add_product(op, input, product, ...)
  local given = args.named(op, { "beta", "alpha" }, { beta = 1, alpha = 1 }, ...)
  local beta, alpha = args.number(op, "beta", given.beta), args.number(op, "alpha", given.alpha)
  if args.dtype_class(product.dtype) ~= "float" and (beta % 1 ~= 0 or alpha % 1 ~= 0) then
    errors.raise("dtype", "%s: beta %g and alpha %g for %s; whole numbers are needed, or convert with :to(\"f32\")", op, beta,
      alpha, product.dtype)
  end
  local shape, over = need_tensor(op, input).shape, product.shape
  local lead = #over - #shape
  for i = lead < 0 and 0 or 1, #shape do
    if lead < 0 or (shape[i] ~= 1 and shape[i] ~= over[lead + i]) then
      errors.raise("shape", "%s: the input has shape %s, the product %s; the input must broadcast to the product", op,
        args.shape_text(shape), args.shape_text(over))
    end
  end
  if alpha ~= 1 then
    product = product * alpha
  end
  if beta == 0 then
    input = create.zeros({}, { dtype = input.dtype, device = input.device })
  elseif beta ~= 1 then
    input = input * beta
  end
  return input + product
end

--- beta * input + alpha * product, which is that of mm, mv, outer or bmm. With beta = 0 the input is not read.
for name, product in pairs { addmm = mm, addmv = mv, addr = outer, baddbmm = bmm } do
  define(name, function(input, a, b, ...)
    return add_product(name, input, product(name, a, b), ...)
  end)
end

--- The products of a batch are added up: that is one product of wider matrices.
define("addbmm", function(input, a, b, ...)
  need_dims("addbmm", a, 3, b, 3, "two batches [B, N, M] are needed; addmm takes matrices")
  local first, second = a.shape, b.shape
  if first[1] ~= second[1] then
    refuse("addbmm", a, b, ("batches of %d and %d do not fit"):format(first[1], second[1]))
  end
  need_inner("addbmm", a, b)
  local inner = first[1] * first[3]
  local wide = methods.reshape(methods.permute(a, { 2, 1, 3 }), { first[2], inner })
  return add_product("addbmm", input, functions.matmul(wide, methods.reshape(b, { inner, second[3] })), ...)
end)

-- Other dimensions.

--- Distinct dimensions of one operand as positive numbers, and those that are left.
local function split_dims(op, t, dims)
  local list, taken, rest = {}, {}, {}
  for i, dim in ipairs(type(dims) == "table" and dims or { dims }) do
    list[i] = positive(op, t, dim)
    if taken[list[i]] then
      errors.raise("invalid", "%s: dimension %d is given twice", op, dim)
    end
    taken[list[i]] = true
  end
  for dim = 1, t.ndim do
    if not taken[dim] then
      rest[#rest + 1] = dim
    end
  end
  return list, rest
end

--- Sizes of the dimensions, and their product.
local function sizes_of(t, dims)
  local shape, sizes, count = t.shape, {}, 1
  for i, dim in ipairs(dims) do
    sizes[i], count = shape[dim], count * shape[dim]
  end
  return sizes, count
end

local function joined(first, second)
  local list = { unpack(first) }
  for _, entry in ipairs(second) do
    list[#list + 1] = entry
  end
  return list
end

local function ordered(t, order)
  return #order > 1 and methods.permute(t, order) or t
end

local function contract(op, a, b, first, second)
  local over, kept = split_dims(op, a, first)
  local under, free = split_dims(op, b, second)
  local sizes, inner = sizes_of(a, over)
  local others = sizes_of(b, under)
  if args.shape_text(sizes) ~= args.shape_text(others) then
    refuse(op, a, b, ("the sizes %s and %s of the dimensions that are multiplied differ"):format(args.shape_text(sizes),
      args.shape_text(others)))
  end
  local rows, height = sizes_of(a, kept)
  local columns, width = sizes_of(b, free)
  local left = methods.reshape(ordered(a, joined(kept, over)), { height, inner })
  local right = methods.reshape(ordered(b, joined(under, free)), { inner, width })
  return methods.reshape(functions.matmul(left, right), joined(rows, columns))
end

--- Products summed over pairs of dimensions: the last `dims` of a and the first of b, or two lists of dimensions.
define("tensordot", function(a, b, ...)
  need_tensor("tensordot", a)
  need_tensor("tensordot", b)
  local dims = args.named("tensordot", { "dims" }, { dims = 2 }, ...).dims
  if type(dims) == "table" then
    local first, second = dims[1], dims[2]
    if #dims ~= 2 or type(first) ~= type(second) or (type(first) == "table" and #first ~= #second) then
      errors.raise("invalid", "tensordot: dims is a number or two lists of equal length, one for each tensor")
    end
    return contract("tensordot", a, b, first, second)
  end
  local first, second = {}, {}
  if args.integer("tensordot", "dims", dims) < 0 or dims > a.ndim or dims > b.ndim then
    refuse("tensordot", a, b, ("%d dimensions cannot be summed over"):format(dims))
  end
  for i = 1, dims do
    first[i], second[i] = a.ndim - dims + i, i
  end
  return contract("tensordot", a, b, first, second)
end)

--- Products summed over the last dimension of both.
define("inner", function(a, b)
  if need_tensor("inner", a).ndim == 0 or need_tensor("inner", b).ndim == 0 then
    return a * b
  elseif methods.size(a, -1) ~= methods.size(b, -1) then
    refuse("inner", a, b, "the last sizes must be equal")
  end
  return contract("inner", a, b, -1, -1)
end)

--- Every element of a times all of b, in its place.
define("kron", function(a, b)
  local ndim = math.max(need_tensor("kron", a).ndim, need_tensor("kron", b).ndim)
  if 2 * ndim > 8 then
    refuse("kron", a, b, "at most four dimensions are possible")
  end
  local first, second, result = {}, {}, {}
  for i = 1, ndim do
    local high = i > ndim - a.ndim and methods.size(a, i - ndim - 1) or 1
    local low = i > ndim - b.ndim and methods.size(b, i - ndim - 1) or 1
    first[2 * i - 1], first[2 * i], second[2 * i - 1], second[2 * i] = high, 1, 1, low
    result[i] = high * low
  end
  return methods.reshape(methods.reshape(a, first) * methods.reshape(b, second), result)
end)

--- Vectors of three elements along a dimension, the first of size 3 unless it is given; other dimensions broadcast.
define("cross", function(a, b, ...)
  need_tensor("cross", a)
  need_tensor("cross", b)
  local dim = args.named("cross", { "dim" }, {}, ...).dim
  local pair = functions.broadcast_tensors(a, b)
  local shape = pair[1].shape
  if dim == nil then
    for i = #shape, 1, -1 do
      dim = shape[i] == 3 and i or dim
    end
  end
  if dim == nil or shape[positive("cross", pair[1], dim)] ~= 3 then
    refuse("cross", a, b, dim and ("dimension %d must have size 3"):format(dim) or "no dimension has size 3")
  end
  dim = positive("cross", pair[1], dim)
  local function part(t, i)
    return methods.narrow(t, dim, (i - 1) % 3 + 1, 1)
  end
  local parts = {}
  for i = 1, 3 do
    parts[i] = part(pair[1], i + 1) * part(pair[2], i + 2) - part(pair[1], i + 2) * part(pair[2], i + 1)
  end
  return functions.cat(parts, dim)
end)

local DIFFERENCES = 2 ^ 24 -- made at once where no gradient needs them all

--- Distances of all rows, of some rows of a at a time where nothing is recorded.
local function distances(a, b, p)
  local shape = a.shape
  local size = shape[#shape - 1]
  local step = math.max(math.floor(DIFFERENCES * size / math.max(a.numel * methods.size(b, -2), 1)), 1)
  if step >= size or a.requires_grad or b.requires_grad then
    return methods.norm(methods.unsqueeze(a, -2) - methods.unsqueeze(b, -3), p, -1)
  end
  local parts = {}
  for first = 1, size, step do
    parts[#parts + 1] = scope.scope(distances, methods.narrow(a, -2, first, math.min(step, size - first + 1)), b, p)
  end
  return functions.cat(parts, -2)
end

--- The p-norm of the difference of every row of a [..., P, M] and every row of b [..., R, M], as [..., P, R]. Where a
-- distance is 0 its gradient is 0.
define("cdist", function(a, b, ...)
  local p = args.named("cdist", { "p" }, { p = 2 }, ...).p
  if args.number("cdist", "p", p) < 0 then
    errors.raise("invalid", "cdist: p is %g; it must not be negative", p)
  elseif need_tensor("cdist", a).ndim < 2 or need_tensor("cdist", b).ndim < 2 then
    refuse("cdist", a, b, "rows [..., P, M] and [..., R, M] are needed; unsqueeze a vector")
  elseif methods.size(a, -1) ~= methods.size(b, -1) then
    refuse("cdist", a, b, ("rows of %d and %d elements have no distance"):format(methods.size(a, -1), methods.size(b, -1)))
  end
  for _, t in ipairs { a, b } do
    if args.dtype_class(t.dtype) ~= "float" then
      errors.raise("dtype", "cdist: a tensor of %s; a floating type is needed, convert with :to(\"f32\")", t.dtype)
    end
  end
  return distances(a, b, methods.size(a, -1) > 0 and p or 1)
end)
