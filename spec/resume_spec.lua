--- Runs in half precision with everything that a record keeps: stopped anywhere and resumed in new objects, they end in the
-- same bytes; with any one part left out they do not.

local luda = require "luda"
local helper = require "spec.helper"

local nn, optim, record = luda.nn, luda.optim, luda.record

local dir

local read = helper.read

--- How a run computes: what to convert the model to, what autocast is to, and whether losses are scaled.
local ways = {
  { name = "a float16 model with masters and a scaler", dtype = "f16", scaled = true },
  { name = "autocast to float16 with a scaler", autocast = "f16", scaled = true },
  { name = "a bfloat16 model with masters, in the middle of windows", dtype = "bf16" },
  { name = "autocast to bfloat16, in the middle of windows", autocast = "bf16" },
}

local function new_run(way, seed)
  luda.manual_seed(seed)
  local run = { way = way, micro = 0, skipped = 0 }
  run.model = nn.Sequential(nn.Linear(3, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.25), nn.Linear(16, 3))
  if way.dtype then
    run.model:to_dtype(way.dtype)
  end
  run.optimizer = optim.AdamW(run.model, { amsgrad = true, max_grad_norm = 0.5, fp32_master = true })
  run.scheduler = optim.lr.Warmup { steps = 3, after = optim.lr.Cosine { lr = 0.02, steps = 20 } }
  run.accumulator = optim.Accumulator(run.model)
  -- so large at first that steps are skipped, and soon growing again
  run.scaler = way.scaled and optim.GradScaler { init_scale = 2 ^ 18, growth_interval = 2 } or nil
  run.ema = optim.EMA(run.model, 0.8)
  run.loader = luda.data.batches(luda.arange(61, { dtype = "i64" }) + 1, { batch = 4, length = 3, seed = 9 })
  run.generators = { noise = luda.generator(seed + 1) }
  return run
end

local function parts_of(run)
  return {
    model = run.model, optimizer = run.optimizer, scheduler = run.scheduler, accumulator = run.accumulator,
    scaler = run.scaler, ema = run.ema, loader = run.loader, generators = run.generators, state = { micro = run.micro },
  }
end

local function update(run, grads)
  local rate = run.scheduler:step()
  local report
  if run.scaler then
    report = run.scaler:step(run.optimizer, rate, grads)
    run.scaler:update()
  else
    report = run.optimizer:step(rate, grads)
  end
  run.skipped = run.skipped + (report.skipped and 1 or 0)
  run.ema:update(run.optimizer)
end

local function micro_batch(run)
  local way = run.way
  local x, y = run.loader:next()
  local noise = luda.randn(4, 3, { generator = run.generators.noise }) * 0.01
  x, y = (x:to("f32") / 61 + noise):to(way.dtype or "f32"), y:to("f32") / 61
  local out = way.autocast and luda.autocast({ dtype = way.autocast }, run.model, x) or run.model(x)
  local loss = nn.mse_loss(out:to("f32"), y)
  local grads = (run.scaler and run.scaler:scale(loss) or loss):backward()
  run.accumulator:accumulate(grads, { dtype = "f32", weight = 1 + run.micro % 3 })
  run.micro = run.micro + 1
  if run.micro % 3 == 0 then
    update(run, run.accumulator:grads { mean = true })
  end
end

local function train(run, last)
  while run.micro < last do
    luda.scope(micro_batch, run)
  end
end

local function bytes_of(run)
  return read(record.save(dir .. "/end", parts_of(run)))
end

--- A run that was stopped after `first` micro-batches and goes on in objects made anew, without the part `lost`.
local function resumed(way, first, last, lost)
  local run = new_run(way, 4)
  train(run, first)
  local path = record.save(dir .. "/middle", parts_of(run))
  run = new_run(way, 1000)
  local parts = parts_of(run)
  parts.state = nil
  if lost then
    parts[lost] = nil
    parts.generators = lost ~= "generators" and parts.generators
  end
  local opened = record.load(path)
  run.micro = opened:restore(parts).micro
  opened:close()
  train(run, last)
  return run
end

local function before()
  dir = helper.new_folder()
  helper.before()
end

describe("a run of", function()
  before_each(before)
  after_each(helper.after)

  for _, way in ipairs(ways) do
    it(way.name .. " goes on to the bit", function()
      local last = 27
      local whole = new_run(way, 4)
      train(whole, last)
      local expected = bytes_of(whole)
      if way.scaled then
        assert.is_true(whole.skipped >= 2 and whole.skipped <= 5, whole.skipped .. " of 9 steps were skipped")
      else
        assert.equal(0, whole.skipped)
      end
      for first = 0, 15, way.scaled and 3 or 2 do
        assert.is_true(expected == bytes_of(resumed(way, first, last)), "stopped after " .. first)
      end
      for part in pairs(parts_of(whole)) do
        local first = way.scaled and 18 or 7
        if part ~= "state" and not (way.scaled and part == "accumulator") then
          assert.is_false(expected == bytes_of(resumed(way, first, last, part)), part .. " makes no difference")
        end
      end
    end)
  end
end)

describe("a live run", function()
  before_each(before)
  after_each(helper.after)

  for _, way in ipairs(ways) do
    it("of " .. way.name .. " goes back to a record and on to the bit", function()
      local run = new_run(way, 4)
      train(run, 9)
      local path = record.save(dir .. "/there", parts_of(run))
      train(run, 18)
      local expected = bytes_of(run)
      local parts = parts_of(run)
      parts.state = nil
      local opened = record.load(path)
      run.micro = opened:restore(parts).micro
      opened:close()
      assert.equal(9, run.micro)
      train(run, 18)
      assert.is_true(expected == bytes_of(run))
    end)
  end

  it("under autocast computes with the values that parameters were given", function()
    local run = new_run(ways[4], 4)
    local x = luda.randn(5, 3)
    run.model:eval()
    local function output()
      return luda.autocast({ dtype = "bf16" }, run.model, x):totable()
    end
    local first = output()
    local path = record.save(dir .. "/first", parts_of(run))
    train(run, 12)
    local trained, averaged = output(), run.ema:with(output)
    assert.not_same(trained, averaged)
    assert.same(trained, output())
    luda.scope(function()
      local other = new_run(ways[4], 5)
      other.model:eval()
      for i, p in ipairs(other.model:parameters()) do
        luda.no_grad(p.copy_, p, run.ema.averages[i])
      end
      assert.same(averaged, luda.autocast({ dtype = "bf16" }, other.model, x):totable())
    end)
    record.load(path):restore { model = run.model, generators = false }
    assert.same(first, output())
    x:release()
  end)
end)
