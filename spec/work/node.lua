--- A node of orchestrator_spec in a process of its own: runs job.task of node_peers.lua at each of its peers, and prints what
--- they return.

local luda = require "luda"
local json = require "luda.json"

local file = assert(io.open(arg[1], "rb"))
local job = json.decode(file:read("*a"))
file:close()
io.write(json.encode(luda.dist.spawn(#job.peers, "spec/work/node_peers.lua", job, { timeout = 60 })), "\n")
