--- The orchestrator: what it answers to right and wrong messages, one group after another.

local luda = require "luda"
local nodes = require "spec.nodes"
local Post = require "luda.dist.post"

local dist = luda.dist

describe("an orchestrator", function()
  local orchestrator, callers

  before_each(function()
    orchestrator, callers = dist.orchestrator { num_nodes = 2 }, {}
  end)

  after_each(function()
    for _, each in ipairs(callers) do
      each.close()
    end
    orchestrator:close()
    orchestrator:close()
  end)

  local function call(session)
    local new = nodes.caller(orchestrator.address)
    callers[#callers + 1] = new
    return session and new.init(session) or new
  end

  --- Two nodes that are registered.
  local function pair()
    local a, b = call("s1").register("a1"), call("s2").register("b2")
    return a, b, a.answer(), b.answer()
  end

  it("holds a node until all have come, and tells each its place, the others and a fresh session", function()
    local b = call("s2").register("b2", { peers = { 7, 8 } })
    assert.same({ waiting = { come = { "b2" }, wanted = 2, former = {} } }, b.hear())
    local a = call("s1").register("a1")
    local first, second = a.answer(), b.answer()
    local list = { { address = "a1", devices = 1 }, { address = "b2", devices = 2 } }
    assert.same({ 0, list }, { first.registered.node, first.registered.nodes })
    assert.same({ 1, list }, { second.registered.node, second.registered.nodes })
    assert.truthy(first.registered.session:find("^" .. ("%x"):rep(32) .. "$"))
    assert.equal(first.registered.session, second.registered.session)
  end)

  it("first_msg_not_init: anything else comes first, and the line ends", function()
    for _, message in ipairs { { id = 1, finish = true }, { init = 7 }, { init = "" }, { init = ("x"):rep(65) }, { 1 } } do
      local stranger = call()
      stranger.say(message)
      stranger.refused("first_msg_not_init", "the first message must be")
      assert.is_nil(stranger.hear())
    end
  end)

  it("invalid_message: no request, or one without a number, and the line ends", function()
    local wrong = { { id = 1 }, { register = {} }, { id = 0, finish = true }, { id = "1", finish = true }, { init = "s" } }
    for _, message in ipairs(wrong) do
      local node = call("s1")
      node.say(message)
      node.refused("invalid_message", "register and finish are known")
      assert.is_nil(node.hear())
    end
  end)

  it("hangs up on bytes that are no message, and goes on", function()
    local host, port = orchestrator.address:match("^(.*):(%d+)$")
    local garbage = { "GET / HTTP/1.0\\r\\n\\r\\n", "LPS1\\xff\\xff\\xff\\xff", "LPS1\\x02\\x00\\x00\\x00{]", "\\0\\1\\2" }
    for _, bytes in ipairs(garbage) do
      local script = ('exec 3<>/dev/tcp/%s/%s; printf "%s" >&3; timeout 10 cat <&3 | wc -c; echo ${PIPESTATUS[0]}'):format(host,
        port, bytes)
      local pipe = io.popen(("bash -c '%s'"):format(script))
      local text = pipe:read("*a")
      pipe:close()
      assert.truthy(text:find("\n0\n$"), text)
    end
    local _, _, first = pair()
    assert.equal(0, first.registered.node)
  end)

  it("finds time for nodes among many that say nothing, or not enough", function()
    local crowd = Post()
    for i = 1, 400 do
      local line = assert(crowd:connect(orchestrator.address, 5))
      if i % 2 == 0 then
        crowd:send(line, { init = "s" .. i })
      end
    end
    local _, _, first, second = pair()
    assert.same({ 0, 1 }, { first.registered.node, second.registered.node })
    for line = 1, 100 do -- the oldest had to go
      assert.same({ line }, { crowd:receive(2) })
    end
    crowd:close()
  end)

  it("double_register: the session, or the address, is there already", function()
    local a = call("s1").register("a1")
    assert.truthy(a.hear().waiting)
    a.register("c3").refused("double_register", "this session is registered already, as node a1")
    call("s1").register("b2").refused("double_register", "session s1 is registered already, as node a1")
    call("s2").register("a1").refused("double_register", "a node a1 is registered already")
    call("s2").register("b2")
    assert.equal(0, a.answer().registered.node)
    call("s3").register("a1").refused("double_register", "a node a1 is registered already")
  end)

  it("register_params_mismatch: another number of nodes, none, no peers, no address", function()
    local wrong = {
      { { num_nodes = 3 }, "node a1 expects 3 nodes, the group has 2" }, { { num_nodes = 0 }, "num_nodes is 0" },
      { { num_nodes = 1.5 }, "num_nodes is 1.5" }, { { peers = {} }, "there are 0 peers" },
      { { peers = { "x" } }, "there are 1 peers" }, { { address = 7 }, "the address 7" },
    }
    for _, case in ipairs(wrong) do
      call("s1").register("a1", case[1]).refused("register_params_mismatch", case[2])
    end
  end)

  it("register_params_mismatch: the group is complete; another forms when it has gone", function()
    local a, b, first = pair()
    call("s3").register("c3").refused("register_params_mismatch", "node c3 comes to a group of 2 nodes that is complete")
    a.say { id = 2, finish = true }
    assert.same({ id = 2, finished = true }, a.answer())
    assert.same({ lost = "a1" }, b.hear())
    a.register("a1") -- held: the former group still has b2
    local waiting = a.hear().waiting
    assert.same({ { "a1" }, { "b2" } }, { waiting.come, waiting.former })
    b.say { id = 2, finish = true }
    assert.same({ id = 2, finished = true }, b.answer())
    b.register("b2")
    local second = a.answer()
    assert.equal(0, second.registered.node)
    assert.are_not.equal(first.registered.session, second.registered.session)
  end)

  it("duplicate_peer: within a node, and among nodes", function()
    assert.equal(4, call("s1").register("a1", { peers = { 4, 5, 4 } }).refused("duplicate_peer",
      "peer 4 of node a1 is a peer of node a1").peer)
    local a = call("s2").register("a1", { peers = { 4 } })
    assert.truthy(a.hear().waiting)
    assert.equal(4, call("s3").register("b2", { peers = { 3, 4 } }).refused("duplicate_peer",
      "peer 4 of node b2 is a peer of node a1").peer)
  end)

  it("not_registered_on_finish, pending_register_on_finish", function()
    local a = call("s1")
    a.say { id = 1, finish = true }
    a.refused("not_registered_on_finish", "this session is not registered")
    a.register("a1")
    assert.truthy(a.hear().waiting)
    a.say { id = 2, finish = true }
    a.refused("pending_register_on_finish", "node a1 waits to be registered")
    call("s2").register("b2")
    assert.truthy(a.answer().registered)
  end)

  it("tells the others of a node that vanished; one that waited leaves no trace", function()
    local gone = call("s0").register("c3")
    assert.truthy(gone.hear().waiting)
    gone.close()
    table.remove(callers)
    local a, b = pair()
    b.close()
    assert.same({ lost = "b2" }, a.hear())
  end)

  it("takes what the first node says where it has no number of its own", function()
    orchestrator:close()
    orchestrator = dist.orchestrator()
    for _, count in ipairs { 1, 2 } do
      local list = {}
      for i = 1, count do
        list[i] = call("s" .. i).register("n" .. i, { num_nodes = count })
      end
      for i = 1, count do
        assert.equal(count, #list[i].answer().registered.nodes)
        list[i].close()
      end
      callers = {}
    end
    assert.truthy(call("s1").register("a1", { num_nodes = 3 }).hear().waiting)
    call("s2").register("b2", { num_nodes = 2 }).refused("register_params_mismatch", "node b2 expects 2 nodes, the group has 3")
  end)

  it("explains wrong options", function()
    assert.raises("invalid", "num_nodes is 0", dist.orchestrator, { num_nodes = 0 })
    assert.raises("invalid", "host:port", dist.orchestrator, { bind = 7 })
    assert.raises("invalid", 'address "nowhere" must be host:port', dist.orchestrator, { bind = "nowhere" })
    assert.raises("unsupported", "not a loopback address", dist.orchestrator, { bind = "0.0.0.0:0" })
    assert.raises("io", "cannot listen", dist.orchestrator, { bind = orchestrator.address })
  end)
end)
