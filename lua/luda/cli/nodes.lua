--- The launchers of several hosts: a communicator of their own, made anew for each start of the ranks, on which node 0 says
-- where its ranks meet, and all tell each other how theirs ended.

local lib = require "luda.ffi"
local dist = require "luda.dist"
local errors = require "luda.error"
local session = require "luda.dist.session"
local create = require "luda.create"
local scope = require "luda.scope"

local ffi = lib.ffi

local M = {}

local TEXT = 512
-- Seconds to wait for launchers whose ranks still work: no limit, since a launcher that dies is noticed at once.
local WORKING = 1e7

--- One text from each node, on every node.
local function share(comm, text, timeout)
  return scope.scope(function()
    local own = create.zeros({ TEXT }, { dtype = "u8" })
    ffi.copy(own:data(), text:sub(1, TEXT))
    local all, texts = comm:all_gather(own, { timeout = timeout }), {}
    for node = 1, comm.size do
      texts[node] = ffi.string(all:data() + (node - 1) * TEXT, TEXT):match("^%Z*")
    end
    return texts
  end)
end

---@class luda.cli.Link
---@field comm luda.Comm of the launchers
---@field address string where the ranks meet
---@field session string
---@field restarts integer how many starts more there are, as node 0 says
local Link = {}
Link.__index = Link

--- Meets the other launchers; all nodes must have been started with the same counts of ranks.
---@param options {nodes: integer, node: integer, rendezvous: string, session: string, secret: string?, timeout: number,
---restarts: integer, counts: string, size: integer}
---@param start integer how many starts there were before
function M.join(options, start)
  local self = setmetatable({}, Link)
  local id = session("launchers", options.rendezvous, options.session, options.nodes, start)
  local server = options.node == 0
    and dist.rendezvous { bind = options.rendezvous, session = id, size = options.nodes, secret = options.secret }
  self.comm = dist.connect { address = options.rendezvous, session = id, rank = options.node, size = options.nodes,
    timeout = options.timeout, secret = options.secret }
  if server then
    server:close()
    self.ranks = dist.rendezvous { bind = options.rendezvous:gsub(":%d+$", ":0"), size = options.size, secret = options.secret }
  end
  local own = server and ("%s %s %d %s"):format(self.ranks.address, self.ranks.session, options.restarts, options.counts)
    or options.counts
  local texts = share(self.comm, own, options.timeout)
  local address, number, restarts, counts = texts[1]:match("^(%S+) (%S+) (%d+) (.*)$")
  for node = 2, options.nodes do
    if texts[node] ~= counts then
      errors.raise("invalid", "run: node 0 has %s ranks by node, node %d has %s; -n must be the same on all", counts, node - 1,
        texts[node])
    end
  end
  self.address, self.session, self.restarts, self.timeout = address, number, tonumber(restarts), options.timeout
  return self
end

--- The outcomes of all nodes, nil for those that could not be asked; then a text says why.
---@param outcome {status: integer, rank: integer, signal: integer, stopped: boolean}
---@return table[]? outcomes, string? problem
function Link:share(outcome)
  local own = ("%d %d %d %d"):format(outcome.status, outcome.rank, outcome.signal, outcome.stopped and 1 or 0)
  local ok, texts = pcall(share, self.comm, own, outcome.status == 0 and WORKING or self.timeout)
  if not ok then
    local problem = texts -- the launchers' ranks are the nodes
    if type(problem) ~= "table" or not (problem.culprits and problem.culprits[1]) then
      error(problem, 0)
    end
    return nil, ("node %s's launcher is gone"):format(table.concat(problem.culprits, ", "))
  end
  local outcomes = {}
  for node, text in ipairs(texts) do
    local status, rank, signal, stopped = text:match("^(%d+) (%-?%d+) (%d+) (%d)$")
    outcomes[node] = { status = tonumber(status), rank = tonumber(rank), signal = tonumber(signal), stopped = stopped == "1",
      node = node - 1 }
  end
  return outcomes
end

function Link:close()
  if self.ranks then
    self.ranks:close()
  end
  self.comm:close()
end

return M
