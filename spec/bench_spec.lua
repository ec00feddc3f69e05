--- The benchmark's own arithmetic, order of samples and file; not how fast anything is.

local folder = "scripts/bench/?.lua;"
if not package.path:find(folder, 1, true) then
  package.path = folder .. package.path
end

require "spec.helper"
local luda = require "luda"
local lib = require "luda.ffi"
local json = require "luda.json"
local harness = require "harness"

local program = (os.getenv("LUDA_BUILD") or "build") .. "/luda"

--- What the benchmark prints, and its exit status.
local function bench(arguments)
  local pipe = assert(io.popen(("%s scripts/bench.lua %s 2>&1; echo status $?"):format(program, arguments)))
  local text = pipe:read("*a")
  pipe:close()
  return text, tonumber(text:match("status (%d+)\n$"))
end

local function near(expected, actual, tolerance)
  local close = math.abs(actual - expected) <= (tolerance or 1e-12) * math.abs(expected)
  assert.is_true(close, ("%g, not %g"):format(actual, expected))
end

describe("numbers", function()
  it("takes the median and leaves the list as it was", function()
    local list = { 5, 1, 4 }
    assert.equal(4, harness.median(list))
    assert.same({ 5, 1, 4 }, list)
    assert.equal(2.5, harness.median { 4, 1, 2, 3 })
    assert.equal(7, harness.median { 7 })
  end)

  it("says the spread as a share of the median", function()
    near(1.5, harness.spread { 4, 1, 2 })
    assert.equal(0, harness.spread { 3 })
  end)

  it("turns seconds into the unit of the row", function()
    near(4, harness.in_unit({ unit = "GB/s", bytes = 8e9 }, 2))
    near(3, harness.in_unit({ unit = "GFLOP/s", flops = 6e9 }, 2))
    near(50, harness.in_unit({ unit = "ns", operators = 10 }, 5e-7))
    near(2, harness.in_unit({ unit = "us" }, 2e-6))
    near(1.5, harness.in_unit({ unit = "ms" }, 1.5e-3))
  end)
end)

describe("a row's summary", function()
  local about = { threads = 2, foreign_cpu = 0.25, peer = { name = "P", version = "9" } }
  local memory, flops = { kind = "copy", bytes = true }, { kind = "flops" }

  it("takes the largest limit and the quotient of medians", function()
    local row = { section = "s", case = "c", unit = "GB/s", bytes = 2e9, bounds = { memory, flops } }
    local found = { own = { 5, 4, 40 }, bounds = { { 1, 2, 1 }, { 2, 9, 2 } }, peer = { 10, 10, 1 } }
    local result, bytes_ratio = harness.summarize(row, found, about)
    assert.same({
      section = "s", case = "c", dtype = "f32", threads = 2, unit = "GB/s", value = 0.4, limit = 1, limit_kind = "flops",
      ratio = 0.4, peer = { name = "P", version = "9", value = 0.2 }, peer_ratio = 2, samples = 3, spread = 7.2,
      foreign_cpu = 0.25,
    }, result)
    assert.is_nil(bytes_ratio)
  end)

  it("says the ratio to memory too where arithmetic is the limit", function()
    local row = { unit = "us", bounds = { memory, { kind = "arithmetic" } } }
    local result, bytes_ratio = harness.summarize(row, { own = { 8 }, bounds = { { 2 }, { 4 } } }, about)
    assert.equal("arithmetic", result.limit_kind)
    assert.equal(0.5, result.ratio)
    assert.equal(0.25, bytes_ratio)
    assert.is_nil(result.peer)
  end)

  it("adds bounds up where the row says so", function()
    local row = { unit = "ms", sum = "flops", bounds = { flops, memory } }
    local result = harness.summarize(row, { own = { 8, 8 }, bounds = { { 1, 1 }, { 3, 3 } } }, about)
    assert.equal("flops", result.limit_kind)
    assert.equal(4e3, result.limit)
    assert.equal(0.5, result.ratio)
  end)

  it("leaves a peer out that has failed on the way", function()
    local result = harness.summarize({ unit = "ms" }, { own = { 1, 1 }, bounds = {}, peer = { 1 } }, about)
    assert.is_nil(result.peer)
    assert.is_nil(result.ratio)
  end)
end)

describe("samples", function()
  it("are taken in turn from the bounds, the operator and the peer", function()
    local order, time = {}, 0
    local function mark(word, value)
      return function()
        order[#order + 1] = word
        return value
      end
    end
    local row = {
      case = "c", outside = "run()", bounds = { { sample = mark("a", 2) }, { sample = mark("b", 3) } }, peer = {},
      make = function()
        return { run = function()
          order[#order + 1] = "own"
          time = time + 1
        end }
      end,
    }
    local found = harness.collect(row, {
      clock = function() return time end, samples = 2, seconds = 1, sync = function() end, peer = { sample = mark("peer", 5) },
    })
    assert.same({ own = { 1, 1 }, bounds = { { 2, 2 }, { 3, 3 } }, peer = { 5, 5 } }, found)
    assert.equal("own own a b own peer a b own peer", table.concat(order, " "))
  end)

  it("are less what the row takes off", function()
    local time = 0
    local row = { case = "c", outside = "run(5)", minus = "run(2)", make = function()
      return { run = function(took) time = time + took end }
    end }
    local given = { clock = function() return time end, samples = 2, seconds = 1, sync = function() end }
    assert.same({ 3, 3 }, harness.collect(row, given).own)
  end)

  it("release what an expression makes, and what a statement leaves", function()
    local x = luda.ones(3)
    local before = lib.signals.handles
    for _, kind in ipairs { "code", "statement", "step" } do
      local code = (kind == "code" and "" or "local _ = ") .. "x + x"
      harness.compile({ case = "c", [kind] = code }, { x = x }, function() end)(250)
      assert.equal(before, lib.signals.handles)
    end
    x:release()
  end)
end)

describe("limits", function()
  local ffi = lib.ffi
  local limits = require "limits"

  local EXACT = {
    exp = math.exp,
    tanh = math.tanh,
    gelu_tanh = function(x)
      return x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3))) -- (1 + tanh u) / 2 without cancellation
    end,
  }

  for name, exact in pairs(EXACT) do
    it("compute " .. name, function()
      local x, y = ffi.new("float[4096]"), ffi.new("float[4096]")
      for i = 0, 4095 do
        x[i] = (i - 2000) / 256
      end
      limits.C.luda_limits_values(limits.loops[name], x, y)
      for i = 0, 4095 do
        near(exact(x[i]), y[i], math.abs(x[i]) < 2 and 2e-6 or 1e-4)
      end
    end)
  end

  it("compute what the loops in Lua do", function()
    local x, y, z = ffi.new("float[301]"), ffi.new("float[301]"), ffi.new("float[301]")
    for number, loop in ipairs(require "loops") do
      for i = 0, 300 do
        x[i], y[i], z[i] = (i - 150) / 32, i / 7, i / 7
      end
      loop[2](x, y, 301)
      limits.C.luda_limits_scalar(number - 1, x, z, 301)
      for i = 0, 300 do
        assert.is_true(math.abs(y[i] - z[i]) <= 4e-7 * math.abs(z[i]), loop[1])
      end
    end
  end)

  it("are positive", function()
    for _, kind in ipairs { "read", "in place", "copy", "streaming copy" } do
      assert.is_true(limits.bandwidth(kind, 65536, 2, 1e-4) > 1e6, kind)
    end
    assert.is_true(limits.peak("f32", 1, 1e-4) > 1e6)
    assert.is_true(limits.adamw(1001, 2).sample(1e-4) > 0)
    limits.C.luda_limits_release()
  end)
end)

describe("scripts/bench.lua", function()
  it("refuses a section that it does not know", function()
    local text, status = bench("elementwise nowhere --peer none")
    assert.equal(2, status)
    assert.truthy(text:find("no section 'nowhere'", 1, true), text)
  end)

  it("writes its rows as JSON", function()
    local path = os.tmpname()
    local text, status = bench("transpose --quick --samples 3 --seconds 0.001 --threads 1 --peer none --json " .. path)
    assert.equal(0, status, text)
    local file = assert(io.open(path))
    local found = json.decode(file:read("*a"))
    file:close()
    os.remove(path)
    assert.equal(luda.version, found.version)
    assert.equal(1, found.machine.threads)
    for _, name in ipairs { "cpu", "simd", "cores" } do
      assert.is_not_nil(found.machine[name], name)
    end
    assert.equal(2, #found.rows)
    for _, row in ipairs(found.rows) do
      assert.same({ "transpose", "f32", 1, "GB/s", "copy", 3 },
        { row.section, row.dtype, row.threads, row.unit, row.limit_kind, row.samples })
      near(row.value / row.limit, row.ratio, 1e-9)
      assert.is_true(row.value > 0 and row.spread >= 0 and row.foreign_cpu >= 0)
      assert.is_nil(row.peer)
      assert.truthy(text:find(row.case, 1, true), text)
    end
  end)
end)

describe("the section collectives", function()
  it("sums over every kind of rank, each against its limit", function()
    local path = os.tmpname()
    local text, status = bench("collectives --quick --peer none --json " .. path)
    local file = assert(io.open(path))
    local rows = json.decode(file:read("*a")).rows
    file:close()
    os.remove(path)
    assert.equal(0, status, text)
    local seen = {}
    for _, row in ipairs(rows) do
      seen[row.case] = row.limit_kind
      assert.equal("us", row.unit)
      assert.is_true(row.value ~= row.limit and row.ratio ~= nil, row.case)
    end
    assert.equal("direct sum", seen["2 rank threads, 64 KiB"])
    assert.equal("direct sum", seen["2 processes, memory in common, 1 MiB"])
    assert.equal("direct sum", seen["2 processes, 4 B"])
    assert.equal("exchange", seen["2 processes over TCP, 1 MiB"])
    assert.equal("from C", seen["2 rank threads, from Lua, 4 B"])
  end)
end)
