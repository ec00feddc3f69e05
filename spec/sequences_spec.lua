--- Volumes, single recurrent cells, the loss of sequences, cross entropy in blocks, embedding: PyTorch's values and more.

local luda = require "luda"
local helper = require "spec.helper"
local calls = require "spec.golden_calls"

local nn = luda.nn

calls.run(getfenv(1), "nn", 2)

describe("conv3d", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is a layer with PyTorch's shapes, and may be 1 deep", function()
    local layer = nn.Conv3d(4, 6, { 3, 2, 1 }, { groups = 2, stride = { 1, 2, 1 }, padding = { 1, 0, 0 } })
    assert.same({ 6, 2, 3, 2, 1 }, layer.weight.shape)
    assert.same({ 2, 6, 5, 3, 4 }, layer(luda.ones(2, 4, 5, 6, 4)).shape)
    local x, w = luda.randn(2, 3, 1, 5, 6), luda.randn(4, 3, 1, 2, 3)
    assert.tensor_near(luda.conv2d(x:select(3, 1), w:select(3, 1)), nn.conv3d(x, w):select(3, 1))
    assert.equal("bf16", nn.conv3d(x:to("bf16"), w:to("bf16")).dtype)
    -- every output is the sum of a window of ones
    assert.equal(24, nn.conv3d(luda.ones(1, 1, 2, 3, 4), luda.ones(1, 1, 2, 3, 4)):item())
  end)

  it("refuses other shapes", function()
    local w = luda.ones(2, 3, 2, 2, 2)
    assert.raises("shape", "conv3d: an input %[N, C, D, H, W%] is needed, not %[3, 4, 4, 4%]", nn.conv3d, luda.ones(3, 4, 4,
      4), w)
    assert.raises("shape", "has 2 channels, the weight %[2, 3, 2, 2, 2%] in 1 groups is for 3", nn.conv3d,
      luda.ones(1, 2, 4, 4, 4), w)
    assert.raises("shape", "with dilation 4 is deeper than the input", nn.conv3d, luda.ones(1, 3, 4, 4, 4), w, { dilation = 4 })
    assert.raises("invalid", "stride is a number or a list of three", nn.conv3d, luda.ones(1, 3, 4, 4, 4), w,
      { stride = { 1, 2 } })
    assert.raises("shape", "adaptive_avg_pool1d: an input %[N, C, L%]", nn.adaptive_avg_pool1d, luda.ones(3, 4), 2)
  end)
end)

describe("cells", function()
  before_each(helper.before)
  after_each(helper.after)

  it("do one step of their layers, from zeros unless a state is given", function()
    for _, name in ipairs { "LSTM", "GRU" } do
      local layer, cell = nn[name](3, 4), nn[name .. "Cell"](3, 4)
      cell:load_state {
        weight_ih = layer.weight_ih_l0, weight_hh = layer.weight_hh_l0, bias_ih = layer.bias_ih_l0, bias_hh = layer.bias_hh_l0,
      }
      local x = luda.randn(5, 2, 3)
      local y, h, c = (layer(x)), nil, nil
      for t = 1, 5 do
        h, c = cell(x[t], h, c)
        assert.tensor_near(y[t], h)
      end
    end
    local plain = nn.RNNCell(1, 1, { bias = false, nonlinearity = "relu" })
    plain:load_state { weight_ih = luda.tensor { { 2 } }, weight_hh = luda.tensor { { -3 } } }
    assert.same({ { 1 }, { 0 } }, plain(luda.tensor { { 2 }, { 1 } }, luda.tensor { { 1 }, { 1 } }):totable())
    assert.equal(2, #plain:parameters())
  end)

  it("refuse other shapes", function()
    local cell = nn.LSTMCell(3, 4)
    assert.raises("shape", "LSTMCell: the input has shape %[3%]; %[B, 3%] is needed", cell, luda.ones(3))
    assert.raises("shape", "LSTMCell: a state %[2, 3%]; %[2, 4%] is needed", cell, luda.ones(2, 3), luda.ones(2, 3))
    assert.raises("invalid", "RNNCell: nonlinearity is tanh or relu, not the string 'gelu'", nn.RNNCell, 2, 2,
      { nonlinearity = "gelu" })
    assert.raises("invalid", "GRUCell: unknown option 'nonlinearity'", nn.GRUCell, 2, 2, { nonlinearity = "tanh" })
  end)
end)

describe("ctc_loss", function()
  before_each(helper.before)
  after_each(helper.after)

  --- Every path of classes 1 .. 3 over 4 steps whose labels, without repetitions and then without blanks (1), are `labels`.
  local function enumerate(p, labels)
    local total = 0
    for path = 0, 80 do
      local product, read, before, rest = 1, {}, nil, path
      for t = 1, 4 do
        local class = rest % 3 + 1
        rest = math.floor(rest / 3)
        product = product * p[t][class]
        if class ~= before and class ~= 1 then
          read[#read + 1] = class
        end
        before = class
      end
      total = total + (table.concat(read, " ") == table.concat(labels, " ") and product or 0)
    end
    return -math.log(total)
  end

  it("is the sum over all alignments", function()
    local p = luda.randn(4, 3, { dtype = "f64", generator = luda.generator(8) }):softmax(-1)
    for _, labels in ipairs { { 2 }, { 2, 3 }, { 3, 3 }, { 2, 3, 2 }, { 2, 2, 3 }, { 3, 2, 3, 2 } } do
      local loss = nn.ctc_loss(p:log(), luda.tensor(labels, { dtype = "i64" }), 4, #labels, { reduction = "sum" })
      assert.near(enumerate(p:totable(), labels), loss:item(), 1e-12)
    end
    local none = nn.ctc_loss(p:log(), luda.zeros(0, { dtype = "i64" }), 4, 0, { reduction = "none" })
    assert.near(enumerate(p:totable(), {}), none:item(), 1e-12)
  end)

  it("is infinite where there is no alignment, or 0 when told so; both without NaN in the gradients", function()
    local x = luda.zeros(3, 2, 4):requires_grad_()
    local targets = luda.tensor({ { 2, 2, 3 }, { 2, 3, 4 } }, { dtype = "i64" }) -- three steps cannot say 2 2 3
    local losses = nn.ctc_loss(x:log_softmax(-1), targets, { 3, 3 }, { 3, 3 }, { reduction = "none" })
    assert.equal(math.huge, losses[1]:item())
    assert.near(3 * math.log(4), losses[2]:item(), 1e-5)
    local loss = nn.ctc_loss(x:log_softmax(-1), targets, { 3, 3 }, { 3, 3 }, { reduction = "sum", zero_infinity = true })
    assert.near(3 * math.log(4), loss:item(), 1e-5)
    local grads = loss:backward()[x]
    assert.same({ 0, 0, 0, 0 }, grads[1][1]:totable())
    assert.tensor_near({ 0.25, -0.75, 0.25, 0.25 }, grads[1][2])
    -- a class of probability 0 that is not needed
    local certain = luda.tensor { { 0, -math.huge }, { 0, -math.huge } }:requires_grad_()
    local empty = nn.ctc_loss(certain, luda.zeros(0, { dtype = "i64" }), 2, 0, { reduction = "sum" })
    assert.equal(0, empty:item())
    assert.is_false(empty:backward()[certain]:isnan():any():item())
  end)

  it("counts classes from base, computes halves in f32, and leaves the lengths alone", function()
    local x = luda.randn(6, 2, 5):log_softmax(-1)
    local lengths = { 2, 0 }
    local targets = luda.tensor({ { 3, 2 }, { 1, 1 } }, { dtype = "i64" })
    local one = nn.ctc_loss(x, targets, { 6, 5 }, lengths)
    local zero = nn.ctc_loss(x, targets - 1, luda.tensor { 6LL, 5LL }, luda.tensor { 2LL, 0LL }, { base = 0 })
    assert.equal(one:item(), zero:item())
    assert.same({ 2, 0 }, lengths)
    assert.near(one:item(), nn.ctc_loss(x:to("bf16"), targets, { 6, 5 }, lengths):item(), 0.05)
  end)

  it("refuses what does not fit", function()
    local x, y = luda.zeros(4, 2, 3), luda.ones(2, 2, { dtype = "i64" })
    assert.raises("shape", "3 input lengths for a batch of 2", nn.ctc_loss, x, y, { 4, 4, 4 }, { 1, 1 })
    assert.raises("shape", "entry 2 of the input lengths is 5; 0 to 4", nn.ctc_loss, x, y, { 4, 5 }, { 1, 1 })
    assert.raises("shape", "entry 1 of the target lengths is 3; 0 to 2", nn.ctc_loss, x, y, { 4, 4 }, { 3, 1 })
    assert.raises("index", "label 1 of sequence 1 is 4; 3 classes count from 1", nn.ctc_loss, x, y + 3, { 4, 4 }, { 1, 1 })
    assert.raises("index", "blank is 0; 3 classes count from 1", nn.ctc_loss, x, y, { 4, 4 }, { 1, 1 }, { blank = 0 })
    assert.raises("dtype", "the targets are f32", nn.ctc_loss, x, y:to("f32"), { 4, 4 }, { 1, 1 })
    assert.raises("shape", "the target lengths add up to 2, there are 4 labels", nn.ctc_loss, x, y:reshape(4), { 4, 4 }, { 1, 1 })
    assert.raises("invalid", "reduction is mean, sum or none", nn.ctc_loss, x, y, { 4, 4 }, { 1, 1 }, { reduction = "max" })
  end)
end)

describe("linear_cross_entropy", function()
  before_each(helper.before)
  after_each(helper.after)

  it("gives the loss and gradients of cross_entropy(linear), for any blocks", function()
    local hidden = luda.randn(3, 5, 8, { generator = luda.generator(1) }):requires_grad_()
    local weight = luda.randn(8, 11, { generator = luda.generator(2) }):requires_grad_()
    local bias = luda.randn(11, { generator = luda.generator(3) }):requires_grad_()
    local labels = luda.randint(1, 12, { 3, 5 }, { dtype = "i64", generator = luda.generator(4) })
    for _, how in ipairs { "mean", "sum", "none" } do
      local want = nn.cross_entropy(luda.linear(hidden, weight, bias), labels, { reduction = how })
      local upstream = luda.randn(want.shape, { generator = luda.generator(5) })
      local expected = want:backward { gradient = upstream }
      for _, rows in ipairs { 1, 4, 15, 100 } do
        local have = nn.linear_cross_entropy(hidden, weight, labels, { bias = bias, rows = rows, reduction = how })
        assert.tensor_near(want, have, 1e-5, 1e-5)
        local grads = have:backward { gradient = upstream }
        for _, t in ipairs { hidden, weight, bias } do
          assert.tensor_near(expected[t], grads[t], 1e-5, 1e-5)
        end
      end
    end
  end)

  it("holds the logits of one block at a time", function()
    local hidden, weight = luda.randn(512, 4):requires_grad_(), luda.randn(4, 4096):requires_grad_()
    local labels = luda.randint(1, 4097, { 512 }, { dtype = "i64" })
    local before = luda.memory("cpu")
    luda.memory { reset_peak = true }
    luda.scope(function()
      nn.linear_cross_entropy(hidden, weight, labels, { rows = 16 }):backward()
    end)
    local peak = luda.memory("cpu").peak - before.live
    assert.is_true(peak < 512 * 4096, ("%g bytes"):format(peak)) -- a quarter of all logits
  end)

  it("works under autocast, for a tied table, and for nothing", function()
    local table_of = luda.randn(11, 8):requires_grad_()
    local hidden, labels = luda.randn(5, 8):requires_grad_(), luda.tensor { 1LL, 5LL, 11LL, 2LL, 2LL }
    local want = luda.autocast(function() return nn.cross_entropy(luda.linear(hidden, table_of:t()), labels) end)
    local have = luda.autocast(function() return nn.linear_cross_entropy(hidden, table_of:t(), labels, { rows = 2 }) end)
    assert.near(want:item(), have:item(), 1e-5)
    assert.tensor_near(want:backward()[table_of], have:backward()[table_of], 1e-2, 1e-3)
    assert.equal(0, nn.linear_cross_entropy(luda.zeros(0, 8), table_of:t(), luda.zeros(0, { dtype = "i64" })):item())
    local ignored = nn.linear_cross_entropy(hidden, table_of:t(), luda.full({ 5 }, -100, { dtype = "i64" }))
    assert.equal(0, ignored:item())
    assert.equal(0, ignored:backward()[hidden]:abs():sum():item())
  end)

  it("refuses other shapes", function()
    local h, y = luda.ones(5, 8), luda.ones(5, { dtype = "i64" })
    assert.raises("shape", "hidden %[5, 8%], weight %[11, 8%] and labels %[5%].*did you mean weight:t%(%)",
      nn.linear_cross_entropy,
      h, luda.ones(11, 8), y)
    assert.raises("shape", "labels %[4%]; %[..., D%], %[D, V%] and %[...%] are needed$", nn.linear_cross_entropy, h,
      luda.ones(8, 3),
      luda.ones(4, { dtype = "i64" }))
    assert.raises("dtype", "the labels are f32", nn.linear_cross_entropy, h, luda.ones(8, 3), luda.ones(5))
    assert.raises("invalid", "rows is 0", nn.linear_cross_entropy, h, luda.ones(8, 3), y, { rows = 0 })
    assert.raises("index", "position 4 is outside 1 .. 3", nn.linear_cross_entropy, h, luda.ones(8, 3), y + 3)
  end)
end)

describe("embedding", function()
  before_each(helper.before)
  after_each(helper.after)

  it("takes rows by id, and gives the padding row no gradient", function()
    local weight = luda.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }:requires_grad_()
    local ids = luda.tensor { { 1LL, 3LL }, { 3LL, 2LL } }
    assert.same({ { { 1, 2 }, { 5, 6 } }, { { 5, 6 }, { 3, 4 } } }, nn.embedding(ids, weight):totable())
    local y = nn.embedding(ids - 1, weight, { base = 0, padding_idx = 2 })
    assert.same({ { { 1, 2 }, { 5, 6 } }, { { 5, 6 }, { 3, 4 } } }, y:totable())
    assert.same({ { 1, 1 }, { 1, 1 }, { 0, 0 } }, y:sum():backward()[weight]:totable())
    assert.raises("shape", "the table is %[count, D%] and comes second", nn.embedding, weight, ids[1])
  end)
end)
