--- Images and sequences in another size.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
require "luda.sugar"

local methods, is_tensor = tensors.methods, tensors.is_tensor
local floor = math.floor

local M = {}

--- Sizes and scales (input by output) of the dimensions after the second.
local function targets(shape, options)
  local spatial, sizes, scales = #shape - 2, {}, {}
  local size, factor = options.size, options.scale_factor
  if (size == nil) == (factor == nil) then
    errors.raise("invalid", "interpolate: give either size or scale_factor")
  end
  local given = size or factor
  if type(given) == "table" and #given ~= spatial then
    errors.raise("shape", "interpolate: %d numbers of %s for the %d dimensions after the second of %s", #given,
      size and "size" or "scale_factor", spatial, args.shape_text(shape))
  end
  for i = 1, spatial do
    local value = type(given) == "table" and given[i] or given
    if size then
      sizes[i] = args.integer("interpolate", "size", value)
    else
      sizes[i] = floor(shape[i + 2] * args.number("interpolate", "scale_factor", value))
    end
    if sizes[i] < 1 or shape[i + 2] < 1 then
      errors.raise("shape", "interpolate: the input %s cannot become %d long in dimension %d", args.shape_text(shape),
        sizes[i], i + 2)
    end
    scales[i] = size and shape[i + 2] / sizes[i] or 1 / value
  end
  return sizes, scales
end

local function positions(list, device)
  return create.tensor(list, { dtype = "i64", device = device })
end

local function nearest(x, dim, count, scale)
  local size, list = methods.size(x, dim), {}
  for i = 0, count - 1 do
    list[i + 1] = math.min(floor(i * scale), size - 1) + 1
  end
  return methods.index_select(x, dim, positions(list, x.device))
end

--- Between the two neighbours of each place, in proportion.
local function linear(x, dim, count, scale, align_corners)
  local size, low, high, share = methods.size(x, dim), {}, {}, {}
  for i = 0, count - 1 do
    local place
    if align_corners then
      place = count > 1 and i * (size - 1) / (count - 1) or 0
    else
      place = math.max((i + 0.5) * scale - 0.5, 0)
    end
    local first = math.min(floor(place), size - 1)
    low[i + 1], high[i + 1] = first + 1, math.min(first + 1, size - 1) + 1
    share[i + 1] = place - first
  end
  local sizes = { count }
  for _ = dim + 1, x.ndim do
    sizes[#sizes + 1] = 1
  end
  local weight = methods.view(create.tensor(share, { dtype = x.dtype, device = x.device }), sizes)
  local below = methods.index_select(x, dim, positions(low, x.device))
  local above = methods.index_select(x, dim, positions(high, x.device))
  return below * (1 - weight) + above * weight
end

--- Another size of the dimensions after the second: mode "nearest", "linear" for [N, C, L], "bilinear" for [N, C, H, W].
-- The size is given, or a factor for it; align_corners puts the outer elements of input and output on each other.
---@param x luda.Tensor
---@param given {size: luda.Pair?, scale_factor: number|number[]?, mode: string?, align_corners: boolean?}
---@return luda.Tensor
function M.interpolate(x, given)
  local options = args.options("interpolate", given, {
    size = args.absent, scale_factor = args.absent, mode = "nearest", align_corners = false,
  })
  if not is_tensor(x) then
    errors.raise("invalid", "interpolate: expected a tensor, got %s", args.describe(x))
  end
  local mode, shape = options.mode, x.shape
  local needed = ({ nearest = #shape, linear = 3, bilinear = 4 })[mode]
  if not needed then
    errors.raise("invalid", "interpolate: mode is nearest, linear or bilinear, not %s", args.describe(mode))
  elseif #shape ~= needed or #shape < 3 then
    errors.raise("shape", "interpolate: the input has shape %s; %s is needed for mode %s", args.shape_text(shape),
      mode == "bilinear" and "[N, C, H, W]" or mode == "linear" and "[N, C, L]" or "[N, C, ...]", mode)
  end
  local half = mode ~= "nearest" and (x.dtype == "bf16" or x.dtype == "f16")
  local sizes, scales = targets(shape, options)
  local y = half and methods.to(x, "f32") or x
  for i = 1, #sizes do
    if mode == "nearest" then
      y = nearest(y, i + 2, sizes[i], scales[i])
    else
      y = linear(y, i + 2, sizes[i], scales[i], options.align_corners)
    end
  end
  return half and methods.to(y, x.dtype) or y
end

return M
