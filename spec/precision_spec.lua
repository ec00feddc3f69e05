--- Half precision that lasts: converted models, float32 masters and sums, averages, and their way through files.

local luda = require "luda"
local helper = require "spec.helper"
local twin = require "spec.optim_twin"

local nn, optim, record = luda.nn, luda.optim, luda.record

local dir

local function before()
  dir = helper.new_folder()
  helper.before()
end

local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype }):requires_grad_()
end

local gradients = helper.gradients

local Mixed = nn.module "Mixed"

--- A weight that is a half, a bias that is float32, a counter and a mask.
function Mixed:init(dtype)
  self.weight = luda.tensor({ { 0.5, -1 }, { 2, 0.25 } }, { dtype = dtype }):requires_grad_()
  self.bias = luda.tensor({ 0.125, -0.5 }):requires_grad_()
  self.counter = luda.tensor { 9007199254740993LL }
  self.mask = luda.tensor { true, false }
end

function Mixed:forward(x)
  return luda.matmul(x:to(self.weight.dtype), self.weight):to("f32") + self.bias
end

describe("a converted model", function()
  before_each(before)
  after_each(helper.after)

  it("keeps names, ties, flags and whole numbers; its parameters are new leaves, rounded once", function()
    local inner, model = nn.Linear(2, 2), nn.Sequential(Mixed("f32"), nn.Linear(2, 2))
    model[2].weight = model[1].weight
    model[1].bias:requires_grad_(false)
    luda.no_grad(function()
      model[1].weight:copy_(luda.tensor { { 1 + 2 ^ -9, -1 - 3 * 2 ^ -9 }, { 2, 257 } }) -- ties, to the even neighbour
    end)
    local names = {}
    for path in model:named_parameters() do
      names[#names + 1] = path
    end
    local loss = model[1].weight:sum()
    model:to_dtype("bf16")
    local again = {}
    for path in model:named_parameters() do
      again[#again + 1] = path
    end
    assert.same(names, again)
    local weight = model[1].weight
    assert.is_true(weight == model[2].weight and weight.is_leaf and weight.requires_grad)
    assert.is_false(model[1].bias.requires_grad)
    assert.same({ { 1, -1 - 2 ^ -7 }, { 2, 256 } }, weight:totable())
    assert.equal("9007199254740993LL", tostring(model[1].counter:item()))
    assert.same({ true, false }, model[1].mask:totable())
    assert.is_nil(loss:backward()[weight]) -- the conversion is no part of a graph
    -- an optimizer that was made before knows other tensors
    local opt = optim.SGD(inner)
    inner:to_dtype("bf16")
    local grads = inner(luda.ones(1, 2, { dtype = "bf16" })):sum():backward()
    assert.raises("invalid", "none of the 2 gradients belongs .* before the model was converted", opt.step, opt, 0.1, grads)
  end)

  it("of several types goes on from a file to the bit, and only into the same types", function()
    for _, dtype in ipairs { "f16", "bf16" } do
      local function make()
        local run = { model = Mixed(dtype) }
        run.optimizer = optim.AdamW(run.model, { fp32_master = true, gradient_scale = 16, amsgrad = true, weight_decay = 0.1 })
        run.accumulator = optim.Accumulator(run.model)
        return run
      end
      local function train(run, first, last)
        for micro = first, last do
          luda.scope(function()
            local x = luda.tensor { { twin.noise(micro, 1), twin.noise(micro, 2) } }
            local loss = run.model(x):square():sum() * 16
            run.accumulator:accumulate(loss:backward(), { dtype = "f32" })
            if micro % 2 == 0 then
              run.optimizer:step(0.01, run.accumulator:grads { mean = true })
            end
          end)
        end
      end
      local whole, half, other = make(), make(), make()
      train(whole, 1, 12)
      train(half, 1, 5)
      local path = record.save(dir .. "/mixed", half)
      record.load(path):restore(other)
      train(other, 6, 12)
      assert.same({ dtype, "f32" }, { other.model.weight.dtype, other.model.bias.dtype })
      for _, name in ipairs { "weight", "bias" } do
        assert.same(whole.model[name]:totable(), other.model[name]:totable())
      end
      for _, name in ipairs { "master", "max_exp_avg_sq" } do
        assert.same(whole.optimizer:state()[name].weight:totable(), other.optimizer:state()[name].weight:totable())
      end
      assert.is_nil(other.optimizer:state().master.bias)
      local wide = { model = Mixed("f32") }
      wide.optimizer = optim.AdamW(wide.model, { fp32_master = true, gradient_scale = 16, amsgrad = true, weight_decay = 0.1 })
      local text = ("'weight': dtype is %s in the file, f32 here"):format(dtype)
      assert.raises("mismatch", text, function()
        record.load(path):restore(wide)
      end)
      assert.same(Mixed("f32").weight:totable(), wide.model.weight:totable())
    end
  end)
end)

describe("float32 masters", function()
  before_each(before)
  after_each(helper.after)

  it("move by steps that a half cannot, also when every step goes through a file", function()
    for _, dtype in ipairs { "f16", "bf16" } do
      local p = leaf({ 1 }, dtype)
      local opt = optim.SGD({ p }, { fp32_master = true, momentum = 0.5, dampening = 0.5 })
      local value, v = 1, nil
      for _ = 1, 64 do
        opt:step(1e-4, gradients { p, { 1 } })
        v = v and 0.5 * v + 0.5 or 1
        value = value - 1e-4 * v
        local path = record.save(dir .. "/step", { optimizer = opt })
        opt = optim.SGD({ p }, { fp32_master = true, momentum = 0.5, dampening = 0.5 })
        local opened = record.load(path)
        opened:restore { optimizer = opt }
        opened:close()
      end
      assert.near(value, opt:state().master["1"]:item(), 64 * 2 ^ -24)
      assert.equal("f32", opt:state().momentum_buffer["1"].dtype)
      assert.equal(luda.tensor({ opt:state().master["1"]:item() }):to(dtype):item(), p:item())
    end
  end)

  it("are restored with moments and counts as they were, and belong to one optimizer", function()
    local p = leaf({ 1 }, "bf16")
    local function make()
      return optim.Adam({ p }, { fp32_master = true })
    end
    local opt = make()
    opt:step(0.1, gradients { p, { 1 } })
    local state = opt:state()
    state.steps["1"], state.master["1"] = 257, luda.tensor { 1.0009765625 }
    state.exp_avg["1"] = luda.tensor { 1.0009765625 }
    opt:load_state(state)
    local other = make()
    record.load(record.save(dir .. "/state", { optimizer = opt })):restore { optimizer = other }
    local function seen(o)
      return { o:steps "1", o:state().master["1"]:item(), o:state().exp_avg["1"]:item(), o:state().exp_avg_sq["1"]:item() }
    end
    assert.same({ 257, 1.0009765625, 1.0009765625 }, { unpack(seen(other), 1, 3) })
    -- what one of them does then is not seen by the other, whichever gave its state
    local kept = seen(other)
    opt:step(0.1, gradients { p, { 1 } })
    assert.same(kept, seen(other))
    local third = make():load_state(other:state())
    third:step(0.1, gradients { p, { -1 } })
    assert.same(kept, seen(other))
  end)

  it("of another optimizer, another shape, or nobody are refused, and nothing moves", function()
    local function net(bias)
      luda.manual_seed(3)
      return nn.Linear(2, 3, { bias = bias }):to_dtype("bf16")
    end
    local model = net(true)
    local adam = optim.Adam(model, { fp32_master = true })
    adam:step(0.1, model(luda.ones(1, 2, { dtype = "bf16" })):sum():backward())
    local path = record.save(dir .. "/adam", { model = model, optimizer = adam })
    local bare = record.save(dir .. "/bare", { model = model })
    local wider = nn.Linear(2, 4):to_dtype("bf16")
    for _, row in ipairs {
      { net(true), "SGD", path, "optimizer: the file has 'adam', here is 'sgd'" },
      { wider, "Adam", path, "optimizer: master of 'weight' has shape %[2, 3%] in the file, %[2, 4%] here" },
      { net(false), "Adam", path, "optimizer: 'bias' is in the file and not here" },
      { net(true), "Adam", bare, "optimizer: the file has no such part, it has model" },
    } do
      local here, name, file, text = unpack(row)
      local opt = optim[name](here, { fp32_master = true })
      opt:step(0.25, here(luda.ones(1, 2, { dtype = "bf16" })):sum():backward())
      local first = record.save(dir .. "/first", { model = here, optimizer = opt })
      assert.raises("mismatch", text, function()
        record.load(file):restore { model = here, optimizer = opt }
      end)
      local second = record.save(dir .. "/second", { model = here, optimizer = opt })
      assert.equal(record.load(first).checksum, record.load(second).checksum)
    end
  end)
end)

describe("float32 sums of halves", function()
  before_each(before)
  after_each(helper.after)

  it("go on through a file", function()
    for _, dtype in ipairs { "f16", "bf16" } do
      local p = leaf({ 0 }, dtype)
      local sums, narrow = optim.Accumulator { p }, optim.Accumulator { p }
      sums:accumulate(gradients { p, { 1024 } }, { dtype = "f32" })
      narrow:accumulate(gradients { p, { 1024 } })
      for number = 1, 8 do
        sums:accumulate(gradients { p, { 0.125 } }, { dtype = "f32", weight = luda.ones(1) })
        narrow:accumulate(gradients { p, { 0.125 } })
        if number == 3 then
          local path = record.save(dir .. "/sums", { accumulator = sums })
          sums = optim.Accumulator { p }
          record.load(path):restore { accumulator = sums }
        end
      end
      assert.same({ 9, 9 }, { sums:count(), sums:weight() })
      assert.same({ 1025, 1024 }, { sums:grads()[p]:item(), narrow:grads()[p]:item() })
    end
  end)
end)

describe("averages", function()
  before_each(before)
  after_each(helper.after)

  it("follow the masters of an optimizer, in float32, through a file too", function()
    local p, q = leaf({ 1 }, "bf16"), leaf({ 1 }, "f32")
    local opt = optim.SGD({ p, q }, { fp32_master = true })
    local ema, plain = optim.EMA({ p, q }, 0.75), optim.EMA({ p, q }, 0.75)
    local value, average = 1, 1
    for step = 1, 6 do
      ema:update(opt) -- before the first step there are no masters
      plain:update()
      average = 0.75 * average + 0.25 * value
      opt:step(2 ^ -12, gradients { p, { 1 }, q, { 1 } })
      value = value - 2 ^ -12
      if step == 3 then
        local path = record.save(dir .. "/ema", { ema = ema })
        ema = optim.EMA({ p, q }, 0.75)
        record.load(path):restore { ema = ema }
      end
    end
    local averages = ema:state().averages
    assert.near(average, averages["1"]:item(), 1e-7)
    assert.near(average, averages["2"]:item(), 1e-7)
    assert.equal("f32", averages["1"].dtype)
    assert.equal(1, plain:state().averages["1"]:item()) -- bfloat16 rounds every one of these steps away
    -- as parameters they are halves; afterwards everything is as it was
    local stood = p:item()
    assert.equal(luda.tensor({ average }):to("bf16"):item(), ema:with(function() return p:item() end))
    assert.equal(stood, p:item())
    assert.raises("invalid", "expected an optimizer, or nothing, got 3", ema.update, ema, 3)
    assert.raises("mismatch", "ema.decay is 0.75 in the file, 0.5 here", function()
      record.load(dir .. "/ema"):restore { ema = optim.EMA({ p, q }, 0.5) }
    end)
  end)

  it("go back to what they were when a later part of a record fails", function()
    local p = leaf({ 1 }, "f32")
    local model = { named_parameters = function() return pairs { p = p } end }
    local ema = optim.EMA(model, 0.5)
    local path = record.save(dir .. "/both", { ema = ema, model = model })
    luda.no_grad(p.fill_, p, 3)
    ema:update()
    assert.equal(2, ema:state().averages.p:item())
    local handler = require("luda.record.parts").handlers.model
    local apply = handler.apply
    handler.apply = function() error("no more") end
    finally(function() handler.apply = apply end)
    assert.has_error(function() record.load(path):restore { ema = ema, model = model } end, "no more")
    assert.equal(2, ema:state().averages.p:item())
    ema:update()
    assert.equal(2.5, ema:state().averages.p:item())
  end)
end)
