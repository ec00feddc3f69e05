--- How a node joins a group through the orchestrator, and how it leaves.

local json = require "luda.json"
local now = require("luda.progress").now
local Config = require "luda.dist.config"
local Post = require "luda.dist.post"
local meeting = require "luda.dist.rendezvous"

local fail = Config.raise_global

local M = {}

local LONGEST_PAUSE = 5 -- seconds between two calls of the orchestrator

local function reach(post, config)
  local delay, problem = config.retry_delay, nil
  for attempt = 1, config.connect_attempts do
    local line
    line, problem = post:connect(config.global_address, config.connect_timeout)
    if line then
      return line
    elseif attempt < config.connect_attempts then
      post:receive(delay) -- nothing can come: a pause that a reset ends
      delay = math.min(2 * delay, LONGEST_PAUSE)
    end
  end
  fail("orchestrator_unreachable", "io", "register", "no orchestrator answers after %d attempts: %s", config.connect_attempts,
    (problem:gsub("^register: ", "")))
end

--- What the orchestrator answers to request `id`; notes in `heard` what else it says.
local function answer(post, id, op, timeout, heard)
  local deadline = now() + timeout
  while true do
    local line, text
    repeat
      line, text = post:receive(deadline - now()) -- a signal ends it early
    until line or now() >= deadline
    if not line then
      return nil
    elseif not text then
      fail("orchestrator_unreachable", "peer", op, "the orchestrator closed the connection")
    end
    local fine, message = pcall(json.decode, text)
    message = fine and type(message) == "table" and message or {}
    if type(message.waiting) == "table" or type(message.lost) == "string" then
      for name, value in pairs(message) do
        heard[name] = value
      end
    elseif type(message.error) == "table" and type(message.error.kind) == "string" then
      fail(message.error.kind, "mismatch", op, "%s", tostring(message.error.text))
    elseif message.id == id and (type(message.registered) == "table" or message.finished == true) then
      return message.registered or {}
    else
      fail("wrong_orchestrator_response", "corrupt", op, "something else than an orchestrator answers: %s",
        text:sub(1, 80):gsub("[^ -~]", "?"))
    end
  end
end

local function complete(registered)
  local nodes = registered.nodes
  local sound = type(nodes) == "table" and #nodes > 0 and type(registered.session) == "string" and nodes[registered.node + 1]
  for _, node in ipairs(sound and nodes or {}) do
    sound = sound and type(node.address) == "string" and type(node.devices) == "number"
  end
  if not sound then
    fail("wrong_orchestrator_response", "corrupt", "register", "the orchestrator's answer lacks a session or nodes")
  end
  return registered
end

local function enrol(post, config, peers)
  local line, heard = reach(post, config), {}
  post:send(line, { init = Post.random_session() })
  post:send(line, { id = 1, register = { address = config.node_address, num_nodes = config.num_nodes, peers = peers } })
  local registered = answer(post, 1, "register", config.timeout, heard)
  if registered then
    return complete(registered)
  elseif not heard.waiting then
    fail("orchestrator_unreachable", "timeout", "register", "%s accepts connections and does not answer for %g s",
      config.global_address, config.timeout)
  end
  local waiting = heard.waiting
  local former = #waiting.former > 0 and "; of the former group remain " .. table.concat(waiting.former, ", ") or ""
  fail("timeout", "timeout", "register", "timed out after %g s: %d of %d nodes have come (%s)%s", config.timeout, #waiting.come,
    waiting.wanted, table.concat(waiting.come, ", "), former)
end

--- Ranks connect to those before them, so the last node's data port is free to be where all meet.
local function connect(config, registered)
  local nodes, rank = registered.nodes, registered.node
  local last, session, home = rank == #nodes - 1, registered.session, nil
  local fine, comm = pcall(function()
    local secret = config.secret_file and meeting.read_secret(config.secret_file) or nil
    home = last and rank > 0 and meeting.rendezvous { bind = config.node_address, session = session, size = #nodes,
      secret = secret }
    return meeting.connect { address = nodes[#nodes].address, session = session, rank = rank, size = #nodes, secret = secret,
      encrypt = config.encrypt, timeout = math.min(config.timeout, config.request_timeout),
      port = last and 0 or config.data_service_port }
  end)
  if home then
    home:close()
  end
  if not fine then
    local list = {}
    for i, node in ipairs(nodes) do
      list[i] = ("%d is %s"):format(i - 1, node.address)
    end
    fail("peer_lost", comm.code or "internal", "register", "%s (rank %s)", tostring(comm.message or comm),
      table.concat(list, ", "))
  end
  return comm
end

--- Registers this process and connects it to the other nodes. `attach(comm, post)` gets what the group must hold, as soon as
--- it exists.
---@param config luda.dist.Config
---@param peers integer[] of this node
---@param attach fun(comm: any, post: any)
---@return {address: string, devices: integer}[]
function M.join(config, peers, attach)
  local post = Post()
  local fine, result = pcall(function()
    attach(nil, post.pointer)
    local registered = enrol(post, config, peers)
    attach(connect(config, registered).pointer, nil)
    return registered.nodes
  end)
  post:close() -- the group holds another reference
  if not fine then
    error(result, 0)
  end
  return result
end

--- Tells the orchestrator that this node leaves; takes over the post's reference.
function M.finish(pointer, config)
  local post = Post(pointer)
  local fine, problem = pcall(function()
    local line = 1 -- a node's only connection
    post:send(line, { id = 2, finish = true })
    if not answer(post, 2, "finish", config.request_timeout, {}) then
      fail("orchestrator_unreachable", "timeout", "finish", "%s does not answer for %g s", config.global_address,
        config.request_timeout)
    end
  end)
  post:close()
  if not fine then
    error(problem, 0)
  end
end

return M
