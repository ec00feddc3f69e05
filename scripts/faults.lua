--- How long it takes until the last rank knows, by fault: runs the specs of faults again and again and prints a table.
-- usage: build/luda scripts/faults.lua [ROUNDS] [SEED]      (5 rounds; the seed is printed)

local rounds, seed = tonumber(arg[1]) or 5, tonumber(arg[2]) or os.time() % 100000
local order, times = {}, {}

for round = 1, rounds do
  for _, spec in ipairs { "faults_spec", "faults_network_spec" } do
    local pipe = assert(io.popen(("LUDA_FAULTS_MEASURED=1 LUDA_FAULTS_SEED=%d luajit /usr/bin/busted spec/%s.lua 2>&1"):format(
      seed + round, spec)))
    local worst = {}
    for line in pipe:lines() do
      local fault, seconds = line:match("^measured (.-): ([%d.]+) s$")
      if fault then
        worst[fault] = math.max(worst[fault] or 0, tonumber(seconds))
      end
      if line:find("^Failure") or line:find("^Error") then
        print(("round %d: %s"):format(round, line))
      end
    end
    pipe:close()
    for fault, seconds in pairs(worst) do
      if not times[fault] then
        times[fault], order[#order + 1] = {}, fault
      end
      table.insert(times[fault], seconds)
    end
  end
end

table.sort(order)
print(("%d rounds from seed %d; seconds until the last rank knows"):format(rounds, seed))
print("| fault | median | worst |")
print("|---|---|---|")
for _, fault in ipairs(order) do
  table.sort(times[fault])
  print(("| %s | %.3f | %.3f |"):format(fault, times[fault][math.ceil(#times[fault] / 2)], times[fault][#times[fault]]))
end
