--- Linear algebra composed from singular values: norms of matrices, rank, condition, the pseudo-inverse, least squares.

local args = require "luda.args"
local autograd = require "luda.autograd"
local create = require "luda.create"
local errors = require "luda.error"
local linalg = require "luda.ops.linalg"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local tensors = require "luda.tensor"
local arguments = require "luda.ops.arguments"
local into = require "luda.ops.into"

local functions, methods, where = ops.functions, tensors.methods, ops.functions.where
local define, flag, speak_of, matrix_sizes, turned = arguments.define, arguments.flag, errors.speak_of, linalg.matrix_sizes,
  linalg.turned
local matmul, unsqueeze = methods.matmul, methods.unsqueeze
local huge = math.huge

--- Descending; of these alone the gradient is right where some are equal, too.
local function singular_values(op, t)
  local _, s = speak_of(op, pcall(functions.svd, t))
  return s
end

--- Singular values, descending.
define("svdvals", {}, function(t)
  return singular_values("svdvals", t)
end)

-- Norms.

--- The largest or smallest of each row.
local function extreme(values, order)
  return (order > 0 and methods.amax or methods.amin)(values, -1)
end

local function of_matrices(op, t, order)
  if order == "nuc" then
    return methods.sum(singular_values(op, t), -1)
  end
  local size = type(order) == "number" and math.abs(order)
  if size == 2 then
    return extreme(singular_values(op, t), order)
  elseif size ~= 1 and size ~= huge then
    errors.raise("invalid", "%s: the norm of a matrix is \"fro\", \"nuc\", 1, 2 or math.huge (or -1, -2, -math.huge), not %s", op,
      args.describe(order))
  end
  return extreme(methods.sum(methods.abs(t), size == 1 and -2 or -1), order)
end

local function matrix_norm(op, t, order, dim, keepdim)
  matrix_sizes(op, t)
  keepdim = flag(op, "keepdim", keepdim)
  if type(dim or {}) ~= "table" or #(dim or { 1, 2 }) ~= 2 then
    errors.raise("invalid", "%s: dim is a list of two dimensions, not %s", op, args.describe(dim))
  end
  local first, second = sugar.positive(op, t, dim and dim[1] or -2), sugar.positive(op, t, dim and dim[2] or -1)
  local wide = arguments.floating(op, t)
  if order == nil or order == "fro" then
    return arguments.rounded(methods.norm(wide, { dim = { first, second }, keepdim = keepdim }), t)
  end
  local result = of_matrices(op, methods.movedim(wide, { first, second }, { -2, -1 }), order)
  if keepdim then
    result = unsqueeze(unsqueeze(result, math.min(first, second)), math.max(first, second))
  end
  return arguments.rounded(result, t)
end

--- A norm of matrices: "fro", "nuc", 1, 2 or math.huge, or -1, -2, -math.huge.
define("matrix_norm", { "ord", "dim", "keepdim" }, function(t, order, dim, keepdim)
  return matrix_norm("matrix_norm", t, order, dim, keepdim)
end)

--- The p-norm of all elements, or along dimensions.
define("vector_norm", { "ord", "dim", "keepdim" }, function(t, order, dim, keepdim)
  return speak_of("vector_norm", pcall(methods.norm, t, { p = order, dim = dim, keepdim = keepdim }))
end)

-- Which singular values count as zero.

--- The bound below which they do: the larger of atol and rtol times the largest, rtol being that of the type's precision.
local function bound_of(t, s, atol, rtol)
  local height, width = matrix_sizes("bound", t)
  atol = atol or 0
  rtol = rtol or (atol > 0 and 0 or math.max(height, width) * (t.dtype == "f64" and 0x1p-52 or 0x1p-23))
  return methods.clamp_min(methods.amax(s, -1, true) * rtol, atol)
end

local function rank_of(t, s, atol, rtol)
  if methods.size(s, -1) == 0 then
    return methods.sum(methods.gt(s, 0), -1)
  end
  return methods.sum(methods.gt(s, bound_of(t, s, atol, rtol)), -1)
end

--- How many singular values count as more than zero.
define("matrix_rank", { "atol", "rtol" }, function(t, atol, rtol)
  local fixed = methods.detach(t)
  return rank_of(fixed, singular_values("matrix_rank", fixed), atol, rtol)
end)

--- The largest singular value over the smallest (p = 2, or -2 for the inverse of that), or the product of the norms of the
-- matrix and its inverse; infinite where there is none.
--- The condition number: the norm p of a matrix times that of its inverse.
define("cond", { "p" }, function(t, p)
  matrix_sizes("cond", t, p ~= nil and math.abs(tonumber(p) or 0) ~= 2)
  if p == nil or p == 2 or p == -2 then
    local s = singular_values("cond", t)
    local first, last = methods.select(s, -1, 1), methods.select(s, -1, methods.size(s, -1))
    return p == -2 and last / first or first / last
  end
  local sign = functions.slogdet(methods.detach(t))
  local singular = methods.eq(sign, 0)
  local regular = where(unsqueeze(unsqueeze(singular, -1), -1), linalg.identity(t, methods.size(t, -1)), t)
  local product = matrix_norm("cond", regular, p) * matrix_norm("cond", linalg.inverse("cond", regular), p)
  return where(singular, huge, product)
end)

-- The pseudo-inverse: through its own derivative (Golub and Pereyra 1973), which needs no distinct singular values.

local function product(leftwards, a, b, c)
  return leftwards and matmul(matmul(a, b), c) or matmul(a, matmul(b, c))
end

local pseudo_inverse = autograd.Function {
  name = "pinv",
  forward = function(ctx, a, u, s, vh, atol, rtol)
    local kept = methods.gt(s, bound_of(a, s, atol, rtol))
    local reciprocals = where(kept, methods.reciprocal(where(kept, s, 1)), 0)
    local p = matmul(turned(vh) * unsqueeze(reciprocals, -2), turned(u))
    ctx:save(a, p)
    return p
  end,
  backward = function(ctx, g)
    local a, p = ctx.saved[1], ctx.saved[2]
    local wide = methods.size(a, -1) > methods.size(a, -2) -- products stay as small as the smaller side
    local gt, pt = turned(g), turned(p)
    local y, z = product(wide, gt, p, pt), product(wide, pt, p, gt)
    return y - product(wide, a, p, y) + z - product(wide, z, p, a) - product(wide, pt, g, pt)
  end,
}

--- The pseudo-inverse and the singular values.
local function pinv(op, t, atol, rtol)
  local fixed = methods.detach(t)
  local u, s, vh = speak_of(op, pcall(functions.svd, fixed))
  if methods.size(s, -1) == 0 then
    return turned(t), s
  end
  return pseudo_inverse(t, u, s, vh, atol, rtol), s
end

--- The pseudo-inverse by singular values; those below rtol times the largest, or atol, count as zero.
for _, name in ipairs { "pinv", "pinverse" } do
  define(name, { "rtol", "atol" }, function(t, rtol, atol)
    return (pinv(name, t, atol, rtol))
  end)
end

--- X of least |A X - B|, and of those the smallest; the squares that are left where A has more rows than columns and full
-- rank, else an empty tensor; the rank; the singular values. driver = "gels" takes full rank for granted (X and squares only).
define("lstsq", { "b", "rcond", "driver" }, function(a, b, rcond, driver)
  local height, width = matrix_sizes("lstsq", a)
  local columns, finish = linalg.as_columns("lstsq", a, b)
  if methods.size(columns, -2) ~= height then
    errors.raise("shape", "lstsq: shapes %s and %s do not fit; A is [..., m, n] and B is [..., m, k]", args.shape_text(a.shape),
      args.shape_text(b.shape))
  elseif driver ~= nil and driver ~= "gels" and driver ~= "gelsd" then
    errors.raise("invalid", "lstsq: the driver is \"gelsd\" or \"gels\", not %s", args.describe(driver))
  end
  local x, rank, s
  if driver ~= "gels" then
    local p
    p, s = pinv("lstsq", a, nil, rcond)
    x, rank = matmul(p, columns), rank_of(a, s, nil, rcond)
  elseif height >= width then
    local q, r = functions.qr(a)
    x = speak_of("lstsq", pcall(functions.solve_triangular, r, matmul(turned(q), columns), { upper = true }))
  else
    local q, r = functions.qr(turned(a))
    x = matmul(q, speak_of("lstsq", pcall(functions.solve_triangular, r, columns, { upper = true, transpose = true })))
  end
  local residuals = create.empty(0, { dtype = x.dtype })
  if height > width and (not rank or methods.item(methods.sum(methods.ne(rank, width))) == 0) then
    residuals = methods.sum(methods.square(matmul(a, x) - columns), -2)
  end
  return finish(x), residuals, rank, s
end)

into.take_out "qr svd eigh solve solve_triangular"
