--- The memory that training takes above the level after start-up, and what making results again in backward saves and costs.

local luda = require "luda"
local models = require "models"

local M = {}

local function new_row(bench, case, unit, value)
  return {
    section = "footprint", case = case, dtype = "f32", threads = bench.options.threads, unit = unit, value = value, samples = 1,
    spread = 0,
  }
end

local function memory_row(bench, name)
  local own = bench:apart(name, bench.options.threads)
  local row = new_row(bench, name .. ", peak memory", "MB", own.peak - own.before)
  local other = bench.peer and bench.peer:apart(("--memory '%s'"):format(name))
  if other then
    row.peer = { name = bench.peer.name, version = bench.peer.version, value = other.peak - other.before }
    row.peer_ratio = row.peer.value / row.value
  end
  bench:add(row)
end

-- The same model with and without, in turn; the quickest step of each counts.

local PLAIN, AGAIN = "12-layer gpt, dropout", "12-layer gpt, dropout, recompute"

local function saving_row(bench)
  bench:add(new_row(bench, "recompute, peak of a step's tensors", "x plain", M.peak(AGAIN) / M.peak(PLAIN)))
end

local function cost_row(bench)
  local now, steps, best = bench.limits.now, {}, { math.huge, math.huge }
  for way, name in ipairs { PLAIN, AGAIN } do
    steps[way] = models.step(name)
    luda.scope(steps[way])
  end
  for _ = 1, bench.options.quick and 5 or 15 do
    for way, step in ipairs(steps) do
      local start = now()
      luda.scope(step)
      best[way] = math.min(best[way], now() - start)
    end
  end
  bench:add(new_row(bench, "recompute, time of a step", "x plain", best[2] / best[1]))
end

--- Bytes of tensors at the peak of a step above what lives between steps.
---@param name string
---@return number
function M.peak(name)
  local step = models.step(name)
  luda.scope(step)
  require("luda.memory").collect_all()
  local before = luda.memory("cpu").live
  luda.memory { reset_peak = true }
  luda.scope(step)
  return luda.memory("cpu").peak - before
end

function M.footprint(bench)
  if bench.options.device ~= "cpu" then
    bench:skip("footprint", "all", "resident memory is of the processor")
    return
  end
  for _, name in ipairs { "mlp", "convolutional", "12-layer gpt", "character gpt", "gpt2 124M" } do
    if models.lacks(name) then
      bench:skip("footprint", name, models.lacks(name))
    elseif not (bench.options.quick and (name == "character gpt" or name == "gpt2 124M")) then
      bench:try("footprint", name .. ", peak memory", memory_row, bench, name)
    end
  end
  bench:try("footprint", "recompute, peak", saving_row, bench)
  bench:try("footprint", "recompute, time", cost_row, bench)
end

return M
