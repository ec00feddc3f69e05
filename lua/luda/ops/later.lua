--- Functions whose files are read at the first call of one of them: a start of the program needs few, and takes as long as
--- the text it reads.

local ops = require "luda.ops"
local tensors = require "luda.tensor"

local functions, methods = ops.functions, tensors.methods

local M = {
  ---@type table<string, string> the names that a module defines
  modules = {
    ["luda.ops.einsum"] = "einsum",
    ["luda.ops.products"] = "addbmm addmm addmv addr baddbmm bmm cdist cross dot inner kron mm mv outer tensordot vdot",
    ["luda.ops.spectral"] = "cholesky_inverse cholesky_solve cond eigh eigvalsh inv inverse logdet lstsq matrix_norm "
      .. "matrix_power matrix_rank pinv pinverse qr solve solve_triangular svd svdvals triangular_solve vector_norm",
  },
}

local rows = {} -- what had the names before: rows that the modules extend

local function read(module)
  if package.loaded[module] then
    return
  end
  for name in M.modules[module]:gmatch("%S+") do
    functions[name], methods[name] = rows[name], rows[name]
  end
  require(module)
end

for module, names in pairs(M.modules) do
  for name in names:gmatch("%S+") do
    rows[name] = functions[name]
    local function first(...)
      read(module)
      return functions[name](...)
    end
    functions[name], methods[name] = first, first
  end
end

--- Reads them all, for what looks through the functions.
function M.read_all()
  for module in pairs(M.modules) do
    read(module)
  end
end

return M
