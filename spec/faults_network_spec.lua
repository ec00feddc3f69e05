--- Networks that go wrong in silence: cables pulled, hosts that come back without knowing anybody, bytes that trickle.

local helper = require "spec.helper"
local network = require "spec.network"
local processes = require "spec.processes"

local DEADLINE, PATIENCE = 0.3, 2.5

before_each(helper.before)
after_each(function()
  processes.finish()
  network.finish()
  helper.after()
end)

local missing = network.missing()
if missing then
  io.write(("faults: networks of their own are not tried: %s\n"):format(missing))
end

local function with_network(name, body)
  it(name, function()
    if missing then
      pending(missing)
    end
    body()
  end)
end

--- Starts ranks in a network of their own, which hold before their first sum: what happens to the network then, they find
-- when they go on. With their processes' numbers.
local function start(job, tune)
  local net = network.new({ job.size, job.survivors }, tune)
  job.homes, job.prefix, job.environment, job.patient = net.homes, net.prefix, "export LUDA_LANE=off", true
  job.hold = true
  local group, pids = processes.start(job), {}
  for rank = 0, job.size - 1 do
    group:expect(rank, "ready")
    pids[rank] = group.pids[rank]
  end
  return group, net, pids
end

local function expect_failure(group, fault, rank, code, culprits, pattern, moment)
  local seen = group:expect(rank, "failed")
  assert.equal(code, seen.code, seen.message)
  assert.same(culprits, seen.culprits, seen.message)
  assert.truthy(seen.message:find(pattern), seen.message)
  assert.is_true(seen.at - moment < DEADLINE + PATIENCE, ("%g s"):format(seen.at - moment))
  processes.measured(fault, seen.at - moment)
end

describe("a pulled cable", function()
  with_network("of one rank: all others name it, and it names all others", function()
    local group, net, pids = start { size = 4, survivors = 3, victims = { 2 }, act = "loop", deadline = DEADLINE, count = 100000 }
    net:cut(pids[2], { pids[0], pids[1], pids[3] })
    local moment = group:go()
    for _, rank in ipairs { 0, 1, 3 } do
      expect_failure(group, "cable of a rank pulled", rank, "timeout", { 2 }, "rank 2 does not answer rank %d", moment)
    end
    local seen = group:expect(2, "failed") -- one that answered a moment ago may be missing
    assert.equal("timeout", seen.code)
    assert.truthy(seen.message:find("ranks? [013 ,and]+ do[es]* not answer rank 2"), seen.message)
    for _, rank in ipairs { 0, 1, 3 } do
      local after = group:expect(rank, "after")
      assert.same({ 7, 7, 7, 7, 7 }, after.sum)
      assert.is_true(after.idle < 0.3 and after.close_seconds < 2)
      assert.same({ 0, 0 }, { after.files, after.threads })
    end
  end)

  with_network("of one rank in the middle of its calls: all others name it", function()
    local group, net, pids = start { size = 4, survivors = 3, victims = { 2 }, act = "loop", deadline = 1.5, count = 2000000 }
    group:go()
    processes.sleep(0.05)
    net:cut(pids[2], { pids[0], pids[1], pids[3] })
    for _, rank in ipairs { 0, 1, 3 } do
      local seen = group:expect(rank, "failed")
      assert.equal("timeout", seen.code, seen.message)
      assert.same({ 2 }, seen.culprits, seen.message)
      assert.truthy(seen.message:find("rank 2 does not answer rank %d"), seen.message)
    end
  end)

  for _, algorithm in ipairs { "direct", "ring" } do
    with_network(("between two ranks in %s: what is known is said, and a waiting neighbour is not blamed"):format(algorithm),
      function()
        local group, net, pids = start { size = 4, survivors = 4, victims = {}, act = "loop", deadline = DEADLINE,
          count = 100000, algorithm = algorithm }
        net:cut(pids[1], { pids[2] })
        local moment = group:go()
        for rank = 0, 3 do
          local seen = group:expect(rank, "failed")
          assert.equal("timeout", seen.code, seen.message)
          local culprit, asker = seen.message:match("rank (%d) does not answer rank (%d)")
          if culprit then
            assert.truthy(culprit == "1" and asker == "2" or culprit == "2" and asker == "1", seen.message)
            assert.same({ tonumber(culprit) }, seen.culprits)
          else -- their word came late to one that both answer
            assert.truthy(rank % 3 == 0 and seen.message:find("ranks? [12 and]+ sent no data"), seen.message)
          end
          assert.is_true(seen.at - moment < DEADLINE + PATIENCE)
          processes.measured("cable between two ranks pulled", seen.at - moment)
        end
      end)
  end
end)

describe("a host that goes without a word", function()
  with_network("is named at the deadline", function()
    local group, net, pids = start { size = 3, survivors = 2, victims = { 1 }, act = "loop", deadline = DEADLINE, count = 1000 }
    net:cut(pids[1], { pids[0], pids[2] })
    group:signal(1, processes.KILL)
    group:status(1)
    local moment = group:go()
    for _, rank in ipairs { 0, 2 } do
      expect_failure(group, "host gone", rank, "timeout", { 1 }, "rank 1 does not answer rank %d", moment)
    end
    for _, rank in ipairs { 0, 2 } do
      assert.same({ 4, 4, 4, 4, 4 }, group:expect(rank, "after").sum)
    end
  end)

  with_network("and comes back without its ranks is named at once, long before the deadline", function()
    local group, net, pids = start { size = 3, survivors = 2, victims = { 1 }, act = "loop", deadline = 20, count = 1000 }
    local ports = net:ports(pids[1], { pids[0], pids[2] })
    net:cut(pids[1], { pids[0], pids[2] })
    group:signal(1, processes.STOP)
    net:forget(ports)
    group:signal(1, processes.KILL)
    group:status(1)
    net:mend()
    local moment = group:go()
    for _, rank in ipairs { 0, 2 } do
      expect_failure(group, "host back without its ranks", rank, "peer", { 1 }, "lost rank 1 %(.-reset", moment)
    end
  end)

  with_network("or whose connections are reset by something on the way, is named at once", function()
    local group, net, pids = start { size = 3, survivors = 2, victims = { 1 }, act = "loop", deadline = 20, count = 1000 }
    net:forget(net:ports(pids[1], { pids[0] }))
    local moment = group:go()
    local zero, two = group:expect(0, "failed"), group:expect(2, "failed")
    for _, seen in ipairs { zero, two } do
      assert.equal("peer", seen.code, seen.message)
      assert.is_true(seen.at - moment < PATIENCE)
      processes.measured("a connection reset", seen.at - moment)
    end
    assert.same({ 1 }, zero.culprits)
  end)
end)

describe("all sums are right", function()
  --- Three ranks that sum up in every algorithm.
  local function sums(prepare, count)
    for _, algorithm in ipairs { "direct", "ring", "halving" } do
      local job = { size = 3, task = "sums", calls = 3, count = count, deadline = 20, algorithm = algorithm }
      prepare(job)
      local group = processes.start(job)
      for rank = 0, 2 do
        assert.equal(3, group:result(rank))
      end
    end
  end

  with_network("where packets are tiny and windows too", function()
    local net = network.new({ 3, 3, 3 }, "ip link set lo mtu 80 && " ..
      "echo 4096 4096 4096 >/proc/sys/net/ipv4/tcp_rmem && echo 4096 4096 4096 >/proc/sys/net/ipv4/tcp_wmem")
    sums(function(job)
      job.homes, job.prefix, job.environment = { table.remove(net.homes) }, net.prefix, "export LUDA_LANE=off"
    end, 30000)
  end)

  it("where every read and write moves a single byte", function()
    local library = helper.new_folder() .. "/one_byte.so"
    if not processes.works(("cc -shared -fPIC -O1 -o %s spec/c/one_byte.c -ldl"):format(library)) then
      io.write("faults: single bytes are not tried: there is no C compiler\n")
      pending("there is no C compiler")
    end
    sums(function(job)
      job.environment = ("export LUDA_LANE=off ASAN_OPTIONS=$ASAN_OPTIONS:verify_asan_link_order=0 LD_PRELOAD=%s"):format(library)
    end, 300)
  end)
end)
