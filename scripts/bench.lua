--- How fast LUDA is: against what this machine can do at all, and against PyTorch where python3 has it.
--
--   luda scripts/bench.lua [SECTION…] [options]        all sections where none is named; --help lists both
--
-- Needs the library of limits and the ranks of collectives: ninja -C build bench_limits bench_contest. A table appears row by
-- row; the numbers go to build/bench.json.
-- Each row takes samples of the limit, of LUDA and of the peer in turn, so that a machine whose speed changes changes all.

local folder = (arg[0]:match("^(.*/)") or "./")
package.path = folder .. "bench/?.lua;" .. package.path

local luda = require "luda"
local lib = require "luda.ffi"
local luda_json = require "luda.json"
local memory = require "luda.memory"
local harness = require "harness"
local report = require "report"

local SECTIONS = {
  "limits", "start", "dispatch", "autograd", "elementwise", "reductions", "softmax", "norms", "casts", "gathers", "transpose",
  "random", "backward", "matmul", "attention", "conv", "optimizer", "training", "footprint", "data", "records", "collectives",
}
local FILES = {
  "machine", "dispatch", "autograd", "arrays", "products", "optimizers", "training", "footprint", "data", "records",
  "collectives",
}

local function take_sections(list)
  local chosen, first = {}, 1
  while list[first] and list[first]:sub(1, 2) ~= "--" do
    chosen[first] = list[first]
    first = first + 1
  end
  return chosen, { select(first, unpack(list)) }
end

--- The first name that is no section.
local function unknown(chosen)
  local known = " " .. table.concat(SECTIONS, " ") .. " "
  for _, name in ipairs(chosen) do
    if not known:find(" " .. name .. " ", 1, true) then
      return name
    end
  end
end

-- What the sections see.

local Bench = {}
Bench.__index = Bench

--- Says why a case is not measured.
function Bench.skip(_, section, case, why)
  report.note(section, case, "skipped", why)
end

--- Runs fn(…); a failure is one line, and the benchmark goes on.
function Bench:try(section, case, fn, ...)
  local ok, problem = pcall(fn, ...)
  if not ok then
    self.failures = self.failures + 1
    report.note(section, case, "failed", problem)
  end
end

function Bench:add(row, bytes_ratio)
  self.rows[#self.rows + 1] = row
  report.row(row, bytes_ratio)
end

--- A row of nothing but samples of one number, in its unit; `fields` of the row may say how many.
function Bench:sampled(section, case, unit, sample, fields)
  local values = {}
  for i = 1, fields and fields.samples or self.options.samples do
    values[i] = sample()
  end
  local row = {
    section = section, case = case, dtype = "f32", threads = self.options.threads, unit = unit,
    value = harness.median(values), samples = #values, spread = harness.spread(values),
  }
  for name, value in pairs(fields or {}) do
    row[name] = value
  end
  self:add(row)
  return row
end

--- What memory.lua prints in a process of its own.
function Bench:apart(what, number)
  local pipe = assert(io.popen(("'%s' '%smemory.lua' '%s' %d"):format(arg[-1], self.folder, what, number)))
  local text = pipe:read("*a")
  pipe:close()
  return luda_json.decode(text)
end

local function measure(self, row)
  local options = self.options
  local cpu = options.device == "cpu"
  if not cpu then
    row.bounds, row.peer = nil, nil -- both are of the processor
  end
  local share = self.limits.foreign(self.machine.cores, self.peer and self.peer.pids or {})
  local found = harness.collect(row, {
    clock = self.limits.now, samples = options.samples, seconds = options.seconds, peer = self.peer, sync = self.sync,
  })
  local result, bytes_ratio = harness.summarize(row, found, {
    threads = options.threads, peer = self.peer, foreign_cpu = share(),
  })
  self:add(result, bytes_ratio)
  if found.peer_problem then
    report.note(row.section, row.case, "no peer", found.peer_problem)
  end
end

--- Measures a row as harness.lua describes it.
function Bench:measure(row)
  self:try(row.section, row.case, measure, self, row)
  memory.collect_all() -- nothing of this row lives on in the next
end

-- The program.

local function start_peer(self)
  local options = self.options
  if options.peer == "none" or options.device ~= "cpu" then
    return
  end
  local problem
  self.peer, problem = require("peer").start(folder .. "bench_torch.py", options.threads)
  if problem then
    print(problem)
  end
end

local function main(...)
  local chosen, words = take_sections { ... }
  if unknown(chosen) then
    io.stderr:write(("bench: there is no section '%s'; these are known: %s\n"):format(unknown(chosen),
      table.concat(SECTIONS, " ")))
    return 2
  end
  local options = require("luda.options").parse(words, {
    { "json", "build/bench.json", "file that gets the numbers" },
    { "device", "cpu", "where the tensors live; limits and the peer are of the processor" },
    { "peer", "torch", "none leaves PyTorch out" },
    { "quick", false, "fewer sizes and samples, under a minute without a peer" },
    { "large", false, "64 M floats for the common operators too" },
    { "threads", luda.threads(), "of LUDA, of the limits and of the peer" },
    { "parameters", 1e7, "of the section optimizer" },
    { "samples", 0, "of each row (default 7, quick 3)" },
    { "seconds", 0, "of each sample, at least (default 0.03, quick 0.01)" },
  })
  if not options then
    print("sections: " .. table.concat(SECTIONS, " "))
    return 0
  end
  options.samples = options.samples > 0 and options.samples or options.quick and 3 or 7
  options.seconds = options.seconds > 0 and options.seconds or options.quick and 0.01 or 0.03
  luda.set_threads(options.threads)
  local self = setmetatable({
    options = options, rows = {}, failures = 0, folder = folder .. "bench/", limits = require "limits",
    machine = report.machine(options.threads),
  }, Bench)
  require("create").device = options.device
  self.sync = options.device == "cpu" and function() end or function()
    lib.check(lib.C.luda_synchronize(lib.ffi.new("luda_device", require("luda.args").device("bench", options.device))))
  end
  start_peer(self)
  report.heading()
  local run = {}
  for _, file in ipairs(FILES) do
    for name, fn in pairs(require("sections." .. file)) do
      run[name] = fn
    end
  end
  for _, name in ipairs(#chosen > 0 and chosen or SECTIONS) do
    run[name](self)
    report.write(options.json, self.machine, self.rows)
  end
  if self.peer then
    self.peer:close()
  end
  print(("%d rows, %d failed; %s"):format(#self.rows, self.failures, options.json))
  return self.failures == 0 and 0 or 1
end

os.exit(main(...))
