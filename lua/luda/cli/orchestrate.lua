--- luda orchestrate: where the nodes of registered peers find each other.

local M = {}

local USAGE = [[
usage: luda orchestrate [--bind HOST:PORT] [--nodes N]

  --bind HOST:PORT  where to listen (default 127.0.0.1:0, which takes a free port)
  --nodes N         nodes of every group (default: as many as the first node says)

Prints the address and serves one group after another until it is asked to stop.
]]

local VALUES = { ["--bind"] = "bind", ["--nodes"] = "num_nodes" }

local function complain(...)
  io.stderr:write("luda orchestrate: ", string.format(...), "\n", USAGE)
  return 2
end

---@param list string[]
---@return integer status
function M.main(list)
  local options, i = {}, 1
  while list[i] do
    local name = VALUES[list[i]]
    if list[i] == "--help" or list[i] == "-h" then
      io.write(USAGE)
      return 0
    elseif not name then
      return complain("unknown option %s", list[i])
    elseif not list[i + 1] then
      return complain("%s needs a value", list[i])
    end
    options[name] = list[i + 1]
    i = i + 2
  end
  if options.num_nodes then
    local nodes = tonumber(options.num_nodes)
    if not nodes or nodes < 1 or nodes ~= math.floor(nodes) then
      return complain("--nodes must be a positive number, not '%s'", options.num_nodes)
    end
    options.num_nodes = nodes
  end
  require("luda.dist.orchestrator").run(options, function(address)
    io.write(address, "\n")
    io.flush()
  end)
  return 0
end

return M
