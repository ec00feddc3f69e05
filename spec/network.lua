--- A network of its own for the ranks of a spec: a namespace whose loopback is the only cable, and which can be cut between
-- two ranks without anybody hearing of it.

local ffi = require "ffi"
local helper = require "spec.helper"
local json = require "luda.json"
local processes = require "spec.processes"

local M = {}

local PROGRAM = (os.getenv("LUDA_BUILD") or "build") .. "/luda"

-- Routes by port come before what is local.
local SET_UP = "ip link set lo up && ip rule add pref 100 lookup local && ip rule del pref 0 && " ..
  "ip rule add pref 9 ipproto tcp sport 1 dport 1 blackhole"

--- Why there can be no such network here; nil: it can be made.
function M.missing()
  for _, program in ipairs { "unshare", "nsenter", "ip", "ss" } do
    if not processes.works("command -v " .. program) then
      return "there is no program " .. program
    end
  end
  return not processes.works(("unshare -n sh -c '%s'"):format(SET_UP)) and "no network namespace can be made (not root?)" or nil
end

local Network = {}
Network.__index = Network

local open_networks = {}

--- A namespace with a meeting for each of the sizes.
---@param sizes integer[]
---@param tune? string shell commands that shape it
function M.new(sizes, tune)
  local file = helper.new_folder() .. "/homes.json"
  local pid = processes.spawn(("exec unshare -n sh -c '%s && %s; exec %s spec/work/fault_home.lua %s %s'"):format(SET_UP,
    tune or ":", PROGRAM, file, table.concat(sizes, " ")))
  local network = setmetatable({ pid = pid, rules = 0 }, Network)
  open_networks[#open_networks + 1] = network
  local ends, text = processes.now() + 20, nil
  repeat
    processes.sleep(0.01)
    local opened = io.open(file)
    if opened then
      text = opened:read("*a")
      opened:close()
    end
  until text or processes.now() > ends
  network.homes = json.decode(assert(text, "the network's meetings did not open"))
  network.prefix = ("nsenter -t %d -n"):format(pid)
  return network
end

function Network:command(text)
  local pipe = assert(io.popen(("%s sh -c '%s'"):format(self.prefix, text)))
  local output = pipe:read("*a")
  pipe:close()
  return output
end

--- Pairs of ports of the connections between a process and others.
function Network:ports(one, others)
  local owner, found = {}, {}
  local listing = self:command("ss -tnpH")
  for here, there, pid in listing:gmatch("127.0.0.1:(%d+)%s+127.0.0.1:(%d+)%s+users:.-pid=(%d+)") do
    owner[here .. " " .. there] = tonumber(pid)
  end
  for ports, pid in pairs(owner) do
    local here, there = ports:match("(%d+) (%d+)")
    for _, other in ipairs(others) do
      if pid == one and owner[there .. " " .. here] == other then
        found[#found + 1] = { here, there }
      end
    end
  end
  assert(#found >= 2 * #others, "fewer connections than expected")
  return found
end

--- Whatever one process sends the others disappears, and the other way round.
function Network:cut(one, others)
  local batch = {}
  for _, ports in ipairs(self:ports(one, others)) do
    for _, rule in ipairs { "sport %s dport %s", "dport %s sport %s" } do
      self.rules = self.rules + 1
      batch[#batch + 1] = ("rule add pref %d ipproto tcp %s blackhole"):format(9 + self.rules, rule:format(ports[1], ports[2]))
    end
  end
  self:command(("echo \"%s\" | ip -batch -"):format(table.concat(batch, "\n")))
end

--- The ends of these connections that the process does not own any more, or never will again, forget them.
function Network:forget(ports)
  for _, pair in ipairs(ports) do
    self:command(("ss -Kt sport = :%s and dport = :%s >/dev/null 2>&1"):format(pair[1], pair[2]))
  end
end

--- All cables are whole again.
function Network:mend()
  local batch = {}
  for i = 1, self.rules do
    batch[i] = "rule del pref " .. 9 + i
  end
  self.rules = 0
  self:command(("echo \"%s\" | ip -batch -"):format(table.concat(batch, "\n")))
end

--- After every test; the namespace goes with its last process.
function M.finish()
  for _, network in ipairs(open_networks) do
    ffi.C.kill(network.pid, processes.KILL)
    processes.wait(network.pid, 10)
  end
  open_networks = {}
end

return M
