--- Meetings for ranks in another network namespace than the spec: writes their addresses down and serves until killed.
-- usage: luda fault_home.lua FILE SIZE…

local luda = require "luda"
local json = require "luda.json"
local processes = require "spec.processes"

processes.die_with_parent()
local meetings, homes = {}, {}
for i = 2, #arg do
  meetings[i - 1] = luda.dist.rendezvous { size = tonumber(arg[i]) }
  homes[i - 1] = { address = meetings[i - 1].address, session = meetings[i - 1].session }
end
local file = assert(io.open(arg[1] .. ".new", "w"))
file:write(json.encode(homes))
file:close()
assert(os.rename(arg[1] .. ".new", arg[1]))
while true do
  processes.sleep(1)
end
