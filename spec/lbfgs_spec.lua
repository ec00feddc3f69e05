--- L-BFGS: closures, when it stops, who is updated, and its state.

local luda = require "luda"
local helper = require "spec.helper"

local optim, record, nn = luda.optim, luda.record, luda.nn

local function leaf(values, dtype)
  return luda.tensor(values, { dtype = dtype or "f64" }):requires_grad_()
end

--- (p - 3)^2 + 10 (q + 1)^4, which has its minimum at 3 and -1.
local function bowl(p, q)
  return function()
    local loss = ((p - 3) ^ 2):sum() + ((q + 1) ^ 4 * 10):sum()
    return loss, loss:backward()
  end
end

describe("L-BFGS", function()
  before_each(helper.before)
  after_each(helper.after)

  it("finds a minimum, by either way of stepping, in every type", function()
    for _, case in ipairs { { "f64", 1e-3 }, { "f32", 2e-2 }, { "bf16", 0.1 } } do
      for _, search in ipairs { "strong_wolfe", false } do
        local p, q = leaf({ 1, -2 }, case[1]), leaf({ { 0.5 } }, case[1])
        local opt = optim.LBFGS({ p, q }, { line_search_fn = search or nil, tolerance_change = 1e-14 })
        local first
        for _ = 1, 8 do
          local report = opt:step(search and 1 or 0.4, bowl(p, q))
          first = first or report.loss
        end
        assert.near(4 + 25 + 10 * 1.5 ^ 4, first, 0.5)
        assert.tensor_near({ 3, 3 }, p, 0, case[2])
        assert.near(-1, q:item(), 10 * case[2])
        assert.equal(case[1], p.dtype)
      end
    end
  end)

  it("takes its first step along the gradient, no longer than its size", function()
    -- gradient (6, -8): t = lr / 14
    local p = leaf { 0, 0 }
    local report = optim.LBFGS({ p }, { max_iter = 1 }):step(0.7, function()
      return ((p - luda.tensor({ -3, 4 }, { dtype = "f64" })) ^ 2):sum()
    end)
    assert.tensor_near({ -0.3, 0.4 }, p, 1e-14, 0)
    assert.same({ 25, 1, 1, 1, false }, { report.loss, report.evaluations, report.iterations, report.updated, report.skipped })
    assert.near(10, report.grad_norm, 1e-14)
  end)

  it("stops where there is nothing to gain, or nothing may be asked any more", function()
    local p = leaf { 3, 3 }
    local q = leaf { -1 }
    local opt = optim.LBFGS { p, q }
    local report = opt:step(1, bowl(p, q))
    assert.same({ 0, 1, 0, 0 }, { report.loss, report.evaluations, report.iterations, report.updated })
    for options, evaluations in pairs { [{ max_eval = 1 }] = 1, [{ max_iter = 0 }] = 1, [{ max_eval = 3 }] = 3 } do
      p = leaf { 1, 2 }
      local count = 0
      local closure = bowl(p, q)
      report = optim.LBFGS({ p, q }, options):step(0.1, function()
        count = count + 1
        return closure()
      end)
      assert.same({ evaluations, evaluations }, { count, report.evaluations })
    end
    -- a search keeps to the evaluations that are left
    p = leaf { -1.2, 1 }
    report = optim.LBFGS({ p }, { max_eval = 4, line_search_fn = "strong_wolfe" }):step(1, function()
      return (p[2] - p[1] ^ 2) ^ 2 * 100 + (1 - p[1]) ^ 2
    end)
    assert.is_true(report.evaluations <= 4 and report.final_loss <= report.loss)
  end)

  it("leaves what has no gradient, or is frozen, alone, and starts anew with others", function()
    local named = { a = leaf { 1 }, b = leaf { 1 }, c = leaf { 1 } }
    local model = { named_parameters = function()
      return pairs(named)
    end }
    named.c:requires_grad_(false)
    local opt = optim.LBFGS(model, { max_iter = 3 })
    assert.equal(2, opt:step(0.1, bowl(named.a, named.b)).updated)
    local a, b = named.a:item(), named.b:item()
    assert.is_true(a ~= 1 and b ~= 1 and named.c:item() == 1)
    opt:step(0.1, function()
      return (named.a - 3) ^ 2
    end)
    assert.is_true(named.a:item() ~= a)
    assert.same({ b, 1 }, { named.b:item(), named.c:item() })
    assert.same({ { "a" }, 2 }, { opt:state().members, opt:state().iterations })
  end)

  it("is undone by a loss or a gradient that is not finite, and by a closure that fails", function()
    for _, search in ipairs { "strong_wolfe", false } do
      local p, q = leaf { 1, 2 }, leaf { 0 }
      local opt = optim.LBFGS({ p, q }, { max_iter = 3, line_search_fn = search or nil })
      opt:step(0.1, bowl(p, q))
      local values, iterations = p:totable(), opt:state().iterations
      local good, calls = bowl(p, q), 0
      local report = opt:step(0.1, function()
        local loss, grads = good()
        return loss * (0 / 0), grads
      end)
      assert.same({ true, 0, values, iterations }, { report.skipped, report.updated, p:totable(), opt:state().iterations })
      assert.has_error(function()
        opt:step(0.1, function()
          calls = calls + 1
          if calls == 2 then
            error("no more", 0)
          end
          return good()
        end)
      end, "no more")
      assert.same({ values, iterations }, { p:totable(), opt:state().iterations })
      assert.is_false(opt:step(0.1, good).skipped)
    end
    -- x - 2 log x has its minimum at 2 and no value below 0: a fixed step beyond is undone, a search steps back
    local x = leaf { 0.1 }
    local function pole()
      return (x - x:log() * 2):sum()
    end
    assert.is_true(optim.LBFGS({ x }, { max_iter = 3 }):step(40, function()
      return (x * 30):sum() + pole()
    end).skipped)
    assert.same({ 0.1 }, x:totable())
    x = leaf { 3 }
    for _, start in ipairs { 3, 0.01 } do
      x = leaf { start }
      local report = optim.LBFGS({ x }, { line_search_fn = "strong_wolfe", tolerance_change = 1e-12 }):step(10, pole)
      assert.is_false(report.skipped)
      assert.near(2, x:item(), 1e-4)
    end
  end)

  it("goes on from a record to the bit", function()
    local function make()
      luda.manual_seed(2)
      local model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
      local x, y = luda.randn(20, 3), luda.randn(20, 1)
      local opt = optim.LBFGS(model, { max_iter = 4, history_size = 3, line_search_fn = "strong_wolfe" })
      return model, opt, function()
        return nn.mse_loss(model(x), y)
      end
    end
    local model, opt, closure = make()
    opt:step(1, closure)
    opt:step(1, closure)
    local file = os.tmpname()
    local written = record.save(file, { model = model, optimizer = opt })
    local other, again, closure_again = make()
    record.load(written):restore { model = other, optimizer = again }
    for _ = 1, 3 do
      assert.equal(opt:step(1, closure).loss, again:step(1, closure_again).loss)
    end
    assert.is_true(model[1].weight:equal(other[1].weight))
    local stored = record.load(written)
    local wrong = optim.LBFGS(other, { max_iter = 4, history_size = 4, line_search_fn = "strong_wolfe" })
    assert.raises("mismatch", "history_size is 3 in the file, 4 here", stored.restore, stored, { optimizer = wrong })
    local adam = optim.Adam(other)
    assert.raises("mismatch", "the file has 'lbfgs', here is 'adam'", stored.restore, stored, { optimizer = adam })
    local small = optim.LBFGS(other[1])
    assert.raises("mismatch", "is in the file and not here", small.load_state, small, opt:state())
    assert.raises("mismatch", "not one of L%-BFGS", small.load_state, small, adam:state())
    os.remove(written)
    os.remove(file)
  end)

  it("holds on to its history only", function()
    local p, q = leaf { 1, 2 }, leaf { 0 }
    local opt = optim.LBFGS({ p, q }, { history_size = 2, max_iter = 2, tolerance_change = 0, tolerance_grad = 0 })
    local before
    for step = 1, 12 do
      luda.scope(opt.step, opt, 0.01, bowl(p, q))
      collectgarbage()
      collectgarbage()
      before = step == 6 and helper.live() or before
    end
    assert.equal(before, helper.live())
    assert.equal(2, #opt:state().pairs)
  end)

  it("says what is wrong with options and closures", function()
    local p = leaf { 1 }
    assert.raises("invalid", "unknown option 'lr'", optim.LBFGS, { p }, { lr = 1 })
    assert.raises("invalid", "max_iter is 1.5, it must be a whole number", optim.LBFGS, { p }, { max_iter = 1.5 })
    assert.raises("invalid", "history_size is 0, it must be a whole number of at least 1", optim.LBFGS, { p },
      { history_size = 0 })
    assert.raises("invalid", "tolerance_grad is %-1", optim.LBFGS, { p }, { tolerance_grad = -1 })
    assert.raises("invalid", "line_search_fn is armijo, it must be 'strong_wolfe'", optim.LBFGS, { p },
      { line_search_fn = "armijo" })
    local opt = optim.LBFGS { p }
    assert.equal("luda.optim.LBFGS(1 parameters)", tostring(opt))
    assert.raises("invalid", "expected a function that returns the loss", opt.step, opt, 1, luda.autograd.Gradients())
    assert.raises("invalid", "the rate is %-1", opt.step, opt, -1, bowl(p, p))
    assert.raises("invalid", "the closure must return the loss and its gradients", opt.step, opt, 1, function()
      return 1
    end)
    assert.equal(1, p:item())
  end)
end)
