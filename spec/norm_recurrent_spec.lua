--- Layers beyond the elementary ones: batch and group normalization, sequences, transposed convolution, recurrence.

local luda = require "luda"
local helper = require "spec.helper"
local nn = luda.nn

local function names_of(iterator)
  local names = {}
  for name in iterator do
    names[#names + 1] = name
  end
  return names
end

describe("BatchNorm", function()
  before_each(helper.before)
  after_each(helper.after)

  it("normalizes a batch in training and by running statistics in evaluation", function()
    local layer = nn.BatchNorm1d(2, { eps = 0, momentum = 0.5 })
    assert.same({ "weight", "bias" }, names_of(layer:named_parameters()))
    assert.same({ "running_mean", "running_var", "num_batches_tracked" }, names_of(layer:named_buffers()))
    layer:load_state({ weight = luda.tensor { 2, 1 }, bias = luda.tensor { 0, 10 } }, { strict = false })
    -- means 2 and 0, biased variances 1 and 4, unbiased 2 and 8
    local x = luda.tensor { { 1, 2 }, { 3, -2 } }
    assert.same({ { -2, 11 }, { 2, 9 } }, layer(x):totable())
    assert.same({ 1, 0 }, layer.running_mean:totable())
    assert.same({ 1.5, 4.5 }, layer.running_var:totable())
    assert.equal(1, layer.num_batches_tracked:item())
    layer:eval()
    local r = { 2 / math.sqrt(1.5), 1 / math.sqrt(4.5) }
    assert.tensor_near({ { 0, 10 + 2 * r[2] }, { 2 * r[1], 10 - 2 * r[2] } }, layer(x))
    assert.same({ 1, 0 }, layer.running_mean:totable())
    assert.equal(1, layer.num_batches_tracked:item())
  end)

  it("averages all batches without a momentum, and keeps nothing when told so", function()
    local layer = nn.BatchNorm(1, { momentum = false, affine = false })
    for _, value in ipairs { 3, 6, 0 } do
      layer(luda.tensor { { value - 1 }, { value + 1 } })
    end
    assert.near(3, layer.running_mean:item(), 1e-6)
    assert.near(2, layer.running_var:item(), 1e-6)
    local free = nn.BatchNorm2d(3, { track_running_stats = false }):eval()
    assert.same({}, names_of(free:named_buffers()))
    assert.near(0, free(luda.randn(2, 3, 4, 4)):mean():item(), 1e-5)
  end)

  it("has exact results for large means, and gradients that sum to zero", function()
    local layer = nn.BatchNorm1d(1, { eps = 1e-5 })
    local x = luda.tensor { { 40000 }, { 40001 }, { 40002 }, { 40003 } }:requires_grad_()
    local y = layer(x)
    assert.tensor_near({ { -1.341635 }, { -0.447212 }, { 0.447212 }, { 1.341635 } }, y, 0, 1e-3)
    local grads = y:backward { gradient = luda.tensor { { 1 }, { -2 }, { 5 }, { 0.5 } } }
    assert.near(0, grads[x]:sum():item(), 1e-5)
  end)

  it("trains in both modes after each other, and moves with its module", function()
    local model = nn.Sequential(nn.Conv1d(2, 4, 3, { padding = 1 }), nn.BatchNorm1d(4), nn.ReLU())
    local x = luda.randn(3, 2, 8)
    for _ = 1, 2 do
      local grads = model(x):sum():backward()
      assert.is_truthy(grads[model[1].weight])
    end
    local copy = nn.Sequential(nn.Conv1d(2, 4, 3, { padding = 1 }), nn.BatchNorm1d(4), nn.ReLU())
    copy:load_state(model:state())
    assert.same(model:eval()(x):totable(), copy:eval()(x):totable())
    assert.equal("bf16", model:to_dtype("bf16")(x:to("bf16")).dtype)
    assert.equal("i64", model[2].num_batches_tracked.dtype)
  end)

  it("refuses what has no statistics or other shapes", function()
    local layer = nn.BatchNorm2d(3)
    assert.raises("shape", "batch_norm: the input %[1, 3, 1, 1%] has 1 value a channel; training needs more than one", layer,
      luda.ones(1, 3, 1, 1))
    assert.raises("shape", "BatchNorm2d: the input has shape %[2, 3%]; %[N, C, H, W%] is needed", layer, luda.ones(2, 3))
    assert.raises("shape", "running_mean has shape %[3%], the input %[2, 4, 5, 5%]", layer, luda.ones(2, 4, 5, 5))
    assert.raises("dtype", "the input is i64", layer, luda.ones(2, 3, 2, 2, { dtype = "i64" }))
  end)
end)

describe("GroupNorm", function()
  before_each(helper.before)
  after_each(helper.after)

  it("normalizes runs of channels, then scales each channel", function()
    local layer = nn.GroupNorm(2, 4, { eps = 0 })
    layer:load_state { weight = luda.tensor { 1, 2, 1, 1 }, bias = luda.tensor { 0, 0, 5, 0 } }
    assert.tensor_near({ { -1, 2, 4, 1 } }, layer(luda.tensor { { 1, 3, -10, 10 } }))
    assert.raises("invalid", "4 channels cannot be divided into 3 groups", nn.GroupNorm, 3, 4)
    assert.raises("shape", "%[N, 4, ...%] is needed", layer, luda.ones(2, 6))
    assert.same({}, nn.GroupNorm(1, 2, { affine = false }):parameters())
  end)
end)

describe("layers of images and sequences", function()
  before_each(helper.before)
  after_each(helper.after)

  it("have PyTorch's shapes and start within 1 / sqrt(fan in)", function()
    local cases = {
      { nn.Conv1d(4, 6, 5, { groups = 2, stride = 2 }), { 6, 2, 5 }, { 2, 4, 11 }, { 2, 6, 4 } },
      { nn.ConvTranspose1d(4, 6, 5, { groups = 2, stride = 2 }), { 4, 3, 5 }, { 2, 4, 4 }, { 2, 6, 11 } },
      { nn.ConvTranspose2d(4, 6, { 5, 2 }, { groups = 2, stride = 2 }), { 4, 3, 5, 2 }, { 2, 4, 4, 3 }, { 2, 6, 11, 6 } },
    }
    for _, case in ipairs(cases) do
      local layer, weight, input, output = unpack(case)
      assert.same(weight, layer.weight.shape)
      assert.same({ 6 }, layer.bias.shape)
      local bound = math.sqrt(1 / (weight[2] * weight[3] * (weight[4] or 1)))
      assert.is_true(layer.weight:abs():max():item() <= bound)
      assert.is_true(layer.weight:abs():max():item() > 0.8 * bound)
      assert.same(output, layer(luda.ones(input)).shape)
    end
    assert.same({ 2, 3, 1, 1 }, nn.AdaptiveAvgPool2d(1)(luda.ones(2, 3, 5, 4)).shape)
    assert.same({ 2, 3, 10, 8 }, nn.Upsample({ scale_factor = 2 })(luda.ones(2, 3, 5, 4)).shape)
    assert.raises("invalid", "either size or scale_factor", nn.Upsample)
    assert.raises("shape", "conv1d: the input has shape %[4, 11%]; %[N, C, L%] is needed", cases[1][1], luda.ones(4, 11))
  end)
end)

describe("LSTM and GRU", function()
  before_each(helper.before)
  after_each(helper.after)

  local function sigmoid(x) return 1 / (1 + math.exp(-x)) end

  it("follow their equations: one unit, two steps, in plain numbers", function()
    local lstm = nn.LSTM(1, 1)
    lstm:load_state {
      weight_ih_l0 = luda.tensor { { 0.5 }, { -0.4 }, { 0.3 }, { 0.2 } },
      weight_hh_l0 = luda.tensor { { 0.1 }, { 0.6 }, { -0.7 }, { 0.8 } },
      bias_ih_l0 = luda.tensor { 0.1, 0.2, 0.3, 0.4 }, bias_hh_l0 = luda.tensor { -0.1, 0.1, 0.05, 0 },
    }
    local h, c = 0, 0
    local results = {}
    for t, x in ipairs { 1, -2 } do
      local i, f = sigmoid(0.5 * x + 0.1 * h), sigmoid(-0.4 * x + 0.6 * h + 0.3)
      local g, o = math.tanh(0.3 * x - 0.7 * h + 0.35), sigmoid(0.2 * x + 0.8 * h + 0.4)
      c = f * c + i * g
      h = o * math.tanh(c)
      results[t] = { { h } }
    end
    local y, last_h, last_c = lstm(luda.tensor { { { 1 } }, { { -2 } } })
    assert.tensor_near(results, y)
    assert.tensor_near({ { { h } } }, last_h)
    assert.tensor_near({ { { c } } }, last_c)
    local gru = nn.GRU(1, 1, { bias = false })
    gru:load_state {
      weight_ih_l0 = luda.tensor { { 0.5 }, { -0.4 }, { 0.3 } }, weight_hh_l0 = luda.tensor { { 0.1 }, { 0.6 }, { -0.7 } },
    }
    h = 0.25
    for t, x in ipairs { 1, -2 } do
      local r, z = sigmoid(0.5 * x + 0.1 * h), sigmoid(-0.4 * x + 0.6 * h)
      local n = math.tanh(0.3 * x + r * -0.7 * h)
      h = (1 - z) * n + z * h
      results[t] = { { h } }
    end
    y, last_h = gru(luda.tensor { { { 1 } }, { { -2 } } }, luda.tensor { { { 0.25 } } })
    assert.tensor_near(results, y)
    assert.tensor_near({ { { h } } }, last_h)
  end)

  it("have options: batch first, layers with dropout, both directions", function()
    local x = luda.randn(5, 3, 4)
    local layer = nn.LSTM(4, 6, { num_layers = 2, bidirectional = true, dropout = 0.5 })
    assert.equal(16, #layer:parameters())
    local y, h, c = layer(x)
    assert.same({ 5, 3, 12 }, y.shape)
    assert.same({ 4, 3, 6 }, h.shape)
    assert.same({ 4, 3, 6 }, c.shape)
    assert.is_false(y:equal((layer(x))))
    layer:eval()
    y, h = layer(x)
    assert.is_true(y:equal((layer(x))))
    -- the last state forwards is at the last step, the one backwards at the first
    assert.is_true(y[{ 5, {}, { 1, 6 } }]:equal(h[3]))
    assert.is_true(y[{ 1, {}, { 7, 12 } }]:equal(h[4]))
    local turned = nn.LSTM(4, 6, { num_layers = 2, bidirectional = true, batch_first = true })
    turned:load_state(layer:state())
    assert.is_true(y:transpose(1, 2):equal((turned(x:transpose(1, 2)))))
    -- steps one at a time give the same as all at once
    local gru = nn.GRU(4, 6)
    local all, last = gru(x)
    local state
    for t = 1, 5 do
      local step
      step, state = gru(x[{ { t, t } }], state)
      assert.tensor_near(all[{ { t, t } }], step)
    end
    assert.tensor_near(last, state)
  end)

  it("refuse other shapes", function()
    local layer = nn.LSTM(4, 6)
    assert.raises("shape", "LSTM: the input has shape %[2, 4%]; %[T, B, 4%] is needed", layer, luda.ones(2, 4))
    assert.raises("shape", "a first state has shape %[3, 6%]; %[1, 3, 6%] is needed", layer, luda.ones(2, 3, 4), luda.ones(3, 6))
    assert.raises("invalid", "dropout is 1", nn.GRU, 2, 2, { dropout = 1 })
  end)

  it("learn: the sum of a sequence's signs", function()
    luda.manual_seed(1)
    local model, head = nn.GRU(1, 8), nn.Linear(8, 1)
    local joined = nn.Sequential(model, head)
    local optimizer, first, last = luda.optim.Adam(joined), nil, nil
    for _ = 1, 60 do
      luda.scope(function()
        local x = (luda.rand(6, 16, 1) - 0.5):sign()
        local _, h = model(x)
        local loss = nn.mse_loss(head(h[1]), x:sum(1) * 0.3)
        last = loss:item()
        first = first or last
        optimizer:step(0.02, loss:backward())
      end)
    end
    assert.is_true(last < 0.3 * first, ("%g %g"):format(first, last))
  end)
end)
