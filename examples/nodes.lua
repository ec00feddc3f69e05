--- Two nodes, one with two devices and one with three, average their vectors over all five, exactly.
--
--   build/luda examples/nodes.lua
--
-- Here both nodes are processes of one host and this program starts them. On two hosts `luda orchestrate --nodes 2` runs on
-- one of them, and on each `luda examples/nodes.lua NODE ADDRESS` with the address that it prints.
--
-- Peer p holds i + p; the peers are 1 to 5, so the mean over devices is i + 3. The mean of the nodes' means would be i + 2.75.

local luda = require "luda"

local DEVICES, ELEMENTS = { 2, 3 }, 257

--- What each device of a node runs, on a thread: this file, loaded again in a Lua state of its own.
local function work(comm, node)
  local config = luda.dist.Config {
    num_devices = DEVICES[node.number], all_reduce = "tree", broadcast = "tree",
    num_nodes = #DEVICES, global_all_reduce = "ring", global_address = node.orchestrator,
    node_address = "127.0.0.1:" .. node.port, data_service_port = node.port,
  }
  local id = node.number == 1 and 1 + comm.rank or 1 + DEVICES[1] + comm.rank
  local peer = luda.dist.register { peer = id, config = config }
  local index = luda.arange(ELEMENTS, { dtype = "f32" })
  local mean = peer:all_reduce(index + id, "mean")
  assert(mean:eq(index + 3):all():item(), "the mean differs")
  local sent = peer:broadcast(id == 5 and mean * 2 or nil)
  assert(sent:eq(mean * 2):all():item(), "the broadcast differs")
  peer:finish()
  return id
end

if luda.dist.thread_comm() then
  return work
end

local number, orchestrator = tonumber(arg[1]), arg[2]
if number then
  local port = 20000 + orchestrator:match("%d+$") % 10000 + number -- where data comes in; any free one will do
  local node = { number = number, orchestrator = orchestrator, port = port }
  local peers = luda.dist.spawn(DEVICES[number], arg[0], node)
  print(("node %d: peers %s have the mean over 5 devices, exactly"):format(number, table.concat(peers, ", ")))
  return
end

local server = luda.dist.orchestrator { num_nodes = #DEVICES }
local nodes = {}
for n = 1, #DEVICES do
  nodes[n] = io.popen(("%s %s %d %s 2>&1"):format(arg[-1], arg[0], n, server.address))
end
for n = 1, #DEVICES do
  local text = nodes[n]:read("*a")
  nodes[n]:close()
  io.write(text)
  assert(text:find("exactly"), "a node failed")
end
server:close()
