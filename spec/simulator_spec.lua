--- The step lists of collectives over a model of a network: steps and bytes derived by hand, known lower bounds, and what `auto`
--- chooses against the best of all.

local simulate = assert(loadfile("scripts/simulate_collectives.lua"))("module")

local PROGRAM = (os.getenv("LUDA_BUILD") or "build") .. "/spec/collective_simulator"

--- One second of latency and nothing else to speak of: seconds are messages in a row.
local FAR = { latency = 1e9, message = 1, speed = 1e6 }

local function run(call, algorithm, arity, ranks, elements, link)
  return { run = { algorithm, arity }, call = call, ranks = ranks, elements = elements, link = link or FAR }
end

describe("the simulator", function()
  it("counts steps and bytes as they are derived by hand", function()
    local s = 4 * 5040 -- bytes; 5040 divides by 2 to 10 and 16
    local cases = {
      -- ring: P-1 steps to reduce, P-1 to gather, a P-th of the bytes each
      { run("all_reduce", "ring", 0, 8, 5040), 14, 14, 14 * s / 8 }, { run("all_reduce", "ring", 0, 5, 5040), 8, 8, 8 * s / 5 },
      { run("reduce_scatter", "ring", 0, 6, 5040), 5, 5, 5 * s / 6 }, { run("all_gather", "ring", 0, 6, 5040), 5, 5, 5 * s / 6 },
      -- halving and doubling: 2 log2 P steps, s (1/2 + 1/4 + ...) bytes twice; beyond a power of two one more each way
      { run("all_reduce", "halving", 0, 8, 5040), 6, 6, 2 * 7 * s / 8 },
      { run("all_reduce", "halving", 0, 16, 5040), 8, 8, 2 * 15 * s / 16 },
      { run("all_reduce", "halving", 0, 5, 5040), 6, 5, 2 * 3 * s / 4 + s },
      { run("reduce_scatter", "halving", 0, 8, 5040), 3, 3, 7 * s / 8 },
      { run("all_gather", "halving", 0, 16, 5040), 4, 4, 15 * s / 16 },
      -- trees: a way up and one down, as long as the tree is deep; a node of arity k sends one up and k down
      { run("all_reduce", "tree", 2, 7, 5040), 4, 3, 3 * s }, { run("all_reduce", "tree", 2, 8, 5040), 6, 3, 3 * s },
      { run("all_reduce", "tree", 1, 6, 5040), 10, 2, 2 * s }, { run("all_reduce", "tree", 3, 13, 5040), 4, 4, 4 * s },
      { run("broadcast", "tree", 2, 16, 5040), 4, 2, 2 * s }, { run("reduce", "tree", 4, 6, 5040), 2, 1, s },
      { run("gather", "tree", 2, 7, 5040), 2, 1, 3 * s / 7 }, { run("scatter", "tree", 2, 7, 5040), 2, 2, 6 * s / 7 },
      -- direct: two steps whatever the world, as many bytes as the ring
      -- (of few bytes: one step, all of it to everybody)
      { run("all_reduce", "direct", 0, 8, 250), 1, 7, 7 * 4 * 250 }, { run("reduce", "direct", 0, 8, 250), 1, 1, 4 * 250 },
      { run("all_reduce", "direct", 0, 8, 5040), 2, 14, 14 * s / 8 }, { run("broadcast", "direct", 0, 8, 5040), 1, 7, 7 * s },
      { run("all_reduce", "centralized", 0, 8, 5040), 2, 7, 7 * s },
    }
    local requests = {}
    for i, case in ipairs(cases) do
      requests[i] = case[1]
    end
    for i, have in ipairs(simulate.ask(requests, PROGRAM)) do
      local r = requests[i]
      local name = ("%s %s(%d) of %d"):format(r.call, r.run[1], r.run[2], r.ranks)
      assert.same({ name, cases[i][2], cases[i][3], cases[i][4] },
        { name, math.floor(have.seconds + 0.5), have.messages, have.bytes })
    end
  end)

  it("runs 4,096 ranks", function()
    local far = simulate.ask({ run("all_reduce", "halving", 0, 4096, 8192), run("all_reduce", "tree", 2, 4096, 8192) }, PROGRAM)
    assert.same({ 24, 24 }, { math.floor(far[1].seconds + 0.5), math.floor(far[2].seconds + 0.5) }) -- 2 log2 P; depth 12 twice
  end)

  it("overlaps the parts of large messages", function()
    -- 64 MB over 3 GB/s: a chain of 8 carries them twice through every rank, not 14 times
    local link = { latency = 20000, message = 2000, speed = 3000 }
    local have = simulate.ask({ run("all_reduce", "tree", 1, 8, 2 ^ 24, link), run("broadcast", "tree", 1, 8, 2 ^ 24, link),
      run("all_reduce", "ring", 0, 8, 2 ^ 24, link), run("all_reduce", "halving", 0, 8, 2 ^ 24, link) }, PROGRAM)
    local once = 2 ^ 26 / 3e9
    for i, times in ipairs { 2, 1, 2 * 7 / 8, 2 * 7 / 8 } do
      local seconds = have[i].seconds
      assert.is_true(seconds >= times * once and seconds < 1.1 * times * once, i .. ": " .. seconds / once)
    end
  end)

  for _, link in ipairs { { latency = 20000, message = 2000, speed = 3000 }, { latency = 2000, message = 500, speed = 12000 } } do
    it(("stays above the bounds, and auto within 1.25 of the best, at %d us and %g GB/s"):format(link.latency / 1000,
      link.speed / 1000), function()
      local rows = simulate.grid(simulate.calls, { 2, 3, 5, 8, 16, 32, 64 }, { 4, 65536, 2 ^ 20, 2 ^ 23 }, link, nil, PROGRAM)
      assert.equal(7 * 7 * 4, #rows)
      local wrong = {}
      for _, row in ipairs(rows) do
        local name = ("%s of %d bytes on %d ranks"):format(row.call.name, row.bytes, row.ranks)
        if row.seconds[row.auto] > 1.25 * row.best then
          wrong[#wrong + 1] = ("%s: auto is %s, %.2f of the best"):format(name, row.auto, row.seconds[row.auto] / row.best)
        end
        for way, seconds in pairs(row.seconds) do
          if seconds < row.bound * (1 - 1e-9) then
            wrong[#wrong + 1] = ("%s by %s: %.3f of the bound"):format(name, way, seconds / row.bound)
          end
        end
      end
      assert.same({}, wrong)
    end)
  end
end)
