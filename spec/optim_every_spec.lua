--- What holds for every optimizer that takes gradients: who is updated, what is skipped, what is only read, and states.

local luda = require "luda"
local helper = require "spec.helper"
local twin = require "spec.optim_twin"

local optim, record = luda.optim, luda.record
local nan, inf = 0 / 0, math.huge

--- Of a matrix, all of them can be asked the same.
local every = {
  SGD = { momentum = 0.9, weight_decay = 0.1 }, Adam = { weight_decay = 0.1, amsgrad = true },
  AdamW = { weight_decay = 0.1, cautious = true }, AdaGrad = { weight_decay = 0.1 },
  RMSProp = { momentum = 0.9, centered = true, weight_decay = 0.1 }, Adan = { weight_decay = 0.1 },
  Lion = { weight_decay = 0.1 }, Adamax = { weight_decay = 0.1 }, NAdam = { weight_decay = 0.1 },
  RAdam = { weight_decay = 0.1 }, AdaDelta = { weight_decay = 0.1 }, LAMB = {}, Adafactor = { weight_decay = 0.1 },
  Muon = { weight_decay = 0.1 }, MuonAdamW = {},
}

local function leaf(dtype, seed)
  local list = {}
  for i = 1, 6 do
    list[i] = twin.noise(seed or 0, i)
  end
  return luda.tensor(list, { dtype = dtype or "f64" }):reshape(3, 2):requires_grad_()
end

local function noise(step, dtype, scale)
  local list = {}
  for i = 1, 6 do
    list[i] = twin.noise(step, i) * (scale or 1)
  end
  return luda.tensor(list, { dtype = dtype or "f64" }):reshape(3, 2)
end

local gradients = helper.gradients

local function with(options, more)
  local all = {}
  for _, list in ipairs { options, more } do
    for key, value in pairs(list) do
      all[key] = value
    end
  end
  return all
end

--- The tensors of a parameter in a state.
local function states_of(opt, name)
  local found = {}
  for key, entry in pairs(opt:state()) do
    if type(entry) == "table" and luda.is_tensor(entry[name]) then
      found[key] = entry[name]:clone()
    end
  end
  return found
end

local function assert_states(want, opt, name)
  local count = 0
  for key, tensor in pairs(states_of(opt, name)) do
    assert.is_true(tensor:equal(want[key]), key)
    count = count + 1
  end
  assert.is_true(count >= 1)
end

for name, options in pairs(every) do
  describe(name, function()
    before_each(helper.before)
    after_each(helper.after)

    it("leaves parameters without gradient alone, and a frozen one", function()
      local parameters = {}
      for i = 1, 4 do
        parameters[i] = leaf()
      end
      local a, b, c, d = unpack(parameters)
      local named = { a = a, b = b, c = c, d = d }
      local opt = optim[name]({ named_parameters = function()
        return pairs(named)
      end }, options)
      opt:step(0.1, gradients { a, noise(1), b, noise(1), c, noise(1), d, noise(1) })
      assert.is_true(a:equal(b) and a:equal(c) and not a:equal(leaf()))
      local value, kept, frozen = b:detach():clone(), states_of(opt, "b"), states_of(opt, "d")
      d:requires_grad_(false)
      local report = opt:step(0.1, gradients { a, noise(2), c, luda.zeros({ 3, 2 }, { dtype = "f64" }), d, noise(2) })
      assert.same({ 2, false }, { report.updated, report.skipped })
      assert.is_true(b:equal(value) and d:equal(value))
      assert_states(kept, opt, "b")
      assert_states(frozen, opt, "d")
      -- a zero gradient is a gradient: momentum or decay go on
      assert.same({ 2, 1, 2, 1 }, { opt:steps "a", opt:steps "b", opt:steps "c", opt:steps "d" })
      assert.is_false(c:equal(value))
    end)

    it("skips a step with a gradient that is not finite, whole", function()
      for _, bad in ipairs { nan, inf, -inf } do
        local p, q = leaf(), leaf()
        local opt = optim[name]({ p, q }, options)
        local wrong = noise(2)
        wrong[{ 2, 1 }] = bad
        assert.is_true(opt:step(0.1, gradients { p, noise(1), q, wrong }).skipped)
        assert.same({ 0, 0 }, { opt:steps "1", opt:steps "2" })
        assert.is_true(p:equal(leaf()) and q:equal(leaf()))
        opt:step(0.1, gradients { p, noise(1), q, noise(1) })
        local value, kept = p:detach():clone(), states_of(opt, "1")
        local report = opt:step(0.1, gradients { p, noise(2), q, wrong })
        assert.same({ true, 0 }, { report.skipped, report.updated })
        assert.is_true(report.grad_norm ~= report.grad_norm or report.grad_norm == inf)
        assert.is_true(p:equal(value))
        assert_states(kept, opt, "1")
        assert.equal(1, opt:steps "1")
      end
    end)

    it("only reads gradients, and clips by the norm of all of them", function()
      local p, q = leaf(), leaf()
      local free = optim[name]({ p }, options)
      local clipped = optim[name]({ q }, with(options, { max_grad_norm = 0.5 }))
      for step = 1, 3 do
        local g = noise(step)
        local before = g:clone()
        local norm = g:norm():item()
        local report = clipped:step(0.1, gradients { q, g })
        assert.near(norm, report.grad_norm, 1e-12)
        assert.near(0.5 / norm, report.clip_coef, 1e-12)
        assert.is_true(g:equal(before))
        free:step(0.1, gradients { p, g * (0.5 / norm) })
      end
      assert.tensor_near(p, q, 1e-12, 1e-13)
    end)

    it("goes on from a state to the bit, also through a file", function()
      local p, q = leaf("f32"), leaf("f32")
      local opt = optim[name]({ p }, options)
      for step = 1, 4 do
        opt:step(0.1, gradients { p, noise(step, "f32") })
      end
      local file = os.tmpname()
      local written = record.save(file, { optimizer = opt })
      local other = optim[name]({ q }, options)
      record.load(written):restore { optimizer = other }
      luda.no_grad(q.copy_, q, p)
      for step = 5, 9 do
        opt:step(0.1, gradients { p, noise(step, "f32") })
        other:step(0.1, gradients { q, noise(step, "f32") })
        assert.is_true(p:equal(q))
      end
      assert.equal(9, other:steps "1")
      local more = name == "MuonAdamW" and { muon = { weight_decay = 0.5 } } or { weight_decay = 0.5 }
      local changed = optim[name]({ leaf("f32") }, with(options, more))
      local stored = record.load(written)
      assert.raises("mismatch", "weight_decay is", stored.restore, stored, { optimizer = changed })
      assert.same({}, changed:state().steps)
      os.remove(written)
      os.remove(file)
    end)

    it("updates a shared parameter once, in one call, and holds on to nothing", function()
      local p = leaf()
      local model = { named_parameters = function()
        return pairs { first = p, second = p }
      end }
      local opt = optim[name](model, options)
      local before
      for step = 1, 12 do
        luda.scope(function()
          assert.equal(1, opt:step(0.01, (p * p * 2 + p):sum():backward()).updated)
        end)
        before = step == 4 and helper.live() or before
      end
      assert.equal(before, helper.live())
      assert.equal(12, opt:steps(next(opt:state().steps)))
    end)

    it("keeps masters, groups and scales as the others do", function()
      local results = {}
      for i, scale in ipairs { 1, 16 } do
        local p, q = leaf("bf16"), leaf("f32", 3)
        local opt = optim[name]({ p, q }, { fp32_master = true, gradient_scale = scale, max_grad_norm = 2 })
        for step = 1, 3 do
          opt:step(0.05, gradients { p, noise(step, "bf16", scale), q, noise(step + 5, "f32", scale) })
        end
        local master = opt:state().master["1"]
        assert.is_true(master:to("bf16"):equal(p:detach()))
        results[i] = { master:clone(), q:detach():clone() }
      end
      for i = 1, 2 do
        assert.is_true(results[1][i]:equal(results[2][i]))
      end
    end)
  end)
end

describe("defaults", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are PyTorch's, or the papers' where PyTorch has no such rule", function()
    local function options(name)
      return optim[name]({ leaf() }):configuration().options
    end
    for name, want in pairs {
      Adamax = { beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0 },
      NAdam = { beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3 },
      RAdam = { beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0 },
      AdaDelta = { rho = 0.9, eps = 1e-6, weight_decay = 0 },
      Adafactor = { beta2_decay = -0.8, eps1 = 0, eps2 = 1e-3, d = 1, weight_decay = 0 },
      Lion = { beta1 = 0.9, beta2 = 0.99, weight_decay = 0 },
      LAMB = { beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0.01 },
    } do
      want.lr_scale = 1
      assert.same(want, options(name))
    end
    local muon = options "Muon"
    assert.same({ 0.95, 0, 1, 0, 1e-7, 5, 3.4445, -4.775, 2.0315, 0, 0, 0 }, {
      muon.momentum, muon.dampening, muon.nesterov, muon.weight_decay, muon.eps, muon.ns_steps, muon.ns_coefficient1,
      muon.ns_coefficient2, muon.ns_coefficient3, muon.adjust_lr_fn, muon.momentum_mode, muon.layout,
    })
    local factor = optim.Adafactor({ leaf() }, { eps = { nil, 0.5 } }):configuration().options
    assert.same({ 0, 0.5 }, { factor.eps1, factor.eps2 })
    assert.raises("invalid", "beta2_decay is 0.5, it must be at most 0", optim.Adafactor, { leaf() }, { beta2_decay = 0.5 })
    assert.raises("invalid", "d is 0.5, it must be at least 1", optim.Adafactor, { leaf() }, { d = 0.5 })
    assert.raises("invalid", "rho is 2, it must be in", optim.AdaDelta, { leaf() }, { rho = 2 })
  end)

  it("of the described system make an optimizer of every class that has them", function()
    local count = 0
    for name, options in pairs(optim.ruda_defaults()) do
      local p = leaf()
      local opt = optim[name]({ p }, options)
      if name ~= "LBFGS" then
        assert.equal(1, opt:step(0.1, gradients { p, noise(1) }).updated)
      end
      count = count + 1
    end
    assert.equal(9, count)
  end)
end)
