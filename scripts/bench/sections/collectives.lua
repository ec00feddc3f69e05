--- Sums over ranks: LUDA's ranks against the direct sum through shared memory, a plain exchange, Open MPI and gloo.
--
-- Every contestant is a program of its own that runs the loop of contest.h over all sizes; they take turns, one sample of
-- each a round. A row's limit and peer are of the same rounds.

local luda_json = require "luda.json"
local harness = require "harness"
local limits = require "limits"

local M = {}

local KIB = 1024
local MIB = KIB * KIB

--- What LUDA's ranks are, and what they are compared with. ORDER kinds, contest.c
local KINDS = {
  { name = "threads", case = "rank threads", limit = "sum_threads", peer = "Open MPI" },
  { name = "common", case = "processes, memory in common", limit = "sum", peer = "Open MPI" },
  { name = "private", case = "processes", limit = "sum", peer = "Open MPI" },
  { name = "tcp", case = "processes over TCP", limit = "exchange", peer = "gloo" },
}

local LIMITS = { sum_threads = "direct sum", sum = "direct sum", exchange = "exchange" }

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

local function succeeds(command)
  return os.execute(command .. " >/dev/null 2>&1") == 0
end

local function size_text(bytes)
  local rest = bytes % 4 == 0 and bytes % 64 == 20 and bytes > 64 and 20 or 0
  local even = bytes - rest
  local text = even >= MIB and ("%d MiB"):format(even / MIB) or even >= KIB and ("%d KiB"):format(even / KIB)
    or ("%d B"):format(even)
  return rest > 0 and ("%s + %d B"):format(text, rest) or text
end

-- Contestants: name, version, command(ranks) without scale and sizes.

--- Open MPI, built where its compiler is; nil and why not.
local function open_mpi(bench)
  local program = limits.folder .. "contest_mpi"
  if not succeeds("command -v mpirun") or not succeeds("command -v mpicc") then
    return nil, "mpicc and mpirun are missing (Debian: apt-get install openmpi-bin libopenmpi-dev)"
  end
  if not succeeds(("mpicc -O3 -march=native -o %s %scontest_mpi.c"):format(quoted(program), bench.folder)) then
    return nil, "mpicc does not compile contest_mpi.c"
  end
  local pipe = assert(io.popen("mpirun --version 2>&1"))
  local version = pipe:read("*l") or ""
  pipe:close()
  return { name = "Open MPI", version = version:match("(%S+)%s*$"), command = function(ranks)
    return ("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -np %d %s"):format(ranks,
      quoted(program))
  end }
end

local function gloo(bench)
  for _, python in ipairs { os.getenv("PYTHON") or "python3", "/usr/bin/python3" } do
    if succeeds(quoted(python) .. " -c 'import torch.distributed as d; assert d.is_available()'") then
      return { name = "gloo", version = "torch", command = function(ranks)
        return ("%s %scontest_gloo.py %d"):format(quoted(python), bench.folder, ranks)
      end }
    end
  end
  return nil, "python3 has no torch (Debian: apt-get install python3-torch)"
end

local function ours(kind)
  return { name = kind, command = function(ranks)
    return ("%sbench_contest %s %d"):format(limits.folder, kind, ranks)
  end }
end

local function from_lua(bench, kind)
  return { name = "Lua, " .. kind, tiny = true, command = function(ranks)
    return ("%s run %s --no-prefix -n %d %scontest.lua"):format(quoted(arg[-1]), kind == "threads" and "--threads" or "",
      ranks, bench.folder)
  end }
end

-- Rounds.

--- Seconds of one sum for each size, appended to the contestant's samples.
local function run(contestant, ranks, scale, sizes)
  local words = contestant.tiny and "" or table.concat(sizes, " ")
  local pipe = assert(io.popen(("timeout 120 %s %g %s 2>&1"):format(contestant.command(ranks), scale, words)))
  local last
  for line in pipe:lines() do
    last = line
    if line:sub(1, 1) == "{" then
      local found = luda_json.decode(line)
      local list = contestant.samples[found.bytes] or {}
      list[#list + 1], contestant.samples[found.bytes] = found.seconds, list
      contestant.version = found.version or contestant.version
    end
  end
  pipe:close()
  contestant.problem = last and last:sub(1, 1) ~= "{" and last or contestant.problem
end

local function rounds(bench, contestants, ranks, sizes)
  local quick = bench.options.quick
  local count, scale = quick and 1 or bench.options.samples, quick and 0.05 or 0.3
  for _, contestant in ipairs(contestants) do
    contestant.samples, contestant.problem = {}, nil
  end
  for _ = 1, count do
    for _, contestant in ipairs(contestants) do
      run(contestant, ranks, scale, sizes)
    end
  end
end

-- Rows.

local function add(bench, ranks, case, bytes, own, limit, limit_kind, peer, foreign)
  if not own.samples[bytes] then
    return bench:skip("collectives", case, own.problem or "it gave no number")
  end
  local row = {
    section = "collectives", case = case, unit = "us",
    bounds = limit and limit.samples[bytes] and { { kind = limit_kind } } or nil,
  }
  local found = {
    own = own.samples[bytes], bounds = { limit and limit.samples[bytes] },
    peer = peer and peer.samples[bytes],
  }
  bench:add((harness.summarize(row, found, { threads = ranks, peer = peer, foreign_cpu = foreign })))
end

local function group(bench, ranks, sizes, peers)
  local by_name, contestants = {}, {}
  local function enter(contestant)
    by_name[contestant.name] = contestant
    contestants[#contestants + 1] = contestant
  end
  for name in pairs(LIMITS) do
    enter(ours(name))
  end
  for _, kind in ipairs(KINDS) do
    enter(ours(kind.name))
  end
  if sizes[1] == 4 then
    enter(from_lua(bench, "threads"))
    enter(from_lua(bench, "private"))
  end
  for _, peer in ipairs(peers) do
    enter(peer)
  end
  local share = limits.foreign(bench.machine.cores, {})
  rounds(bench, contestants, ranks, sizes)
  local foreign = share()
  for _, peer in ipairs(peers) do
    if not next(peer.samples) then
      bench:skip("collectives", peer.name, peer.problem or "it gave no number")
    end
  end
  for _, kind in ipairs(KINDS) do
    for _, bytes in ipairs(sizes) do
      add(bench, ranks, ("%d %s, %s"):format(ranks, kind.case, size_text(bytes)), bytes, by_name[kind.name],
        by_name[kind.limit], LIMITS[kind.limit], by_name[kind.peer], foreign)
    end
    local lua = by_name["Lua, " .. kind.name]
    if lua then
      add(bench, ranks, ("%d %s, from Lua, 4 B"):format(ranks, kind.case), 4, lua, by_name[kind.name], "from C", nil, foreign)
    end
  end
end

function M.collectives(bench)
  local options = bench.options
  if options.device ~= "cpu" then
    return bench:skip("collectives", "all", "they are of the processor")
  end
  if not io.open(limits.folder .. "bench_contest") then
    return bench:skip("collectives", "all", "build it: ninja -C build bench_contest")
  end
  local peers = {}
  for name, find in pairs { ["Open MPI"] = open_mpi, gloo = gloo } do
    local peer, problem
    if options.peer ~= "none" and not options.quick then
      peer, problem = find(bench)
      peers[#peers + 1] = peer
    end
    if problem then
      bench:skip("collectives", name, problem)
    end
  end
  if options.quick then
    bench:skip("collectives", "peers", "not in a quick run: gloo alone takes seconds to start")
  end
  local sizes = options.quick and { 4, 64 * KIB, MIB } or { 4, KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB }
  group(bench, 2, sizes, peers)
  if not options.quick then
    group(bench, 2, { 64 * KIB + 20, MIB + 20, 16 * MIB + 20, 128 * MIB + 20 }, peers)
    group(bench, 4, sizes, peers)
  end
end

return M
