--- Resident memory of training one model, in a process of its own: prints {"before": MB, "peak": MB}.

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

luda.set_threads(tonumber(arg[2] or luda.threads()))
assert(luda.nn and luda.optim) -- loaded: the level after start-up has all the code
local before = resident("VmRSS")
local train = require("models").step(arg[1])
for _ = 1, 4 do
  luda.scope(train)
end
print(require("luda.json").encode { before = before, peak = resident("VmHWM") })
