--- Registered peers: numbers by every strategy against plain float64, the life cycle, and every error with its condition.

local luda = require "luda"

local dist = luda.dist

local function threads(count, job)
  job.peers = job.peers or { 30, 10, 20, 50, 40 }
  return dist.spawn(count, "spec/work/peers.lua", job, { timeout = 60 })
end

--- Values of both signs by peer, and what their sum is in float64.
local function samples(peers, count)
  local values, sum = {}, {}
  for _, peer in ipairs(peers) do
    values[peer] = {}
    for i = 1, count do
      values[peer][i] = math.cos(peer + 3 * i) * 7
      sum[i] = (sum[i] or 0) + values[peer][i]
    end
  end
  return values, sum
end

describe("registered peers", function()
  for _, strategy in ipairs { "direct", "centralized", "tree", "tree(3)", "ring", "halving" } do
    it("reduce and broadcast by " .. strategy .. " as float64 sums do", function()
      local rooted = (strategy == "ring" or strategy == "halving") and "tree" or strategy
      for _, count in ipairs { 1, 2, 3, 5 } do
        local peers = { unpack({ 30, 10, 20, 50, 40 }, 1, count) }
        local values, sum = samples(peers, 7)
        local mean = {}
        for i, total in ipairs(sum) do
          mean[i] = total / count
        end
        local root = peers[math.min(2, count)]
        local results = threads(count, { task = "numbers", peers = peers, values = values, root = root,
          config = { all_reduce = strategy, reduce = rooted, broadcast = rooted } })
        for rank, seen in ipairs(results) do
          assert.tensor_near(sum, seen.sum, 1e-14, 1e-14)
          assert.tensor_near(mean, seen.mean, 1e-14, 1e-14)
          assert.same(results[1].sum, seen.sum)
          assert.same(values[root], seen.sent)
          assert.same(values[peers[rank]], seen.x)
          if peers[rank] == root then
            assert.tensor_near(sum, seen.reduced, 1e-14, 1e-14)
          else
            assert.is_nil(seen.reduced)
          end
        end
      end
    end)
  end

  it("are ranked by their numbers, whoever comes first: the same bits each time", function()
    local values = { [1] = { 1e16 }, [2] = { 1 }, [3] = { -1e16 } }
    for _, peers in ipairs { { 1, 2, 3 }, { 3, 2, 1 }, { 2, 3, 1 } } do
      for _, seen in ipairs(threads(3, { task = "numbers", peers = peers, values = values, root = 1 })) do
        assert.equal((1e16 + 1) - 1e16, seen.sum[1])
      end
    end
  end)

  it("go on without one that has finished, also from the middle of a call", function()
    for rank, seen in ipairs(threads(3, { task = "finish_meanwhile" })) do
      assert.equal(rank > 1 and 30 or nil, seen.sum)
    end
  end)

  it("need no thread where one is enough", function()
    luda.scope(function()
      local peer = dist.register { peer = 4 }
      assert.same({ 1, -2 }, peer:all_reduce(luda.tensor { 1, -2 }, "mean"):totable())
      assert.same({ 3 }, peer:reduce(luda.tensor { 3 }, "sum", 4):totable())
      assert.same({ 3 }, peer:broadcast(luda.tensor { 3 }):totable())
      peer:finish()
    end)
  end)
end)

describe("the error", function()
  local function rejects(kind, options, text)
    local err = assert.raises("invalid", text, dist.register, { peer = 1, config = dist.Config(options) })
    assert.equal(kind, err.detail.kind)
  end

  it("invalid_config: some of the four fields of several nodes, a strategy that does not exist, no devices", function()
    local four = { num_nodes = 2, global_address = "127.0.0.1:1", node_address = "127.0.0.1:2", data_service_port = 2 }
    for missing in pairs(four) do
      local options = {}
      for name, value in pairs(four) do
        options[name] = name ~= missing and value or nil
      end
      rejects("invalid_config", options, "set without " .. missing)
    end
    for name, value in pairs { num_nodes = 1.5, data_service_port = 0, node_address = "127.0.0.1:3", global_address = 7 } do
      local options = { [name] = value }
      for other, usual in pairs(four) do
        options[other] = options[other] or usual
      end
      rejects("invalid_config", options, name .. " is ")
    end
    rejects("invalid_config", { reduce = "ring" }, "reduce is the string 'ring'; it can be direct, tree, centralized")
    rejects("invalid_config", { num_devices = 0 }, "num_devices is 0")
    rejects("invalid_config", { num_devices = 1.5 }, "num_devices is 1.5")
    for _, name in ipairs { "timeout", "connect_timeout", "retry_delay", "request_timeout" } do
      for _, value in ipairs { 0, 0.0009, 86401, 0 / 0 } do
        rejects("invalid_config", { [name] = value }, ("%s is %s; it can be 0.001 to 86400"):format(name, tostring(value)))
      end
    end
    for _, value in ipairs { 0, 1.5, 65 } do
      rejects("invalid_config", { connect_attempts = value }, ("connect_attempts is %s; it can be 1 to 64"):format(value))
    end
  end)

  it("invalid_tree_arity: a tree without children", function()
    rejects("invalid_tree_arity", { all_reduce = "tree(0)" }, "an arity of at least 1")
    rejects("invalid_tree_arity", { global_broadcast = "tree(0)" }, "an arity of at least 1")
  end)

  it("multiple_register: the number is registered already", function()
    local results = threads(3, { task = "refused", peers = { 1, 2, 1 } })
    assert.equal("multiple_register", results[3].kind)
    assert.truthy(results[3].message:find("peer 1 is registered already"))
    assert.same({ 2, 2 }, { results[1], results[2] })
  end)

  it("register_params_mismatch: another configuration, in any field; or the group is complete", function()
    for name, value in pairs { num_devices = 3, all_reduce = "ring", global_reduce = "tree", timeout = 19 } do
      local results = threads(3, { task = "refused", config = { [name] = value } })
      assert.equal("register_params_mismatch", results[3].kind)
      assert.truthy(results[3].message:find(name .. "=" .. value, 1, true))
      assert.same({ 2, 2 }, { results[1], results[2] })
    end
    local results = threads(3, { task = "refused" })
    assert.equal("register_params_mismatch", results[3].kind)
    assert.truthy(results[3].message:find("a group of 2 that is complete (peers 10, 30)", 1, true))
  end)

  it("register_not_first_operation: a call, or finish, before registering", function()
    for _, seen in ipairs(threads(3, { task = "order" })) do
      for _, call in ipairs { "all_reduce", "broadcast", "reduce", "finish" } do
        assert.equal("register_not_first_operation", seen[call])
      end
    end
  end)

  it("multiple_unregister: a second finish; the others go on", function()
    local results = threads(3, { task = "order" })
    assert.equal("multiple_unregister", results[1].again.kind)
    assert.truthy(results[1].again.message:find("registered are 10, 20", 1, true))
    assert.equal("register_not_first_operation", results[1].after)
    assert.same({ { 2, 2 }, { 2, 2 } }, { results[2].rest, results[3].rest })
  end)

  local function all_learn(call, kind, text)
    it(kind .. ": " .. call .. ", by every peer, and the group goes on", function()
      for odd = 0, 2 do
        for _, seen in ipairs(threads(3, { task = "disagree", call = call, odd = odd })) do
          assert.equal(kind, seen.kind)
          assert.truthy(seen.message:find(text, 1, true), seen.message)
          assert.same({ 3, 3 }, seen.after)
        end
      end
    end)
  end

  all_learn("all_reduce_shape", "all_reduce_shape_mismatch", "all_reduce sum f32 [2]")
  all_learn("all_reduce_dtype", "all_reduce_shape_mismatch", "all_reduce sum f64 [3]")
  all_learn("all_reduce_operation", "all_reduce_operation_mismatch", "all_reduce mean f32 [3]")
  all_learn("reduce_shape", "reduce_shape_mismatch", "reduce sum f32 [2]")
  all_learn("reduce_operation", "reduce_operation_mismatch", "reduce mean f32 [3]")
  all_learn("reduce_root", "reduce_root_mismatch", "reduce sum f32 [3] root 0")
  all_learn("unknown_root", "register_not_first_operation", "the root, peer 99, is not registered; registered are 10, 20, 30")
  all_learn("no_tensor", "broadcast_no_tensor", "no rank passes a tensor")
  all_learn("two_tensors", "broadcast_multiple_tensors", "pass a tensor each")
  all_learn("kinds", "other", "disagree about the operation")

  it("other: what is wrong at one peer is told to all, and names it", function()
    local results = threads(3, { task = "disagree", call = "bad_argument", odd = 1 })
    assert.equal("invalid", results[2].code)
    assert.truthy(results[2].message:find("a tensor is needed, not 7", 1, true))
    for _, rank in ipairs { 1, 3 } do
      assert.equal("mismatch", results[rank].code)
      assert.same({ 10 }, results[rank].peers)
      assert.same({ 3, 3 }, results[rank].after)
    end
  end)

  it("local_server_missing: a reset while peers wait in register", function()
    local results = threads(3, { task = "reset" })
    for rank = 2, 3 do
      assert.equal("local_server_missing", results[rank].kind)
      assert.equal("cancelled", results[rank].code)
      assert.equal(3, results[rank].after)
    end
  end)

  it("local_server_missing: a reset while peers wait in a call; afterwards nobody is registered", function()
    local results = threads(3, { task = "reset", registered = true })
    for rank = 2, 3 do
      assert.equal("local_server_missing", results[rank].kind)
      assert.equal(3, results[rank].after)
    end
    assert.equal("register_not_first_operation", results[1].kind)
    assert.equal("register_not_first_operation", results[1].finish)
  end)

  it("other: a deadline, in register and in a call, names who has come and who has not", function()
    local config = { timeout = 0.3 }
    local results = threads(3, { task = "absent", config = config })
    for rank = 2, 3 do
      assert.same({ "other", "timeout" }, { results[rank].kind, results[rank].code })
    end
    assert.truthy((results[2].message .. results[3].message):find("2 of 3 peers have come (10, 20)", 1, true))
    for rank, seen in ipairs(threads(3, { task = "absent", registered = true, config = config })) do
      assert.equal(rank > 1 and "timeout" or nil, seen.code)
      assert.same(rank > 1 and { 30 } or nil, seen.peers)
    end
  end)

  it("other: a peer that went away without finishing breaks the group until it is formed anew", function()
    for rank, seen in ipairs(threads(3, { task = "lost" })) do
      assert.equal(3, seen.after)
      if rank > 1 then
        assert.equal("peer", seen[1].code)
        assert.equal("peer", seen[2].code)
        assert.truthy(seen[2].message:find("lost peer 30"))
      end
    end
  end)
end)
