--- Whole training steps, and the memory that they take.

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

local function memory_row(bench, name)
  local own = bench:apart(name, bench.options.threads)
  local other = bench.peer and bench.peer:apart(("--memory '%s'"):format(name))
  local row = {
    section = "training", case = name .. ", peak memory", dtype = "f32", threads = bench.options.threads, unit = "MB",
    value = own.peak - own.before, samples = 1, spread = 0,
  }
  if other then
    row.peer = { name = bench.peer.name, version = bench.peer.version, value = other.peak - other.before }
    row.peer_ratio = row.peer.value / row.value
  end
  bench:add(row)
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
      if bench.options.device == "cpu" then
        bench:try("training", name .. ", peak memory", memory_row, bench, name)
      end
    end
  end
  if not luda.autocast then
    bench:skip("training", "autocast", "there is no luda.autocast")
  end
end

return M
