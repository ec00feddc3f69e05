--- Linear algebra composed from the rows that LAPACK computes: equations, inverses, powers. What singular values decide is
-- in luda.ops.spectral.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local ops = require "luda.ops"
local tensors = require "luda.tensor"
local values = require "luda.values"
local arguments = require "luda.ops.arguments"

local functions, methods, where = ops.functions, tensors.methods, ops.functions.where
local define, flag, need_tensor, speak_of = arguments.define, arguments.flag, values.need_tensor, errors.speak_of
local matmul, unsqueeze = methods.matmul, methods.unsqueeze

-- The rows that functions below extend under the same name.
local row = {}
for _, name in ipairs { "eigh", "qr", "solve", "solve_triangular", "svd" } do
  row[name] = assert(functions[name], name)
end

local function turned(t)
  return methods.transpose(t, -2, -1)
end

--- Rows and columns of the matrices in a tensor.
local function matrix_sizes(op, t, square)
  local shape = need_tensor(op, t).shape
  local height, width = shape[#shape - 1], shape[#shape]
  if #shape < 2 then
    errors.raise("shape", "%s: the shape %s is no matrix; two dimensions are needed, the last ones of a batch", op,
      args.shape_text(shape))
  elseif square and height ~= width then
    errors.raise("shape", "%s: the matrix of shape %s is not square; qr, svd, pinv and lstsq take any", op,
      args.shape_text(shape))
  end
  return height, width
end

local function identity(t, size)
  return create.eye(size, { dtype = t.dtype, device = t.device })
end

--- The right-hand sides as matrices, and a function for the result: vectors beside matrices are columns.
local function as_columns(op, a, b)
  local shape, other, vector = need_tensor(op, a).shape, need_tensor(op, b).shape, false
  if #other == 1 or #other == #shape - 1 then
    vector = true
    for i = 1, #other do
      vector = vector and (#other == 1 or other[i] == shape[i])
    end
  end
  if not vector then
    return b, function(x) return x end
  end
  return unsqueeze(b, -1), function(x) return methods.squeeze(x, -1) end
end

--- Calls fn with the right-hand sides of a whole batch beside each other where one matrix serves them all, so that it is
-- factored once.
local function beside(fn, a, b, options)
  local shape = b.shape
  if a.ndim ~= 2 or #shape < 3 or b.numel == 0 or shape[#shape - 1] ~= methods.size(a, 1) then
    return fn(a, b, options)
  end
  local size = table.remove(shape, #shape - 1)
  table.insert(shape, 1, size)
  local x = fn(a, methods.reshape(methods.movedim(b, -2, 1), { size, -1 }), options)
  shape[1] = methods.size(a, 1)
  return methods.movedim(methods.reshape(x, shape), 1, -2)
end

-- Equations.

--- X with A X = B, or X A = B where left is false. B may be a vector, or vectors as many as A's batch.
define("solve", { "b", "left" }, function(a, b, left)
  if not flag("solve", "left", left, true) then
    return turned(beside(row.solve, turned(a), turned(need_tensor("solve", b))))
  end
  local columns, finish = as_columns("solve", a, b)
  return finish(beside(row.solve, a, columns))
end)

define("solve_triangular", { "b", "upper", "transpose", "unitriangular", "left" }, function(a, b, upper, transpose, unit, left)
  local function option(name, value)
    return flag("solve_triangular", name, value, false)
  end
  local options = {
    upper = option("upper", upper), transpose = option("transpose", transpose), unitriangular = option("unitriangular", unit),
  }
  need_tensor("solve_triangular", b)
  if not flag("solve_triangular", "left", left, true) then
    options.transpose = not options.transpose
    return turned(beside(row.solve_triangular, a, turned(b), options))
  end
  return beside(row.solve_triangular, a, b, options)
end)

--- The older order of arguments: b:triangular_solve(a).
define("triangular_solve", { "a", "upper", "transpose", "unitriangular" }, function(b, a, upper, transpose, unit)
  return speak_of("triangular_solve", pcall(functions.solve_triangular, a, b, {
    upper = flag("triangular_solve", "upper", upper, true), transpose = transpose, unitriangular = unit,
  }))
end)

local function inverse(op, t)
  local _, size = matrix_sizes(op, t, true)
  return speak_of(op, pcall(row.solve, t, identity(t, size)))
end

--- The inverse of square matrices.
for _, name in ipairs { "inv", "inverse" } do
  define(name, {}, function(t)
    return inverse(name, t)
  end)
end

--- X with A X = B, from the factor that cholesky gave.
define("cholesky_solve", { "factor", "upper" }, function(b, factor, upper)
  upper = flag("cholesky_solve", "upper", upper)
  local y = speak_of("cholesky_solve", pcall(row.solve_triangular, factor, b, { upper = upper, transpose = upper }))
  return row.solve_triangular(factor, y, { upper = upper, transpose = not upper })
end)

--- The inverse of A from the factor that cholesky gave.
define("cholesky_inverse", { "upper" }, function(factor, upper)
  local _, size = matrix_sizes("cholesky_inverse", factor, true)
  return methods.cholesky_solve(identity(factor, size), factor, upper)
end)

--- The logarithm of the determinant, NaN where that is negative.
define("logdet", {}, function(t)
  local sign, size = functions.slogdet(t)
  return where(methods.lt(sign, 0), 0 / 0, size)
end)

--- A matrix multiplied n times with itself; a negative n is a power of the inverse.
define("matrix_power", { "n" }, function(t, n)
  local _, size = matrix_sizes("matrix_power", t, true)
  n = args.integer("matrix_power", "n", n)
  local power, result = n < 0 and inverse("matrix_power", t) or t, nil
  n = math.abs(n)
  while n > 0 do
    if n % 2 == 1 then
      result = result and matmul(result, power) or power
    end
    n = math.floor(n / 2)
    power = n > 0 and matmul(power, power) or power
  end
  return methods.clone(result or methods.expand(identity(t, size), t.shape))
end)

-- Factors: only the reduced forms.

for name, option in pairs { qr = { "mode", "reduced" }, svd = { "full_matrices", false } } do
  define(name, { option[1] }, function(t, form)
    if form ~= nil and form ~= option[2] then
      errors.raise("unsupported", "%s: only the reduced form is there, %s = %s", name, option[1], tostring(option[2]))
    end
    return row[name](t)
  end)
end


--- True for "U", false for "L" or nothing.
local function is_upper(op, uplo)
  if uplo ~= nil and uplo ~= "L" and uplo ~= "U" then
    errors.raise("invalid", "%s: UPLO is \"L\" or \"U\", not %s", op, args.describe(uplo))
  end
  return uplo == "U"
end

define("eigh", { "UPLO" }, function(t, uplo)
  return row.eigh(t, { upper = is_upper("eigh", uplo) })
end)

--- Ascending eigenvalues of symmetric matrices, of which one triangle is read.
define("eigvalsh", { "UPLO" }, function(t, uplo)
  return (speak_of("eigvalsh", pcall(row.eigh, t, { upper = is_upper("eigvalsh", uplo) })))
end)

return {
  turned = turned, matrix_sizes = matrix_sizes, identity = identity, as_columns = as_columns, inverse = inverse,
}
