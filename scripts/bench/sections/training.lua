--- Whole training steps.

local luda = require "luda"
local limits = require "limits"
local models = require "models"

local M = {}

-- Training steps. The limit adds the products at the peak and 28 bytes a parameter at the speed of updates in place.

local function step_row(bench, name, bf16)
  local options = bench.options
  local train, flops, count = models.step(name, bf16)
  bench:measure {
    section = "training", case = name .. (bf16 and ", autocast" or ""), dtype = bf16 and "bf16" or "f32", unit = "ms",
    flops = flops, step = "run()", sum = "flops",
    bounds = {
      limits.flops(bf16 and "bf16" or "f32", flops, options.threads),
      limits.bytes("in place", 28 * count, options.threads),
    },
    make = function()
      return { run = train }
    end,
    peer = { case = "training", model = name, bf16 = bf16 },
  }
end

function M.training(bench)
  local quick = bench.options.quick
  for i, name in ipairs(models.list) do
    local lacks = models.lacks(name)
    if lacks then
      bench:skip("training", name, lacks)
    elseif not (quick and i > 2) then
      bench:try("training", name, step_row, bench, name, false)
      if luda.autocast then
        bench:try("training", name .. ", autocast", step_row, bench, name, true)
      end
    end
  end
  if not luda.autocast then
    bench:skip("training", "autocast", "there is no luda.autocast")
  end
end

return M
