--- Updating parameters: every rule over few or many tensors, and fused against staged.

local luda = require "luda"
local create = require "create"
local limits = require "limits"

local M = {}

local RATE = 1e-4

--- Parameters in so many tensors of a shape, with gradients.
local function parameters(tensors, ...)
  local list, grads = {}, luda.autograd.Gradients()
  for i = 1, tensors do
    list[i] = create.randn(...):requires_grad_()
    grads:register(list[i], create.randn(...) * 1e-3)
  end
  return list, grads
end

local function stepping(name, options, tensors, ...)
  local list, grads = parameters(tensors, ...)
  local optimizer = luda.optim[name](list, options)
  return { run = function()
    optimizer:step(RATE, grads)
  end, x = list }
end

local function amount(total, tensors)
  return ("%g M in %d tensor%s"):format(total / 1e6, tensors, tensors > 1 and "s" or "")
end

-- AdamW, against one pass of it. The finite check and the norm, which every step has, are one more read.

local function adamw_rows(bench, total)
  local clip = { max_grad_norm = 1e-3 }
  for _, row in ipairs { { 1 }, { 200 }, { 2000 }, { 1, clip }, { 200, clip }, { 2000, clip } } do
    local tensors, options = row[1], row[2]
    bench:measure {
      section = "optimizer", case = "AdamW, " .. amount(total, tensors) .. (options and ", clipped" or ""),
      unit = "ms", step = "run()", bounds = { limits.adamw(total, bench.options.threads) },
      make = function()
        return stepping("AdamW", options, tensors, math.floor(total / tensors))
      end,
      peer = not options and { case = "adamw", parameters = total, tensors = tensors } or nil,
    }
  end
end

-- The others: the bytes of gradient, value and states once, the last two also written.

local others = {
  { "SGD", {}, 0 }, { "SGD", { momentum = 0.9 }, 1 }, { "Lion", {}, 1 }, { "AdaGrad", {}, 1 }, { "RMSProp", {}, 1 },
  { "AdaDelta", {}, 2 }, { "Adam", {}, 2 }, { "Adamax", {}, 2 }, { "NAdam", {}, 2 }, { "RAdam", {}, 2 },
  { "AdamW", { amsgrad = true }, 3 }, { "Adan", {}, 4 }, { "LAMB", {}, 2 }, { "Adafactor", {}, 0, matrices = true },
}

local function other_rows(bench, total)
  local tensors = 200
  for _, row in ipairs(others) do
    local name, options, states = unpack(row)
    local words = next(options) and ", " .. next(options) or ""
    bench:measure {
      section = "optimizer", case = name .. words .. ", " .. amount(total, tensors), unit = "ms", step = "run()",
      bounds = { limits.bytes("in place", 4 * (3 + 2 * states) * total, bench.options.threads) },
      make = function()
        if row.matrices then
          return stepping(name, options, tensors, 100, math.floor(total / tensors / 100))
        end
        return stepping(name, options, tensors, math.floor(total / tensors))
      end,
    }
  end
end

local function muon_row(bench)
  local matrices, rows, columns, steps = 4, 512, 1024, 5
  local flops = matrices * steps * (4 * rows * rows * columns + 2 * rows * rows * rows)
  bench:measure {
    section = "optimizer", case = ("Muon, %d matrices of %d x %d"):format(matrices, rows, columns), unit = "ms",
    step = "run()", bounds = { limits.flops("f32", flops, bench.options.threads) },
    make = function()
      return stepping("Muon", {}, matrices, rows, columns)
    end,
  }
end

-- Fused against staged: the same AdamW and the same look at the gradients, operator by operator and tensor by tensor.

local function staged_adamw(tensors, n)
  local list, grads = parameters(tensors, n)
  local first, second, step = {}, {}, 0
  for i = 1, tensors do
    first[i], second[i] = luda.zeros_like(list[i]), luda.zeros_like(list[i])
  end
  return { run = function()
    step = step + 1
    luda.no_grad(function()
      for i, p in ipairs(list) do
        local g, m, v = grads[p], first[i], second[i]
        m:mul_(0.9):add_(g * 0.1)
        v:mul_(0.999):add_(g * g * 0.001)
        local root = (v / (1 - 0.999 ^ step)):sqrt_():add_(1e-8)
        p:mul_(1 - RATE * 0.01):sub_(m / root * (RATE / (1 - 0.9 ^ step)))
      end
    end)
  end, x = list }
end

local function guard(tensors, n, staged)
  local list, grads = parameters(tensors, n)
  return { run = function()
    if not staged then
      return grads:norm()
    end
    local finite, sum = true, 0
    for _, p in ipairs(list) do
      local g = grads[p]
      finite = g:isfinite():all():item() and finite
      sum = sum + (g * g):sum():item()
    end
    return finite and math.sqrt(sum)
  end, x = list }
end

local function fused_rows(bench, total)
  local tensors, threads = 200, bench.options.threads
  local n = math.floor(total / tensors)
  for _, row in ipairs {
    { "AdamW fused, ", limits.adamw(total, threads), function() return stepping("AdamW", {}, tensors, n) end },
    { "AdamW staged, ", limits.adamw(total, threads), function() return staged_adamw(tensors, n) end },
    { "gradient guard fused, ", limits.bytes("read", 4 * total, threads), function() return guard(tensors, n, false) end },
    { "gradient guard staged, ", limits.bytes("read", 4 * total, threads), function() return guard(tensors, n, true) end },
  } do
    bench:measure {
      section = "optimizer", case = row[1] .. amount(total, tensors), unit = "ms", step = "run()", bounds = { row[2] },
      make = row[3],
    }
  end
end

function M.optimizer(bench)
  local total = bench.options.parameters
  adamw_rows(bench, total)
  fused_rows(bench, total)
  if not bench.options.quick then
    other_rows(bench, total)
  end
  muon_row(bench)
end

return M
