--- Layers, attention and losses: values worked out by hand, or by twins in plain numbers.

local luda = require "luda"
local helper = require "spec.helper"
local nn = luda.nn

local function leaf(values, options)
  return luda.tensor(values, options):requires_grad_()
end

local function names_of(iterator)
  local names = {}
  for name in iterator do
    names[#names + 1] = name
  end
  return names
end

--- A Linear with given numbers.
local function linear(weight, bias)
  local layer = nn.Linear(#weight, #weight[1], { bias = bias ~= nil })
  layer:load_state { weight = luda.tensor(weight), bias = bias and luda.tensor(bias) or nil }
  return layer
end

describe("a layer", function()
  before_each(helper.before)
  after_each(helper.after)

  it("Linear: values and gradients by hand, any leading dimensions", function()
    local layer = linear({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, { 0.5, -0.5 })
    local x = leaf { { 1, -1, 2 } }
    local y = layer(x)
    assert.same({ { 8.5, 9.5 } }, y:totable())
    local grads = y:backward { gradient = luda.tensor { { 2, -3 } } }
    assert.same({ { 2, -3 }, { -2, 3 }, { 4, -6 } }, grads[layer.weight]:totable())
    assert.same({ 2, -3 }, grads[layer.bias]:totable())
    assert.same({ { -4, -6, -8 } }, grads[x]:totable())
    assert.same({ 8.5, 9.5 }, layer(luda.tensor { 1, -1, 2 }):totable())
    local deep = layer(luda.tensor { { { 1, -1, 2 } }, { { 0, 0, 0 } } })
    assert.same({ { { 8.5, 9.5 } }, { { 0.5, -0.5 } } }, deep:totable())
    assert.same({ 0, 2 }, layer(luda.zeros(0, 3)).shape)
  end)

  it("Linear starts uniform within 1 / sqrt(in), weight and bias", function()
    luda.manual_seed(3)
    local layer, k = nn.Linear(64, 500), 1 / 8
    for _, t in ipairs { layer.weight, layer.bias } do
      assert.is_true(t:abs():max():item() <= k)
      assert.is_true(t:abs():max():item() > 0.98 * k)
      assert.near(k * k / 3, t:square():mean():item(), 0.15 * k * k)
      assert.near(0, t:mean():item(), 0.1 * k)
    end
    luda.manual_seed(3)
    assert.same(layer.weight:totable(), nn.Linear(64, 500).weight:totable())
    assert.raises("invalid", "the number of outputs is 0", nn.Linear, 3, 0)
  end)

  it("Embedding: repeated ids add up, the base is honoured", function()
    local layer = nn.Embedding(3, 2)
    layer:load_state { weight = luda.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } } }
    local y = layer(luda.tensor { { 2LL, 2LL, 3LL } })
    assert.same({ { { 3, 4 }, { 3, 4 }, { 5, 6 } } }, y:totable())
    local grads = y:backward { gradient = luda.tensor { { { 1, 2 }, { 10, 20 }, { 5, 6 } } } }
    assert.same({ { 0, 0 }, { 11, 22 }, { 5, 6 } }, grads[layer.weight]:totable())
    local zero = nn.Embedding(3, 2, { base = 0 })
    zero:load_state(layer:state())
    assert.same({ { 1, 2 }, { 5, 6 } }, zero(luda.tensor { 0LL, 2LL }):totable())
    assert.raises("index", "", layer, luda.tensor { 0LL })
    assert.raises("index", "", layer, luda.tensor { 4LL })
  end)

  it("RMSNorm: values and gradients by hand, one dimension or the last few", function()
    local layer = nn.RMSNorm(2, { eps = 0 })
    layer:load_state { weight = luda.tensor { 2, -1 } }
    local x = leaf { { 1, 7 }, { -3, 3 } } -- root mean squares 5 and 3
    local y = layer(x)
    assert.tensor_near({ { 0.4, -1.4 }, { -2, -1 } }, y, 1e-6, 1e-6)
    local grads = y:backward { gradient = luda.tensor { { 5, 0 }, { 0, 6 } } }
    -- dx = (e - h mean(e h)) / r with e = gradient * weight: rows e = 10, 0 (h = 0.2, 1.4) and e = 0, -6 (h = -1, 1)
    assert.tensor_near({ { 1.96, -0.28 }, { -1, -1 } }, grads[x], 1e-6, 1e-6)
    assert.tensor_near({ 1, 6 }, grads[layer.weight], 1e-6, 1e-6)
    local plain = nn.RMSNorm({ 2, 2 }, { affine = false, eps = 1 }) -- mean square 3
    assert.equal(0, #plain:parameters())
    assert.tensor_near({ { { 0.5, 0.5 }, { 1.5, -0.5 } } }, plain(luda.tensor { { { 1, 1 }, { 3, -1 } } }), 1e-6, 1e-6)
    assert.same({ "weight" }, names_of(nn.RMSNorm(4):named_parameters()))
    local low = luda.rms_norm(luda.tensor({ { 3, -4 } }, { dtype = "bf16" }), luda.ones(2), { eps = 0 })
    assert.equal("bf16", low.dtype)
    assert.tensor_near({ { 0.8485, -1.1314 } }, low, 4e-3, 4e-3)
    local large = luda.rms_norm(luda.tensor { { 3e30, -4e30 }, { 3e-30, -4e-30 } }, { eps = 0 })
    assert.tensor_near({ { 0.8485281, -1.1313708 }, { 0.8485281, -1.1313708 } }, large, 1e-6, 1e-6)
  end)

  it("silu_mul: a gate of one pass, values and gradients by hand", function()
    local x, y = leaf { 0, 2, -1 }, leaf { 5, 3, -2 }
    local z = luda.silu_mul(x, y)
    local s = { 0.5, 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1)) }
    assert.tensor_near({ 0, 6 * s[2], 2 * s[3] }, z, 1e-6, 1e-6)
    local grads = z:backward { gradient = luda.tensor { 1, -1, 2 } }
    assert.tensor_near({ 2.5, -3 * (s[2] + 2 * s[2] * (1 - s[2])), -4 * (s[3] - s[3] * (1 - s[3])) }, grads[x], 1e-6, 1e-6)
    assert.tensor_near({ 0, -2 * s[2], -2 * s[3] }, grads[y], 1e-6, 1e-6)
  end)

  it("LayerNorm: one dimension or the last few, with and without parameters", function()
    local layer = nn.LayerNorm(2, { eps = 0 })
    layer:load_state { weight = luda.tensor { 2, 3 }, bias = luda.tensor { 10, 20 } }
    assert.tensor_near({ { 8, 23 }, { 12, 17 } }, layer(luda.tensor { { 1, 5 }, { 7, -2 } }))
    local plain = nn.LayerNorm({ 2, 2 }, { affine = false })
    assert.equal(0, #plain:parameters())
    local y = plain(luda.tensor { { { 1, 2 }, { 3, 4 } } })
    local r = 1 / math.sqrt(1.25 + 1e-5)
    assert.tensor_near({ { { -1.5 * r, -0.5 * r }, { 0.5 * r, 1.5 * r } } }, y)
    assert.same({ "weight" }, names_of(nn.LayerNorm(4, { bias = false }):named_parameters()))
    assert.same({ 3, 4 }, nn.LayerNorm(4, { bias = false })(luda.randn(3, 4)).shape)
  end)

  it("Dropout: only in training, from its generator", function()
    local layer = nn.Dropout(0.25, { generator = luda.generator(5) })
    local x = luda.ones(4000)
    local y = layer(x)
    local zeros = y:eq(0):sum():item()
    assert.near(1000, zeros, 120)
    assert.near((4000 - zeros) / 0.75, y:sum():item(), 0.1)
    local again = nn.Dropout(0.25, { generator = luda.generator(5) })(x)
    assert.same(y:totable(), again:totable())
    assert.is_true(layer:eval()(x) == x)
    assert.is_true(nn.Dropout(0)(x) == x)
    assert.raises("invalid", "below 1", nn.Dropout, 1)
  end)

  it("Sequential: modules and functions, in a list or spread out", function()
    local double = linear { { 2 } }
    local x = luda.tensor { { -3 } }
    assert.equal(0, nn.Sequential(double, nn.relu)(x):item())
    assert.equal(12, nn.Sequential({ double, function(y) return -y end, double })(x):item())
    assert.raises("invalid", "entry 2 must be a module", nn.Sequential, double, 3)
  end)

  it("activations: functions and modules agree with known values", function()
    local x = luda.tensor({ -1, 0, 1 }, { dtype = "f64" })
    local s = 1 / (1 + math.exp(-1))
    local t = math.tanh(1)
    local known = {
      ReLU = { 0, 0, 1 }, Tanh = { -t, 0, t }, Sigmoid = { 1 - s, 0.5, s }, SiLU = { s - 1, 0, s },
      GELU = { -0.15865525393145707, 0, 0.8413447460685429 },
    }
    for name, values in pairs(known) do
      assert.tensor_near(values, nn[name]()(x), 1e-12, 1e-12)
      assert.tensor_near(values, nn[name:lower()](x), 1e-12, 1e-12)
    end
    local u = math.sqrt(2 / math.pi) * (1 + 0.044715)
    local expected = { -0.5 * (1 - math.tanh(u)), 0, 0.5 * (1 + math.tanh(u)) }
    assert.tensor_near(expected, nn.gelu(x, { approximate = "tanh" }), 1e-12, 1e-12)
    assert.tensor_near(expected, nn.GELU { approximate = "tanh" }(x), 1e-12, 1e-12)
    assert.raises("invalid", "approximate is", nn.gelu, x, { approximate = "erf" })
  end)
end)

describe("attention with heads", function()
  before_each(helper.before)
  after_each(helper.after)

  --- The same in Lua numbers: x is {T}{C}; weights as the module keeps them.
  local function twin(x, qkv, qkv_bias, out, out_bias, heads, causal)
    local T, C = #x, #x[1]
    local D, joined, y = C / heads, {}, {}
    for t = 1, T do
      joined[t] = {}
      for j = 1, 3 * C do
        local sum = qkv_bias[j]
        for i = 1, C do
          sum = sum + x[t][i] * qkv[i][j]
        end
        joined[t][j] = sum
      end
    end
    for t = 1, T do
      local mixed = {}
      for h = 0, heads - 1 do
        local weights, total = {}, 0
        for s = 1, causal and t or T do
          local dot = 0
          for d = 1, D do
            dot = dot + joined[t][h * D + d] * joined[s][C + h * D + d]
          end
          weights[s] = math.exp(dot / math.sqrt(D))
          total = total + weights[s]
        end
        for d = 1, D do
          local sum = 0
          for s, weight in ipairs(weights) do
            sum = sum + weight / total * joined[s][2 * C + h * D + d]
          end
          mixed[h * D + d] = sum
        end
      end
      y[t] = {}
      for j = 1, C do
        local sum = out_bias[j]
        for i = 1, C do
          sum = sum + mixed[i] * out[i][j]
        end
        y[t][j] = sum
      end
    end
    return y
  end

  for _, causal in ipairs { true, false } do
    it("equals its twin in plain numbers, causal = " .. tostring(causal), function()
      luda.manual_seed(4)
      local layer = nn.MultiheadAttention(6, 2, { causal = causal }):to_dtype("f64")
      local x = luda.randn(2, 5, 6):to("f64")
      local lists = {}
      for b = 1, 2 do
        lists[b] = twin(x[b]:totable(), layer.qkv.weight:totable(), layer.qkv.bias:totable(),
          layer.projection.weight:totable(), layer.projection.bias:totable(), 2, causal)
      end
      assert.tensor_near(lists, layer(x), 1e-10, 1e-12)
    end)
  end

  it("to other keys is the same as to itself when they are the same", function()
    local layer = nn.MultiheadAttention(4, 2):to_dtype("f64")
    local x, g = leaf({ { { 1, 2, 3, 4 }, { -1, 0, 2, 1 } } }, { dtype = "f64" }), luda.randn(1, 2, 4):to("f64")
    local a = layer(x):backward { gradient = g }
    local b = layer(x, x, x):backward { gradient = g }
    for _, t in ipairs { x, layer.qkv.weight, layer.qkv.bias, layer.projection.weight } do
      assert.tensor_near(a[t], b[t], 1e-10, 1e-12)
    end
    assert.same({ 1, 2, 4 }, layer(x, luda.randn(1, 7, 4):to("f64")).shape)
  end)

  it("refuses what cannot be split or has no width", function()
    assert.raises("invalid", "cannot be split among 4 heads", nn.MultiheadAttention, 6, 4)
    assert.raises("shape", "%[B, T, 4%] is needed", nn.MultiheadAttention(4, 2), luda.randn(2, 4))
  end)

  it("a block adds to its input what its two halves make", function()
    luda.manual_seed(6)
    local block = nn.TransformerBlock(4, 2, { mlp = 2 }):to_dtype("f64")
    local x = luda.randn(1, 3, 4):to("f64")
    local middle = x + block.attention(block.norm1(x))
    local inner = block.norm2(middle):matmul(block.up.weight) + block.up.bias
    local expected = middle + block.down(nn.gelu(inner, { approximate = "tanh" }))
    assert.tensor_near(expected, block(x), 1e-12, 1e-12)
    assert.same({ 4, 8 }, block.up.weight.shape)
    -- causal: the last token cannot be seen by those before it
    local other = x:clone()
    other[{ 1, 3 }] = luda.randn(4):to("f64")
    assert.tensor_near(block(x)[{ 1, { 1, 2 } }], block(other)[{ 1, { 1, 2 } }], 1e-12, 1e-12)
  end)
end)

describe("a loss", function()
  before_each(helper.before)
  after_each(helper.after)

  it("cross_entropy: ignored labels, counted ones, a mean over nothing", function()
    local x = leaf { { 0, 0 }, { 5, -5 } }
    for _, ignored in ipairs { -100, 255 } do
      local target = luda.tensor({ 2, ignored }, { dtype = "i64" })
      local loss = nn.cross_entropy(x, target, { ignore_index = ignored })
      assert.near(math.log(2), loss:item(), 1e-6)
      assert.tensor_near({ { 0.5, -0.5 }, { 0, 0 } }, loss:backward()[x])
    end
    assert.raises("index", "", nn.cross_entropy, x, luda.tensor { 2LL, -4LL }, { ignore_index = -1 })
    local nothing = nn.cross_entropy(x, luda.tensor { -100LL, -100LL })
    assert.equal(0, nothing:item())
    assert.same({ { 0, 0 }, { 0, 0 } }, nothing:backward()[x]:totable())
  end)

  it("cross_entropy: leading dimensions, reductions, base, smoothing, weights", function()
    local x = luda.tensor { { { 1, 2, 4 }, { 0, 0, 0 } } }
    local z = math.log(math.exp(1) + math.exp(2) + math.exp(4))
    local target = luda.tensor { { 2LL, 3LL } }
    local each = nn.cross_entropy(x, target, { reduction = "none" })
    assert.tensor_near({ { z - 2, math.log(3) } }, each)
    assert.near((z - 2 + math.log(3)) / 2, nn.cross_entropy(x, target):item(), 1e-6)
    assert.near(z - 2 + math.log(3), nn.cross_entropy(x, target, { reduction = "sum" }):item(), 1e-6)
    assert.tensor_near(each, nn.cross_entropy(x, target - 1, { reduction = "none", base = 0 }))
    local smooth = nn.cross_entropy(x, target, { reduction = "none", label_smoothing = 0.3 })
    assert.tensor_near({ { 0.7 * (z - 2) + 0.1 * (3 * z - 7), math.log(3) } }, smooth)
    local weight = luda.tensor { 1, 5, 2 }
    assert.near((5 * (z - 2) + 2 * math.log(3)) / 7, nn.cross_entropy(x, target, { weight = weight }):item(), 1e-6)
    assert.near(z - 4, nn.cross_entropy(luda.tensor { 1, 2, 4 }, luda.tensor(3LL)):item(), 1e-6)
    assert.raises("shape", "without its last dimension", nn.cross_entropy, x, luda.tensor { 1LL, 2LL, 3LL })
    assert.raises("invalid", "unknown option 'ignore'", nn.cross_entropy, x, target, { ignore = 1 })
  end)

  it("nll_loss of log probabilities is the cross entropy of logits", function()
    local x = leaf({ { 1, -2, 0.5 }, { 3, 1, 2 }, { 0, 1, 0 } }, { dtype = "f64" })
    local target = luda.tensor { 3LL, -100LL, 1LL }
    local weight = luda.tensor({ 1, 2, 3 }, { dtype = "f64" })
    for _, options in ipairs { {}, { reduction = "sum" }, { reduction = "none" }, { weight = weight },
      { weight = weight, reduction = "sum" } } do
      local a = nn.nll_loss(x:log_softmax(-1), target, options)
      local b = nn.cross_entropy(x, target, options)
      assert.tensor_near(b, a, 1e-12, 1e-12)
      local g = luda.full(a.shape, -1.5, { dtype = "f64" })
      assert.tensor_near(b:backward { gradient = g }[x], a:backward { gradient = g }[x], 1e-12, 1e-12)
    end
    local ignored = luda.tensor { -100LL, -100LL, -100LL }
    assert.equal(0, nn.nll_loss(x:log_softmax(-1), ignored):item())
    -- an ignored row may hold any number
    local infinite = luda.tensor { { -math.huge, 0 }, { -1, -2 } }
    assert.equal(2, nn.nll_loss(infinite, luda.tensor { -100LL, 2LL }):item())
  end)

  it("bce_with_logits: no overflow, the right slope at 0, weights", function()
    local x = leaf { -100, 100, 0 }
    local loss = nn.bce_with_logits(x, luda.zeros(3), { reduction = "none" })
    assert.tensor_near({ 0, 100, math.log(2) }, loss)
    assert.tensor_near({ 0, 1, 0.5 }, loss:sum():backward()[x])
    local s = 1 / (1 + math.exp(-0.5))
    local y = luda.tensor { 0.25 }
    local half = leaf { 0.5 }
    local plain = -(0.25 * math.log(s) + 0.75 * math.log(1 - s))
    assert.near(plain, nn.bce_with_logits(half, y):item(), 1e-6)
    assert.near(-3 * plain, nn.bce_with_logits(half, y, { weight = luda.tensor { -3 } }):item(), 1e-5)
    local weighted = nn.bce_with_logits(half, y, { pos_weight = luda.tensor { 4 } })
    assert.near(-(4 * 0.25 * math.log(s) + 0.75 * math.log(1 - s)), weighted:item(), 1e-6)
    assert.near(-(1 - s) + 0.75 * s, weighted:backward()[half]:item(), 1e-6)
  end)

  it("mse_loss and l1_loss: values, gradients, reductions", function()
    local x, y = leaf { 1, -2, 4 }, luda.tensor { 3, -2, 1 }
    local mse, l1 = nn.mse_loss(x, y), nn.l1_loss(x, y, { reduction = "sum" })
    assert.near(13 / 3, mse:item(), 1e-6)
    assert.equal(5, l1:item())
    assert.tensor_near({ -4 / 3, 0, 2 }, mse:backward()[x])
    assert.same({ -1, 0, 1 }, l1:backward()[x]:totable())
    assert.same({ 4, 0, 9 }, nn.mse_loss(x, y, { reduction = "none" }):totable())
    assert.raises("invalid", "reduction is mean, sum or none", nn.mse_loss, x, y, { reduction = "max" })
  end)
end)
