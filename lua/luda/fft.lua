--- Fourier transforms. There is no complex element type: a complex tensor is a real one whose last dimension has size 2, real
-- and imaginary part. Dimensions of complex tensors are counted without it: -1 is the one before.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local values = require "luda.values"
require "luda.sugar"

local functions, methods = ops.functions, tensors.methods

local M = {}

--- Norm is "backward" (the inverse is divided by n), "ortho" (both by its root) or "forward" (the other way round).
---@alias luda.FourierOptions {n: integer?, dim: integer?, norm: string?}

--- A tensor that can be transformed, its number of dimensions without the pair, and half the word for its kind.
local function check(op, x, complex)
  values.need_tensor(op, x)
  if args.dtype_class(x.dtype) ~= "float" then
    x = methods.to(x, "f32")
  end
  local shape = x.shape
  if complex and (#shape < 2 or shape[#shape] ~= 2) then
    errors.raise("shape", "%s: the input has shape %s; a complex tensor has a last dimension of 2, real and imaginary part; "
      .. "rfft takes real numbers, fft.complex makes complex ones of them", op, args.shape_text(shape))
  elseif #shape == 0 then
    errors.raise("shape", "%s: a number has nothing to transform", op)
  elseif x.device ~= "cpu" then
    errors.raise("unsupported", "%s: transforms run on the CPU, the input is on %s; move it with :to(\"cpu\")", op, x.device)
  end
  return x, complex and #shape - 1 or #shape
end

--- A dimension of those without the pair, from 1.
local function place(op, dim, ndim)
  local position = args.dimension(op, "dim", dim)
  position = position < 0 and position + ndim or position
  if position < 0 or position >= ndim then
    errors.raise("index", "%s: dimension %d of a tensor with %d%s", op, dim, ndim, "; the pair of a complex one is not counted")
  end
  return position + 1
end

local function count_of(op, n)
  if args.integer(op, "n", n) < 1 then
    errors.raise("shape", "%s: %d points; at least one is needed", op, n)
  end
  return n
end

--- The first n elements along a dimension, or zeros after those there are.
local function resize(x, dim, n)
  local size = methods.size(x, dim)
  if n < size then
    return methods.narrow(x, dim, 1, n)
  end
  return n == size and x or methods.narrow_backward(x, { dim = dim, start = 1, size = n })
end

local function scale_of(op, norm, n, inverse)
  if norm == "ortho" then
    return 1 / math.sqrt(n)
  elseif norm == "backward" or norm == "forward" then
    return inverse == (norm == "backward") and 1 / n or 1
  end
  return errors.raise("invalid", "%s: norm is backward, ortho or forward, not %s", op, args.describe(norm))
end

local function complex_to_complex(op, x, n, dim, norm, inverse)
  n = count_of(op, n or methods.size(x, dim))
  return functions.dft(resize(x, dim, n), { dim = dim, inverse = inverse, scale = scale_of(op, norm, n, inverse) })
end

local function real_to_half(op, x, n, dim, norm)
  n = count_of(op, n or methods.size(x, dim))
  return functions.dft(resize(x, dim, n), { dim = dim, transform = "real", scale = scale_of(op, norm, n, false) })
end

--- A real line is the sum over the first half of its transform, where all but the ends stand for two conjugate numbers.
local function half_to_real(op, x, n, dim, norm)
  n = count_of(op, n or 2 * (methods.size(x, dim) - 1))
  local half, shape = math.floor(n / 2) + 1, {}
  local factor = create.full({ half }, 2, { dtype = x.dtype })
  methods.fill_(methods.narrow(factor, 1, 1, 1), 1)
  if n % 2 == 0 then
    methods.fill_(methods.narrow(factor, 1, half, 1), 1)
  end
  for i = dim, x.ndim do
    shape[#shape + 1] = i == dim and half or 1
  end
  return functions.dft(resize(x, dim, half) * methods.reshape(factor, shape), {
    dim = dim, inverse = true, transform = "hermitian", size = n, scale = scale_of(op, norm, n, true),
  })
end

--- Along one dimension: (x, n, dim, norm), or a table of those behind x.
local function define(name, complex, transform, inverse)
  M[name] = function(x, ...)
    local ndim
    x, ndim = check(name, x, complex)
    local given = args.named(name, { "n", "dim", "norm" }, { dim = -1, norm = "backward" }, ...)
    return transform(name, x, given.n, place(name, given.dim, ndim), given.norm, inverse)
  end
end

define("fft", true, complex_to_complex, false)
define("ifft", true, complex_to_complex, true)
define("rfft", false, real_to_half)
define("irfft", true, half_to_real)

--- Along two dimensions: (x, s, dim, norm) with s and dim lists of two. The real end comes last in dim.
local function define2(name, complex, first, last, inverse)
  M[name] = function(x, ...)
    local ndim
    x, ndim = check(name, x, complex)
    local given = args.named(name, { "s", "dim", "norm" }, { s = {}, dim = { -2, -1 }, norm = "backward" }, ...)
    local dims, sizes = {}, given.s
    if type(given.dim) ~= "table" or #given.dim ~= 2 or type(sizes) ~= "table" or (#sizes ~= 0 and #sizes ~= 2) then
      errors.raise("invalid", "%s: s and dim are lists of two", name)
    end
    for i = 1, 2 do
      dims[i] = place(name, given.dim[i], ndim)
    end
    if dims[1] == dims[2] then
      errors.raise("invalid", "%s: dimension %d is given twice", name, dims[1])
    end
    if last == real_to_half then
      x = last(name, x, sizes[2], dims[2], given.norm)
      return first(name, x, sizes[1], dims[1], given.norm, inverse)
    end
    x = first(name, x, sizes[1], dims[1], given.norm, inverse)
    return last(name, x, sizes[2], dims[2], given.norm, inverse)
  end
end

define2("fft2", true, complex_to_complex, complex_to_complex, false)
define2("ifft2", true, complex_to_complex, complex_to_complex, true)
define2("rfft2", false, complex_to_complex, real_to_half, false)
define2("irfft2", true, complex_to_complex, half_to_real, true)

-- Order and frequencies.

--- Dimensions (all unless given) rolled so that frequency 0 comes to the middle, or back. With `complex` the last dimension
-- is a pair: it is neither rolled nor counted.
local function shift(name, back)
  M[name] = function(x, ...)
    local given = args.named(name, { "dim", "complex" }, { complex = false }, ...)
    values.need_tensor(name, x)
    if given.complex then
      check(name, x, true)
    end
    local ndim = given.complex and x.ndim - 1 or x.ndim
    local dims = type(given.dim) == "table" and given.dim or { given.dim }
    for i = 1, given.dim == nil and ndim or 0 do
      dims[i] = i
    end
    for _, dim in ipairs(dims) do
      local position = place(name, dim, ndim)
      local half = math.floor(methods.size(x, position) / 2)
      x = methods.roll(x, back and -half or half, position)
    end
    return x
  end
end

shift("fftshift", false)
shift("ifftshift", true)

--- The frequencies of fft for n points `d` apart, in its order: 0, 1, … and then the negative ones, over n * d.
---@param n integer
---@param d? number
---@param given? luda.CreateOptions
---@return luda.Tensor
function M.fftfreq(n, d, given)
  if type(d) == "table" then
    d, given = nil, d
  end
  count_of("fftfreq", n)
  local positive = create.arange(math.ceil(n / 2), given)
  if n == 1 then
    return positive
  end
  return functions.cat({ positive, create.arange(-math.floor(n / 2), 0, given) }, 1) / (n * args.number("fftfreq", "d", d or 1))
end

--- The frequencies of rfft: 0, 1, … n / 2, over n * d.
---@param n integer
---@param d? number
---@param given? luda.CreateOptions
---@return luda.Tensor
function M.rfftfreq(n, d, given)
  if type(d) == "table" then
    d, given = nil, d
  end
  count_of("rfftfreq", n)
  return create.arange(math.floor(n / 2) + 1, given) / (n * args.number("rfftfreq", "d", d or 1))
end

--- A complex tensor of real numbers and imaginary ones (zeros unless given).
---@param re luda.Tensor
---@param im? luda.Tensor
---@return luda.Tensor
function M.complex(re, im)
  values.need_tensor("complex", re)
  if im == nil then
    im = create.zeros({}, { dtype = re.dtype, device = re.device })
  end
  return functions.stack(functions.broadcast_tensors(re, im), -1)
end

return M
