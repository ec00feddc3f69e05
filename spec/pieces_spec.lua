--- A batch cut into pieces, and over ranks: the gradient is that of the whole batch, however it was cut.

local luda = require "luda"
local helper = require "spec.helper"

local nn, optim = luda.nn, luda.optim
local Gradients = luda.autograd.Gradients

local seed = tonumber(os.getenv("LUDA_SEED")) or os.time()

--- Whole numbers from 1 to n, by a seed of their own.
local function dice(start)
  local draw = luda.generator(start)
  return function(n)
    return luda.scope(function()
      return luda.randint(1, n + 1, { 1 }, { generator = draw }):item()
    end)
  end
end

--- A random cut of some rows, some pieces empty.
local function cut(rows, roll)
  local sizes = {}
  while rows > 0 do
    sizes[#sizes + 1] = math.min(rows, roll(4) - 1)
    rows = rows - sizes[#sizes]
  end
  return sizes
end

--- Sentences of tokens, of which some do not count: whole ones in the beginning, others here and there.
local function sentences(rows, length, classes, roll)
  local labels = {}
  for i = 1, rows do
    labels[i] = {}
    for k = 1, length do
      labels[i][k] = (i <= 3 or roll(3) == 1) and -100 or roll(classes)
    end
  end
  return luda.tensor(labels, { dtype = "i64" })
end

describe("a batch in pieces (seed " .. seed .. ")", function()
  before_each(helper.before)
  after_each(helper.after)

  it("has the gradient of the whole one, however it is cut", function()
    local roll = dice(seed)
    luda.manual_seed(seed)
    local rows, length, width, classes = 17, 5, 6, 7
    local model = nn.Sequential(nn.Linear(width, 11), nn.Tanh(), nn.LayerNorm(11), nn.Linear(11, classes)):to_dtype("f64")
    luda.scope(function()
      local x, y = luda.randn(rows, length, width, { dtype = "f64" }), sentences(rows, length, classes, roll)
      local function loss(a, b)
        return nn.cross_entropy(model(a), b), b:ne(-100):sum()
      end
      local whole, counted = loss(x, y)
      local right = whole:backward()
      local sums = optim.Accumulator(model)
      local function compare(options, text)
        local value, weight = sums:run({ x, y }, options, loss)
        assert.near(whole:item(), value, 1e-13)
        assert.equal(counted:item(), weight)
        local grads = sums:grads { mean = true }
        for path, parameter in model:named_parameters() do
          local scale = right[parameter]:abs():amax():item()
          assert.tensor_near(right[parameter], grads[parameter], 1e-12, 1e-12 * scale, path .. " " .. text)
        end
      end
      for _ = 1, 12 do
        local sizes = cut(rows, roll)
        compare({ sizes = sizes }, table.concat(sizes, " "))
      end
      for _, size in ipairs { 1, 2, 5, 16, 17, 100 } do
        compare({ size = size }, "size " .. size)
      end
      -- a mean of means is something else
      for start = 1, 17, 4 do
        local n = math.min(4, 18 - start)
        sums:accumulate((loss(x:narrow(1, start, n), y:narrow(1, start, n))):backward())
      end
      local wrong = sums:grads { mean = true }
      local first = model:parameters()[1]
      assert.is_true((wrong[first] - right[first]):abs():amax():item() > 1e-3 * right[first]:abs():amax():item())
    end)
  end)

  it("goes over ranks that have different rows and tokens", function()
    local roll = dice(seed + 1)
    luda.manual_seed(seed)
    local job = luda.scope(function()
      local rows, ranks, start = 19, {}, 1
      for rank, count in ipairs { 3, roll(12), 0 } do
        count = rank == 3 and rows + 1 - start or count
        ranks[rank] = { start = start, rows = count, sizes = cut(count, roll) }
        start = start + count
      end
      return {
        width = 4, classes = 5, ranks = ranks,
        x = luda.randn(rows, 4, { dtype = "f64" }), y = sentences(rows, 1, 5, roll):reshape(-1),
        weight = luda.randn(4, 5, { dtype = "f64" }), bias = luda.randn(5, { dtype = "f64" }),
      }
    end)
    -- rank 0 has the rows that do not count, so that its weight is 0
    local seen = luda.dist.spawn(3, "spec/work/pieces.lua", job, { timeout = 60 })
    luda.scope(function()
      local w, b = job.weight:clone():requires_grad_(), job.bias:clone():requires_grad_()
      local right = nn.cross_entropy(luda.matmul(job.x, w) + b, job.y):backward()
      for rank = 1, 3 do
        assert.tensor_near(right[w], seen[rank].weight, 1e-12, 1e-12)
        assert.tensor_near(right[b], seen[rank].bias, 1e-12, 1e-12)
        assert.equal(job.y:ne(-100):sum():item(), seen[rank].total)
      end
    end)
    for _, name in ipairs { "x", "y", "weight", "bias" } do
      job[name]:release()
    end
  end)
end)

describe("pieces", function()
  before_each(helper.before)
  after_each(helper.after)

  --- A parameter 1, and the mean of it times each value.
  local function line(dtype)
    local p = luda.tensor({ 1 }, { dtype = dtype or "f64" }):requires_grad_()
    return p, optim.Accumulator { p }, function(values)
      return (p * values):mean()
    end
  end

  it("weigh by their rows, or by what the function says", function()
    local p, sums, mean = line()
    luda.scope(function()
      local values = luda.tensor({ 3, 1, 1, 1 }, { dtype = "f64" })
      local loss, weight = sums:run(values, { sizes = { 1, 3 } }, mean)
      assert.same({ 1.5, 4, 2 }, { loss, weight, sums:count() })
      assert.equal(1.5, sums:grads({ mean = true })[p]:item())
      -- weights of 2 and 1, as a tensor and as a number: (2 · 3 + 1 · 1) / 3
      sums:run(values, { sizes = { 1, 3 } }, function(v)
        return mean(v), v.numel == 1 and luda.tensor({ 2 }, { dtype = "i64" }) or 1
      end)
      assert.near(7 / 3, sums:grads({ mean = true })[p]:item(), 1e-15)
      -- two runs are one window
      sums:run(values:narrow(1, 1, 1), { size = 1 }, mean)
      loss, weight = sums:run(values:narrow(1, 2, 3), { size = 2 }, mean)
      assert.same({ 1, 3, 4 }, { loss, weight, sums:weight() })
      assert.equal(1.5, sums:grads({ mean = true })[p]:item())
    end)
  end)

  it("that count nothing add nothing, NaN included", function()
    local p, sums, mean = line()
    luda.scope(function()
      local values = luda.tensor({ 0 / 0, 2, 0 / 0 }, { dtype = "f64" })
      local function counted(v)
        return mean(v), v:eq(2):sum()
      end
      local loss, weight = sums:run(values, { size = 1 }, counted)
      assert.same({ 2, 1, 3 }, { loss, weight, sums:count() })
      assert.equal(2, sums:grads({ mean = true })[p]:item())
      loss, weight = sums:run(values:narrow(1, 1, 1), { size = 1 }, counted)
      assert.same({ 0, 0 }, { loss, weight })
      assert.raises("invalid", "sum to 0, there is no mean", sums.grads, sums, { mean = true })
      assert.equal(0, sums:grads():len())
      loss, weight = sums:run(values:narrow(1, 1, 0), { size = 4 }, counted)
      assert.same({ 0, 0, 0 }, { loss, weight, sums:count() })
    end)
  end)

  it("of halves add up in float32 where asked, scaled by a scaler", function()
    local p, sums, mean = line "f16"
    luda.scope(function()
      local list = { 1024 }
      for i = 2, 9 do
        list[i] = 0.125
      end
      local values = luda.tensor(list, { dtype = "f16" })
      sums:run(values, { size = 1, dtype = "f32" }, mean)
      assert.equal(1025, sums:grads()[p]:item())
      sums:run(values, { size = 1 }, mean)
      assert.equal(1024, sums:grads()[p]:item())
      local scaler, opt = optim.GradScaler { init_scale = 16 }, optim.SGD({ p }, { fp32_master = true })
      sums:run(values, { size = 1, dtype = "f32", scaler = scaler }, function(v)
        return mean(v):to("f32")
      end)
      scaler:step(opt, 9 / 1025, sums:grads { mean = true })
      assert.near(0, opt:state().master["1"]:item(), 1e-6)
    end)
  end)

  it("do not pile up in memory", function()
    local layer = nn.Linear(64, 64)
    local sums = optim.Accumulator(layer)
    local x = luda.randn(256, 64)
    local function peak(size)
      luda.memory { reset_peak = true }
      local before = helper.live_bytes()
      luda.memory { reset_peak = true }
      sums:run(x, { size = size }, function(a)
        return (layer(a):tanh():exp():tanh() ^ 2):mean()
      end)
      local most = luda.memory("cpu").peak - before
      sums:grads():release()
      return most
    end
    peak(256)
    assert.is_true(peak(16) < peak(256) / 3)
    x:release()
  end)

  it("refuse what does not fit; an error leaves the sums as they were", function()
    local p, sums, mean = line()
    luda.scope(function()
      local values = luda.tensor({ 3, 1, 1, 1 }, { dtype = "f64" })
      for _, row in ipairs {
        { "shape", "run: the sizes %[1, 2%] sum to 3, the batch has 4 rows", values, { sizes = { 1, 2 } } },
        { "shape", "entry 2 of the batch has shape %[2%], the first one has 4 rows", { values, luda.ones(2) }, { size = 1 } },
        { "invalid", "run: give size, the rows of a piece, or sizes", values, {} },
        { "invalid", "run: give size", values, { size = 1, sizes = { 4 } } },
        { "invalid", "size is 0, it must be at least 1", values, { size = 0 } },
        { "invalid", "a size must be a whole number, not 1.5", values, { sizes = { 1.5, 2.5 } } },
        { "invalid", "a size is %-1", values, { sizes = { -1, 5 } } },
        { "invalid", "the batch must be a tensor or a list of tensors, not the string", "batch", { size = 1 } },
        { "invalid", "entry 1 of the batch must be a tensor with rows", { 3 }, { size = 1 } },
        { "invalid", "unknown option 'parts'", values, { parts = 2 } },
      } do
        assert.raises(row[1], row[2], sums.run, sums, row[3], row[4], mean)
      end
      assert.raises("invalid", "the third argument must be a function, not nil", sums.run, sums, values, { size = 1 })
      assert.raises("invalid", "must return a loss, .* it returned 3", sums.run, sums, values, { size = 1 }, function()
        return 3
      end)
      for pending = 0, 1 do
        local want = 0
        if pending == 1 then
          local grads = Gradients()
          grads:register(p, luda.tensor({ 7 }, { dtype = "f64" }))
          sums:accumulate(grads, { weight = 2 })
          want = 14
        end
        local calls = 0
        assert.has_error(function()
          sums:run(values, { size = 1 }, function(v)
            calls = calls + 1
            return calls < 3 and mean(v) or error("stop")
          end)
        end)
        assert.same({ 3, pending, 2 * pending }, { calls, sums:count(), sums:weight() })
        local grads = sums:grads()
        assert.equal(want, grads[p] and grads[p]:item() or 0)
      end
    end)
  end)
end)
