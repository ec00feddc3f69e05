--- Tensor files and training records: bytes, damage, resuming, refusing whole.

local luda = require "luda"
local folder = require "luda.folder"
local helper = require "spec.helper"
local json = require "luda.json"

local nn, optim, record = luda.nn, luda.optim, luda.record

local dir

local read = helper.read

local write = helper.write

local function before()
  dir = helper.new_folder()
  helper.before()
end

--- The error of a call that must fail.
local function failure(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.equal(luda.Error, getmetatable(err))
  return err
end

describe("tensor files", function()
  before_each(before)
  after_each(helper.after)

  it("give back every type, shape and stride, and metadata", function()
    local big = 9007199254740993LL
    local tensors = {
      f32 = luda.tensor({ { 1, -2.5 }, { 3, 0 / 0 } }), f64 = luda.tensor({ 0.1, -1e300 }, { dtype = "f64" }),
      f16 = luda.tensor({ 65504, -0.5 }, { dtype = "f16" }), bf16 = luda.tensor({ 3.140625 }, { dtype = "bf16" }),
      i64 = luda.tensor({ big, -big }), u8 = luda.tensor({ 0, 255 }, { dtype = "u8" }),
      bool = luda.tensor({ true, false }), scalar = luda.tensor(7), empty = luda.zeros(2, 0, 3),
      strided = luda.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }):t(),
    }
    local metadata = { text = "plain", number = 0.1, list = { 1, { a = true } } }
    luda.save(dir .. "/all", tensors, metadata)
    local loaded, facts = luda.load(dir .. "/all")
    for name, tensor in pairs(tensors) do
      assert.equal(tensor.dtype, loaded[name].dtype)
      assert.tensor_near(tensor, loaded[name], 0, 0)
    end
    assert.equal(big, loaded.i64[1]:item())
    assert.same({ text = "plain", number = 0.1, list = { 1, { a = true } } }, facts)
    local first = read(dir .. "/all")
    luda.save(dir .. "/all", tensors, metadata)
    assert.equal(first, read(dir .. "/all"))
    assert.same({ "all" }, folder.list(dir))
    luda.save(dir .. "/none", {})
    assert.same({}, (luda.load(dir .. "/none")))
  end)

  it("refuse what is no tensor and no text", function()
    local x = luda.ones(1)
    assert.raises("invalid", "a table of tensors by name", luda.save, dir .. "/x", x)
    assert.raises("invalid", "holds names and tensors; 3 stands at the string 'a'", luda.save, dir .. "/x", { a = 3 })
    assert.raises("invalid", "stands at 1", luda.save, dir .. "/x", { x })
    assert.raises("invalid", "metadata is a table", luda.save, dir .. "/x", { a = x }, "note")
    assert.raises("invalid", "function has no JSON form", luda.save, dir .. "/x", { a = x }, { f = print })
    assert.raises("invalid", "the path must be a string", luda.save, nil, { a = x })
    assert.raises("io", "No such file", luda.load, dir .. "/missing")
    assert.raises("io", "No such file", luda.save, dir .. "/no/folder", { a = x })
    assert.same({}, folder.list(dir))
  end)
end)

-- Training: what a record must carry from one process to the next.

local function small_model()
  return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 2))
end

--- Everything of a run: model, AdamW with amsgrad, schedule, accumulator of float32 sums, loader.
local function new_run(seed)
  luda.manual_seed(seed)
  local run = { model = small_model(), micro = 0, losses = {} }
  run.optimizer = optim.AdamW(run.model, {
    amsgrad = true, groups = { { match = "bias$", weight_decay = 0 } }, max_grad_norm = 5,
  })
  run.scheduler = optim.lr.Warmup { steps = 2, after = optim.lr.Step { lr = 0.05, size = 2, gamma = 0.5 } }
  run.accumulator = optim.Accumulator(run.model)
  run.loader = luda.data.batches(luda.arange(40, { dtype = "i64" }) + 1, { batch = 4, length = 3, seed = 5 })
  run.ema = optim.EMA(run.model, 0.9)
  return run
end

local function parts_of(run)
  return {
    model = run.model, optimizer = run.optimizer, scheduler = run.scheduler, accumulator = run.accumulator,
    loader = run.loader, ema = run.ema, state = { micro = run.micro },
  }
end

--- `count` micro-batches, an update after every second one.
local function train(run, count)
  for _ = 1, count do
    luda.scope(function()
      local x, y = run.loader:next()
      local loss = ((run.model(x:to("f32") * 0.02) - y:narrow(2, 1, 2):to("f32") * 0.05) ^ 2):mean()
      run.losses[#run.losses + 1] = loss:item()
      run.accumulator:accumulate(loss:backward(), { dtype = "f32" })
      run.micro = run.micro + 1
      if run.micro % 2 == 0 then
        run.optimizer:step(run.scheduler:step(), run.accumulator:grads { mean = true })
        run.ema:update()
      end
    end)
  end
end

--- All bytes of a run's state.
local function bytes_of(run)
  return read(record.save(dir .. "/bytes", parts_of(run)))
end

describe("a training record", function()
  before_each(before)
  after_each(helper.after)

  it("of the same state has the same bytes", function()
    local run = new_run(3)
    train(run, 5)
    local first = bytes_of(run)
    assert.equal(first, bytes_of(run))
    assert.equal(5, run.micro)
    train(run, 1)
    assert.not_equal(first, bytes_of(run))
  end)

  it("goes on to the bit, from the middle of a window, with the same masks and data", function()
    local whole = new_run(3)
    train(whole, 13)
    local expected = bytes_of(whole)
    local half = new_run(3)
    train(half, 5)
    local path = record.save(dir .. "/half", parts_of(half))
    local resumed = new_run(99)
    train(resumed, 3)
    local parts = parts_of(resumed)
    parts.state = nil
    local state, report = record.load(path):restore(parts)
    assert.same({ micro = 5 }, state)
    assert.same({ unused = {}, warnings = {}, upgraded = {} }, report)
    resumed.micro, resumed.losses = state.micro, {}
    assert.equal(1, resumed.accumulator:count())
    train(resumed, 8)
    for i = 1, 8 do
      assert.equal(whole.losses[5 + i], resumed.losses[i])
    end
    assert.equal(expected, bytes_of(resumed))
  end)

  it("of halves with masters, scale and pending float32 sums goes on to the bit", function()
    local function make()
      luda.manual_seed(8)
      local model = nn.Linear(3, 2):to_dtype("bf16")
      return model, optim.AdamW(model, { fp32_master = true, gradient_scale = 16, amsgrad = true }), optim.Accumulator(model)
    end
    local x = luda.tensor({ { 0.3, -0.7, 1.1 }, { -0.2, 0.9, 0.4 } }, { dtype = "bf16" })
    local function micro(model, sums)
      luda.scope(function()
        sums:accumulate(((model(x) ^ 2):sum() * 16):backward(), { dtype = "f32" })
      end)
    end
    local model, opt, sums = make()
    micro(model, sums)
    opt:step(0.01, sums:grads())
    micro(model, sums)
    local path = record.save(dir .. "/half", { model = model, optimizer = opt, accumulator = sums })
    local other, other_opt, other_sums = make()
    record.load(path):restore { model = other, optimizer = other_opt, accumulator = other_sums }
    for _ = 1, 3 do
      micro(model, sums)
      micro(other, other_sums)
      opt:step(0.01, sums:grads())
      other_opt:step(0.01, other_sums:grads())
    end
    assert.equal("bf16", other.weight.dtype)
    assert.same(model.weight:totable(), other.weight:totable())
    assert.same(opt:state().master.weight:totable(), other_opt:state().master.weight:totable())
  end)

  it("is refused whole, with every difference, and changes nothing", function()
    local run = new_run(3)
    train(run, 5)
    local path = record.save(dir .. "/run", parts_of(run))
    luda.manual_seed(4)
    local model = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3, { bias = false }))
    model:parameters()[1]:requires_grad_(false)
    local opt = optim.AdamW(model, { amsgrad = true, beta2 = 0.9, max_grad_norm = 1 })
    local schedule = optim.lr.Step { lr = 0.05, size = 2 }
    local sums = optim.Accumulator(model)
    local before_bytes = read(record.save(dir .. "/before", { model = model, optimizer = opt, scheduler = schedule }))
    local opened = record.load(path)
    local err = failure(opened.restore, opened,
      { model = model, optimizer = opt, scheduler = schedule, accumulator = sums, scaler = { load_state = print } })
    assert.equal("mismatch", err.code)
    assert.same({
      "model: '1.weight': trainable is true in the file, false here",
      "model: '4.bias' is in the file and not here",
      "model: '4.weight': shape is [7, 2] in the file, [7, 3] here",
      "optimizer.groups.1 is a table in the file, missing here",
      "optimizer.members.1.bias is 1 in the file, missing here",
      "optimizer.members.4.bias is 1 in the file, missing here",
      "optimizer.options.beta2 is 0.999 in the file, 0.9 here",
      "optimizer.settings.max_grad_norm is 5 in the file, 1 here",
      "optimizer: '4.bias' is in the file and not here",
      "optimizer: '4.weight': shape is [7, 2] in the file, [7, 3] here",
      "optimizer: exp_avg of '4.weight' has shape [7, 2] in the file, [7, 3] here",
      "optimizer: exp_avg_sq of '4.weight' has shape [7, 2] in the file, [7, 3] here",
      "optimizer: max_exp_avg_sq of '4.weight' has shape [7, 2] in the file, [7, 3] here",
      "scheduler: the file has 'Warmup', here is 'Step'",
      "accumulator: '4.bias' is in the file and not here",
      "accumulator: '4.weight': the sum is f32 [7, 2] in the file, the parameter f32 [7, 3]",
      "scaler: the file has no such part, it has accumulator, ema, loader, model, optimizer, scheduler, state",
    }, err.detail)
    assert.matches("differ in 17 places; nothing was changed", err.message)
    assert.equal(before_bytes, read(record.save(dir .. "/before", { model = model, optimizer = opt, scheduler = schedule })))
    assert.equal(0, sums:count())
  end)

  it("undoes what was restored when a part fails on its own", function()
    local run = new_run(3)
    train(run, 4)
    local scaler = { scale = 4 }
    function scaler:state() return { scale = self.scale } end
    function scaler:load_state(state) self.scale = state.scale end
    local parts = parts_of(run)
    parts.scaler = scaler
    local path = record.save(dir .. "/run", parts)
    train(run, 3)
    scaler.scale = 2
    local position, count = run.loader:state(), run.scheduler.count
    local expected = bytes_of(run)
    function run.scheduler.load_state() error("no more") end
    parts.state = nil
    assert.has_error(function() record.load(path):restore(parts) end, "no more")
    run.scheduler.load_state = nil
    assert.equal(2, scaler.scale)
    assert.same(position, run.loader:state())
    assert.equal(count, run.scheduler.count)
    assert.equal(expected, bytes_of(run))
  end)

  it("tells what it has and was not asked for, and warns", function()
    local run = new_run(3)
    local parts = parts_of(run)
    parts.generators = false
    local path = record.save(dir .. "/run", parts)
    local state, report = record.load(path):restore { model = run.model }
    assert.same({ micro = 0 }, state)
    assert.same({ "accumulator", "ema", "loader", "optimizer", "scheduler" }, report.unused)
    assert.equal(1, #report.warnings)
    assert.matches("no random state in the file", report.warnings[1])
    -- the same file as if it came from elsewhere
    local tensors, metadata = luda.load(path)
    local header = json.decode(metadata["luda.record"])
    header.library, header.simd = "0.0.0", "other"
    metadata["luda.record"] = json.encode(header)
    luda.save(path, tensors, metadata)
    state, report = record.load(path):restore { model = run.model }
    assert.same({ micro = 0 }, state)
    assert.equal(3, #report.warnings)
    assert.matches("saved with instruction set other, running with", report.warnings[2])
    assert.matches("saved by version 0.0.0 of the library, this is " .. luda.version, report.warnings[3], 1, true)
  end)

  it("of an older library may lack options, where they stand at their defaults", function()
    local run = new_run(3)
    local path = record.save(dir .. "/run", { optimizer = run.optimizer })
    local tensors, metadata = luda.load(path)
    local stored = json.decode(metadata["luda.record.optimizer"])
    stored.configuration.options.cautious, stored.configuration.groups[1].options.cautious = nil, nil
    stored.configuration.settings.gradient_scale = nil
    metadata["luda.record.optimizer"] = json.encode(stored)
    luda.save(path, tensors, metadata)
    local _, report = record.load(path):restore { optimizer = run.optimizer }
    assert.same({
      "optimizer.groups.1.options.cautious (0 here)", "optimizer.options.cautious (0 here)",
      "optimizer.settings.gradient_scale (1 here)",
    }, report.upgraded)
    local other = optim.AdamW(run.model, {
      amsgrad = true, max_grad_norm = 5, cautious = true, groups = { { match = "bias$", weight_decay = 0 } },
    })
    local opened = record.load(path)
    local err = failure(opened.restore, opened, { optimizer = other })
    assert.same({
      "optimizer.groups.1.options.cautious is not in the file, 1 here",
      "optimizer.options.cautious is not in the file, 1 here",
    }, err.detail)
  end)

  it("carries generators, buffers beyond 2^53 and plain state of any shape", function()
    local Net = nn.module("Net")
    function Net:init()
      self.weight = luda.ones(2):requires_grad_()
      self.count = luda.tensor({ 9007199254740993LL, -1LL })
      self.mask = luda.tensor({ true, false })
    end
    local net, g = Net(), luda.generator(7)
    luda.rand(3, { generator = g })
    local state = {
      best = 0 / 0, worst = -math.huge, name = "a \"b\"\n", flags = { true, false }, nested = { list = { {}, { 1.5 } } },
      ["$tensor"] = "a key", x = luda.tensor({ 1, 2 }), tiny = 5e-324, third = 1 / 3,
    }
    local path = record.save(dir .. "/run", { model = net, generators = { noise = g }, state = state })
    local other, h = Net(), luda.generator(1)
    luda.no_grad(other.count.zero_, other.count)
    luda.rand(2)
    local before_save = luda.generator():state()
    luda.rand(2)
    local restored, report = record.load(path):restore { model = other, generators = { noise = h } }
    assert.same({}, report.unused)
    assert.equal(9007199254740993LL, other.count[1]:item())
    assert.same({ true, false }, other.mask:totable())
    assert.same(g:state(), h:state())
    assert.not_same(before_save, luda.generator():state())
    assert.is_true(restored.best ~= restored.best)
    assert.same({ -math.huge, "a \"b\"\n", 5e-324, 1 / 3, "a key" },
      { restored.worst, restored.name, restored.tiny, restored.third, restored["$tensor"] })
    assert.same({ true, false }, restored.flags)
    assert.equal(1.5, restored.nested.list[2][1])
    assert.same({ 1, 2 }, restored.x:totable())
    restored.x:fill_(0)
    assert.same({ 1, 2 }, record.load(path):restore({}).x:totable())
    local opened = record.load(path)
    assert.same({ "generators: 'noise' is in the file and not here", "generators: 'other' is here and not in the file" },
      failure(opened.restore, opened, { generators = { other = h } }).detail)
  end)

  it("keeps tied parameters tied, once on disk", function()
    local Tied = nn.module("Tied")
    function Tied:init(tie)
      self.a = luda.tensor({ 1 }):requires_grad_()
      self.b = tie and self.a or luda.tensor({ 1 }):requires_grad_()
    end
    local model = Tied(true)
    local opt = optim.SGD(model)
    local function step(m, o)
      o:step(0.1, (m.a * 2 + m.b * 3):sum():backward())
    end
    step(model, opt)
    assert.near(0.5, model.a:item(), 1e-7)
    local path = record.save(dir .. "/tied", { model = model, optimizer = opt })
    local tensors = luda.load(path)
    assert.is_nil(tensors["model.b"])
    assert.near(0.5, tensors["model.a"]:item(), 1e-7)
    local fresh = Tied(true)
    local fresh_opt = optim.SGD(fresh)
    record.load(path):restore { model = fresh, optimizer = fresh_opt }
    step(fresh, fresh_opt)
    assert.near(0, fresh.a:item(), 1e-7)
    assert.near(0, fresh.b:item(), 1e-7)
    local opened = record.load(path)
    assert.same({ "model: 'b' is here and not in the file", "model: 'b' is tied to 'a' in the file, not tied here" },
      failure(opened.restore, opened, { model = Tied(false) }).detail)
  end)

  it("adds its extension to a path, and keeps dots", function()
    local parts = { state = { 1 } }
    assert.equal(dir .. "/step-100.safetensors", record.save(dir .. "/step-100", parts))
    assert.equal(dir .. "/step-1.5.safetensors", record.save(dir .. "/step-1.5", parts))
    assert.equal(dir .. "/x.safetensors", record.save(dir .. "/x.safetensors", parts))
    assert.same({ 1 }, (record.load(dir .. "/step-1.5"):restore {}))
    assert.same({ 1 }, (record.load(dir .. "/x.safetensors"):restore {}))
    assert.raises("invalid", "must name a file", record.save, dir .. "/", parts)
    assert.raises("invalid", "unknown option 'modell'; it knows accumulator, ema", record.save, dir .. "/y", { modell = 1 })
    assert.raises("invalid", "'optimizer' must have a method state", record.save, dir .. "/y", { optimizer = {} })
    assert.raises("invalid", "state.f: a function has no place", record.save, dir .. "/y", { state = { f = print } })
    assert.raises("invalid", "keys must be 1..n", record.save, dir .. "/y", { state = { [3] = 1 } })
    local loop = {}
    loop.loop = loop
    assert.raises("invalid", "contains itself", record.save, dir .. "/y", { state = loop })
    assert.same({ "step-1.5.safetensors", "step-100.safetensors", "x.safetensors" }, folder.list(dir))
    luda.save(dir .. "/plain.safetensors", { x = luda.ones(1) })
    assert.raises("invalid", "is no training record", record.load, dir .. "/plain")
    assert.raises("io", "No such file", record.load, dir .. "/none")
  end)

  it("that was cut or altered anywhere never loads", function()
    local parts = { model = nn.Linear(2, 1), state = { step = 3 } }
    local path = record.save(dir .. "/good", parts)
    local bytes = read(path)
    assert.equal("mismatch", failure(function()
      record.load(path):restore { model = nn.Linear(1, 1) }
    end).code)
    local torn = dir .. "/torn.safetensors"
    for length = 0, #bytes - 1 do
      write(torn, bytes:sub(1, length))
      assert.equal("corrupt", failure(record.load, torn).code)
    end
    for place = 1, #bytes do
      local flipped = bit.bxor(bytes:byte(place), 2 ^ (place % 8))
      write(torn, bytes:sub(1, place - 1) .. string.char(flipped) .. bytes:sub(place + 1))
      assert.equal("corrupt", failure(record.load, torn).code)
    end
    write(torn, bytes .. "\0")
    assert.equal("corrupt", failure(record.load, torn).code)
    write(torn, bytes:sub(1, -2) .. string.char((bytes:byte(-1) + 1) % 256))
    assert.equal("model.weight", failure(record.load, torn).detail.tensor)
    assert.same({ step = 3 }, (record.load(path):restore {}))
  end)

  it("has a fingerprint of what must match, and nothing else", function()
    local function fingerprint(options, move)
      luda.manual_seed(2)
      local model = nn.Linear(2, 2)
      local opt = optim.SGD(model, options)
      if move then
        opt:step(0.1, (model(luda.ones(1, 2)) ^ 2):sum():backward())
      end
      return record.load(record.save(dir .. "/f", { model = model, optimizer = opt })).header.fingerprint
    end
    local base = fingerprint({ momentum = 0.5 })
    assert.equal(16, #base)
    assert.equal(base, fingerprint({ momentum = 0.5 }, true))
    assert.not_equal(base, fingerprint({ momentum = 0.25 }))
    assert.not_equal(base, fingerprint({ momentum = 0.5, gradient_scale = 2 }))
  end)
end)

describe("a manager", function()
  before_each(before)
  after_each(helper.after)

  it("saves what is due and keeps the newest", function()
    local manager = record.Manager { dir = dir .. "/a/runs/", keep = 2, every = 10 }
    assert.is_nil(manager:newest())
    for step = 1, 45 do
      local path = manager:save(step, { state = { step = step } })
      assert.equal(step % 10 == 0 and ("%s/a/runs/step-%d.safetensors"):format(dir, step), path)
    end
    assert.same({ "step-30.safetensors", "step-40.safetensors" }, folder.list(dir .. "/a/runs"))
    assert.equal(dir .. "/a/runs/step-40.safetensors", manager:newest())
    manager:wait()
    -- steps are numbers, not names; a step back is not lost at once
    manager:save(100, { state = {} })
    assert.equal(dir .. "/a/runs/step-100.safetensors", manager:newest())
    assert.is_string(manager:save(20, { state = {} }))
    assert.same({ 20, 40, 100 }, manager:steps())
  end)

  it("passes over records that are damaged or torn", function()
    local manager = record.Manager { dir = dir, every = 1 }
    for step = 1, 3 do
      manager:save(step, { model = nn.Linear(2, 1) })
    end
    local newest = dir .. "/step-3.safetensors"
    local bytes = read(newest)
    write(newest, bytes:sub(1, -5) .. "\0\0\0\0")
    write(dir .. "/step-9.safetensors", "")
    write(dir .. "/step-x.safetensors", "")
    assert.equal(dir .. "/step-2.safetensors", manager:newest())
    assert.is_nil(record.Manager({ dir = dir .. "/none" }):newest())
  end)

  it("keeps the best beside the newest", function()
    local manager = record.Manager { dir = dir, keep = 1, every = 1, best = "min" }
    for step, metric in ipairs { 3, 1, 2, 0 / 0, 5 } do
      manager:save(step, { state = {} }, { metric = metric })
    end
    assert.same({ 2, 5 }, manager:steps())
    assert.equal(dir .. "/step-2.safetensors", manager:best())
    assert.equal(dir .. "/step-5.safetensors", manager:newest())
    manager:save(6, { state = {} }, { metric = 0 })
    assert.same({ 6 }, manager:steps())
  end)

  it("refuses wrong options", function()
    for _, row in ipairs {
      { {}, "dir must name a folder" }, { { dir = dir, keep = 0 }, "keep is 0" }, { { dir = dir, every = 0 }, "every is 0" },
      { { dir = dir, best = "loss" }, "best is 'min' or 'max'" }, { { dir = dir, each = 1 }, "unknown option 'each'" },
    } do
      assert.raises("invalid", row[2], record.Manager, row[1])
    end
    local manager = record.Manager { dir = dir }
    assert.raises("invalid", "the step must be a whole number", manager.save, manager, 1.5, {})
    assert.raises("invalid", "the metric must be a number", manager.save, manager, 100, {}, { metric = "low" })
  end)
end)

describe("luda record", function()
  before_each(before)
  after_each(helper.after)

  --- Status and printed lines of the command.
  local function run(...)
    local lines, say = {}, print
    _G.print = function(line)
      lines[#lines + 1] = line
    end
    local ok, status = pcall(require("luda.cli.record").main, { ... })
    _G.print = say
    assert.is_true(ok, tostring(status))
    return status, lines
  end

  it("lists, verifies and compares", function()
    luda.manual_seed(1)
    local model = nn.Linear(2, 3)
    local first = record.save(dir .. "/a", { model = model, state = { step = 1 } })
    local second = record.save(dir .. "/b", { model = model, state = { step = 1 } })
    local status, lines = run("ls", first)
    assert.equal(0, status)
    assert.matches("a.safetensors: 2 tensors, checksum %x+$", lines[1])
    assert.equal("  training record: model, state", lines[2])
    assert.matches("^  library " .. luda.version, lines[3])
    assert.matches("f32   %[3%] +model.bias", lines[4])
    assert.matches("f32   %[2, 3%] +model.weight", lines[5])
    status, lines = run("verify", first, second)
    assert.same({ 0, first .. ": good", second .. ": good" }, { status, lines[1], lines[2] })
    status, lines = run("diff", first, second)
    assert.same({ 0, "identical" }, { status, lines[1] })
    luda.no_grad(function()
      model.bias[2] = 7
    end)
    record.save(second, { model = model, state = { step = 2 }, optimizer = optim.SGD(model) })
    status, lines = run("diff", first, second)
    assert.equal(1, status)
    local text = table.concat(lines, "\n")
    assert.matches("luda.record.state.data.step: 1, 2", text, 1, true)
    assert.matches("luda.record.optimizer: (missing), a table", text, 1, true)
    assert.matches("model.bias: differs from element 2 on: [%-%d.]+, 7", text)
    assert.is_nil(text:find("model.weight:", 1, true))
  end)

  it("names every damaged tensor", function()
    local path = dir .. "/t.safetensors"
    luda.save(path, { a = luda.tensor({ 1 }), b = luda.tensor({ 2 }), c = luda.tensor({ 3 }) })
    local bytes = read(path)
    local function flip(place)
      bytes = bytes:sub(1, place - 1) .. string.char(bit.bxor(bytes:byte(place), 1)) .. bytes:sub(place + 1)
    end
    flip(#bytes - 11)
    flip(#bytes)
    write(path, bytes)
    local status, lines = run("verify", path)
    assert.equal(1, status)
    assert.equal(2, #lines)
    assert.matches("tensor 'a': the checksum does not match", lines[1])
    assert.matches("tensor 'c': the checksum does not match", lines[2])
    write(path, bytes:sub(1, 30))
    status, lines = run("verify", path)
    assert.same({ 1, 1 }, { status, #lines })
    assert.matches("header", lines[1])
  end)
end)

describe("json", function()
  it("says the same for the same, and where it cannot", function()
    assert.equal('{"a":0.10000000000000001,"b":[1,2],"c":{}}', json.encode { c = {}, b = { 1, 2 }, a = 0.1 })
    local value = { x = 1 / 3, big = 2 ^ 53, list = { "a", false } }
    assert.same(value, json.decode(json.encode(value)))
    assert.equal(json.null, json.decode("null"))
    assert.raises("invalid", "value.a%[2%]", json.encode, { a = { 1, print } })
    assert.raises("invalid", "line 1", json.decode, "{")
    assert.raises("invalid", "expected a text", json.decode, 3)
  end)
end)
