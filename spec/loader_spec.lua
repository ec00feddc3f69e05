--- Data workers: the same values in the same order however many there are, errors, ends, memory, and states in records.

local luda = require "luda"
local helper = require "spec.helper"
local folder = require "luda.folder"
local ffi = require "ffi"
local data = luda.data

local ITEMS = "spec/work/items.lua"

local function items(kind, fields)
  fields.kind = kind
  return data.dataset(ITEMS, fields)
end

--- Plain values of the next items.
local function take(loader, count)
  local list = {}
  for k = 1, count do
    local item = loader:next()
    list[k] = { epoch = loader.epoch, sample = loader.sample, value = type(item) ~= "table" and item or {
      x = item.x:totable(), i = item.i:totable(), epoch = item.epoch:totable(), noise = item.noise:totable(),
    } }
  end
  return list
end

local function threads()
  return #folder.list("/proc/self/task")
end

local function address(tensor)
  return tonumber(ffi.cast("uintptr_t", tensor:data()))
end

describe("workers", function()
  before_each(helper.before)
  after_each(helper.after)

  it("give what one thread gives, whatever their number, random numbers included", function()
    local function values(workers, ahead, seed)
      local set = items("noisy", { n = 23 }):shuffle(3):batch(4):collate()
      local loader = set:prefetch { workers = workers, ahead = ahead, seed = seed }
      local list = take(loader, 20)
      loader:close()
      return list
    end
    luda.manual_seed(7)
    local before = luda.generator():state()
    local expected = values(0, nil, 5)
    assert.same(before, luda.generator():state())
    for _, case in ipairs { { 1 }, { 2 }, { 3, 1 }, { 4, 50 } } do
      assert.same(expected, values(case[1], case[2], 5))
    end
    assert.same(before, luda.generator():state())
    local other = values(2, nil, 6)
    assert.same(expected[9].value.x, other[9].value.x)
    assert.is_not.same(expected[9].value.noise, other[9].value.noise)
    assert.is_not.same(expected[1].value.noise, expected[2].value.noise)
  end)

  it("are waited for in the order of the items, fast ones or slow ones", function()
    local loader = items("slow", { n = 12, rounds = 300 }):prefetch { workers = 3 }
    for i = 1, 24 do
      assert.equal((i - 1) % 12 + 1, loader:next())
    end
    loader:close()
  end)

  it("hand tensors over without a copy", function()
    local weights = luda.randn(6, 5)
    local loader = items("noisy", { n = 6, weights = weights }):prefetch { workers = 2 }
    for i = 1, 6 do
      assert.equal(address(weights) + (i - 1) * 20, address(loader:next().x))
    end
    loader:close()
  end)

  it("make no more than what is to be ahead", function()
    local numel = 2 ^ 18
    local before = luda.memory("cpu").live
    local loader = items("large", { n = 100, numel = numel }):prefetch { workers = 2, ahead = 3 }
    luda.memory { reset_peak = true }
    for i = 1, 30 do
      luda.scope(function()
        assert.equal(i, loader:next():sum():item() / numel)
      end)
    end
    -- Three ahead, one being read; counters of threads lag by at most 1 MiB each.
    assert.is_true(luda.memory("cpu").peak - before <= 4 * numel * 4 + 3 * 2 ^ 20)
    loader:close()
    assert.is_true(luda.memory("cpu").live - before < 2 ^ 20)
  end)

  it("raise their errors at the consumer's line, with their traceback, and go on from the same item", function()
    local loader = items("failing", { n = 5, at = 3 }):prefetch { workers = 2 }
    assert.equal(1, loader:next())
    assert.equal(2, loader:next())
    for _ = 1, 2 do
      local ok, err = pcall(loader.next, loader)
      assert.is_false(ok)
      assert.matches("^spec/loader_spec.lua:%d+: spec/work/items.lua:%d+: attempt to index field 'missing'", tostring(err))
      assert.matches("sample 2 of epoch 1", err.message)
      assert.matches("items.lua:%d+: in function", err.traceback)
      assert.equal(2, loader.sample)
    end
    local refusing = items("refusing", { n = 2, at = 1 }):prefetch { workers = 1 }
    local err = assert.raises("shape", "6 elements of shape %[2, 3%] cannot become %[7%]", refusing.next, refusing)
    assert.matches("items.lua:%d+%)$", err.message)
    assert.equal("reshape", err.op)
    local unsendable = items("unsendable", { n = 2 }):prefetch { workers = 1 }
    assert.raises("invalid", "a function cannot pass between Lua states", unsendable.next, unsendable)
  end)

  it("are refused what they cannot have", function()
    local set = data.dataset(3, function(i) return i end)
    assert.raises("invalid", "dataset%(n, get%) was given a function.*dataset%(\"file.lua\", args%)", set.prefetch, set)
    local mapped = items("plain", { n = 3 }):map(function(i) return i end):batch(2)
    assert.raises("invalid", "map was given a function", mapped.prefetch, mapped)
    assert.same({ 1, 2 }, mapped:prefetch { workers = 0 }:next())
    assert.raises("invalid", "%-1 workers", set.prefetch, set, { workers = -1 })
    assert.raises("invalid", "has no items", data.dataset(0, print).prefetch, data.dataset(0, print), { workers = 0 })
    assert.raises("io", "neither a file nor a module 'no.such'", data.dataset, "no.such")
    assert.raises("invalid", "returns 5, not a data set", data.dataset, ITEMS, { kind = "nothing" })
    assert.raises("invalid", "returns a table, not a function%(args%)", data.dataset, "luda.scope")
    local problem = select(2, pcall(data.dataset, ITEMS, { kind = "broken" }))
    assert.matches("there is no such data", tostring(problem))
  end)

  it("end when the loader is closed, dropped, or stands elsewhere", function()
    local before = threads()
    local loader = items("plain", { n = 1000 }):prefetch { workers = 3 }
    assert.equal(before, threads())
    loader:next()
    assert.equal(before + 3, threads())
    loader:close()
    loader:close()
    assert.equal(before, threads())
    assert.equal(2, loader:next())
    loader:load_state(loader:state())
    assert.equal(before, threads())
    assert.equal(3, loader:next())
    loader = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(before, threads())
  end)

  it("end with the process, however it ends", function()
    local start = ("local l = require('luda').data.dataset('%s', { kind = 'slow', n = 9, rounds = 1000 }):prefetch{} l:next() ")
      :format(ITEMS)
    for code, status in pairs {
      ["print('end')"] = 0, ["print('end') os.exit(3)"] = 3, ["print('end') os.exit(4, true)"] = 4,
      ["print('end') error('x')"] = 1,
    } do
      local path = os.tmpname()
      local result = os.execute(("LUA_PATH='%s' timeout 20 luajit -e \"%s\" >%s 2>&1"):format(package.path, start .. code, path))
      local file = assert(io.open(path))
      local text = file:read("*a")
      file:close()
      os.remove(path)
      assert.equal(status * 256, result, text)
      assert.matches("end\n", text)
    end
  end)
end)

describe("a loader's state", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is that of what was read, with items in flight, for any cut and any number of workers", function()
    math.randomseed(20261130)
    local expected = take(items("noisy", { n = 13 }):shuffle(4):batch(3):collate():prefetch { workers = 0, seed = 2 }, 30)
    for _ = 1, 25 do
      local cut, one, two = math.random(0, 20), math.random(0, 3), math.random(0, 3)
      local set = items("noisy", { n = 13 }):shuffle(4):batch(3):collate()
      local first, second = set:prefetch { workers = one, seed = 2 }, set:prefetch { workers = two, ahead = math.random(1, 5) }
      local got = take(first, cut)
      second:load_state(first:state())
      for k, entry in ipairs(take(second, 30 - cut)) do
        got[cut + k] = entry
      end
      first:close()
      second:close()
      assert.same(expected, got)
    end
  end)

  it("stands in a record", function()
    local dir = os.tmpname()
    os.remove(dir)
    finally(function() os.remove(dir .. ".safetensors") end)
    local function loader()
      return items("noisy", { n = 13 }):shuffle(4):batch(3):collate():prefetch { workers = 2, seed = 9 }
    end
    local straight = loader()
    take(straight, 7)
    luda.record.save(dir, { loader = straight })
    local resumed = loader()
    resumed:next()
    luda.record.load(dir):restore { loader = resumed }
    assert.same(take(straight, 9), take(resumed, 9))
    straight:close()
    resumed:close()
    local other = items("noisy", { n = 14 }):shuffle(5):batch(3):collate():prefetch { workers = 0 }
    local err = assert.raises("mismatch", "13 samples in the state, 14 here", function()
      luda.record.load(dir):restore { loader = other }
    end)
    assert.matches("shuffled with seed '4' in the state, '5' here", err.message)
  end)

  it("is refused with a sentence for each difference", function()
    local loader = items("plain", { n = 8 }):batch(2):shuffle(1):prefetch { workers = 0 }
    local state = loader:state()
    assert.same({ epoch = 1, sample = 0, samples = 8, seed = 0, shuffles = { 1 } }, state)
    local function with(name, value)
      local changed = loader:state()
      changed[name] = value
      return changed
    end
    assert.raises("mismatch", "expected what state%(%) returned", loader.load_state, loader, 5)
    assert.raises("mismatch", "sample 9 of an epoch of 8", loader.load_state, loader, with("sample", 9))
    assert.raises("mismatch", "sample 1.5 of epoch 1", loader.load_state, loader, with("sample", 1.5))
    assert.raises("mismatch", "sample 3 lies within one of the shuffled items", loader.load_state, loader, with("sample", 3))
    assert.same(state, loader:state())
    assert.equal(2, loader:load_state(with("sample", 8)).epoch)
  end)
end)
