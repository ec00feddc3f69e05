--- Nodes of registered peers as processes, for specs.

local assert = require "luassert"
local helper = require "spec.helper"
local json = require "luda.json"
local Post = require "luda.dist.post"

local M = { program = (os.getenv("LUDA_BUILD") or "build") .. "/luda" }

local next_port = 20000 + (os.time() * 37 + tonumber(tostring({}):match("0x(%x+)"):sub(-6), 16)) % 9000

--- A port that nobody listens at, below those that the system gives to connections.
function M.free_port()
  while true do
    next_port = next_port < 29000 and next_port + 1 or 20000
    local post = Post()
    local free = pcall(post.listen, post, "127.0.0.1:" .. next_port)
    post:close()
    if free then
      return next_port
    end
  end
end

function M.config(address, nodes, port, more)
  local config = { num_nodes = nodes, global_address = address, node_address = "127.0.0.1:" .. port, data_service_port = port }
  for name, value in pairs(more or {}) do
    config[name] = value
  end
  return config
end

--- Starts a node a list of peers in `layout`; returns a function that waits for what their peers return, and the addresses.
--- That function calls `before_last`, if given, when only the node `last` is missing.
function M.start(address, layout, job)
  local dir, pipes, places, ports = helper.new_folder(), {}, {}, {}
  for i = 1, #layout do
    ports[i] = M.free_port()
    places[i] = "127.0.0.1:" .. ports[i]
  end
  table.sort(places)
  job.roots = job.roots or {}
  for i, peers in ipairs(layout) do
    local port = tonumber(places[i]:match(":(%d+)"))
    job.node, job.peers = i, peers
    job.config = M.config(address, #layout, port, { num_devices = #peers, timeout = job.timeout or 20 })
    helper.write(("%s/%d"):format(dir, i), json.encode(job))
    pipes[i] = io.popen(("%s spec/work/node.lua %s/%d 2>&1"):format(M.program, dir, i))
  end
  local results = {}
  local function read(i)
    local text = pipes[i]:read("*a")
    pipes[i]:close()
    local fine, result = pcall(json.decode, text:match("([^\n]*)\n$"))
    results[i] = fine and result or text
  end
  return function(last, before_last)
    for i = 1, #layout do
      if i ~= last then
        read(i)
      end
    end
    if last then
      before_last()
      read(last)
    end
    return results
  end, places
end

--- A node that says what it is told to.
function M.caller(address)
  local post, id = Post(), 0
  local line = assert(post:connect(address, 5))
  local self = {}

  function self.say(message)
    return post:send(line, message)
  end

  --- The next message, nil when the orchestrator has hung up.
  function self.hear(timeout)
    local from, text = post:receive(timeout or 5)
    assert(from, "the orchestrator says nothing")
    return text and json.decode(text)
  end

  --- Waits for an answer, past news.
  function self.answer()
    while true do
      local message = self.hear()
      if not message or not (message.waiting or message.lost) then
        return message
      end
    end
  end

  function self.register(place, more)
    id = id + 1
    local asked = { address = place, num_nodes = 2, peers = { tonumber(place:match("%d+")) } }
    for name, value in pairs(more or {}) do
      asked[name] = value
    end
    self.say { id = id, register = asked }
    return self
  end

  function self.init(session)
    self.say { init = session }
    return self
  end

  function self.refused(kind, text)
    local message = self.answer()
    assert.equal(kind, message and message.error and message.error.kind)
    assert.truthy(message.error.text:find(text, 1, true), message.error.text)
    return message.error
  end

  function self.close()
    post:close()
  end

  return self
end

return M
