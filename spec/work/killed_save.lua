--- What record_kills_spec runs and kills: saves record 2 (and 3) over what is in a folder.

local luda = require "luda"

local what, dir = arg[1], arg[2]

--- Parts that depend on the step alone; larger than a write of a megabyte.
local function parts_of(step)
  luda.manual_seed(step)
  return { state = { step = step, big = luda.randn(300000), small = luda.full({ 5 }, step) } }
end

local async = what == "async" or what == "async manager"
if what:find("manager", 1, true) then
  local manager = luda.record.Manager { dir = dir, every = 1, keep = 1, async = async }
  for step = 1, 3 do
    manager:save(step, parts_of(step))
  end
  manager:wait()
else
  luda.record.save(dir .. "/run", parts_of(2), { async = async })
  luda.record.wait()
end
