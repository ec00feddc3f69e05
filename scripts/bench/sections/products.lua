--- Matrix products, attention and convolution: bounded by arithmetic.

local luda = require "luda"
local create = require "create"
local limits = require "limits"

local M = {}

-- Matrix products.

--- Columns: rows, inner size, columns, then which side is given transposed.
local SHAPES = {
  { 64, 64, 64 }, { 128, 128, 128 }, { 256, 256, 256 }, { 512, 512, 512 }, { 1024, 1024, 1024 }, { 2048, 2048, 2048 },
  { 4096, 4096, 4096 }, { 2048, 384, 1536 }, { 2048, 1536, 384 }, { 2048, 384, 1536, b = "T" },
  { 384, 2048, 1536, a = "T" }, { 256, 768, 50257, b = "T" },
}
local HALF = { 256, 512, 1024, 2048 }

local function side(rows, columns, transposed, dtype)
  local x = create.randn(transposed and columns or rows, transposed and rows or columns)
  x = dtype == "f32" and x or x:to(dtype)
  return transposed and x:t() or x
end

local function product(bench, shape, dtype)
  local m, k, n = shape[1], shape[2], shape[3]
  bench:measure {
    section = "matmul", case = ("[%d, %d]%s @ [%d, %d]%s"):format(m, k, shape.a or "", k, n, shape.b or ""),
    dtype = dtype, unit = "GFLOP/s", flops = 2 * m * k * n, code = "x:matmul(y)",
    make = function()
      return { x = side(m, k, shape.a, dtype), y = side(k, n, shape.b, dtype) }
    end,
    bounds = { limits.flops(dtype, 2 * m * k * n, bench.options.threads) },
    peer = { case = "matmul", m = m, k = k, n = n, a = shape.a, b = shape.b, dtype = dtype },
  }
end

function M.matmul(bench)
  local most = bench.options.quick and 2 ^ 28 or math.huge
  for _, shape in ipairs(SHAPES) do
    if shape[1] * shape[2] * shape[3] <= most then
      product(bench, shape, "f32")
    end
  end
  for _, n in ipairs(HALF) do
    if n ^ 3 <= most then
      product(bench, { n, n, n }, "bf16")
    end
  end
end

-- Forward, and forward with backward: three times the products.

local function with(table, name, value)
  local copy = {}
  for key, field in pairs(table) do
    copy[key] = field
  end
  copy[name] = value
  return copy
end

--- Measures `forward` (code over what make(tracked) returns), then the same with the walk behind it.
local function both_ways(bench, row, forward, make)
  for _, backward in ipairs { false, true } do
    local one = with(row, "case", row.case .. (backward and ", forward + backward" or ", forward"))
    one.flops, one.bytes = row.flops and row.flops * (backward and 3 or 1), row.bytes * (backward and 2 or 1)
    one.unit = row.flops and "GFLOP/s" or "GB/s"
    one.step = ("local z = %s%s"):format(forward, backward and "; z:backward({ gradient = g })" or "")
    one.peer = with(row.peer, "backward", backward)
    one.bounds = { limits.bytes("copy", one.bytes, bench.options.threads) }
    if one.flops then
      one.bounds[2] = limits.flops("f32", one.flops, bench.options.threads)
    end
    if row.exponentials then
      one.bounds[3] = limits.arithmetic("exp", row.exponentials, bench.options.threads)
    end
    function one.make()
      return make(backward)
    end
    bench:measure(one)
  end
end

local function leaves(tracked, ...)
  local made = {}
  for i = 1, select("#", ...) do
    made[i] = create.randn((select(i, ...))):requires_grad_(tracked)
  end
  return made
end

function M.attention(bench)
  for _, shape in ipairs { { 8, 6, 256, 64 }, { 4, 12, 64, 64 } } do
    local batch, heads, length, width = unpack(shape)
    local pairs_below = batch * heads * length * (length + 1) / 2
    both_ways(bench, {
      section = "attention", case = ("[%d, %d, %d, %d] causal"):format(batch, heads, length, width),
      flops = 4 * pairs_below * width, bytes = 4 * 4 * batch * heads * length * width, exponentials = pairs_below,
      peer = { case = "attention", batch = batch, heads = heads, length = length, width = width },
    }, "luda.scaled_dot_product_attention(x, y, w, { is_causal = true })", function(tracked)
      local made = leaves(tracked, shape, shape, shape)
      return { x = made[1], y = made[2], w = made[3], g = create.randn(shape) }
    end)
  end
end

-- Columns: images, channels, side, filters.
local CONVOLUTIONS = { { 32, 1, 28, 32 }, { 32, 32, 28, 64 }, { 16, 64, 56, 64 }, { 16, 256, 14, 256 } }
local POOLS = { { 32, 64, 28 }, { 16, 64, 56 } }

local function convolution(bench, shape)
  local images, channels, size, filters = unpack(shape)
  local from, to = { images, channels, size, size }, { images, filters, size, size }
  both_ways(bench, {
    section = "conv", case = ("conv2d [%d, %d, %d, %d] to %d"):format(images, channels, size, size, filters),
    flops = 2 * images * filters * size * size * channels * 9, bytes = 4 * images * size * size * (channels + filters),
    peer = { case = "conv", batch = images, channels = channels, side = size, filters = filters },
  }, "luda.conv2d(x, w, nil, { padding = 1 })", function(tracked)
    local made = leaves(tracked, from, { filters, channels, 3, 3 })
    return { x = made[1], w = made[2], g = create.randn(to) }
  end)
end

local function pooling(bench, shape)
  local images, channels, size = unpack(shape)
  both_ways(bench, {
    section = "conv", case = ("max_pool2d [%d, %d, %d, %d]"):format(images, channels, size, size),
    bytes = 5 * images * channels * size * size,
    peer = { case = "pool", batch = images, channels = channels, side = size },
  }, "run(x, 2)", function(tracked)
    return {
      x = leaves(tracked, { images, channels, size, size })[1], g = create.randn(images, channels, size / 2, size / 2),
      run = luda.max_pool2d,
    }
  end)
end

function M.conv(bench)
  if luda.conv2d then
    for i, shape in ipairs(CONVOLUTIONS) do
      if i <= 2 or not bench.options.quick then
        convolution(bench, shape)
      end
    end
  else
    bench:skip("conv", "conv2d", "there is no luda.conv2d")
  end
  if luda.max_pool2d then
    for _, shape in ipairs(POOLS) do
      pooling(bench, shape)
    end
  else
    bench:skip("conv", "max_pool2d", "there is no luda.max_pool2d")
  end
end

return M
