--- luda.nn's composed functions and layers: PyTorch's values and gradients, second order, half types, odd cases.

local luda = require "luda"
local helper = require "spec.helper"
local nn = luda.nn

local golden = helper.golden("nn").cases

--- The inputs of scripts/golden_nn.py. Ids count from 1 here.
local function values(kind, shape, seed, dtype)
  local list, count = {}, 1
  for _, size in ipairs(shape) do
    count = count * size
  end
  for k = 0, count - 1 do
    local r = (k * 7 + seed * 5) % 23
    list[k + 1] = kind == "any" and (r - 11) / 8 or kind == "positive" and (r + 1) / 8 or kind == "unit" and (r + 1) / 24
      or kind == "sign" and 1 - 2 * (r % 2) or kind == "count" and r % 5 or kind == "ids" and r % 4 + 1
  end
  return luda.tensor(list, { dtype = kind == "ids" and "i64" or dtype }):reshape(shape)
end

local function without(options, ...)
  local rest, taken = {}, {}
  for name, value in pairs(options) do
    rest[name] = value
  end
  for i = 1, select("#", ...) do
    local name = select(i, ...)
    taken[i], rest[name] = rest[name], nil
  end
  return rest, unpack(taken, 1, select("#", ...))
end

--- A layer with the given weights in PyTorch's order; the results depend on them.
local function recurrent(class, options, inputs)
  local states = options.states
  local layer = class(3, 5, { num_layers = options.layers, bidirectional = options.bidirectional })
  local place = states + 2
  for i = 0, options.layers - 1 do
    for _, suffix in ipairs(options.bidirectional and { "", "_reverse" } or { "" }) do
      for _, name in ipairs { "weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l" } do
        local path = name .. i .. suffix
        assert.same(layer[path].shape, inputs[place].shape)
        layer[path], place = inputs[place], place + 1
      end
    end
  end
  assert.equal(#inputs + 1, place)
  return layer(unpack(inputs, 1, states + 1))
end

-- Functions whose arguments are not just the inputs and the options.
local special = {
  batch_norm = function(options, x, mean, var, weight, bias)
    mean, var = mean:detach():clone(), var:detach():clone()
    options = without(options)
    options.weight, options.bias = weight, bias
    return nn.batch_norm(x, mean, var, options), mean, var
  end,
  group_norm = function(options, x, weight, bias)
    return nn.group_norm(x, options.groups, { weight = weight, bias = bias })
  end,
  instance_norm = function(_, x, weight, bias)
    return nn.instance_norm(x, { weight = weight, bias = bias })
  end,
  unfold = function(options, x)
    local rest, kernel = without(options, "kernel_size")
    return nn.unfold(x, kernel, rest)
  end,
  fold = function(options, x)
    local rest, kernel, size = without(options, "kernel_size", "output_size")
    return nn.fold(x, size, kernel, rest)
  end,
  adaptive_avg_pool2d = function(options, x) return nn.adaptive_avg_pool2d(x, options.size) end,
  pixel_shuffle = function(options, x) return nn.pixel_shuffle(x, options.factor) end,
  pixel_unshuffle = function(options, x) return nn.pixel_unshuffle(x, options.factor) end,
  embedding_bag = function(options, ids, weight)
    local rest, offsets = without(options, "offsets")
    return nn.embedding_bag(ids, weight, offsets and luda.tensor(offsets, { dtype = "i64" }), rest)
  end,
  LSTM = function(options, ...) return recurrent(nn.LSTM, options, { ... }) end,
  GRU = function(options, ...) return recurrent(nn.GRU, options, { ... }) end,
}

local function call(case, inputs)
  if special[case.name] then
    return { special[case.name](case.options, unpack(inputs)) }
  end
  local arguments = { unpack(inputs) }
  arguments[#arguments + 1] = case.options
  return { nn[case.name](unpack(arguments)) }
end

local fixed = { ids = true, sign = true, count = true }

local function inputs_of(case, dtype)
  local inputs, tracked = {}, {}
  for i, input in ipairs(case.inputs) do
    inputs[i] = values(input[1], input[2], i, dtype)
    if not fixed[input[1]] then
      tracked[#tracked + 1] = inputs[i]:requires_grad_()
    end
  end
  return inputs, tracked
end

describe("PyTorch's values", function()
  before_each(helper.before)
  after_each(helper.after)

  for number, case in ipairs(golden) do
    for dtype, bound in pairs { f64 = 1e-11, f32 = 2e-5 } do
      it(("of %s, case %d, %s"):format(case.name, number, dtype), function()
        local inputs, tracked = inputs_of(case, dtype)
        local outputs, roots, upstream = call(case, inputs), {}, {}
        for i, output in ipairs(outputs) do
          assert.same(case.shapes[i], output.shape)
          assert.equal(dtype, output.dtype)
          local want = luda.tensor(case.outputs[i], { dtype = "f64" }):reshape(output.shape)
          assert.tensor_near(want, output, bound, bound)
          if output.requires_grad then
            roots[#roots + 1], upstream[#upstream + 1] = output, values("any", output.shape, 4, dtype)
          end
        end
        local grads = luda.autograd.grad(roots, tracked, { gradient = upstream, allow_unused = true })
        for i, list in ipairs(case.grads) do
          if #list == 0 then
            assert.is_falsy(grads[i])
          else
            local want = luda.tensor(list, { dtype = "f64" }):reshape(tracked[i].shape)
            assert.tensor_near(want, grads[i], 4 * bound, 4 * bound)
          end
        end
      end)
    end
  end
end)

describe("the composed functions", function()
  before_each(helper.before)
  after_each(helper.after)

  -- One case of each function, with second order.
  local seen = {}
  for number, case in ipairs(golden) do
    local smooth = not (case.options.reduction == "none" or case.options.reduction == "mean")
    if smooth and not seen[case.name] then
      seen[case.name] = true
      it(("have right gradients of both orders: %s, case %d"):format(case.name, number), function()
        local inputs = inputs_of(case, "f64")
        if case.name == "LSTM" or case.name == "GRU" then
          local sizes = { 4, 2, 3 }
          local class = nn[case.name]
          local layer = class(3, 2, { bidirectional = true }):to_dtype("f64")
          inputs = { values("any", sizes, 1, "f64"):requires_grad_(), values("unit", { 2, 2, 2 }, 2, "f64"):requires_grad_() }
          assert.is_true(luda.autograd.gradcheck(function(x, h)
            return (layer(x, h))
          end, inputs, { second = true, atol = 1e-5, rtol = 1e-4 }))
          return
        end
        assert.is_true(luda.autograd.gradcheck(function(...)
          return (call(case, { ... })[1])
        end, inputs, { second = true, atol = 1e-5, rtol = 1e-4 }))
      end)
    end
  end

  it("keep half types, and compute in f32", function()
    for _, dtype in ipairs { "bf16", "f16" } do
      local x = luda.tensor({ { { 1, 2, 3, 4 }, { -1, 0, 0, 1 } } }, { dtype = dtype })
      for name, y in pairs {
        batch_norm = nn.batch_norm(x, luda.zeros(2), luda.ones(2), { training = true }),
        group_norm = nn.group_norm(x, 1), instance_norm = nn.instance_norm(x), rope = nn.rope(x),
        conv1d = nn.conv1d(x, luda.ones(1, 2, 1, { dtype = dtype })),
        interpolate = nn.interpolate(x, { size = 3, mode = "linear" }),
        conv_transpose1d = nn.conv_transpose1d(x, luda.ones(2, 1, 2, { dtype = dtype })),
      } do
        assert.equal(dtype, y.dtype, name)
      end
      local mean, var = luda.zeros(1), luda.ones(1)
      local large = luda.tensor({ 256, 257, 258, 259 }, { dtype = "f32" }):to(dtype):reshape(4, 1)
      nn.batch_norm(large, mean, var, { training = true, momentum = 1 })
      assert.equal(large:to("f32"):mean():item(), mean:item()) -- 257.5 is no bf16
    end
  end)

  it("have gradient 0 at the zero vector", function()
    for _, p in ipairs { 1, 2, 3 } do
      local x = luda.tensor({ { 0, 0 }, { 3, 4 } }, { dtype = "f64" }):requires_grad_()
      local distance = nn.pairwise_distance(x, luda.zeros(2, 2), { p = p, eps = 0 })
      local grads = distance:backward { gradient = luda.tensor({ -2, 5 }, { dtype = "f64" }) }
      assert.same({ 0, 0 }, grads[x][1]:totable())
    end
    local x = luda.zeros(1, 3):requires_grad_()
    local grads = nn.cosine_similarity(x, luda.tensor { { 1, 2, 3 } }):backward { gradient = luda.tensor { 2 } }
    assert.is_true(grads[x]:isnan():logical_not():to("f32"):sum():item() == 3)
    assert.same({ { 0, 0 } }, nn.normalize(luda.zeros(1, 2)):totable())
    assert.is_true(nn.normalize(luda.tensor { { 0 / 0, 1 } }):isnan():to("f32"):sum():item() == 2)
  end)

  it("count a class or target of probability 0 for nothing", function()
    local inf = math.huge
    local logits = luda.tensor { { 0, -inf, 0 } }:requires_grad_()
    local loss = nn.cross_entropy(logits, luda.tensor { { 0.5, 0, 0.5 } })
    assert.near(math.log(2), loss:item(), 1e-6)
    assert.same({ { 0, 0, 0 } }, loss:backward()[logits]:totable())
    local y = luda.tensor { 0, 1 }:requires_grad_()
    local divergence = nn.kl_div(luda.tensor { -inf, 0 }, y, { reduction = "none" })
    assert.same({ 0, 0 }, divergence:totable())
    assert.same({ 0, 3 }, divergence:backward { gradient = luda.tensor { 2, 3 } }[y]:totable())
    -- weights multiply each class, the mean stays over the rows: rows -ln(1/2) * (0.25 w1 + 0.75 w2)
    local weighted = nn.cross_entropy(luda.zeros(2, 2), luda.tensor { { 0.25, 0.75 }, { 1, 0 } }, {
      weight = luda.tensor { 2, 4 },
    })
    assert.near(math.log(2) * (3.5 + 2) / 2, weighted:item(), 1e-6)
  end)

  it("binary_cross_entropy is bounded at 0 and 1", function()
    local x = luda.tensor { 0, 1, 0, 1 }:requires_grad_()
    local loss = nn.binary_cross_entropy(x, luda.tensor { 1, 0, 0, 1 }, { reduction = "none" })
    assert.same({ 100, 100, 0, 0 }, loss:totable())
    assert.is_true(loss:backward { gradient = luda.ones(4) }[x]:isnan():to("f32"):sum():item() == 0)
  end)

  it("unfold and fold touch nothing beside their windows", function()
    local x = luda.arange(9):reshape(1, 1, 3, 3)
    x[{ 1, 1, 1, 1 }] = math.huge
    local columns = nn.unfold(x, 2)
    assert.same({ { { math.huge, 1, 3, 4 }, { 1, 2, 4, 5 }, { 3, 4, 6, 7 }, { 4, 5, 7, 8 } } }, columns:totable())
    local counts = nn.fold(nn.unfold(luda.ones(1, 2, 3, 3), 2), 3, 2)
    assert.same({ { 1, 2, 1 }, { 2, 4, 2 }, { 1, 2, 1 } }, counts[{ 1, 2 }]:totable())
    assert.equal("i32", nn.unfold(luda.ones(1, 1, 2, 2, { dtype = "i32" }), 2).dtype)
    assert.raises("shape", "a kernel of 4 with dilation 1 does not fit into 3", nn.unfold, x, 4)
    assert.raises("shape", "%[N, C %* 4, 4%] is needed for windows of 2x2 in %[3, 3%]", nn.fold,
      columns[{ {}, {}, { 1, 3 } }], 3, 2)
  end)

  it("conv_transpose2d is the transpose of conv2d", function()
    local x, w = values("any", { 2, 3, 7, 6 }, 1), values("any", { 4, 3, 3, 2 }, 2)
    local how = { stride = { 2, 1 }, padding = { 1, 0 } }
    local y = luda.conv2d(x, w, how)
    local g = values("any", y.shape, 3)
    local back = nn.conv_transpose2d(g, w, how)
    assert.same(x.shape, back.shape)
    assert.near((y * g):sum():item(), (x * back):sum():item(), 1e-3)
    assert.raises("shape", "has 4 channels, the weight %[3, 4, 3, 2%] is for 3", nn.conv_transpose2d, g, w:transpose(1, 2))
    assert.raises("invalid", "output_padding is 2", nn.conv_transpose2d, g, w, { output_padding = 2 })
  end)

  it("pixel_unshuffle undoes pixel_shuffle; interpolate keeps what is kept", function()
    local x = values("any", { 2, 18, 2, 4 }, 1)
    assert.same(x:totable(), nn.pixel_unshuffle(nn.pixel_shuffle(x, 3), 3):totable())
    for _, mode in ipairs { "nearest", "bilinear" } do
      assert.same(x:totable(), nn.interpolate(x, { size = { 2, 4 }, mode = mode }):totable())
    end
    assert.raises("invalid", "either size or scale_factor", nn.interpolate, x, {})
    assert.raises("shape", "%[N, C, L%] is needed for mode linear", nn.interpolate, x, { size = 2, mode = "linear" })
  end)

  it("rope turns by position: products depend on the distance only", function()
    local q, k = values("any", { 1, 8 }, 1, "f64"), values("any", { 1, 8 }, 2, "f64")
    for _, interleaved in ipairs { false, true } do
      local function product(i, j)
        return (nn.rope(q, { offset = i, interleaved = interleaved })
          * nn.rope(k, { offset = j, interleaved = interleaved })):sum():item()
      end
      assert.near(product(7, 3), product(104, 100), 1e-12)
      assert.near((q * k):sum():item(), product(5, 5), 1e-12)
    end
    local x = values("any", { 3, 4 }, 1, "f64")
    assert.tensor_near(nn.rope(x, { offset = 2 }), nn.rope(x, { positions = luda.tensor { 2, 3, 4 } }), 1e-15, 1e-15)
    assert.raises("shape", "an even D", nn.rope, luda.ones(2, 3))
  end)

  it("embedding_bag: empty bags, weights, a base, offsets", function()
    local weight = luda.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }:requires_grad_()
    local ids, offsets = luda.tensor { 0LL, 2LL, 2LL }, luda.tensor { 1LL, 1LL, 3LL }
    for mode, want in pairs { sum = { { 0, 0 }, { 6, 8 }, { 5, 6 } }, mean = { { 0, 0 }, { 3, 4 }, { 5, 6 } },
      max = { { 0, 0 }, { 5, 6 }, { 5, 6 } } } do
      assert.same(want, nn.embedding_bag(ids, weight, offsets, { mode = mode, base = 0 }):totable())
    end
    local y = nn.embedding_bag(ids:reshape(1, 3), weight, {
      mode = "sum", base = 0, per_sample_weights = luda.tensor { { 2, 1, -3 } },
    })
    assert.same({ { 2 - 10, 4 - 12 } }, y:totable())
    assert.same({ { 2, 2 }, { 0, 0 }, { -2, -2 } }, y:backward { gradient = luda.ones(1, 2) }[weight]:totable())
    assert.same({ { 0, 0 } }, nn.embedding_bag(luda.zeros(1, 0, { dtype = "i64" }), weight):totable())
    assert.raises("index", "offsets begin with 1", nn.embedding_bag, ids, weight, luda.tensor { 2LL }, { base = 0 })
  end)

  it("losses refuse to broadcast", function()
    local x, y = luda.zeros(4, 1), luda.zeros(4)
    for _, name in ipairs {
      "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "bce_with_logits", "poisson_nll_loss",
    } do
      assert.raises("shape", name .. ": the input has shape %[4, 1%], the target %[4%]; losses do not broadcast", nn[name], x, y)
    end
  end)
end)
