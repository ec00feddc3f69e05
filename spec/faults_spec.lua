--- Ranks in processes of their own that die, stop, compute, leave, disagree: who learns what, and when.

local helper = require "spec.helper"
local processes = require "spec.processes"

local seed = tonumber(os.getenv("LUDA_FAULTS_SEED")) or os.time() % 100000
math.randomseed(seed)
io.write(("faults: random moments of LUDA_FAULTS_SEED=%d\n"):format(seed))

local DEADLINE = 0.3 -- where one plays a part; who is lost is known at once
local PATIENCE = 2.5 -- beyond it, on a machine that does other things as well

before_each(helper.before)
after_each(function()
  processes.finish()
  helper.after()
end)

--- Starts a job whose `victims` are lost, and whose survivors meet again.
local function start(job)
  job.deadline = job.deadline or DEADLINE
  job.survivors = not job.usable and job.size - #job.victims or nil
  return processes.start(job)
end

local function survivors(job)
  local list = {}
  for rank = 0, job.size - 1 do
    list[rank] = true
  end
  for _, victim in ipairs(job.victims) do
    list[victim] = nil
  end
  return list
end

--- All survivors learn the same thing within the deadline, from `moment` on (nil: when the victim says that it goes).
local function all_learn(group, job, fault, code, pattern, moment)
  local last = 0
  moment = moment or group:expect(job.victims[1], "leaving").at
  for rank in pairs(survivors(job)) do
    local failed = group:expect(rank, "failed")
    assert.equal(code, failed.code, failed.message)
    assert.same(job.victims, failed.culprits, failed.message)
    for _, victim in ipairs(job.victims) do
      assert.truthy(failed.message:find("rank " .. victim, 1, true), failed.message)
    end
    assert.truthy(failed.message:find(pattern), failed.message)
    last = math.max(last, failed.at - moment)
    assert.is_true(last < (code == "timeout" and job.deadline or 0) + PATIENCE, ("%g s"):format(last))
    for _, word in ipairs(failed.words or {}) do
      assert.not_equal("ok", word == failed.words[1] and "" or word)
    end
  end
  processes.measured(fault, last)
end

--- Afterwards: nothing spins, hangs or stays open, and the survivors sum up again in a new group.
local function all_go_on(group, job)
  local sum = 0
  for rank in pairs(survivors(job)) do
    sum = sum + rank + 1
  end
  for rank in pairs(survivors(job)) do
    local after = group:expect(rank, "after")
    assert.is_true(after.idle < 0.3, ("%g of a core"):format(after.idle))
    assert.is_true(after.close_seconds < 2, ("closing took %g s"):format(after.close_seconds))
    assert.same({ sum, sum, sum, sum, sum }, after.sum)
    assert.same({ 0, 0 }, { after.files, after.threads })
    assert.equal(0, group:status(rank), group:output(rank))
  end
end

local function lose(job, fault, code, pattern, signal)
  job.deadline, job.patient = 20, signal ~= nil
  local group, moment = start(job), nil
  if signal then
    group:arm()
    processes.sleep(math.random() * 0.05)
    for _, victim in ipairs(job.victims) do
      moment = group:signal(victim, signal)
    end
  end
  all_learn(group, job, fault, code, pattern, moment)
  all_go_on(group, job)
end

local BIG = 4194304 -- 16 MiB

--- Between processes of a host data goes through common memory, or, every other time here, through sockets.
local function way(sockets)
  return sockets and "export LUDA_LANE=off" or nil
end

describe("a rank that is killed", function()
  it("before its first call is named by all others", function()
    lose({ size = 3, victims = { 1 }, act = "die_at_once", cold = true }, "killed before its first call", "peer", "lost rank 1")
  end)

  it("between two calls is named by all others", function()
    lose({ size = 4, victims = { 2 }, act = "die_between" }, "killed between calls", "peer", "lost rank 2")
  end)

  it("with its connections reset is named by all others", function()
    lose({ size = 3, victims = { 0 }, act = "die_with_reset" }, "killed, connections reset", "peer", "lost rank 0")
  end)

  for round = 1, 3 do
    it(("somewhere in a loop of 16 MiB is named by all others, and what was queued fails too (%d)"):format(round), function()
      lose({ size = 4, victims = { math.random(0, 3) }, act = "loop", count = BIG, queued = true, environment = way(round == 2) },
        "killed in a loop of 16 MiB", "peer", "lost rank", processes.KILL)
    end)
  end

  for _, algorithm in ipairs { "direct", "ring", "tree", "halving", "centralized" } do
    for _, victim in ipairs { 0, 3 } do
      it(("in %s is named by its neighbours and by all others (rank %d)"):format(algorithm, victim), function()
        lose({ size = 4, victims = { victim }, act = "loop", count = 100000, algorithm = algorithm,
          environment = way(victim == 3) }, "killed in " .. algorithm, "peer", "lost rank " .. victim, processes.KILL)
      end)
    end
  end
end)

describe("a rank that leaves", function()
  it("by ending without a word is named by all others", function()
    lose({ size = 3, victims = { 2 }, act = "exit" }, "ended without a word", "peer", "lost rank 2 %(connection closed%)")
  end)

  it("by closing the communicator is named by all others", function()
    lose({ size = 3, victims = { 1 }, act = "close" }, "closed the communicator", "peer", "lost rank 1 %(left the group%)")
  end)
end)

describe("a rank that is stopped", function()
  for i, algorithm in ipairs { "direct", "direct", "ring", "tree" } do
    it(("in %s is named by all others, and learns that it was given up (%d)"):format(algorithm, i), function()
      local job = { size = 4, victims = { 2 }, act = "loop", count = 500000, algorithm = algorithm, patient = true,
        environment = way(i % 2 == 0) }
      local group = start(job)
      group:arm()
      processes.sleep(math.random() * 0.05)
      local moment = group:signal(2, processes.STOP)
      all_learn(group, job, "stopped in " .. algorithm, "timeout", "rank 2 does not answer rank %d", moment)
      group:signal(2, processes.CONTINUE)
      local seen = group:expect(2, "failed")
      local given_up = "the other ranks gave call %d+ up because of rank 2: .*rank 2 does not answer"
      -- or it was through with that call, and finds the others gone in the next
      local gone = seen.message:find("left after call %d+ failed there: .*rank 2 does not answer") or
        seen.message:find("lost rank")
      assert.truthy(gone or seen.message:find(given_up), seen.message)
      assert.truthy(gone or seen.culprits[1] == 2 and #seen.culprits == 1)
      all_go_on(group, job)
    end)
  end

  it("before it comes to a call is named by all others", function()
    local job = { size = 3, victims = { 0 }, act = "busy", busy = 60, patient = true, hold = true }
    local group = start(job)
    for rank = 0, 2 do
      group:expect(rank, "ready")
    end
    group:signal(0, processes.STOP)
    local moment = group:go()
    all_learn(group, job, "stopped before a call", "timeout",
      "rank 0 does not answer rank %d; rank 0 was last seen at call %d+, barrier", moment)
    all_go_on(group, job)
  end)

  it("again and again for less than the deadline is only slow", function()
    local group = processes.start { size = 3, task = "sums", calls = 60, count = 200000, deadline = 2 }
    group:expect(1, "joined")
    for _ = 1, 10 do
      group:signal(1, processes.STOP)
      processes.sleep(0.03)
      group:signal(1, processes.CONTINUE)
      processes.sleep(0.01)
    end
    for rank = 0, 2 do
      assert.equal(60, group:expect(rank, "done").result)
    end
  end)
end)

describe("a rank that computes for longer than the deadline", function()
  it("is named with its last call, and the communicator works on", function()
    local job = { size = 3, victims = { 1 }, act = "busy", busy = 1, usable = true }
    local group = start(job)
    all_learn(group, job, "computes for longer than the deadline", "timeout",
      "rank 1 has not arrived at call %d+; rank 1 was last seen at call 1, barrier",
      group:expect(1, "ready").at)
    local seen = group:expect(1, "failed")
    assert.equal("timeout", seen.code)
    assert.truthy(seen.message:find("the other ranks gave call %d+ up because of rank 1"), seen.message)
    for rank = 0, 2 do
      assert.same({ 6, 6, 6, 6, 6 }, group:expect(rank, "after").sum)
    end
  end)

  it("together with all others, is not late: the clock starts with the first arrival", function()
    local group = processes.start { size = 3, task = "sums", calls = 2, pause = 0.6, deadline = DEADLINE, count = 10 }
    for rank = 0, 2 do
      assert.equal(2, group:expect(rank, "done").result, group:output(rank))
    end
  end)
end)
