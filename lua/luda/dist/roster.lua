--- What an orchestrator knows: which nodes wait to register, which form the live group. One group after another.
--
-- A node says { init = SESSION }, then requests { id =, register = { address =, num_nodes =, peers = } } and
-- { id =, finish = true }. It hears { waiting = } while it waits, an answer { id =, registered = | finished = | error = }, and
-- { lost = ADDRESS } when another node of its group has gone.

local class = require "luda.class"
local json = require "luda.json"
local Post = require "luda.dist.post"

---@class luda.dist.Roster
---@field num_nodes? integer what every group must have; nil: what the first node says
local Roster = class("luda.dist.Roster")

---@param post luda.dist.Post
---@param num_nodes? integer
function Roster:init(post, num_nodes)
  self.post, self.num_nodes = post, num_nodes
  self.guests = {} -- by connection
  self.pending = {} -- guests that wait, in the order in which they came
  self.live = nil -- the group: a list of guests, and `left`, who has gone
end

local function failure(kind, text, ...)
  return { kind = kind, text = text:format(...) }
end

local function is_count(value)
  return type(value) == "number" and value == math.floor(value) and value >= 1
end

local function is_peers(list)
  for i, peer in ipairs(type(list) == "table" and list or {}) do
    if type(peer) ~= "number" or peer ~= math.floor(peer) then
      return false
    elseif i == #list then
      return true
    end
  end
  return false
end

--- Whoever counts for the next registration: those who wait, and the live group.
function Roster:others()
  local list = { unpack(self.pending) }
  for _, guest in ipairs(self.live or {}) do
    list[#list + 1] = guest
  end
  return list
end

local function doubled(self, guest, asked)
  if guest.address then
    return failure("double_register", "this session is registered already, as node %s", guest.address)
  end
  for _, other in ipairs(self:others()) do
    if other.address == asked.address then
      return failure("double_register", "a node %s is registered already", asked.address)
    elseif other.session == guest.session then
      return failure("double_register", "session %s is registered already, as node %s", guest.session, other.address)
    end
  end
end

local function mismatched(self, asked)
  local wanted = self.num_nodes or (self.pending[1] and self.pending[1].num_nodes)
  if not is_count(asked.num_nodes) or type(asked.address) ~= "string" or not is_peers(asked.peers) then
    return failure("register_params_mismatch", "num_nodes is %s, the address %s, and there are %d peers; one of each is needed",
      tostring(asked.num_nodes), tostring(asked.address), type(asked.peers) == "table" and #asked.peers or 0)
  elseif wanted and asked.num_nodes ~= wanted then
    return failure("register_params_mismatch", "node %s expects %d nodes, the group has %d", asked.address, asked.num_nodes,
      wanted)
  elseif self.live and self.live.left == 0 then
    return failure("register_params_mismatch", "node %s comes to a group of %d nodes that is complete; another can form when "
      .. "they have finished", asked.address, #self.live)
  end
end

local function repeated(self, asked)
  local owner = {}
  for _, other in ipairs(self:others()) do
    for _, peer in ipairs(other.peers) do
      owner[peer] = other.address
    end
  end
  for _, peer in ipairs(asked.peers) do
    if owner[peer] then
      local problem = failure("duplicate_peer", "peer %d of node %s is a peer of node %s", peer, asked.address, owner[peer])
      problem.peer = peer
      return problem
    end
    owner[peer] = asked.address
  end
end

--- Tells those who wait who has come, or makes them a group.
function Roster:advance()
  local pending = self.pending
  local wanted, addresses = pending[1] and pending[1].num_nodes, {}
  for i, guest in ipairs(pending) do
    addresses[i] = guest.address
  end
  if self.live or #pending < (wanted or 1) then
    local former = {}
    for i, guest in ipairs(self.live or {}) do
      former[i] = guest.address
    end
    for _, guest in ipairs(pending) do
      self.post:send(guest.who, { waiting = { come = addresses, wanted = wanted, former = former } })
    end
    return
  end
  table.sort(pending, function(a, b)
    return a.address < b.address
  end)
  local nodes, session = {}, Post.random_session()
  for i, guest in ipairs(pending) do
    nodes[i] = { address = guest.address, devices = #guest.peers }
  end
  for i, guest in ipairs(pending) do
    self.post:send(guest.who, { id = guest.request, registered = { node = i - 1, nodes = nodes, session = session } })
  end
  self.live, self.pending = pending, {}
  self.live.left = 0
end

local function remove(list, guest)
  for i, other in ipairs(list) do
    if other == guest then
      return table.remove(list, i)
    end
  end
end

--- Takes a node out of the group or the queue; those who remain learn of it.
function Roster:leave(guest)
  local was_live = self.live and remove(self.live, guest)
  if was_live then
    self.live.left = self.live.left + 1
    for _, other in ipairs(self.live) do
      self.post:send(other.who, { lost = guest.address })
    end
    if #self.live == 0 then
      self.live = nil
    end
  end
  if was_live or remove(self.pending, guest) then
    guest.address = nil
    self:advance()
  end
end

function Roster:register(guest, asked)
  local problem = doubled(self, guest, asked) or mismatched(self, asked) or repeated(self, asked)
  if problem then
    return problem
  end
  guest.address, guest.num_nodes, guest.peers = asked.address, asked.num_nodes, asked.peers
  table.insert(self.pending, guest)
  self.post:keep(guest.who)
  self:advance()
end

function Roster:finish(guest)
  for _, other in ipairs(self.pending) do
    if other == guest then
      return failure("pending_register_on_finish", "node %s waits to be registered", guest.address)
    end
  end
  if not guest.address then
    return failure("not_registered_on_finish", "this session is not registered")
  end
  self.post:send(guest.who, { id = guest.finishing, finished = true })
  self:leave(guest)
end

--- What is wrong with a message, or nil; a second value where the connection ends with it.
local function handle(self, guest, message)
  if type(message) ~= "table" then
    return failure(guest.session and "invalid_message" or "first_msg_not_init", "a message must be a JSON object"), true
  elseif not guest.session then
    if type(message.init) ~= "string" or #message.init < 1 or #message.init > 64 then
      return failure("first_msg_not_init", "the first message must be {\"init\": session}"), true
    end
    guest.session = message.init
  elseif type(message.register) == "table" and is_count(message.id) then
    guest.request = guest.address and guest.request or message.id
    return self:register(guest, message.register)
  elseif message.finish == true and is_count(message.id) then
    guest.finishing = message.id
    return self:finish(guest)
  else
    return failure("invalid_message", "register and finish are known, each with an id from 1"), true
  end
end

function Roster:take(who, text)
  local guest = self.guests[who] or { who = who }
  self.guests[who] = text and guest or nil
  if not text then
    return self:leave(guest)
  end
  local fine, message = pcall(json.decode, text)
  local problem, fatal
  if fine then
    problem, fatal = handle(self, guest, message)
  else
    problem, fatal = failure("invalid_message", "this is not JSON"), true
  end
  if problem then
    self.post:send(who, { id = fine and type(message) == "table" and message.id or nil, error = problem })
  end
  if fatal then
    self.guests[who] = nil
    self:leave(guest)
    self.post:drop(who)
  end
end

--- Serves until `over()` says so; a stopped post raises.
---@param over fun(): boolean
function Roster:serve(over)
  while not over() do
    local who, text = self.post:receive(0.5)
    if who then
      self:take(who, text)
    end
  end
end

return Roster
