--- Collectives on up to 4,096 ranks, simulated: the step lists of the runtime over a model of latency and bandwidth, beside the
--- known lower bounds and the model by which `auto` chooses.
---   luajit scripts/simulate_collectives.lua [LATENCY_US MESSAGE_US GBPS]      (after ninja -C build collective_simulator)
--- A cell is simulated time over the lower bound. The bound is latency plus the largest of: ceil(log2 P) messages in a row, since
--- what one rank knows reaches at most twice as many ranks with every message; the bytes that some rank must send or receive
--- (2 S (P-1)/P for all_reduce: Patarasuk & Yuan 2009); the sums. Halving and doubling takes 2 log2 P steps for these bytes
--- (Thakur, Rabenseifner & Gropp 2005).

local M = {}

M.COMBINE = 0.16e-9 -- seconds a byte, as in runtime/collective/model.c

local TREES = { { "tree", 1 }, { "tree", 2 }, { "tree", 4 }, { "tree", 8 } }

local function ways(...)
  local list = { { "direct", 0 } }
  for _, name in ipairs { ... } do
    for _, way in ipairs(name == "tree" and TREES or { { name, 0 } }) do
      list[#list + 1] = way
    end
  end
  return list
end

--- Calls with their algorithms, the share of the bytes that some rank must carry, and the share that it must sum.
M.calls = {
  { name = "all_reduce", ways = ways("ring", "halving", "tree", "centralized"),
    carries = function(p) return 2 * (p - 1) / p end, sums = true },
  { name = "reduce", ways = ways("tree", "centralized"), carries = function() return 1 end, sums = true },
  { name = "broadcast", ways = ways("tree"), carries = function() return 1 end },
  { name = "all_gather", ways = ways("ring", "halving"), carries = function(p) return (p - 1) / p end },
  { name = "reduce_scatter", ways = ways("ring", "halving"), carries = function(p) return (p - 1) / p end, sums = true },
  { name = "gather", ways = ways("tree"), carries = function(p) return (p - 1) / p end },
  { name = "scatter", ways = ways("tree"), carries = function(p) return (p - 1) / p end },
}

--- Seconds below which no algorithm stays.
---@param call table a row of M.calls
---@param link {latency: number, message: number, speed: number} ns, ns, MB/s
function M.bound(call, ranks, bytes, link)
  if ranks == 1 then
    return 0
  end
  local rounds = math.ceil(math.log(ranks) / math.log(2) - 1e-9)
  local carried = call.carries(ranks) * bytes * 1e-6 / link.speed
  local summed = call.sums and (ranks - 1) / ranks * bytes * M.COMBINE or 0
  return link.latency * 1e-9 + math.max(rounds * link.message * 1e-9, carried, summed)
end

--- Answers of build/spec/collective_simulator to a list of requests, each {run = way} or {auto = true}, with call, ranks,
--- elements and link.
function M.ask(requests, program)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  for _, r in ipairs(requests) do
    local link = ("%d %d %d"):format(r.link.latency, r.link.message, r.link.speed)
    file:write(r.run and ("run %s %s %d %d %d %s\n"):format(r.call, r.run[1], r.run[2], r.ranks, r.elements, link)
      or ("auto %s %d %d %s\n"):format(r.call, r.ranks, r.elements, link))
  end
  file:close()
  local answers, pipe = {}, assert(io.popen((program or "build/spec/collective_simulator") .. " " .. path))
  for line in pipe:lines() do
    local r, words = requests[#answers + 1], {}
    for word in line:gmatch("%S+") do
      words[#words + 1] = tonumber(word) or word
    end
    answers[#answers + 1] = r.run and { seconds = words[1], messages = words[2], bytes = words[3], received = words[4],
      forecast = words[5] } or { words[1], words[2] }
  end
  pipe:close()
  os.remove(path)
  assert(#answers == #requests, "the simulator stopped early; see its message above")
  return answers
end

local function label(way)
  return way[1] == "tree" and ("tree(%d)"):format(way[2]) or way[1]
end
M.label = label

--- Each call, world and size: {call, ranks, bytes, bound, seconds by label, forecasts by label, auto, best}.
---@param most? fun(way: table, ranks: integer): boolean whether to run it
function M.grid(calls, worlds, sizes, link, most, program)
  local requests, rows = {}, {}
  for _, call in ipairs(calls) do
    for _, ranks in ipairs(worlds) do
      for _, size in ipairs(sizes) do
        local elements = math.max(1, math.floor(size / 4 / ranks + 0.5)) * ranks
        local bytes = 4 * elements
        local row = { call = call, ranks = ranks, bytes = bytes, bound = M.bound(call, ranks, bytes, link), ways = {} }
        rows[#rows + 1] = row
        requests[#requests + 1] = { auto = true, call = call.name, ranks = ranks, elements = elements, link = link }
        for _, way in ipairs(call.ways) do
          if not most or most(way, ranks) then
            row.ways[#row.ways + 1] = way
            requests[#requests + 1] = { run = way, call = call.name, ranks = ranks, elements = elements, link = link }
          end
        end
      end
    end
  end
  local answers, at = M.ask(requests, program), 0
  for _, row in ipairs(rows) do
    at = at + 1
    row.auto, row.seconds, row.forecast, row.best = label(answers[at]), {}, {}, math.huge
    for _, way in ipairs(row.ways) do
      at = at + 1
      row.seconds[label(way)], row.forecast[label(way)] = answers[at].seconds, answers[at].forecast
      row.best = math.min(row.best, answers[at].seconds)
    end
  end
  return rows
end

--- Lists of P messages a rank take the simulator P^2 events, and chains are as long: not in the largest worlds.
local function affordable(way, ranks)
  return way[1] == "halving" or (way[1] == "tree" and way[2] > 1) or ranks <= 512
end

local function size_text(bytes)
  return bytes < 1024 and ("%d B"):format(bytes) or bytes < 1e6 and ("%.0f KB"):format(bytes / 1024)
    or ("%.0f MB"):format(bytes / 1048576)
end

local function main(latency, message, speed)
  local link = { latency = (tonumber(latency) or 20) * 1000, message = (tonumber(message) or 2) * 1000,
    speed = (tonumber(speed) or 3) * 1000 }
  print(("latency %g us, %g us a message, %g GB/s"):format(link.latency / 1000, link.message / 1000, link.speed / 1000))
  for _, call in ipairs { M.calls[1], M.calls[3] } do
    local head = ("\n%-14s %6s %8s %10s"):format(call.name, "ranks", "bytes", "bound us")
    for _, way in ipairs(call.ways) do
      head = head .. (" %8.8s"):format(label(way))
    end
    print(head .. "  auto")
    for _, row in ipairs(M.grid({ call }, { 2, 8, 64, 512, 4096 }, { 4, 65536, 1048576, 67108864 }, link, affordable)) do
      local text = ("%-14s %6d %8s %10.1f"):format("", row.ranks, size_text(row.bytes), row.bound * 1e6)
      for _, way in ipairs(call.ways) do
        local seconds = row.seconds[label(way)]
        text = text .. (seconds and (" %8.2f"):format(seconds / row.bound) or "        -")
      end
      local chosen = row.seconds[row.auto]
      print(text .. "  " .. row.auto .. (chosen and (" (%.2f of the best)"):format(chosen / row.best) or ""))
    end
  end
end

if ... == "module" then
  return M
end
main(...)
