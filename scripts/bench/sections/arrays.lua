--- Operators over whole tensors: 1 K to 16 M floats, with --large 64 M for the common ones.

local luda = require "luda"
local create = require "create"
local limits = require "limits"

local COLUMNS = 1024
local SIZES = { { "1 K", 2 ^ 10 }, { "64 K", 2 ^ 16 }, { "1 M", 2 ^ 20 }, { "16 M", 2 ^ 24 } }
local QUICK = { SIZES[2], SIZES[3] }
local LARGE = { "64 M", 2 ^ 26 }

-- Columns: case, code (over x and y of n floats), bytes of a float's share, bound; then what differs from the usual:
-- name of the peer's case, make of tensors, run (as harness.lua names what is not an expression), loop of limits.c for the
-- arithmetic, dtype, large (among the --large rows).

--- Rows of 1024.
local function rows(n)
  return { x = create.randn(n / COLUMNS, COLUMNS), w = create.randn(COLUMNS), b = create.randn(COLUMNS) }
end

local function square(n)
  return { x = create.randn(math.sqrt(n), math.sqrt(n)) }
end

local function cast_from(dtype)
  return function(n)
    return { x = create.randn(n):to(dtype) }
  end
end

local function one(n)
  return { x = create.randn(n) }
end

local function two(n)
  return { x = create.randn(n), y = create.randn(n) }
end

--- A graph that stays, its output as `out`, and a gradient for it.
local function recorded(fn)
  return function(n)
    local v = rows(n)
    v.x:requires_grad_()
    v.out, v.g = fn(v), create.randn(n / COLUMNS, COLUMNS)
    return v
  end
end

local WALK = "out:backward({ gradient = g, retain = true })"

local SECTIONS = {
  elementwise = {
    { "add", "x + y", 12, "copy", make = two, large = true },
    { "mul", "x * y", 12, "copy", make = two, large = true },
    { "mul by a number", "x * 2", 8, "copy", peer = "mul_scalar" },
    { "add in place", "local _ = x:add_(y)", 12, "in place", make = two, peer = "add_", run = "statement" },
    { "mul by a number in place", "local _ = x:mul_(1)", 8, "in place", peer = "mul_", run = "statement" },
    { "relu", "x:relu()", 8, "copy", large = true },
    { "exp", "x:exp()", 8, "copy", loop = "exp", large = true },
    { "tanh", "x:tanh()", 8, "copy", loop = "tanh", large = true },
    { "sigmoid", "x:sigmoid()", 8, "copy", loop = "exp" },
    { "gelu", "x:gelu()", 8, "copy" },
    { "gelu_tanh", "x:gelu_tanh()", 8, "copy", loop = "gelu_tanh", large = true },
  },
  reductions = {
    { "sum", "x:sum()", 4, "read", large = true },
    { "sum of rows", "x:sum(2)", 4, "read", make = rows, peer = "sum_rows" },
    { "sum of columns", "x:sum(1)", 4, "read", make = rows, peer = "sum_columns" },
    { "amax", "x:amax()", 4, "read" },
    { "amax of rows", "x:amax(2)", 4, "read", make = rows, peer = "amax_rows" },
  },
  softmax = {
    { "softmax of rows", "x:softmax(-1)", 8, "copy", make = rows, peer = "softmax", loop = "exp", large = true },
    { "log_softmax of rows", "x:log_softmax(-1)", 8, "copy", make = rows, peer = "log_softmax", loop = "exp" },
  },
  norms = {
    { "layer_norm of rows", "luda.layer_norm(x, w, b)", 8, "copy", make = rows, peer = "layer_norm", large = true },
    { "rms_norm of rows", "luda.rms_norm(x, w)", 8, "copy", make = rows, peer = "rms_norm", needs = "rms_norm" },
  },
  casts = {
    { "f32 to bf16", "x:to('bf16')", 6, "copy", peer = "f32_bf16", large = true },
    { "bf16 to f32", "x:to('f32')", 6, "copy", make = cast_from "bf16", peer = "bf16_f32", large = true, dtype = "bf16" },
    { "f32 to f16", "x:to('f16')", 6, "copy", peer = "f32_f16" },
    { "f16 to f32", "x:to('f32')", 6, "copy", make = cast_from "f16", peer = "f16_f32", dtype = "f16" },
  },
  transpose = {
    { "transposed copy", "x:t():contiguous()", 8, "copy", make = square, peer = "transpose" },
  },
  random = {
    { "dropout 0.1", "luda.dropout(x, 0.1)", 8, "copy", peer = "dropout" },
    { "randn", "run(%d)", 4, "copy", peer = "randn", make = function()
      return { run = create.randn }
    end },
  },
  backward = {
    { "tanh", WALK, 12, "copy", peer = "tanh_backward", run = "step",
      make = recorded(function(v) return v.x:tanh() end) },
    { "gelu_tanh", WALK, 12, "copy", peer = "gelu_tanh_backward", run = "step", loop = "gelu_tanh",
      make = recorded(function(v) return v.x:gelu_tanh() end) },
    { "softmax of rows", WALK, 12, "copy", peer = "softmax_backward", run = "step",
      make = recorded(function(v) return v.x:softmax(-1) end) },
    { "layer_norm of rows", WALK, 12, "copy", peer = "layer_norm_backward", run = "step",
      make = recorded(function(v)
        return luda.layer_norm(v.x, v.w:requires_grad_(), v.b:requires_grad_())
      end) },
  },
}

--- The row of one case at one size.
local function row(section, case, size, options)
  local n, threads = size[2], options.threads
  local result = {
    section = section, case = case[1] .. " " .. size[1], dtype = case.dtype, unit = "GB/s", bytes = case[3] * n,
    make = function()
      return (case.make or one)(n)
    end,
    bounds = { limits.bytes(case[4], case[3] * n, threads) },
    peer = { case = case.peer or case[1], n = n },
  }
  result[case.run or "code"] = case[2]:gsub("%%d", ("%d"):format(n))
  if case.loop then
    result.bounds[2] = limits.arithmetic(case.loop, n, threads)
  end
  return result
end

--- Runs one of the sections above.
local function section(name)
  return function(bench)
    local options = bench.options
    for _, case in ipairs(SECTIONS[name]) do
      if case.needs and not luda[case.needs] then
        bench:skip(name, case[1], "there is no luda." .. case.needs)
      else
        for _, size in ipairs(options.quick and QUICK or SIZES) do
          bench:measure(row(name, case, size, options))
        end
        if options.large and case.large then
          bench:measure(row(name, case, LARGE, options))
        end
      end
    end
  end
end

local M = {}
for name in pairs(SECTIONS) do
  M[name] = section(name)
end

-- Rows taken from a table, as an embedding does.

function M.gathers(bench)
  local sizes = bench.options.quick and { 2 ^ 16 } or { 2 ^ 10, 2 ^ 16, 2 ^ 20, 2 ^ 24 }
  for _, shape in ipairs { { 2 ^ 16, 64 }, { 50257, 768 } } do
    for _, n in ipairs(sizes) do
      local height, width, count = shape[1], shape[2], math.ceil(n / shape[2])
      local bytes = 8 * count * width + 8 * count
      bench:measure {
        section = "gathers", case = ("%d rows of [%d, %d]"):format(count, height, width), unit = "GB/s", bytes = bytes,
        make = function()
          return { x = create.randn(height, width), index = create.positions(height, { count }) }
        end,
        code = "x:index_select(1, index)",
        bounds = { limits.bytes("copy", bytes, bench.options.threads) },
        peer = { case = "gather", rows = height, width = width, count = count },
      }
    end
  end
end

return M
