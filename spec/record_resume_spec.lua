--- A run that was saved in the middle of a window and goes on in another process is the same run, and precision and sharing
-- survive the way through a file.

local luda = require "luda"
local helper = require "spec.helper"

local nn, optim, record = luda.nn, luda.optim, luda.record

local build = os.getenv("LUDA_BUILD") or "build"

local dir

local read = helper.read

local function gradients(list)
  local grads = luda.autograd.Gradients()
  for _, pair in ipairs(list) do
    grads:register(pair[1], luda.tensor(pair[2], { dtype = pair[1].dtype }))
  end
  return grads
end

describe("resuming", function()
  before_each(function()
    dir = helper.new_folder()
    helper.before()
  end)
  after_each(helper.after)

  it("in another process is the same run to the bit, with and without recomputation", function()
    local whole = {}
    for _, mode in ipairs { "plain", "recompute" } do
      for _, what in ipairs { "whole", "half", "resume" } do
        assert.equal(0, os.execute(("%s/luda spec/work/resume.lua %s '%s' %s"):format(build, what, dir, mode)))
      end
      whole[mode] = read(dir .. "/whole.safetensors")
      assert.is_true(whole[mode] == read(dir .. "/resume.safetensors"), mode)
      local state = record.load(dir .. "/whole"):restore {}
      assert.equal(10, #state.losses)
      assert.not_equal(state.losses[1], state.losses[10])
    end
    assert.is_true(whole.plain == whole.recompute) -- recomputed masks are the same masks
  end)

  it("without the random state says so", function()
    local layer = nn.Linear(2, 1)
    record.save(dir .. "/run", { model = layer, generators = false })
    local _, report = record.load(dir .. "/run"):restore { model = layer }
    assert.matches("no random state in the file", report.warnings[1])
  end)

  it("keeps masters, moments and counts that the parameter's type cannot hold", function()
    local function make()
      local p = luda.tensor({ 1 }, { dtype = "bf16" }):requires_grad_()
      return p, optim.Adam({ p }, { fp32_master = true })
    end
    local p, opt = make()
    opt:step(0.1, gradients { { p, { 1 } } })
    local state = opt:state()
    state.steps["1"] = 257 -- 256 in bf16
    state.master["1"] = luda.tensor({ 1.0009765625 }) -- 1 in bf16
    state.exp_avg["1"] = luda.tensor({ 1.0009765625 })
    opt:load_state(state)
    record.save(dir .. "/run", { optimizer = opt })
    local q, other = make()
    record.load(dir .. "/run"):restore { optimizer = other }
    assert.equal(257, other:steps "1")
    assert.same({ 1.0009765625, 1.0009765625 }, { other:state().master["1"]:item(), other:state().exp_avg["1"]:item() })
    -- the next step is the same one
    opt:step(0.1, gradients { { p, { 0.5 } } })
    other:step(0.1, gradients { { q, { 0.5 } } })
    assert.equal(opt:state().master["1"]:item(), other:state().master["1"]:item())
  end)

  it("refuses the state of another optimizer, by name, and leaves both alone", function()
    local model = nn.Linear(2, 1)
    local adam = optim.Adam(model)
    adam:step(0.1, gradients { { model.weight, { { 1 }, { 2 } } }, { model.bias, { 3 } } })
    record.save(dir .. "/adam", { model = model, optimizer = adam })
    record.save(dir .. "/model", { model = model })
    local fresh = nn.Linear(2, 1)
    local before = fresh.weight:totable()
    local sgd = optim.SGD(fresh, { momentum = 0.5 })
    local err = assert.raises("mismatch", "nothing was changed", function()
      record.load(dir .. "/adam"):restore { model = fresh, optimizer = sgd }
    end)
    assert.same({ "optimizer: the file has 'adam', here is 'sgd'" }, err.detail)
    err = assert.raises("mismatch", "nothing was changed", function()
      record.load(dir .. "/model"):restore { model = fresh, optimizer = optim.Adam(fresh) }
    end)
    assert.same({ "optimizer: the file has no such part, it has model" }, err.detail)
    local part = nn.Linear(2, 1, { bias = false })
    err = assert.raises("mismatch", "nothing was changed", function()
      record.load(dir .. "/adam"):restore { optimizer = optim.Adam(part) }
    end)
    assert.is_truthy(table.concat(err.detail, "\n"):find("optimizer: 'bias' is in the file and not here", 1, true))
    assert.same(before, fresh.weight:totable())
    assert.same({}, sgd:state().steps)
  end)
end)
