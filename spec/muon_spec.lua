--- Muon: directions of whole matrices, its options and errors, and AdamW for what is no matrix.

local luda = require "luda"
local helper = require "spec.helper"
local twin = require "spec.optim_twin"
local matrix_twin = require "spec.optim_matrix_twin"

local optim, nn = luda.optim, luda.nn
local Gradients = luda.autograd.Gradients

local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype or "f64" }):requires_grad_()
end

local gradients, random = helper.gradients, twin.matrix

--- The direction of one gradient alone: what one step at rate 1 takes from a parameter of zeros, without a factor.
local function direction(g, options)
  local p = luda.zeros(g.shape, { dtype = g.dtype }):requires_grad_()
  local all = { momentum = 0, nesterov = false, layout = g:size(1) > g:size(2) and "input_output" or "as_stored" }
  for name, value in pairs(options or {}) do
    all[name] = value
  end
  optim.Muon({ p }, all):step(1, gradients { p, g })
  return -p:detach()
end

describe("Muon", function()
  before_each(helper.before)
  after_each(helper.after)

  it("goes where it went in the described system", function()
    local g1, g2 = { { 1, 2, 3 }, { -2, 1, 4 } }, { { 0.5, -1, 0 }, { 1, 1, -1 } }
    for options, expected in pairs {
      [{}] = { { 0.881228603, -0.051708943, -1.115436853 }, { 0.561410539, 1.928690977, 0.149235828 } },
      [{ layout = "input_output" }] =
        { { 0.854535341, -0.063330263, -1.141380693 }, { 0.575212242, 1.912664640, 0.126589597 } },
      [{ momentum_mode = "ema", adjust_lr_fn = "match_rms_adamw", weight_decay = 0.1 }] =
        { { 0.939188795, -0.017727432, -1.019950770 }, { 0.511091538, 1.935473800, 0.210302905 } },
    } do
      local p = leaf { { 1, 0, -1 }, { 0.5, 2, 0.25 } }
      local opt = optim.Muon({ p }, options)
      opt:step(0.1, gradients { p, g1 })
      opt:step(0.1, gradients { p, g2 })
      assert.tensor_near(expected, p, 0, 2e-9)
    end
  end)

  it("maps every singular value by the same polynomial, in matrices that are tall or wide", function()
    for _, dtype in ipairs { "f64", "f32" } do
      local one, eye = luda.zeros(4, 2, { dtype = dtype }), luda.zeros(4, 2, { dtype = dtype })
      one[{ 1, 1 }] = 5
      eye[{ 1, 1 }] = 1
      eye[{ 2, 2 }] = 1
      -- s to a s + b s^3 + c s^5, five times, from 1 and from 1 / sqrt(2)
      local alone, pair = luda.zeros(4, 2, { dtype = dtype }), luda.zeros(4, 2, { dtype = dtype })
      alone[{ 1, 1 }] = 0.69644
      pair[{ 1, 1 }] = 1.10811
      pair[{ 2, 2 }] = 1.10811
      assert.tensor_near(alone, direction(one), 0, 1e-5)
      assert.tensor_near(alone:t(), direction(one:t()), 0, 1e-5)
      assert.tensor_near(pair, direction(eye), 0, 1e-5)
      assert.tensor_near(pair:t(), direction(eye:t()), 0, 1e-5)
      for _, size in ipairs { { 7, 3 }, { 5, 5 }, { 1, 6 }, { 1, 1 } } do
        local g = random(size[1], size[2], dtype)
        local want = matrix_twin.orthogonalize({ eps = 1e-7, ns_steps = 5, ns_coefficients = { 3.4445, -4.775, 2.0315 } },
          g:reshape(-1):to("f64"):totable(), size[1], size[2])
        local near = dtype == "f64" and 1e-11 or 2e-5
        assert.tensor_near(want, direction(g):reshape(-1), near, near)
        assert.tensor_near(want, direction(g:t()):t():reshape(-1), near, near)
        assert.tensor_near(want, direction(g, { stable_normalization = true }):reshape(-1), near, near)
      end
    end
  end)

  it("goes nowhere without a gradient's direction, and far with any size of it", function()
    for _, stable in ipairs { true, false } do
      assert.is_true(direction(luda.zeros(3, 2), { stable_normalization = stable }):eq(0):all():item())
    end
    local g = random(3, 4, "f32")
    local want = direction(g)
    for _, scale in ipairs { 1e30, 1e-30 } do
      local have = direction(g * scale, { stable_normalization = true, eps = 1e-37 })
      assert.tensor_near(want, have, 1e-5, 1e-5)
    end
    assert.tensor_near(want, direction(g * 1e30), 1e-5, 1e-5)
  end)

  it("scales by the shape as the options say", function()
    local g = random(8, 2)
    local function size(options)
      local p = luda.zeros(8, 2, { dtype = "f64" }):requires_grad_()
      options.momentum, options.nesterov = 0, false
      optim.Muon({ p }, options):step(1, gradients { p, g })
      return (-p:detach() / direction(g))[{ 3, 1 }]:item()
    end
    assert.near(2, size {}, 1e-9)
    assert.near(1, size { layout = "input_output" }, 1e-9)
    for _, layout in ipairs { "as_stored", "input_output" } do
      assert.near(0.2 * math.sqrt(8), size { adjust_lr_fn = "match_rms_adamw", layout = layout }, 1e-9)
    end
  end)

  it("updates whole matrices, and says which parameter is none", function()
    local linear = nn.Linear(3, 2)
    assert.raises("shape", "optim.Muon: 'bias' has shape %[2%]; Muon updates whole matrices, optim.MuonAdamW", optim.Muon, linear)
    assert.raises("shape", "'1' has shape %[0, 3%]", optim.Muon, { luda.zeros(0, 3):requires_grad_() })
    assert.raises("shape", "'2' has shape %[2, 2, 2%]", optim.Muon, { leaf { { 1 } }, luda.zeros(2, 2, 2) })
    local p = leaf { { 1, 2 } }
    local opt = optim.Muon { p }
    assert.raises("invalid", "the rate is %-?nan", opt.step, opt, 0 / 0, gradients { p, { { 1, 1 } } })
    assert.raises("invalid", "the rate is %-1", opt.step, opt, -1, gradients { p, { { 1, 1 } } })
    assert.raises("invalid", "too large for the shape", opt.step, opt, 1e300, gradients { p, { { 1, 1 } } })
    assert.raises("shape", "gradient", opt.step, opt, 1, gradients { p, { 1, 1 } })
    assert.same({ { 1, 2 } }, p:totable())
    assert.same({}, opt:state().steps)
    for options, sentence in pairs {
      [{ momentum = 1 }] = "momentum is 1", [{ momentum = -0.1 }] = "momentum is", [{ dampening = 2 }] = "dampening is 2",
      [{ momentum = 0 }] = "nesterov needs momentum", [{ dampening = 0.1 }] = "nesterov needs momentum and no dampening",
      [{ momentum_mode = "ema", nesterov = false, dampening = 0.1 }] = "has no dampening",
      [{ eps = 0 }] = "eps is 0, it must be positive", [{ weight_decay = -1 }] = "weight_decay is",
      [{ ns_steps = 0 }] = "ns_steps is 0, it must be a whole number in 1", [{ ns_steps = 100 }] = "ns_steps is 100",
      [{ ns_steps = 1.5 }] = "ns_steps is 1.5",
      [{ ns_coefficients = { 1, 2 } }] = "ns_coefficients must be a list with an entry 3",
      [{ ns_coefficients = { 1, 0 / 0, 2 } }] = "ns_coefficient2 is %-?nan, it must be finite",
      [{ layout = "rows" }] = "layout is 'rows', it must be 'as_stored' or 'input_output'",
      [{ clip = { value = 1 } }] = "clip_norm or max_grad_norm",
      [{ adjust_lr_fn = 3 }] = "adjust_lr_fn is .*'original' or 'match_rms_adamw'",
      [{ momentum_mode = "adam" }] = "'sgd' or 'ema'",
    } do
      assert.raises("invalid", sentence, optim.Muon, { p }, options)
    end
  end)

  it("reads gradients that are strided, in groups of their own options", function()
    local p, q = leaf { { 1, 2, 3 }, { 4, 5, 6 } }, leaf { { 1, 2, 3 }, { 4, 5, 6 } }
    local g = random(3, 2):t()
    optim.Muon({ p, q }, { groups = { { match = "2", weight_decay = 0.5, lr_scale = 2 } } }):step(0.1, gradients { p, g, q, g })
    local x = matrix_twin.orthogonalize({ eps = 1e-7, ns_steps = 5, ns_coefficients = { 3.4445, -4.775, 2.0315 } },
      (g * 1.95):reshape(-1):totable(), 2, 3)
    for i, value in ipairs { 1, 2, 3, 4, 5, 6 } do
      assert.near(value - 0.1 * x[i], p:reshape(-1)[i]:item(), 1e-10)
      assert.near(value * 0.9 - 0.2 * x[i], q:reshape(-1)[i]:item(), 1e-10)
    end
  end)
end)

describe("MuonAdamW", function()
  before_each(helper.before)
  after_each(helper.after)

  local function model()
    luda.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
  end

  local function grads_of(net, step)
    local grads = Gradients()
    for _, p in net:named_parameters() do
      local list = {}
      for i = 1, p.numel do
        list[i] = twin.noise(step, i + p.numel)
      end
      grads:register(p, luda.tensor(list, { dtype = p.dtype }):reshape(p.shape))
    end
    return grads
  end

  it("is Muon for matrices and AdamW for the rest, at a rate of its own", function()
    for _, given in ipairs { {}, { adamw_lr = 0.003 } } do
      local both, apart = model(), model()
      local opt = optim.MuonAdamW(both, { lr_ratio = 0.25, muon = { weight_decay = 0.1 }, adamw = { betas = { 0.8, 0.9 } } })
      local matrices, others = {}, {}
      for _, p in apart:named_parameters() do
        table.insert(p.ndim == 2 and matrices or others, p)
      end
      local muon, adamw = optim.Muon(matrices, { weight_decay = 0.1 }), optim.AdamW(others, { betas = { 0.8, 0.9 } })
      for step = 1, 4 do
        local report = opt:step(0.02, grads_of(both, step), given)
        assert.equal(6, report.updated)
        local grads = grads_of(apart, step)
        muon:step(0.02, grads)
        adamw:step(given.adamw_lr or 0.02 * 0.25, grads)
        for name, p in both:named_parameters() do
          local other
          for path, q in apart:named_parameters() do
            other = path == name and q or other
          end
          assert.tensor_near(other, p, 1e-6, 1e-7)
        end
      end
    end
    local opt = optim.MuonAdamW(model())
    assert.raises("invalid", "the rate must be positive, it is 0", opt.step, opt, 0, Gradients(), { adamw_lr = 1 })
  end)

  it("clips and skips all of them together", function()
    local net = model()
    local opt = optim.MuonAdamW(net, { max_grad_norm = 1 })
    local grads = grads_of(net, 1)
    local report = opt:step(0.1, grads)
    assert.near(grads:norm(), report.grad_norm, 1e-5)
    local before, state = {}, opt:state()
    for name, p in net:named_parameters() do
      before[name] = p:detach():clone()
    end
    grads[net[1].bias][1] = 1 / 0
    assert.is_true(opt:step(0.1, grads).skipped)
    for name, p in net:named_parameters() do
      assert.is_true(p:equal(before[name]))
    end
    assert.same(state.steps, opt:state().steps)
    assert.equal(1, opt:gradient_scale())
    opt:set_gradient_scale(16)
    grads = grads_of(net, 2)
    assert.near(grads:norm() / 16, opt:step(0.1, grads, { adamw_lr = 0.01 }).grad_norm, 1e-5)
    assert.equal(16, opt:gradient_scale())
  end)

  it("takes the matrices that are named, and refuses what it cannot do", function()
    local net = model()
    local opt = optim.MuonAdamW(net, { matrices = { "3.weight" } })
    opt:step(0.1, grads_of(net, 1))
    local state = opt:state()
    assert.is_nil(state.momentum_buffer["1.weight"])
    assert.is_truthy(state.exp_avg["1.weight"] and state.momentum_buffer["3.weight"])
    assert.raises("shape", "'1.bias' has shape %[4%]", optim.MuonAdamW, net, { matrices = "^1" })
    assert.raises("invalid", "no parameter is a matrix for Muon", optim.MuonAdamW, net, { matrices = "none" })
    assert.raises("invalid", "unknown option 'eps1'", optim.MuonAdamW, net, { adamw = { eps1 = 1 } })
    assert.raises("invalid", "unknown option 'momentun'", optim.MuonAdamW, net, { muon = { momentun = 1 } })
    -- another grouping, or other options, is another optimizer
    local other = optim.MuonAdamW(net)
    assert.raises("mismatch", "momentum_buffer of '1.weight' is missing", other.load_state, other, state)
    local file = os.tmpname()
    local written = luda.record.save(file, { optimizer = opt })
    local stored = luda.record.load(written)
    assert.raises("mismatch", "members", stored.restore, stored, { optimizer = other })
    stored:restore { optimizer = optim.MuonAdamW(net, { matrices = "3.weight" }) }
    os.remove(written)
    os.remove(file)
  end)
end)
