--- Text, batches over epochs and ranks, IDX files.

local luda = require "luda"
local helper = require "spec.helper"
local data = luda.data

--- Writes a file that is removed when the test ends.
local function temporary(content, suffix)
  local path = os.tmpname()
  os.remove(path)
  path = path .. (suffix or "")
  local file = assert(io.open(path, "wb"))
  file:write(content)
  file:close()
  finally(function() os.remove(path) end)
  return path
end

describe("text", function()
  before_each(helper.before)
  after_each(helper.after)

  it("becomes ids in order of code points, split at the end", function()
    local text = data.text("banana bandana", { split = 0.25 })
    assert.same({ " ", "a", "b", "d", "n" }, { unpack(text.vocab) })
    assert.equal(5, #text.vocab)
    assert.equal(5, text.vocab.size)
    assert.same({ 3, 2, 5, 2, 5, 2, 1, 3, 2, 5, 4 }, text.train:totable())
    assert.same({ 2, 5, 2 }, text.valid:totable())
    assert.equal("i64", text.train.dtype)
  end)

  it("counts characters, not bytes", function()
    local source = "aé€😀é"
    local text = data.text(source, { split = 0 })
    assert.same({ "a", "é", "€", "😀" }, { unpack(text.vocab) })
    assert.same({ 1, 2, 3, 4, 2 }, text.train:totable())
    assert.equal(source, text.vocab:decode(text.train))
    assert.same({ 0 }, text.valid.shape)
  end)

  it("reads a file, and says when it cannot", function()
    local path = temporary("x y\nx")
    assert.equal("x y\nx", data.text(path, { split = 0 }).vocab:decode(data.text(path, { split = 0 }).train))
    assert.raises("io", "cannot read", data.text, "no/such/file.txt")
    assert.raises("invalid", "there is nothing in it", data.text, temporary(""))
    assert.raises("invalid", "level is 'char'", data.text, "ab", { level = "word" })
  end)

  it("refuses what is not UTF-8", function()
    for _, bad in ipairs { "a\255b", "\128", "\195", "\224\128\128x", "\237\n\150", "\244\144\128\128", "\192\128" } do
      assert.raises("invalid", "is not UTF%-8", data.text, bad)
    end
  end)

  it("encodes and decodes what is in the vocabulary", function()
    local vocab = data.text("hello world", { split = 0 }).vocab
    assert.equal("lord", vocab:decode(vocab:encode("lord")))
    assert.equal("h", vocab:decode(vocab:encode("h"):item()))
    assert.equal("he", vocab:decode { vocab:encode("h"):item(), vocab:encode("e"):item() })
    assert.equal("", vocab:decode(vocab:encode("")))
    assert.raises("invalid", "'x' at byte 3 is not among the 8", vocab.encode, vocab, "hex")
    assert.raises("index", "id 9 at position 1; the vocabulary has 1 to 8", vocab.decode, vocab, { 9 })
    assert.raises("index", "id 0", vocab.decode, vocab, luda.tensor { 0LL })
  end)

  it("of megabytes is done in a moment, outside the Lua heap", function()
    local source = ("0123456789"):rep(200000)
    local heap, before = collectgarbage("count"), os.clock()
    local text = data.text(source)
    assert.is_true(os.clock() - before < 1)
    assert.equal(1800000, text.train:size(1))
    assert.is_true(collectgarbage("count") - heap < 8000)
  end)
end)

describe("batches", function()
  before_each(helper.before)
  after_each(helper.after)

  --- Tokens 0 … count - 1, so that a token says where it stood.
  local function counting(count)
    return luda.arange(count, { dtype = "i64" })
  end

  --- First tokens of the rows of one batch.
  local function starts(x)
    local list = {}
    for row = 1, x:size(1) do
      list[row] = x[{ row, 1 }]:item()
    end
    return list
  end

  local function epoch_of(loader)
    local all, epoch = {}, loader.epoch
    while loader.epoch == epoch do
      for _, start in ipairs(starts((loader:next()))) do
        all[#all + 1] = start
      end
    end
    return all
  end

  it("partition the samples of an epoch, targets one further on", function()
    local loader = data.batches(counting(61), { batch = 4, length = 5 })
    assert.equal(12, loader.samples)
    assert.equal(3, loader.batches)
    for _ = 1, 3 do
      local x, y = loader:next()
      assert.same({ 4, 5 }, x.shape)
      assert.equal("i64", y.dtype)
      assert.is_true((x + 1):equal(y))
    end
    assert.equal(2, loader.epoch)
    assert.equal(0, loader.sample)
    local order = epoch_of(loader)
    local sorted = { unpack(order) }
    table.sort(sorted)
    for i = 1, 12 do
      assert.equal((i - 1) * 5, sorted[i])
    end
    assert.is_not.same(sorted, order)
  end)

  it("have an order that is a function of seed and epoch", function()
    local function orders(seed)
      local loader = data.batches(counting(101), { batch = 5, length = 4, seed = seed })
      return { epoch_of(loader), epoch_of(loader) }
    end
    local a, b, c = orders(3), orders(3), orders(4)
    assert.same(a, b)
    assert.is_not.same(a[1], a[2])
    assert.is_not.same(a[1], c[1])
    luda.manual_seed(9)
    assert.same(a, orders(3))
    local plain = data.batches(counting(21), { batch = 2, length = 5, shuffle = false })
    assert.same({ 0, 5, 10, 15 }, epoch_of(plain))
    assert.same({ 0, 5, 10, 15 }, epoch_of(plain))
  end)

  it("show ranks together what one rank sees", function()
    for _, drop_last in ipairs { true, false } do
      local function loader(rank, size)
        return data.batches(counting(93), { batch = 6, length = 4, seed = 2, rank = rank, size = size, drop_last = drop_last })
      end
      local whole, ranks = loader(0, 1), { loader(0, 3), loader(1, 3), loader(2, 3) }
      for _ = 1, 9 do
        local together = {}
        for r = 1, 3 do
          local x = ranks[r]:next()
          if drop_last then
            assert.equal(2, x:size(1))
          end
          for _, start in ipairs(starts(x)) do
            together[#together + 1] = start
          end
        end
        assert.same(starts((whole:next())), together)
        assert.equal(whole.epoch, ranks[2].epoch)
        assert.equal(whole.sample, ranks[2].sample)
      end
    end
  end)

  it("end an epoch with what is left, when nothing is dropped", function()
    local loader = data.batches(counting(36), { batch = 3, length = 5, drop_last = false })
    assert.equal(7, loader.samples)
    assert.equal(3, loader.batches)
    local sizes = {}
    for i = 1, 4 do
      sizes[i] = loader:next():size(1)
    end
    assert.same({ 3, 3, 1, 3 }, sizes)
  end)

  it("go on from a state in the middle of an epoch, with any number of ranks", function()
    local function loader(rank, size, seed)
      return data.batches(counting(200), { batch = 4, length = 3, seed = seed, rank = rank, size = size })
    end
    local first = loader(0, 1, 5)
    for _ = 1, 21 do
      first:next()
    end
    local state = first:state()
    for _, value in pairs(state) do
      assert.is_true(type(value) == "number" or type(value) == "boolean")
    end
    assert.equal(2, state.epoch)
    local again, left, right = loader(0, 1, 99), loader(0, 2, 5), loader(1, 2, 5)
    for _, other in ipairs { again, left, right } do
      other:next()
      other:load_state(state)
    end
    for _ = 1, 30 do
      local expected = starts((first:next()))
      assert.same(expected, starts((again:next())))
      local both = starts((left:next()))
      both[3], both[4] = unpack(starts((right:next())))
      assert.same(expected, both)
    end
  end)

  it("take the order of the state's seed, also within the same epoch", function()
    local a = data.batches(counting(200), { batch = 4, length = 3, seed = 5 })
    local b = data.batches(counting(200), { batch = 4, length = 3, seed = 99 })
    a:next()
    b:next()
    b:load_state(a:state())
    assert.same(starts((a:next())), starts((b:next())))
  end)

  it("survive the scope of the step that asks for them", function()
    local loader = data.batches(counting(31), { batch = 2, length = 5 })
    local seen = 0
    for _ = 1, 9 do
      seen = seen + luda.scope(function()
        return loader:next():size(1)
      end)
    end
    assert.equal(18, seen)
  end)

  it("are refused where they cannot be", function()
    local tokens = counting(50)
    assert.raises("invalid", "cannot be split evenly among 3 ranks", data.batches, tokens, { batch = 4, length = 2, size = 3 })
    assert.raises("invalid", "ranks count from 0", data.batches, tokens, { batch = 4, length = 2, size = 2, rank = 2 })
    assert.raises("invalid", "make 4 samples of 10; a batch needs 5", data.batches, tokens, { batch = 5, length = 10 })
    assert.raises("invalid", "tokens are a CPU tensor", data.batches, luda.randn(9), { batch = 1, length = 2 })
    assert.raises("invalid", "batch must be a whole number", data.batches, tokens, { length = 2 })
    assert.raises("invalid", "unknown option 'size_'", data.batches, tokens, { batch = 1, length = 2, size_ = 1 })
    local loader = data.batches(tokens, { batch = 5, length = 2 })
    local state = data.batches(tokens, { batch = 5, length = 3 }):state()
    assert.raises("mismatch", "length is 3 in the state, 2 here", loader.load_state, loader, state)
    assert.raises("mismatch", "sample 25 of an epoch of 24", loader.load_state, loader,
      { epoch = 1, sample = 25, seed = 0, length = 2, samples = 24 })
  end)
end)

describe("an IDX file", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is read as stored, in every type", function()
    assert.same({ { 1, 2, 255 }, { 4, 5, 6 } },
      data.idx(temporary("\0\0\8\2\0\0\0\2\0\0\0\3\1\2\255\4\5\6")):totable())
    local cases = {
      { 9, "i8", "\255\127", { -1, 127 } }, { 11, "i16", "\255\254\1\0", { -2, 256 } },
      { 12, "i32", "\0\1\0\0\255\255\255\255", { 65536, -1 } }, { 13, "f32", "\63\128\0\0\192\64\0\0", { 1, -3 } },
      { 14, "f64", "\64\9\33\251\84\68\45\24\0\0\0\0\0\0\0\0", { math.pi, 0 } },
    }
    for _, case in ipairs(cases) do
      local t = data.idx(temporary("\0\0" .. string.char(case[1]) .. "\1\0\0\0\2" .. case[3]))
      assert.equal(case[2], t.dtype)
      assert.same(case[4], t:totable())
    end
  end)

  it("may be gzip'd", function()
    local path = temporary("\0\0\8\1\0\0\0\4\9\8\7\6")
    os.execute("gzip -kf " .. path)
    finally(function()
      os.remove(path)
      os.remove(path .. ".gz")
    end)
    assert.same({ 9, 8, 7, 6 }, data.idx(path .. ".gz"):totable())
  end)

  it("is refused when it is something else, too short or too long", function()
    assert.raises("corrupt", "does not begin like", data.idx, temporary("hello world"))
    assert.raises("corrupt", "does not begin like", data.idx, temporary(""))
    assert.raises("corrupt", "needs 4 bytes of elements, 3 are there", data.idx, temporary("\0\0\8\1\0\0\0\4\1\2\3"))
    assert.raises("corrupt", "more than the 1 bytes", data.idx, temporary("\0\0\8\1\0\0\0\1\1\2"))
    assert.raises("corrupt", "within the sizes", data.idx, temporary("\0\0\8\2\0\0\0\1"))
    assert.raises("io", "cannot open", data.idx, "/no/such/file")
  end)
end)
