--- Resident memory in a process of its own: prints {"before": MB, "peak": MB}.
--
--   memory.lua MODEL [THREADS]      of training one model
--   memory.lua chain OPERATORS      of a chain of so many operators and its backward

local folder = arg[0]:match("^(.*/)") or "./"
package.path = folder .. "?.lua;" .. package.path

local luda = require "luda"

local function resident(name)
  for line in io.lines("/proc/self/status") do
    local kib = line:match("^" .. name .. ":%s*(%d+)")
    if kib then
      return tonumber(kib) / 1024
    end
  end
end

local function train()
  luda.set_threads(tonumber(arg[2] or luda.threads()))
  local step = require("models").step(arg[1])
  for _ = 1, 4 do
    luda.scope(step)
  end
end

local function long_chain()
  local result, leaf = require("chain")(tonumber(arg[2]))
  assert(result:backward()[leaf]:item() == 0.5)
end

assert(luda.nn and luda.optim) -- loaded: the level after start-up has all the code
local before = resident("VmRSS")
if arg[1] == "chain" then
  long_chain()
else
  train()
end
print(require("luda.json").encode { before = before, peak = resident("VmHWM") })
