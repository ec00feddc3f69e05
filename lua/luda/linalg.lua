--- luda.linalg: linear algebra under the names of torch.linalg. Most are luda.<name> and methods as well.

local args = require "luda.args"
local ops = require "luda.ops"

local functions = ops.functions

local M = {}

for _, name in ipairs {
  "cholesky", "cond", "det", "eigh", "eigvalsh", "inv", "lstsq", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "pinv",
  "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "vector_norm",
} do
  M[name] = assert(functions[name], name)
end

--- The norm of all elements (or of vectors along dim) where no order is given; with one that of a vector or, for two
-- dimensions, of a matrix.
function M.norm(t, ...)
  local given = args.named("norm", { "ord", "dim", "keepdim" }, {}, ...)
  local order, dim = given.ord, given.dim
  if order ~= nil and (type(dim) == "table" and #dim == 2 or dim == nil and t.ndim == 2 or type(order) == "string") then
    return functions.matrix_norm(t, order, dim, given.keepdim)
  end
  return functions.vector_norm(t, order, dim, given.keepdim)
end

--- The diagonal of the last two dimensions, or of others.
function M.diagonal(t, ...)
  local given = args.named("diagonal", { "offset", "dim1", "dim2" }, { offset = 0, dim1 = -2, dim2 = -1 }, ...)
  return functions.diagonal(t, given)
end

--- The sum of the products of two tensors along a dimension, the last where none is given.
function M.vecdot(a, b, ...)
  local given = args.named("vecdot", { "dim" }, { dim = -1 }, ...)
  return functions.sum(functions.mul(a, b), given.dim)
end

return M
