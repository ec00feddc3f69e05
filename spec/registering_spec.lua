--- Registering at an orchestrator: what a node learns when that does not work; and the command.

local luda = require "luda"
local helper = require "spec.helper"
local nodes = require "spec.nodes"
local Post = require "luda.dist.post"

local dist = luda.dist

describe("registering with", function()
  local function register(address, more)
    local port = nodes.free_port()
    local config = nodes.config(address, 2, port, { timeout = 5, retry_delay = 0.01, connect_timeout = 1 })
    for name, value in pairs(more or {}) do
      config[name] = value
    end
    return pcall(dist.register, { peer = 1, config = dist.Config(config) })
  end

  local function fails(inner, code, text, ...)
    local fine, err = register(...)
    assert.is_false(fine)
    assert.same({ "global", inner, code }, { err.detail.kind, err.detail.inner, err.code }, tostring(err))
    assert.truthy(err.message:find(text, 1, true), err.message)
    assert.truthy(tostring(err):find("Global(" .. inner .. ")", 1, true))
  end

  it("nobody: orchestrator_unreachable, after as many attempts as wanted", function()
    local address = "127.0.0.1:" .. nodes.free_port()
    fails("orchestrator_unreachable", "io", "after 5 attempts: " .. address .. ": Connection refused", address)
    fails("orchestrator_unreachable", "io", "after 2 attempts", address, { connect_attempts = 2 })
  end)

  it("somebody who never answers, or answers nonsense", function()
    local post = Post()
    post:listen("127.0.0.1:0")
    fails("orchestrator_unreachable", "timeout", "accepts connections and does not answer for 0.3 s", post.address,
      { timeout = 0.3 })
    for _, words in ipairs { '{"pong":1}', '[]', '{"id":1,"registered":{"node":0}}', '{"id":2,"finished":true}',
      '{"id":1,"registered":{"node":0,"session":"s","nodes":[{}]}}' } do
      local pipe = io.popen(("%s spec/work/pretender.lua '%s'"):format(nodes.program, words))
      fails("wrong_orchestrator_response", "corrupt", "orchestrator", pipe:read("*l"), { timeout = 10 })
      pipe:close()
    end
    post:close()
  end)

  it("an orchestrator that goes away meanwhile", function()
    local pipe = io.popen(nodes.program .. " orchestrate & sleep 1; kill -9 $!")
    fails("orchestrator_unreachable", "peer", "the orchestrator closed the connection", pipe:read("*l"), { timeout = 10 })
    pipe:close()
  end)

  it("too few nodes: a deadline says who has come", function()
    local orchestrator = dist.orchestrator()
    fails("timeout", "timeout", "timed out after 0.3 s: 1 of 2 nodes have come (127.0.0.1:", orchestrator.address,
      { timeout = 0.3 })
    orchestrator:close()
  end)

  it("a group that has no place for it: the orchestrator's reasons", function()
    local orchestrator = dist.orchestrator { num_nodes = 3 }
    fails("register_params_mismatch", "mismatch", "expects 2 nodes, the group has 3", orchestrator.address)
    local other = nodes.caller(orchestrator.address).init("s").register("a1", { num_nodes = 3, peers = { 1 } })
    assert.truthy(other.hear().waiting)
    fails("duplicate_peer", "mismatch", "is a peer of node a1", orchestrator.address, { num_nodes = 3 })
    other.close()
    other = nodes.caller(orchestrator.address).init("s").register("127.0.0.1:1", { num_nodes = 3, peers = { 2 } })
    assert.truthy(other.hear().waiting)
    fails("double_register", "mismatch", "a node 127.0.0.1:1 is registered already", orchestrator.address, { num_nodes = 3,
      node_address = "127.0.0.1:1", data_service_port = 1 })
    other.close()
    orchestrator:close()
  end)

  it("a node that is lost before all are connected", function()
    local orchestrator = dist.orchestrator()
    local other = nodes.caller(orchestrator.address).init("s").register("127.0.0.1:1")
    assert.truthy(other.hear().waiting)
    fails("peer_lost", "timeout", "(rank 0 is 127.0.0.1:1, 1 is 127.0.0.1:2", orchestrator.address,
      { request_timeout = 0.3 })
    other.close()
    orchestrator:close()
  end)

  it("a reset in between: local_server_missing, wherever the peers wait", function()
    local orchestrator = dist.orchestrator()
    local nobody = "127.0.0.1:" .. nodes.free_port()
    for _, address in ipairs { orchestrator.address, nobody } do
      local config = nodes.config(address, 2, nodes.free_port(), { num_devices = 2, timeout = 20, retry_delay = 5 })
      local job = { task = "reset", peers = { 0, 1, 2 }, config = config }
      for rank, seen in ipairs(dist.spawn(3, "spec/work/joins.lua", job)) do
        assert.equal(rank > 1 and "local_server_missing" or nil, seen.kind)
        assert.is_true((seen.took or 0) < 10)
      end
    end
    orchestrator:close()
  end)

  it("an orchestrator again, after an error, at every peer", function()
    local orchestrator = dist.orchestrator()
    local config = nodes.config(orchestrator.address, 2, nodes.free_port(), { num_devices = 3, timeout = 0.3 })
    for _, seen in ipairs(dist.spawn(3, "spec/work/joins.lua", { task = "again", peers = { 1, 2, 3 }, config = config })) do
      assert.same({ "timeout", "timeout", 3 }, { seen.first, seen.second, seen.after })
    end
    orchestrator:close()
  end)
end)

describe("luda orchestrate", function()
  it("serves until it is killed; the nodes go on without it, and learn of it when they finish", function()
    local file = helper.new_folder() .. "/address"
    helper.write(file, "")
    local pipe = io.popen(("%s orchestrate --nodes 2 >%s 2>&1 & echo $!"):format(nodes.program, file))
    local process = tonumber(pipe:read("*l"))
    pipe:close()
    finally(function()
      os.execute(("kill -9 %d 2>/dev/null"):format(process))
    end)
    local address
    for _ = 1, 200 do
      address = address or helper.read(file):match("^(127%.0%.0%.1:%d+)\n$")
      os.execute(address and "true" or "sleep 0.05")
    end
    assert.truthy(address)
    local results = nodes.start(address, { { 1 }, { 2, 3 } }, { task = "orphans", orchestrator = process })()
    for _, node in ipairs(results) do
      assert.equal("table", type(node), tostring(node))
      for p, seen in ipairs(node) do
        assert.same({ 3, 3 }, { seen.before, seen.after })
        if p == #node then -- the last peer closes the line
          assert.equal("orchestrator_unreachable", seen.register.inner)
        end
      end
    end
    local told = 0
    for _, node in ipairs(results) do
      for _, seen in ipairs(node) do
        told = told + (seen.finish.inner == "orchestrator_unreachable" and 1 or 0)
      end
    end
    assert.equal(2, told)
  end)

  it("ends in order when asked, and explains itself", function()
    local pipe = io.popen(([[%s orchestrate >/dev/null & sleep 0.5; kill -TERM $!; wait $!; echo status $?
      %s orchestrate --nodes none 2>&1; echo status $?; %s orchestrate --port 1 2>&1; %s orchestrate --help]]):format(
      nodes.program, nodes.program, nodes.program, nodes.program))
    local text = pipe:read("*a")
    pipe:close()
    assert.truthy(text:find("status 0\n", 1, true), text)
    assert.truthy(text:find("--nodes must be a positive number, not 'none'", 1, true), text)
    assert.truthy(text:find("status 2\n", 1, true), text)
    assert.truthy(text:find("unknown option --port", 1, true), text)
    assert.truthy(text:find("usage: luda orchestrate", 1, true), text)
  end)
end)
