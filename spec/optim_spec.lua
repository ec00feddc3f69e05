--- Optimizers, accumulation and averages, against plain Lua and numbers derived by hand.

local luda = require "luda"
local helper = require "spec.helper"
local twin = require "spec.optim_twin"

local optim = luda.optim
local Gradients = luda.autograd.Gradients

--- A trainable leaf of double type.
local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype or "f64" }):requires_grad_()
end

local gradients = helper.gradients

--- A model as the optimizers see one.
local function model_of(named)
  local names = {}
  for name in pairs(named) do
    names[#names + 1] = name
  end
  table.sort(names)
  local model = {}
  function model.named_parameters()
    local i = 0
    return function()
      i = i + 1
      if names[i] then
        return names[i], named[names[i]]
      end
    end
  end
  return model
end

local function merge(...)
  local all = {}
  for i = 1, select("#", ...) do
    for key, value in pairs((select(i, ...))) do
      all[key] = value
    end
  end
  return all
end

describe("fixtures of the described system", function()
  before_each(helper.before)
  after_each(helper.after)

  local defaults = optim.ruda_defaults()
  local rows = {
    { "SGD", {}, { 0.95, -1.9 }, { 0.975, -1.975 }, { 0.875, -1.9875 } },
    { "SGD", { momentum = 0.9, dampening = 0.1 }, { 0.95, -1.9 }, { 0.9275, -1.8775 }, { 0.81725, -1.8685 } },
    { "SGD", { momentum = 0.9, nesterov = true, weight_decay = 0.05 },
      { 0.8955, -1.791 }, { 0.88994275, -1.8273855 }, { 0.668016519, -1.807081788 } },
    { "Adam", {}, { 0.900002, -1.900001 }, { 0.87336897, -1.8910686 }, { 0.807558805, -1.89055968 } },
    { "Adam", { weight_decay = 0.05, amsgrad = true },
      { 0.900001818, -1.900000909 }, { 0.863221044, -1.880522188 }, { 0.793603608, -1.867018726 } },
    { "AdamW", {}, { 0.899992, -1.899981 }, { 0.87334997, -1.891029601 }, { 0.807531071, -1.890501769 } },
    { "AdamW", { weight_decay = 0.5, amsgrad = true },
      { 0.850002, -1.800001 }, { 0.78086887, -1.70106855 }, { 0.676015261, -1.615506202 } },
    { "AdaGrad", {}, { 0.900002, -1.900001 }, { 0.94472256, -1.96000052 }, { 0.857436165, -1.969950813 } },
    { "AdaGrad", { lr_decay = 0.5 },
      { 0.900002, -1.900001 }, { 0.929815706, -1.94000068 }, { 0.886172509, -1.944975826 } },
    { "RMSProp", {}, { 0.00019996, -1.00009999 }, { -0.450687452, -0.702070941 }, { -1.731149279, -0.53415506 } },
    { "RMSProp", { centered = true, momentum = 0 },
      { -0.004835836, -0.995063185 }, { 0.444531975, -1.59705582 }, { -0.435343453, -1.697370179 } },
    { "Adan", {}, { 0.900000002, -1.900000001 }, { 0.931590037, -1.939788138 }, { 0.887984624, -1.959329917 } },
    { "Adan", { weight_decay = 0.02 },
      { 0.898203595, -1.896207586 }, { 0.927937754, -1.93213146 }, { 0.882567207, -1.947777683 } },
    { "Adan", { weight_decay = 0.02, no_prox = true },
      { 0.898000002, -1.896000001 }, { 0.927794037, -1.931996138 }, { 0.882333036, -1.947673924 } },
  }
  local steps = { { 0.5, -1 }, { -0.25, 0.75 }, { 1, 0.125 } }

  for number, row in ipairs(rows) do
    it(("%d: %s"):format(number, row[1]), function()
      local p = leaf({ 1, -2 })
      local opt = optim[row[1]]({ p }, merge(defaults[row[1]], row[2]))
      for step, g in ipairs(steps) do
        opt:step(0.1, gradients { p, g })
        assert.tensor_near(row[2 + step], p, 0, 2e-9)
      end
    end)
  end
end)

describe("trajectories", function()
  before_each(helper.before)
  after_each(helper.after)

  local shapes = { { 7, 13 }, {}, { 0, 4 }, { 5 } }
  local rules = {
    { "SGD", { momentum = 0.7, dampening = 0.25, weight_decay = 0.03 } },
    { "SGD", { momentum = 0.9, nesterov = true } },
    { "SGD", { weight_decay = 0.1 } },
    { "Adam", { beta1 = 0.8, beta2 = 0.95, eps = 1e-3, weight_decay = 0.02, amsgrad = true } },
    { "AdamW", { beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.3 } },
    { "AdamW", { beta1 = 0.85, beta2 = 0.97, eps = 1e-6, weight_decay = 0.3, cautious = true, amsgrad = true } },
    { "AdaGrad", { lr_decay = 0.1, eps = 1e-6, weight_decay = 0.01 } },
    { "RMSProp", { alpha = 0.9, eps = 1e-4, momentum = 0.8, centered = true, weight_decay = 0.02 } },
    { "RMSProp", { alpha = 0.95, eps = 1e-6, momentum = 0 } },
    { "Adan", { beta1 = 0.9, beta2 = 0.8, beta3 = 0.95, eps = 1e-6, weight_decay = 0.1 } },
  }

  --- Parameters of several shapes (the first a transposed view), their elements in one list, and where each begins.
  local function make()
    local parameters, values, starts = {}, {}, {}
    for k, shape in ipairs(shapes) do
      local numel = 1
      for _, size in ipairs(shape) do
        numel = numel * size
      end
      starts[k] = #values
      for i = 1, numel do
        values[#values + 1] = twin.noise(0, #values + i)
      end
      local data = luda.tensor({ unpack(values, starts[k] + 1, starts[k] + numel) }, { dtype = "f64" })
      if k == 1 then
        local holder = luda.empty(13, 7, { dtype = "f64" }):t()
        holder:copy_(data:reshape(shape))
        parameters[k] = holder:detach():requires_grad_()
      else
        parameters[k] = data:reshape(shape):clone():detach():requires_grad_()
      end
    end
    return parameters, values, starts
  end

  for number, rule in ipairs(rules) do
    it(("%d: %s go where plain Lua goes"):format(number, rule[1]), function()
      local parameters, values, starts = make()
      assert.is_false(parameters[1]:is_contiguous())
      local opt = optim[rule[1]](parameters, rule[2])
      local total = #values
      -- The second parameter has no gradient in every third step.
      local function gradient(step, i)
        if i == starts[2] + 1 and step % 3 == 0 then
          return nil
        end
        return twin.noise(step, i)
      end
      local after = twin.run(twin[rule[1]], rule[2], 0.05, values, 9, gradient)
      for step = 1, 9 do
        local grads = Gradients()
        for k, parameter in ipairs(parameters) do
          local list = {}
          for i = 1, parameter.numel do
            list[i] = gradient(step, starts[k] + i)
          end
          if #list == parameter.numel then
            grads:register(parameter, luda.tensor(list, { dtype = "f64" }):reshape(parameter.shape))
          end
        end
        opt:step(0.05, grads)
        local expected = after[step]
        for k, parameter in ipairs(parameters) do
          local part = { unpack(expected, starts[k] + 1, starts[k] + parameter.numel) }
          assert.tensor_near(part, parameter:reshape(-1), 1e-12, 1e-12)
        end
      end
      assert.equal(total, #after[9])
    end)
  end

  it("gradients are only read, expanded and strided ones too", function()
    local p = leaf({ { 1, 2 }, { 3, 4 } })
    local g = luda.tensor({ 0.5 }, { dtype = "f64" }):expand(2, 2)
    local other = luda.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "f64" }):t()
    local opt = optim.SGD({ p }, { weight_decay = 0.5, clip = { value = 0.1 } })
    opt:step(1, gradients { p, g })
    assert.tensor_near({ { 0.4, 0.9 }, { 1.4, 1.9 } }, p, 1e-14, 0)
    assert.same({ { 0.5, 0.5 }, { 0.5, 0.5 } }, g:totable())
    opt = optim.SGD { p }
    opt:step(1, gradients { p, other })
    assert.tensor_near({ { -0.6, -2.1 }, { -0.6, -2.1 } }, p, 1e-14, 1e-14)
    assert.same({ { 1, 3 }, { 2, 4 } }, other:totable())
  end)
end)

describe("conventions", function()
  before_each(helper.before)
  after_each(helper.after)

  it("AdamW decays before the update; epsilon is added after the correction", function()
    local p = leaf({ 1 })
    optim.AdamW({ p }, { weight_decay = 0.1 }):step(0.1, gradients { p, { 0.5 } })
    assert.near(0.890000002, p:item(), 1e-12)
    p = leaf({ 0 })
    optim.AdamW({ p }, { weight_decay = 0 }):step(1, gradients { p, { 1e-6 } })
    assert.near(-0.990099, p:item(), 1e-6)
    -- amsgrad keeps the largest raw second moment
    p = leaf({ 1 })
    local opt = optim.AdamW({ p }, { weight_decay = 0, amsgrad = true })
    for step, expected in ipairs { 0.9, 0.8259, 0.7626 } do
      opt:step(0.1, gradients { p, { step == 1 and 1 or 0.1 } })
      assert.near(expected, p:item(), 5e-5)
    end
  end)

  it("SGD starts its buffer as the gradient and decays without momentum too", function()
    for options, expected in pairs {
      [{ momentum = 0.9, dampening = 0.5 }] = { 0.9, 0.76, 0.584 },
      [{ momentum = 0.9, nesterov = true }] = { 0.81, 0.539, 0.1951 },
    } do
      local p = leaf({ 1 })
      local opt = optim.SGD({ p }, options)
      for _, value in ipairs(expected) do
        opt:step(0.1, gradients { p, { 1 } })
        assert.near(value, p:item(), 1e-12)
      end
    end
    local p = leaf({ 1 })
    optim.SGD({ p }, { weight_decay = 0.1 }):step(0.1, gradients { p, { 0 } })
    assert.near(0.99, p:item(), 1e-15)
    assert.raises("invalid", "nesterov needs momentum and no dampening", optim.SGD, { p },
      { momentum = 0.9, nesterov = true, dampening = 0.5 })
    assert.raises("invalid", "nesterov needs momentum", optim.SGD, { p }, { nesterov = true })
  end)

  it("centred RMSProp never takes the root of a negative number", function()
    for _, g in ipairs { 10, 12345.678 } do
      local p = leaf({ 0.5 }, "f32")
      local opt = optim.RMSProp({ p }, { centered = true })
      local grads = gradients { p, { g } }
      for _ = 1, 2000 do
        opt:step(1e-3, grads)
        assert.is_true(p:item() == p:item() and math.abs(p:item()) < math.huge)
      end
    end
  end)

  it("no gradient is not a zero gradient", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "RMSProp", "AdaGrad", "Adan" } do
      local a, b = leaf({ 1 }), leaf({ 1 })
      local options = { weight_decay = 0.1 }
      if name == "SGD" or name == "RMSProp" then
        options.momentum = 0.9
      end
      local opt = optim[name]({ a, b }, options)
      opt:step(0.1, gradients { a, { 1 }, b, { 1 } })
      local before, state = b:item(), opt:state()
      local report = opt:step(0.1, gradients { a, { 1 } })
      assert.equal(1, report.updated)
      assert.equal(before, b:item())
      assert.equal(2, opt:steps "1")
      assert.equal(1, opt:steps "2")
      for key, value in pairs(opt:state()) do
        if type(value) == "table" and luda.is_tensor(value["2"]) then
          assert.equal(state[key]["2"]:item(), value["2"]:item())
        end
      end
      opt:step(0.1, gradients { b, { 0 } })
      assert.not_equal(before, b:item())
    end
  end)

  it("a linear layer of one unit learns as by hand", function()
    -- y = w x, x = (1, 2), loss = (y - 3)^2 / 2 from w = 0: dw = -3 x; then lr 0.1
    local w = leaf({ 0, 0 })
    local x = luda.tensor({ 1, 2 }, { dtype = "f64" })
    local loss = ((w * x):sum() - 3) ^ 2 * 0.5
    assert.equal(4.5, loss:item())
    optim.SGD({ w }):step(0.1, loss:backward())
    assert.tensor_near({ 0.3, 0.6 }, w, 1e-15, 0)
  end)

  it("shared parameters count once", function()
    local w = leaf({ 1 })
    local tied = model_of { first = w, second = w }
    local opt = optim.SGD(tied)
    for _, expected in ipairs { 0.5, 0 } do
      opt:step(0.1, (w * 2 + w * 3):sum():backward())
      assert.near(expected, w:item(), 1e-15)
    end
    assert.same({ first = 2 }, opt:state().steps)
    assert.equal("luda.optim.SGD(1 parameters)", tostring(optim.SGD { w, w }))
  end)
end)

describe("options", function()
  before_each(helper.before)
  after_each(helper.after)

  it("have PyTorch's defaults", function()
    local p = leaf({ 1 })
    local function options(name)
      return optim[name]({ p }):configuration().options
    end
    assert.same({ momentum = 0, dampening = 0, nesterov = 0, weight_decay = 0, lr_scale = 1 }, options "SGD")
    assert.same({ beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, amsgrad = 0, lr_scale = 1 }, options "Adam")
    assert.equal(1e-2, options("AdamW").weight_decay)
    assert.equal(1e-10, options("AdaGrad").eps)
    assert.same({ 0.99, 1e-8, 0 }, { options("RMSProp").alpha, options("RMSProp").eps, options("RMSProp").momentum })
    assert.same({ 0.98, 0.92, 0.99 }, { options("Adan").beta1, options("Adan").beta2, options("Adan").beta3 })
    local given = optim.AdamW({ p }, { betas = { 0.5, 0.25 }, amsgrad = true }):configuration().options
    assert.same({ 0.5, 0.25, 1 }, { given.beta1, given.beta2, given.amsgrad })
  end)

  it("that are unknown or wrong are refused, with what is known", function()
    local p = leaf({ 1 })
    assert.raises("invalid", "unknown option 'momentun'; it knows clip, dampening, fp32_master", optim.SGD, { p },
      { momentun = 0.9 })
    assert.raises("invalid", "it knows .*beta1, beta2, betas", optim.Adam, { p }, { momentum = 0.9 })
    assert.raises("invalid", "momentum is 1, it must be in", optim.SGD, { p }, { momentum = 1 })
    assert.raises("invalid", "beta2 is %-?nan", optim.Adam, { p }, { beta2 = 0 / 0 })
    assert.raises("invalid", "betas must be a list with an entry 2", optim.Adam, { p }, { betas = { 0.9 } })
    assert.raises("invalid", "eps must be a number", optim.Adam, { p }, { eps = "small" })
    assert.raises("invalid", "clip is {norm = limit} or {value = limit}", optim.SGD, { p }, { clip = {} })
    assert.raises("invalid", "clip.norm is %-1, it must be positive", optim.SGD, { p }, { clip = { norm = -1 } })
    assert.raises("invalid", "max_grad_norm is 0, it must be positive", optim.SGD, { p }, { max_grad_norm = 0 })
    assert.raises("invalid", "two ways of clipping", optim.SGD, { p }, { max_grad_norm = 1, clip = { value = 1 } })
    assert.raises("invalid", "gradient_scale is 0", optim.SGD, { p }, { gradient_scale = 0 })
    assert.raises("invalid", "a module or a list of parameters, got the string", optim.SGD, "model")
    assert.raises("invalid", "parameter 1 must be a tensor", optim.SGD, { 3 })
    assert.raises("dtype", "not a floating tensor", optim.SGD, { luda.zeros(2, { dtype = "i64" }) })
    assert.raises("invalid", "share memory", optim.SGD, { luda.zeros(1):expand(3) })
  end)

  it("form groups by name", function()
    local named = { ["fc.weight"] = leaf({ 1 }), ["fc.bias"] = leaf({ 1 }), ["out.bias"] = leaf({ 1 }) }
    local model = model_of(named)
    local opt = optim.SGD(model, {
      weight_decay = 0.5, momentum = 0.5,
      groups = { { match = "^out", lr_scale = 10 }, { match = "%.bias$", weight_decay = 0 } },
    })
    opt:step(0.1, gradients { named["fc.weight"], { 1 }, named["fc.bias"], { 1 }, named["out.bias"], { 1 } })
    assert.near(1 - 0.1 * 1.5, named["fc.weight"]:item(), 1e-15)
    assert.near(1 - 0.1 * 1, named["fc.bias"]:item(), 1e-15)
    assert.near(1 - 1 * 1.5, named["out.bias"]:item(), 1e-15)
    assert.same({ ["out.bias"] = 1, ["fc.bias"] = 2 }, opt:configuration().members)
    assert.raises("invalid", "group 1 %('embed'%) matches no parameter; they are fc.bias, fc.weight, out.bias", optim.SGD,
      model, { groups = { { match = "embed" } } })
    assert.raises("invalid", "group 2 .* matches no parameter that earlier groups left", optim.SGD, model,
      { groups = { { match = "bias" }, { match = "out.bias" } } })
    assert.raises("invalid", "group 1 needs match", optim.SGD, model, { groups = { { weight_decay = 0 } } })
    assert.raises("invalid", "is not a Lua pattern", optim.SGD, model, { groups = { { match = "(" } } })
    assert.raises("invalid", "unknown option 'lr'", optim.SGD, model, { groups = { { match = "fc", lr = 1 } } })
  end)
end)

describe("a step", function()
  before_each(helper.before)
  after_each(helper.after)

  it("leaves frozen parameters and those not named alone", function()
    local named = { a = leaf({ 1 }), b = leaf({ 1 }), c = leaf({ 1 }) }
    local model = model_of(named)
    local opt = optim.SGD(model, { momentum = 0.9, weight_decay = 0.1 })
    local grads = gradients { named.a, { 1 }, named.b, { 1 }, named.c, { 1 } }
    named.b:requires_grad_(false)
    assert.equal(2, opt:step(0.1, grads).updated)
    assert.equal(1, named.b:item())
    assert.equal(0, opt:steps "b")
    named.b:requires_grad_()
    local report = opt:step(0.1, grads, { only = "^[bc]$" })
    assert.equal(2, report.updated)
    assert.near(math.sqrt(2), report.grad_norm, 1e-15)
    assert.same({ 1, 1, 2 }, { opt:steps "a", opt:steps "b", opt:steps "c" })
    assert.equal(3, grads:len())
    assert.raises("invalid", "only = 'd' matches no parameter; they are a, b, c", opt.step, opt, 0.1, grads, { only = "d" })
    assert.raises("invalid", "unknown option 'omly'", opt.step, opt, 0.1, grads, { omly = "a" })
    -- tensors listed by hand need not be leaves
    local plain = luda.tensor({ 1 }, { dtype = "f64" })
    optim.SGD({ plain }):step(0.5, gradients { plain, { 1 } })
    assert.equal(0.5, plain:item())
  end)

  it("refuses what it cannot use, and changes nothing", function()
    local p, q = leaf({ 1, 2 }), leaf({ 3 })
    local opt = optim.Adam({ p, q })
    assert.raises("invalid", "expected gradients", opt.step, opt, 0.1, { p })
    assert.raises("invalid", "the rate must be a number, not nil", opt.step, opt, nil, Gradients())
    assert.raises("invalid", "the rate is %-1", opt.step, opt, -1, Gradients())
    assert.raises("invalid", "the rate is %-?nan", opt.step, opt, 0 / 0, Gradients())
    assert.raises("shape", "%[1%].*%[2%]", opt.step, opt, 0.1, gradients { q, { 1 }, p, { 1 } })
    assert.raises("dtype", "the gradient of parameter %d+ is f32, the parameter f64", opt.step, opt, 0.1,
      gradients({ p, { 1, 2 } }, "f32"))
    assert.raises("invalid", "none of the 1 gradients belongs", opt.step, opt, 0.1, gradients { leaf({ 1 }), { 1 } })
    assert.equal(0, opt:step(0.1, Gradients()).updated)
    assert.same({ 1, 2 }, p:totable())
    assert.same({}, opt:state().steps)
  end)

  it("clips each gradient, all together, or each element", function()
    local function after(options, list)
      local p = leaf({ 0, 0 })
      local report = optim.SGD({ p }, options):step(1, gradients { p, list })
      return p:totable(), report
    end
    local values, report = after({ max_grad_norm = 1 }, { 3, 4 })
    assert.tensor_near({ -0.6, -0.8 }, values, 1e-15, 0)
    assert.same({ false, 5, 0.2 }, { report.skipped, report.grad_norm, report.clip_coef })
    values, report = after({ clip = { norm = 1 } }, { 3, 4 })
    assert.tensor_near({ -0.6, -0.8 }, values, 1e-15, 0)
    assert.equal(1, report.clip_coef)
    assert.tensor_near({ -1, 0.25 }, (after({ clip = { value = 1 } }, { 3, -0.25 })), 0, 0)
    values, report = after({ max_grad_norm = 1 }, { 0, 0 })
    assert.same({ 0, 0, 0 }, { values[1], values[2], report.grad_norm })
    -- below the limit nothing changes, to the bit
    assert.same({ -0.1, -0.7 }, (after({ max_grad_norm = 5 }, { 0.1, 0.7 })))
    assert.same({ -0.1, -0.7 }, (after({ clip = { norm = 5 } }, { 0.1, 0.7 })))
    assert.same({ -3, -4 }, (after({ max_grad_norm = math.huge }, { 3, 4 })))
    -- by itself and together are different things
    local p, q = leaf({ 0 }), leaf({ 0 })
    optim.SGD({ p, q }, { clip = { norm = 1 } }):step(1, gradients { p, { 3 }, q, { 4 } })
    assert.same({ -1, -1 }, { p:item(), q:item() })
  end)

  it("skips gradients that are not finite, whatever is clipped", function()
    for _, bad in ipairs { math.huge, -math.huge, 0 / 0 } do
      for _, options in ipairs { {}, { max_grad_norm = 1 }, { clip = { norm = 1 } }, { clip = { value = 1 } } } do
        local p, q = leaf({ 1, 2 }), leaf({ 3 })
        local opt = optim.SGD({ p, q }, merge(options, { momentum = 0.9, weight_decay = 0.1 }))
        local report = opt:step(0.1, gradients { p, { bad, 1 }, q, { 1 } })
        assert.is_true(report.skipped)
        assert.equal(0, report.updated)
        assert.is_true(report.grad_norm ~= report.grad_norm or report.grad_norm == math.huge)
        assert.same({ 1, 2, 3 }, { p[1]:item(), p[2]:item(), q:item() })
        assert.same({}, opt:state().steps)
        assert.is_false(opt:step(0.1, gradients { p, { 1, 1 } }).skipped)
      end
    end
  end)

  it("keeps float32 masters of halves", function()
    for _, dtype in ipairs { "f16", "bf16" } do
      local plain, kept = leaf({ 1 }, dtype), leaf({ 1 }, dtype)
      local lost, opt = optim.SGD({ plain }), optim.SGD({ kept }, { fp32_master = true })
      for _ = 1, 64 do
        lost:step(1e-4, gradients({ plain, { 1 } }))
        opt:step(1e-4, gradients({ kept, { 1 } }))
      end
      assert.equal(1, plain:item())
      assert.near(1 - 64e-4, opt:state().master["1"]:item(), 64 * 2 ^ -24)
      assert.equal("f32", opt:state().master["1"].dtype)
      assert.near(1 - 64e-4, kept:item(), 2 ^ -8)
      assert.is_true(kept:item() < 1)
    end
  end)

  it("leaves a half the rounded value of its master, and a master the path of a float", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "AdaGrad", "RMSProp", "Adan" } do
      for _, dtype in ipairs { "f16", "bf16" } do
        luda.scope(function()
          local start, gradient = luda.randn(3, 67):to(dtype), luda.randn(3, 67):to(dtype)
          local half, wide = start:clone():requires_grad_(), start:to("f32"):requires_grad_()
          local opt = optim[name]({ half }, { fp32_master = true, max_grad_norm = 2 })
          local wide_opt = optim[name]({ wide }, { max_grad_norm = 2 })
          for _ = 1, 3 do
            local a, b = Gradients(), Gradients()
            a:register(half, gradient)
            b:register(wide, gradient:to("f32"))
            opt:step(0.05, a)
            wide_opt:step(0.05, b)
          end
          local master = opt:state().master["1"]
          assert.is_true(half:detach():equal(master:to(dtype)), name)
          assert.is_true(wide:detach():equal(master), name)
          assert.is_false(half:detach():equal(start))
        end)
      end
    end
  end)

  it("divides by the gradient scale before clipping", function()
    local results = {}
    for i, scale in ipairs { 1, 16 } do
      local p = leaf({ 1, 1 }, "f16")
      local opt = optim.SGD({ p }, { fp32_master = true, gradient_scale = scale, clip = { norm = 0.5 } })
      opt:step(1, gradients { p, { 1000 * scale, -2000 * scale } })
      results[i] = opt:state().master["1"]:totable()
    end
    assert.same(results[1], results[2])
    assert.tensor_near({ 1 - 0.5 / math.sqrt(5), 1 + 1 / math.sqrt(5) }, results[1], 1e-6, 0)
    -- true gradients 0.3 and 0.4 under a limit of 1: nothing is clipped
    local p = leaf({ 0, 0 })
    local opt = optim.SGD({ p }, { max_grad_norm = 1 })
    opt:set_gradient_scale(1024)
    local report = opt:step(1, gradients { p, { 0.3 * 1024, 0.4 * 1024 } })
    assert.near(0.5, report.grad_norm, 1e-15)
    assert.tensor_near({ -0.3, -0.4 }, p, 1e-15, 0)
    assert.raises("invalid", "gradient_scale is inf", opt.set_gradient_scale, opt, math.huge)
    assert.near(0.5, opt:step(1, gradients { p, { 512, 0 } }).grad_norm, 1e-15)
    assert.equal(1, opt:configuration().settings.gradient_scale)
  end)

  it("goes on in a scope without holding on to anything", function()
    local p = leaf({ 1, 2, 3 })
    local opt = optim.Adam({ p })
    local before
    for step = 1, 30 do
      luda.scope(function()
        opt:step(1e-2, (p * p):sum():backward())
      end)
      if step == 10 then
        before = helper.live()
      end
    end
    assert.equal(before, helper.live())
    assert.equal(30, opt:steps "1")
  end)
end)

describe("states", function()
  before_each(helper.before)
  after_each(helper.after)

  it("come after the first update and go on to the bit", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "AdaGrad", "RMSProp", "Adan" } do
      local options = (name == "SGD" or name == "RMSProp") and { momentum = 0.9 } or {}
      local p, q = leaf({ 1, -2 }), leaf({ 1, -2 })
      local opt = optim[name]({ p }, options)
      assert.same({}, opt:state().steps)
      local function step(optimizer, parameter, number)
        optimizer:step(0.1, gradients { parameter, { twin.noise(number, 1), twin.noise(number, 2) } })
      end
      for number = 1, 4 do
        step(opt, p, number)
      end
      local other = optim[name]({ q }, options):load_state(opt:state())
      luda.no_grad(q.copy_, q, p)
      for number = 5, 9 do
        step(opt, p, number)
        step(other, q, number)
        assert.same(p:totable(), q:totable())
      end
      assert.equal(9, other:steps "1")
    end
  end)

  it("that do not fit are refused whole, with every reason", function()
    local p, q = leaf({ 1, 2 }), leaf({ 3 })
    local model = model_of { a = p, b = q }
    local opt = optim.Adam(model)
    opt:step(0.1, gradients { p, { 1, 1 }, q, { 1 } })
    local state = opt:state()
    local sgd = optim.SGD(model, { momentum = 0.9 })
    assert.raises("mismatch", "the state is of 'adam', this is 'sgd'", sgd.load_state, sgd, state)
    local other = optim.Adam(model_of { a = leaf({ { 1, 2 } }), c = leaf({ 3 }, "f32"), b = q })
    local err = assert.raises("mismatch", "differ in", other.load_state, other, state)
    assert.same({
      "optimizer: 'a': shape is [2] in the file, [1, 2] here",
      "optimizer: 'c' is here and not in the file",
      "optimizer: exp_avg of 'a' has shape [2] in the file, [1, 2] here",
      "optimizer: exp_avg_sq of 'a' has shape [2] in the file, [1, 2] here",
    }, err.detail)
    assert.same({}, other:state().steps)
    state.exp_avg.b = nil
    state.exp_avg_sq.a = luda.zeros(2)
    err = assert.raises("mismatch", "differ in 2 places", opt.load_state, opt, state)
    assert.same({
      "optimizer: exp_avg_sq of 'a' is f32 in the file, f64 here",
      "optimizer: exp_avg of 'b' is missing in the file",
    }, err.detail)
    assert.raises("mismatch", "not one of an optimizer", opt.load_state, opt, {})
  end)

  it("keep the precision of masters and counts", function()
    local p = leaf({ 1 }, "bf16")
    local opt = optim.Adam({ p }, { fp32_master = true })
    opt:step(0.1, gradients { p, { 1 } })
    local state = opt:state()
    state.steps["1"] = 257
    state.master["1"] = luda.tensor({ 1.0009765625 })
    state.exp_avg["1"] = luda.tensor({ 1.0009765625 })
    opt:load_state(state)
    assert.equal(257, opt:steps "1")
    assert.equal(1.0009765625, opt:state().master["1"]:item())
    assert.equal(1.0009765625, opt:state().exp_avg["1"]:item())
  end)
end)

describe("an accumulator", function()
  before_each(helper.before)
  after_each(helper.after)

  it("adds and drains", function()
    local p, q = leaf({ 1, 2 }), leaf({ 3 })
    local sum = optim.Accumulator { p, q }
    local first = gradients { p, { 1, -2 } }
    sum:accumulate(first):accumulate(gradients { p, { 0.5, 0.25 }, q, { 7 }, leaf({ 1 }), { 9 } })
    assert.equal(2, sum:count())
    assert.same({ 1, -2 }, first[p]:totable())
    local grads = sum:grads()
    assert.same({ 1.5, -1.75 }, grads[p]:totable())
    assert.same({ 7 }, grads[q]:totable())
    assert.equal(2, grads:len())
    assert.equal(0, sum:count())
    assert.equal(0, sum:grads():len())
  end)

  it("weighs micro-batches of different sizes", function()
    local p = leaf({ 0 })
    local sum = optim.Accumulator { p }
    -- means over one token (3), three tokens (1, 1, 1) and none
    sum:accumulate(gradients { p, { 3 } }, { weight = 1 }):accumulate(gradients { p, { 1 } }, { weight = 3 })
    sum:accumulate(Gradients(), { weight = 0 })
    assert.equal(4, sum:weight())
    assert.equal(1.5, sum:grads({ mean = true })[p]:item())
    sum:accumulate(gradients { p, { 0 / 0 } }, { weight = 0 })
    assert.raises("invalid", "sum to 0, there is no mean", sum.grads, sum, { mean = true })
    assert.equal(1, sum:count())
  end)

  it("adds halves in float32 where asked, over a change of state", function()
    local p = leaf({ 0 }, "f16")
    local wide, narrow = optim.Accumulator { p }, optim.Accumulator { p }
    wide:accumulate(gradients { p, { 1024 } }, { dtype = "f32" })
    narrow:accumulate(gradients { p, { 1024 } })
    for number = 1, 8 do
      wide:accumulate(gradients { p, { 0.125 } }, { dtype = "f32" })
      narrow:accumulate(gradients { p, { 0.125 } })
      if number == 4 then
        wide = optim.Accumulator({ p }):load_state(wide:state())
      end
    end
    assert.equal(9, wide:count())
    assert.equal("f32", wide:state().sums["1"].dtype)
    assert.equal(1025, wide:grads()[p]:item())
    assert.equal(1024, narrow:grads()[p]:item())
  end)

  it("refuses what does not fit", function()
    local p = leaf({ 1, 2 })
    local sum = optim.Accumulator { p }
    sum:accumulate(gradients { p, { 1, 1 } })
    assert.raises("shape", "shape", sum.accumulate, sum, gradients { p, { 1 } })
    assert.raises("invalid", "weight is %-1", sum.accumulate, sum, gradients { p, { 1, 1 } }, { weight = -1 })
    assert.raises("invalid", "unknown option 'scale'", sum.accumulate, sum, gradients { p, { 1, 1 } }, { scale = 2 })
    assert.raises("dtype", "unknown element type", sum.accumulate, sum, gradients { p, { 1, 1 } }, { dtype = "float" })
    assert.raises("invalid", "expected gradients", sum.accumulate, sum, { p })
    local other = optim.Accumulator { leaf({ 1 }), leaf({ 1 }) }
    assert.raises("mismatch", "'1': the sum is f64 %[2%] in the file, the parameter f64 %[1%]", other.load_state, other,
      sum:state())
    assert.equal(1, sum:count())
    assert.equal(0, other:count())
  end)
end)

describe("averages", function()
  before_each(helper.before)
  after_each(helper.after)

  it("follow the parameters and stand in for them", function()
    local p = leaf({ 1, 2 })
    local ema = optim.EMA({ p }, 0.75)
    luda.no_grad(p.copy_, p, luda.tensor({ 5, -2 }, { dtype = "f64" }))
    ema:update()
    assert.same({ 2, 1 }, ema:state().averages["1"]:totable())
    local seen = ema:with(function(x)
      return { p:totable(), x }
    end, 7)
    assert.same({ { 2, 1 }, 7 }, seen)
    assert.has_error(function()
      ema:with(error, "inside")
    end)
    assert.same({ 5, -2 }, p:totable())
    assert.is_true(p.requires_grad)
    local other = optim.EMA({ p }, 0.75):load_state(ema:state())
    assert.same({ 2, 1 }, other:state().averages["1"]:totable())
    assert.raises("mismatch", "shape", other.load_state, other, { averages = { ["1"] = luda.zeros(3) } })
    assert.raises("invalid", "in %[0, 1%)", optim.EMA, { p }, 1)
  end)

  it("of halves are float32", function()
    local p = leaf({ 1 }, "bf16")
    local ema = optim.EMA({ p }, 0.999)
    luda.no_grad(p.copy_, p, luda.tensor({ 2 }, { dtype = "bf16" }))
    ema:update()
    assert.near(1.001, ema:state().averages["1"]:item(), 1e-7)
  end)
end)
