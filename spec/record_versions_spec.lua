--- Records of older libraries: what was once written stays readable. spec/work/old_run.lua wrote the file.

local luda = require "luda"
local helper = require "spec.helper"
local json = require "luda.json"
local old = dofile "spec/work/old_run.lua"

local record = luda.record
local PATH = "spec/golden/record_1.safetensors"

local function same(expected, actual, name)
  assert.equal(expected.dtype, actual.dtype, name)
  assert.same(expected:totable(), actual:totable(), name)
end

describe("a record of format 1", function()
  before_each(helper.before)
  after_each(helper.after)

  it("gives back every part, value for value", function()
    local run = old.new()
    local state, report = record.load(PATH):restore(run)
    assert.same({}, report.unused)
    for path, tensor in pairs(run.model:state()) do
      if tensor.dtype ~= "i64" then
        same(old.fill(tensor, #tensor.shape * 3 + tensor.numel), tensor, path)
      end
    end
    assert.equal(0, run.model.norm.num_batches_tracked:item())
    assert.equal(run.model.first.weight, run.model.second.weight)
    local optimizer = run.optimizer:state()
    local seen = 0
    for place, name in ipairs { "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "master" } do
      for path, tensor in pairs(optimizer[name]) do
        assert.equal(257, optimizer.steps[path])
        assert.equal("f32", tensor.dtype)
        same(old.fill(tensor, place), tensor, name .. " " .. path)
        seen = seen + 1
      end
    end
    assert.equal(3 * 6 + 1, seen) -- three for each trainable parameter, the master of the half one
    local sums = run.accumulator:state()
    assert.same({ 3, 2.5 }, { sums.count, sums.weight })
    for path, tensor in pairs(sums.sums) do
      same(old.fill(tensor, 9), tensor, path)
    end
    assert.equal(5, run.scheduler.count)
    local loader = run.loader:state()
    assert.same({ 1, 4, 5 }, { loader.epoch, loader.sample, loader.seed })
    for path, tensor in pairs(run.ema:state().averages) do
      if tensor.dtype ~= "i64" then
        same(old.fill(tensor, 11), tensor, path)
      end
    end
    assert.same({ 7, 41 }, run.generators.noise:state())
    assert.same({ 3, 2 ^ 40 }, luda.generator():state())
    assert.same({ 9007199254740993LL, -1LL }, { state.big[1]:item(), state.big[2]:item() })
    assert.same({ { true, false, true }, { 0, 255 }, { 0.1 } },
      { state.bits:totable(), state.small:totable(), state.wide:totable() })
    assert.same({ { 0, 2 }, "u8", "f64", "bool" }, { state.none.shape, state.small.dtype, state.wide.dtype, state.bits.dtype })
    for _, name in ipairs { "big", "bits", "small", "wide", "none" } do
      state[name] = nil
    end
    assert.same({
      epoch = 2, third = 1 / 3, name = "a \"b\"\n", flags = { true, false }, nested = { list = { 1.5, -2 } }, ["$x"] = "dollar",
    }, state)
  end)

  it("has options that came later at their defaults, and says which", function()
    local tensors, metadata = luda.load(PATH)
    local stored = json.decode(metadata["luda.record.optimizer"])
    stored.configuration.options.amsgrad, stored.configuration.groups[1].options.amsgrad = nil, nil
    stored.configuration.settings.fp32_master = nil
    stored.configuration.options.cautious, stored.configuration.groups[1].options.cautious = nil, nil
    metadata["luda.record.optimizer"] = json.encode(stored)
    local dir = helper.new_folder()
    luda.save(dir .. "/older.safetensors", tensors, metadata)
    local run = old.new()
    local before = run.optimizer:state()
    local opened = record.load(dir .. "/older")
    -- a default is what the file means; another value here is a difference
    local err = assert.raises("mismatch", "nothing was changed", opened.restore, opened, run)
    assert.same({
      "optimizer.groups.1.options.amsgrad is not in the file, 1 here",
      "optimizer.options.amsgrad is not in the file, 1 here",
      "optimizer.settings.fp32_master is not in the file, 1 here",
    }, err.detail)
    assert.same(before.steps, run.optimizer:state().steps)
    stored.configuration.options.amsgrad, stored.configuration.groups[1].options.amsgrad = 1, 1
    stored.configuration.settings.fp32_master = 1
    metadata["luda.record.optimizer"] = json.encode(stored)
    luda.save(dir .. "/older.safetensors", tensors, metadata)
    local _, report = record.load(dir .. "/older"):restore(run)
    local found = table.concat(report.upgraded, "\n")
    assert.is_truthy(found:find("optimizer.groups.1.options.cautious (0 here)", 1, true), found)
    assert.is_truthy(found:find("optimizer.options.cautious (0 here)", 1, true), found)
  end)
end)
