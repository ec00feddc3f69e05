--- Data sets: lazy steps, orders that are computed, and every sample once an epoch, for any number of ranks.

local luda = require "luda"
local helper = require "spec.helper"
local order = require "luda.data.order"
local data = luda.data

local function numbers(n)
  return data.dataset(n, function(i) return i end)
end

describe("a data set", function()
  before_each(helper.before)
  after_each(helper.after)

  local function items(set, epoch)
    local list = {}
    for item in set:iter(epoch) do
      list[#list + 1] = item
    end
    return list
  end

  local function squares(count)
    return data.dataset(count, function(i) return i * i end)
  end

  it("is made of a size and a function, and mapped lazily", function()
    local calls = 0
    local set = squares(4):map(function(value)
      calls = calls + 1
      return value + 1
    end)
    assert.equal(0, calls)
    assert.same({ 2, 5, 10, 17 }, items(set))
    assert.equal(10, set:get(3))
    assert.equal(5, calls)
    assert.raises("index", "item 5 of 4", set.get, set, 5)
  end)

  it("is shuffled by seed and epoch, and repeated through the epochs", function()
    local set = squares(20):shuffle(3)
    local first, second = items(set, 1), items(set, 2)
    assert.is_not.same(first, second)
    local twice = items(set:repeat_(2))
    assert.same(first, { unpack(twice, 1, 20) })
    assert.same(second, { unpack(twice, 21, 40) })
    table.sort(first)
    assert.same(items(squares(20)), first)
    local endless = set:repeat_()
    assert.equal(set:get(1, 1001), endless:get(20001))
  end)

  it("is dealt out to ranks evenly", function()
    assert.same({ 1, 9, 25 }, items(squares(7):shard(0, 2)))
    assert.same({ 4, 16, 36 }, items(squares(7):shard(1, 2)))
    assert.raises("invalid", "ranks count from 0", squares(4).shard, squares(4), 2, 2)
  end)

  it("is batched and collated", function()
    assert.same({ { 1, 4 }, { 9, 16 }, { 25 } }, items(squares(5):batch(2)))
    assert.equal(2, squares(5):batch(2, { drop_last = true }).size)
    local set = data.dataset(3, function(i)
      return { x = luda.full({ 2 }, i), y = i, name = "n" .. i }
    end):batch(2):collate()
    local batch = set:get(1)
    assert.same({ { 1, 1 }, { 2, 2 } }, batch.x:totable())
    assert.same({ 1, 2 }, batch.y:totable())
    assert.same({ "n1", "n2" }, batch.name)
    assert.same({ 5, 25 }, items(squares(4):batch(2):collate(function(list)
      return list[1] + list[2]
    end)))
  end)
end)

describe("an order", function()
  --- Values of a permutation, which holds each once.
  local function listed(n, seed, epoch)
    local at, list, seen = order.permutation(n, seed, epoch), {}, {}
    for place = 1, n do
      local value = at(place)
      assert.is_true(value >= 1 and value <= n and value % 1 == 0 and not seen[value])
      seen[value], list[place] = true, value
    end
    return list
  end

  it("holds each number once, and belongs to its seed and epoch", function()
    for n = 1, 70 do
      listed(n, n, 1)
    end
    for _, n in ipairs { 255, 256, 257, 1009, 10007 } do
      local one = listed(n, 7, 3)
      assert.same(one, listed(n, 7, 3))
      assert.is_not.same(one, listed(n, 7, 4))
      assert.is_not.same(one, listed(n, 8, 3))
      assert.is_not.same(one, listed(n, -7, 3))
    end
  end)

  it("is any of the n! with the same chance", function()
    -- Chi-square of 24,000 draws over 120 permutations: 119 degrees of freedom, mean 119, deviation 15.4.
    local counts, kinds, chi = {}, 0, 0
    for seed = 1, 24000 do
      local key = table.concat(listed(5, seed, 1))
      kinds = kinds + (counts[key] and 0 or 1)
      counts[key] = (counts[key] or 0) + 1
    end
    for _, count in pairs(counts) do
      chi = chi + (count - 200) ^ 2 / 200
    end
    assert.equal(120, kinds)
    assert.is_true(chi < 119 + 5 * 15.4, chi)
  end)

  it("leaves no trace of the places: pairs of neighbours are pairs like any", function()
    -- How often place k + 1 has a larger value than place k: half the time; how far they are apart: n / 3 on average.
    local n, up, apart = 20000, 0, 0
    local list = listed(n, 11, 2)
    for place = 2, n do
      up = up + (list[place] > list[place - 1] and 1 or 0)
      apart = apart + math.abs(list[place] - list[place - 1])
    end
    assert.is_true(math.abs(up / (n - 1) - 0.5) < 5 * math.sqrt(1 / 12 / n), up) -- neighbours' steps are correlated: 1/12
    assert.is_true(math.abs(apart / (n - 1) / n - 1 / 3) < 0.01, apart)
  end)

  it("belongs to numbers that never meet: 51,200 triples, no two alike, every bit set half the time", function()
    local seen, set = {}, {}
    for a = -16, 15 do
      for b = 1, 40 do
        for c = 1, 40 do
          local hash = order.hash(a * 0x100000001, b, c)
          assert.is_nil(seen[hash])
          seen[hash] = true
          for bit = 0, 51 do
            set[bit] = (set[bit] or 0) + math.floor(hash / 2 ^ bit) % 2
          end
        end
      end
    end
    for bit = 0, 51 do
      assert.is_true(math.abs(set[bit] / 51200 - 0.5) < 5 * 0.5 / math.sqrt(51200), bit)
    end
  end)

  it("of a million million items takes no memory and no time", function()
    local heap, before = collectgarbage("count"), os.clock()
    local set = numbers(1e12):shuffle(5):batch(8)
    local list, seen = set:get(1e11), {}
    for _, value in ipairs(list) do
      assert.is_true(value >= 1 and value <= 1e12 and value % 1 == 0 and not seen[value])
      seen[value] = true
    end
    assert.equal(8, #list)
    assert.is_true(os.clock() - before < 0.2)
    assert.is_true(collectgarbage("count") - heap < 500)
  end)
end)

describe("an epoch", function()
  before_each(helper.before)
  after_each(helper.after)

  --- A loader of lists for each rank.
  local function ranks_of(set, batch, ranks, drop_last)
    local loaders = {}
    for rank = 0, ranks - 1 do
      loaders[rank + 1] = set:shard(rank, ranks):batch(batch, { drop_last = drop_last }):prefetch { workers = 0 }
    end
    return loaders
  end

  --- Adds what the ranks get in one step; they all stand at the same sample before and after.
  local function step(loaders, all)
    for _, loader in ipairs(loaders) do
      assert.equal(loaders[1].sample, loader.sample)
    end
    for _, loader in ipairs(loaders) do
      for _, value in ipairs(loader:next()) do
        all[#all + 1] = value
      end
          end
  end

  it("has every sample once, for any number of samples, ranks and rows", function()
    math.randomseed(20261130)
    local random = math.random
    for _ = 1, 150 do
      local ranks, n, drop_last = random(1, 5), random(1, 60), random(0, 1) == 1
      local batch = ranks * random(1, 4)
      if not drop_last or n >= batch then
        local loaders, whole = ranks_of(numbers(n):shuffle(n), batch, ranks, drop_last), numbers(n):shuffle(n)
        for epoch = 1, 3 do
          local all, expected = {}, {}
          repeat
            step(loaders, all)
          until loaders[1].epoch > epoch
          for i = 1, drop_last and n - n % batch or n do
            expected[i] = whole:get(i, epoch)
          end
          assert.same(expected, all) -- the rows of the ranks, put together, are those of one rank
        end
      end
    end
  end)

  it("goes on at the same sample with another number of ranks", function()
    math.randomseed(20261201)
    local random = math.random
    for case = 1, 120 do
      local before, after = random(1, 4), random(1, 4)
      if case <= 2 then
        before, after = case * 2 - 1, 2 -- 1 to 2, 3 to 2
      end
      local batch, n, drop_last = 12 * random(1, 2), random(24, 150), random(0, 1) == 1
      local set, cut = numbers(n):shuffle(case), random(0, 12)
      local straight, resumed, all, again = ranks_of(set, batch, 1, drop_last), {}, {}, {}
      local first = ranks_of(set, batch, before, drop_last)
      for _ = 1, cut do
        step(first, again)
      end
      for rank, loader in ipairs(ranks_of(set, batch, after, drop_last)) do
        resumed[rank] = loader:load_state(first[random(1, before)]:state())
      end
      for i = 1, cut + 15 do
        step(straight, all)
        if i > cut then
          step(resumed, again)
        end
      end
      assert.same(all, again)
    end
  end)

  it("of shuffled batches goes on too", function()
    local function loader()
      return numbers(30):batch(4):shuffle(2):prefetch { workers = 0 }
    end
    local straight, resumed = loader(), loader()
    for _ = 1, 5 do
      straight:next()
    end
    resumed:load_state(straight:state())
    for _ = 1, 20 do
      assert.same(straight:next(), resumed:next())
    end
  end)

  it("goes on with another size of batch", function()
    local old = numbers(20):shuffle(1):batch(6):prefetch { workers = 0 }
    local all = { unpack(old:next()) }
    local new = numbers(20):shuffle(1):batch(4):prefetch { workers = 0 }:load_state(old:state())
    repeat
      for _, value in ipairs(new:next()) do
        all[#all + 1] = value
      end
    until new.epoch > 1
    local expected = {}
    for value in numbers(20):shuffle(1):iter(1) do
      expected[#expected + 1] = value
    end
    assert.same(expected, all)
    assert.equal(4, #new:next())
  end)

  it("deals out single items, and batches, evenly", function()
    local set = numbers(11):shuffle(2)
    local one, two = set:shard(0, 2):prefetch { workers = 0 }, set:shard(1, 2):prefetch { workers = 0 }
    for i = 1, 10, 2 do
      assert.equal(set:get(i, 1), one:next())
      assert.equal(set:get(i + 1, 1), two:next())
      assert.equal(i < 9 and i + 1 or 0, one.sample)
    end
    assert.equal(2, two.epoch)
    assert.same({ { 5, 6 } }, { numbers(8):batch(2):shard(0, 2):get(2) })
    assert.same({ { 7, 8 } }, { numbers(8):batch(2):shard(1, 2):get(2) })
  end)

  it("gives a rank that has none of the last batch rows to its shapes", function()
    local set = data.dataset(5, function(i) return { x = luda.full({ 3 }, i), y = i, name = "n" } end)
    local batch = set:shard(0, 4):batch(4):collate():get(2)
    assert.same({ 0, 3 }, batch.x.shape)
    assert.same({ 0 }, batch.y.shape)
    assert.same({ { 5, 5, 5 } }, set:shard(3, 4):batch(4):collate():get(2).x:totable())
  end)

  it("is refused where ranks could not agree", function()
    local set = numbers(12)
    assert.raises("invalid", "cannot be split evenly among 3 ranks", set.batch, set:shard(0, 3), 4)
    assert.raises("invalid", "dealt out already, to 3 ranks", set.shard, set:shard(0, 3), 0, 2)
    assert.raises("invalid", "shuffle before shard", set.batch, set:shard(0, 3):shuffle(1), 3)
    assert.raises("invalid", "before repeat_", set.batch, set:shard(0, 3):repeat_(2), 3)
    assert.raises("invalid", "have no end", set.shuffle, set:repeat_())
    assert.raises("mismatch", "sample 5 lies within", set.from, set:batch(4):shuffle(1), 5)
  end)
end)
