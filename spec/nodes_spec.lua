--- Registered peers on several nodes, each node a process: numbers by every strategy against float64, every disagreement, and
--- who learns what when a node is late, stops, dies or leaves.

local luda = require "luda"
local helper = require "spec.helper"
local nodes = require "spec.nodes"

local dist = luda.dist

describe("nodes", function()
  local orchestrator

  setup(function()
    orchestrator = dist.orchestrator()
  end)

  teardown(function()
    orchestrator:close()
  end)

  local function run(layout, job)
    local wait, places = nodes.start(orchestrator.address, layout, job)
    return wait(), places
  end

  --- The results of all peers in one list.
  local function all_of(results)
    local list = {}
    for _, node in ipairs(results) do
      assert.equal("table", type(node), tostring(node))
      for _, seen in ipairs(node) do
        list[#list + 1] = seen
      end
    end
    return list
  end

  it("that share a secret meet, and no others", function()
    local dir = helper.new_folder()
    local files = { dir .. "/ours", dir .. "/theirs" }
    helper.write(files[1], "a secret of nodes, long enough\n")
    helper.write(files[2], "another secret, also long enough\n")
    os.execute(("chmod 600 '%s' '%s'"):format(files[1], files[2]))
    for _, seen in ipairs(all_of(run({ { 1 }, { 2, 3 } }, { task = "meet", secrets = { files[1], files[1] } }))) do
      assert.same({ "none", 3 }, { seen.kind, seen.sum }, seen.message)
    end
    local told = false
    for _, seen in ipairs(all_of(run({ { 1 }, { 2 } }, { task = "meet", secrets = files, timeout = 1.5 }))) do
      assert.same({ "global", "peer_lost" }, { seen.kind, seen.inner }, seen.message)
      told = told or seen.message:find("secret", 1, true) ~= nil
    end
    assert.is_true(told)
  end)

  local rounds = {}
  for _, strategy in ipairs { "direct", "centralized", "tree", "tree(3)", "ring", "halving" } do
    local rooted = (strategy == "ring" or strategy == "halving") and "tree" or strategy
    rounds[#rounds + 1] = { all_reduce = strategy, reduce = rooted, broadcast = rooted }
    rounds[#rounds + 1] = { global_all_reduce = strategy, global_reduce = rooted, global_broadcast = rooted }
  end
  rounds[#rounds + 1] = { all_reduce = "tree", global_all_reduce = "ring", global_reduce = "tree", global_broadcast = "tree" }

  for _, layout in ipairs { { { 30, 10 }, { 20 } }, { { 5 }, { 30, 10 }, { 20, 50, 40 } } } do
    it(("sum, average and broadcast by every strategy as float64 does (%d nodes), again and again"):format(#layout), function()
      local values, sum, max, count = {}, {}, {}, 0
      for _, peers in ipairs(layout) do
        for _, peer in ipairs(peers) do
          local own = {}
          for i = 1, 7 do
            own[i] = math.cos(peer + 3 * i) * 7
            sum[i] = (sum[i] or 0) + own[i]
            max[i] = math.max(max[i] or -9, own[i])
          end
          values[tostring(peer)], count = own, count + 1
        end
      end
      local mean = {}
      for i, total in ipairs(sum) do
        mean[i] = total / count
      end
      local roots = { layout[1][1], layout[2][1], layout[#layout][#layout[#layout]] }
      local results = run(layout, { task = "numbers", values = values, rounds = rounds, roots = roots })
      for n, node in ipairs(results) do
        assert.equal("table", type(node), tostring(node))
        for p, list in ipairs(node) do
          for i, seen in ipairs(list) do
            assert.tensor_near(sum, seen.sum, 1e-14, 1e-14)
            assert.tensor_near(mean, seen.mean, 1e-14, 1e-14)
            assert.same(max, seen.max)
            assert.same(results[1][1][i].sum, seen.sum)
            assert.same(values[tostring(layout[n][p])], seen.x)
            for _, root in ipairs(roots) do
              local key = tostring(root)
              assert.same(values[key], seen.sent[key])
              if root == layout[n][p] then
                assert.tensor_near(sum, seen.reduced[key], 1e-14, 1e-14)
                assert.tensor_near(mean, seen.averaged[key], 1e-14, 1e-14)
              else
                assert.is_nil(seen.reduced[key] or seen.averaged[key])
              end
            end
          end
        end
      end
    end)
  end

  it("take every element type; halves are added in f32 and rounded once", function()
    for _, seen in ipairs(all_of(run({ { 1, 2 }, { 3, 4, 5 } }, { task = "types", first = 1 }))) do
      for _, dtype in ipairs { "f32", "bf16", "f16", "i64", "u8" } do
        assert.same({ { 15, 15, 15 }, dtype }, seen[dtype])
      end
      assert.equal(30000, seen.large) -- the sum, 150000, is no f16
      assert.equal(258, seen.fine) -- 256 + 0.5 would be rounded away four times
      assert.same({ 0, 3 }, seen.empty)
      assert.equal(15, seen.scalar)
      assert.same({ { 15, 10, 20 }, { 5, 15, 25 } }, seen.view)
      assert.same({ true, false }, seen.any)
    end
  end)

  it("count devices, not nodes, and only those that are still there; data comes in at the data port", function()
    local seen = all_of(run({ { 10, 20 }, { 60 } }, { task = "shrink" }))
    assert.is_true(seen[1].connections > 0)
    for i = 1, 3 do
      assert.equal(30, seen[i].before)
      assert.equal(i > 1 and 40 or nil, seen[i].after)
    end
  end)

  --- One peer differs from the other of its node; then one node from the other.
  it("tell every peer of every node about a disagreement, and go on", function()
    local layout = { { 10, 11 }, { 20, 21 } }
    local cases = { -- call, the kind at the odd peer's node when peers differ, the inner kind when nodes do
      { "shape", "all_reduce_shape_mismatch", "collective_params_mismatch", "shape" },
      { "dtype", "all_reduce_shape_mismatch", "collective_params_mismatch", "dtype" },
      { "halves", "all_reduce_shape_mismatch", "collective_params_mismatch", "dtype" },
      { "operation", "all_reduce_operation_mismatch", "collective_params_mismatch", "reduction" },
      { "reduce_shape", "reduce_shape_mismatch", "collective_params_mismatch", "shape" },
      { "reduce_operation", "reduce_operation_mismatch", "collective_params_mismatch", "reduction" },
      { "root", "reduce_root_mismatch", "collective_params_mismatch", "root" },
      { "kinds", "other", "collective_params_mismatch", "operation" },
      { "kinds_broadcast", "other", "collective_params_mismatch" },
      { "two_tensors", "broadcast_multiple_tensors", "broadcast_multiple_tensors" },
      { "bad_argument", "other", "collective_params_mismatch" },
      { "bad_root", "other", "collective_params_mismatch" },
      { "bad_reduction", "other", "collective_params_mismatch" },
    }
    local calls = {}
    for i, case in ipairs(cases) do
      calls[i] = case[1]
    end
    local results = run(layout, { task = "disagree", calls = calls, odd = 11, roots = { 10, 20 } })
    for i, case in ipairs(cases) do
      for p = 1, 2 do
        assert.equal(case[2], results[1][p][i].kind, case[1])
        assert.same({ "global", case[3] }, { results[2][p][i].kind, results[2][p][i].inner }, case[1])
        assert.same({ 4, 4 }, { results[1][p][i].after, results[2][p][i].after })
      end
    end
    results = run(layout, { task = "disagree", calls = calls, odd_node = 2, roots = { 10, 20 } })
    for i = 1, 8 do
      for _, seen in ipairs(all_of(results)) do
        assert.same({ "global", cases[i][3] }, { seen[i].kind, seen[i].inner }, cases[i][1])
        assert.truthy(seen[i].message:find("nodes disagree about the " .. cases[i][4], 1, true), seen[i].message)
        assert.equal(4, seen[i].after)
      end
    end
  end)

  it("refuse together what none of them can do", function()
    local calls = { "unknown_root", "no_tensor", "two_tensors", "bad_mean", "tracked" }
    local results = run({ { 10 }, { 20, 21 } }, { task = "disagree", calls = calls, odd = 21, roots = { 10 } })
    for _, seen in ipairs(all_of(results)) do
      assert.same({ "global", "unknown_root" }, { seen[1].kind, seen[1].inner })
      assert.truthy(seen[1].message:find("the root, peer 999, is registered at no node", 1, true))
      assert.same({ "global", "broadcast_no_tensor" }, { seen[2].kind, seen[2].inner })
      assert.same({ "global", "broadcast_multiple_tensors" }, { seen[3].kind, seen[3].inner })
      assert.equal("unsupported", seen[4].code)
      assert.equal("graph", seen[5].code)
      for i = 1, 5 do
        assert.equal(3, seen[i].after)
      end
    end
  end)

  it("do not believe a node that announces one thing and sends another", function()
    for n, node in ipairs(run({ { 1 }, { 2 } }, { task = "liars" })) do
      local seen = node[1]
      assert.same({ "global", "peer_sent_incoherent_tensor" }, { seen.reduce.kind, seen.reduce.inner })
      if n == 2 then
        assert.equal("peer_sent_incoherent_tensor", seen.broadcast.inner)
        assert.truthy(seen.broadcast.message:find("announced f32 [2] and sent f32 [3]", 1, true))
      end
      assert.same({ "global", "ring_reduce_impossible" }, { seen.short.kind, seen.short.inner })
      assert.same({ 2, 2 }, seen.after)
      assert.same({ "all_reduce_before_register", "collective_before_register" }, seen.late)
    end
  end)

  it("compare strategies too, with their arity, and only those of the call", function()
    for _, seen in ipairs(all_of(run({ { 1 }, { 2 } }, { task = "strategy" }))) do
      assert.same({ "global", "collective_params_mismatch" }, { seen.kind, seen.inner })
      assert.truthy(seen.message:find("about the strategy: ", 1, true))
      assert.truthy(seen.message:find("sum f32 [2] by tree(2)", 1, true))
      assert.equal(1, seen.sent)
    end
  end)

  it("are refused a second call while one runs", function()
    local results = run({ { 1, 2 }, { 3 } }, { task = "twice" })
    local kinds = { results[1][1].inner or "none", results[1][2].inner or "none" }
    table.sort(kinds)
    assert.same({ "collective_params_mismatch", "none" }, kinds)
  end)

  it("name a node that does not come, or that misses a peer, and go on", function()
    local results, places = run({ { 10, 11 }, { 20 }, { 30 } }, { task = "absent", victim = 2 })
    for n, node in ipairs(results) do
      for _, seen in ipairs(node) do
        if n ~= 2 then
          assert.same({ "global", "timeout", "timeout" }, { seen.kind, seen.inner, seen.code })
          assert.same({ places[2] }, seen.nodes)
          assert.is_true(seen.took <= 2)
        end
        assert.equal(4, seen.after)
      end
    end
    for _, absent in ipairs { 10, 11 } do
      results, places = run({ { 10, 11 }, { 20 } }, { task = "absent", victim = 1, absent = absent })
      local here = results[1][absent == 10 and 2 or 1]
      assert.same({ "other", "timeout" }, { here.kind, here.code })
      assert.same({ absent }, here.peers)
      assert.equal("global", results[2][1].kind)
      assert.truthy(results[2][1].message:find(places[1], 1, true), results[2][1].message)
      assert.equal(3, results[2][1].after)
    end
  end)

  for _, case in ipairs { { "9", "peer_lost" }, { "STOP", "timeout" } } do
    it(("name a node that gets SIG%s in the middle"):format(case[1] == "9" and "KILL" or case[1]), function()
      local mark = helper.new_folder() .. "/pid"
      local wait, places = nodes.start(orchestrator.address, { { 1 }, { 2, 3 }, { 4, 5 } },
        { task = "death", victim = 2, signal = case[1], mark = mark })
      local results = wait(2, function()
        os.execute(("kill -9 $(cat %s) 2>/dev/null"):format(mark))
      end)
      for n, node in ipairs(results) do
        assert.equal(n ~= 2 and "table" or "string", type(node), tostring(node))
        for _, seen in ipairs(n ~= 2 and node or {}) do
          assert.same({ "global", case[2] }, { seen.kind, seen.inner }, seen.message)
          assert.same({ places[2] }, seen.nodes)
          assert.truthy(seen.message:find(places[2], 1, true))
          assert.is_true(seen.took < 5)
          assert.equal("global", seen.again.kind)
        end
      end
    end)
  end

  for _, how in ipairs { "finish", "reset", "loss" } do
    it("learn of a node that leaves by " .. how .. ", and form another group", function()
      local results, places = run({ { 1 }, { 2, 3 }, { 4 } }, { task = "leave", victim = 2, how = how })
      for n, node in ipairs(results) do
        assert.equal("table", type(node), tostring(node))
        for p, seen in ipairs(node) do
          assert.equal(4, seen.first)
          assert.equal(4, seen.after)
          if n ~= 2 then
            assert.same({ "global", "peer_lost" }, { seen.lost.kind, seen.lost.inner }, seen.lost.message)
            assert.same({ places[2] }, seen.lost.nodes)
          elseif how == "reset" then
            assert.equal(p == 2 and "local_server_missing" or nil, seen.lost and seen.lost.kind)
            assert.equal("register_not_first_operation", seen.finish)
          end
        end
      end
    end)
  end
end)
