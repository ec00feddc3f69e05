--- CUDA from Lua, on the emulated device where the build has one: moving, errors, a whole training run against the CPU.

local ffi = require "ffi"
local luda = require "luda"
local helper = require "spec.helper"

ffi.cdef "int setenv(const char *name, const char *value, int overwrite);"
if not os.getenv("LUDA_CUDA_PLUGIN") then -- CUDA is opened when it is first asked for
  local emulator = (os.getenv("LUDA_BUILD") or "build") .. "/libluda_cudaemu.so"
  local file = io.open(emulator)
  if file then
    file:close()
    ffi.C.setenv("LUDA_CUDA_PLUGIN", emulator, 1)
  end
end

--- Three steps of a small GPT; its losses and one of its weights.
local function train(device)
  luda.manual_seed(7)
  local model = luda.nn.GPT { vocab = 11, context = 6, width = 8, layers = 2, heads = 2 }
  model:to_dtype("f64"):to(device)
  local optimizer = luda.optim.AdamW(model)
  local ids = luda.tensor { { 1LL, 5LL, 3LL, 2LL, 11LL, 7LL }, { 4LL, 4LL, 1LL, 9LL, 2LL, 6LL } }:to(device)
  local losses = {}
  for step = 1, 3 do
    luda.scope(function()
      local loss = model(ids:narrow(2, 1, 5), ids:narrow(2, 2, 5))
      losses[step] = loss:item()
      optimizer:step(0.01, loss:backward())
    end)
  end
  return losses, model:parameters()[1]:detach():to("cpu"):totable()
end

--- Two steps of a small convolutional network; its losses and its first kernels.
local function train_images(device)
  local nn = luda.nn
  luda.manual_seed(9)
  local model = nn.Sequential(nn.Conv2d(2, 4, 3, { padding = 1, groups = 2 }), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(4, 3, { 2, 3 }, { stride = { 1, 2 } }), nn.Tanh(), nn.AvgPool2d(2, { padding = 1 }), nn.Flatten(), nn.Linear(6, 3))
  model:to_dtype("f64"):to(device)
  local optimizer = luda.optim.SGD(model)
  local images = luda.randn(4, 2, 8, 8, { dtype = "f64" }):to(device)
  local labels = luda.tensor({ 1LL, 3LL, 2LL, 1LL }):to(device)
  local losses = {}
  for step = 1, 2 do
    luda.scope(function()
      local loss = nn.cross_entropy(model(images), labels)
      losses[step] = loss:item()
      optimizer:step(0.1, loss:backward())
    end)
  end
  return losses, model[1].weight:detach():to("cpu"):totable()
end

--- Two steps through layers and functions that are composed; losses and one of the weights.
local function train_composed(device)
  local nn = luda.nn
  luda.manual_seed(10)
  local model = nn.Sequential(nn.Conv1d(3, 4, 3, { padding = 1 }), nn.BatchNorm1d(4), nn.ReLU(), nn.ConvTranspose1d(4, 6, 2),
    nn.GroupNorm(2, 6))
  local gru, lstm = nn.GRU(6, 5, { batch_first = true, bidirectional = true }), nn.LSTM(10, 4)
  local all = nn.Sequential(model, gru, lstm, nn.Embedding(7, 4))
  all:to_dtype("f64"):to(device)
  local optimizer = luda.optim.SGD(all)
  local x, y = luda.randn(4, 3, 6, { dtype = "f64" }):to(device), luda.randn(4, 7, 4, { dtype = "f64" }):to(device)
  local ids, offsets = luda.tensor({ 1LL, 7LL, 2LL, 2LL }):to(device), luda.tensor({ 1LL, 2LL, 2LL }):to(device)
  local losses = {}
  for step = 1, 2 do
    luda.scope(function()
      local z = nn.rope((lstm((gru(model(x):transpose(2, 3))))))
      local image = nn.interpolate(z:unsqueeze(1), { size = { 5, 6 }, mode = "bilinear" })
      image = nn.adaptive_avg_pool2d(nn.fold(nn.unfold(image, 2), { 5, 6 }, 2), { 3, 4 })
      local bags = nn.embedding_bag(ids, all[4].weight, offsets)
      local loss = nn.smooth_l1_loss(z, y) + image:square():mean() + nn.cosine_similarity(bags, nn.normalize(bags + 1)):sum()
      losses[step] = loss:item()
      optimizer:step(0.1, loss:backward())
    end)
  end
  return losses, model[1].weight:detach():to("cpu"):totable()
end

--- Windows of pieces under a scaler, unscaled by hand every second time, with averages; losses and one of the averages.
local function train_scaled(device)
  local nn, optim = luda.nn, luda.optim
  luda.manual_seed(11)
  local model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)):to_dtype("f64"):to(device)
  local optimizer, sums = optim.AdamW(model, { max_grad_norm = 1 }), optim.Accumulator(model)
  local scaler, ema = optim.GradScaler { growth_interval = 2 }, optim.EMA(model, 0.5)
  local x, y = luda.randn(10, 3, { dtype = "f64" }):to(device), luda.randn(10, 2, { dtype = "f64" }):to(device)
  local losses = {}
  for step = 1, 5 do
    luda.scope(function()
      losses[2 * step - 1] = sums:run({ x, y }, { size = 3, scaler = scaler }, function(a, b)
        return nn.mse_loss(model(a), b) * (step == 3 and math.huge or 1)
      end)
      local grads = sums:grads { mean = true }
      if step % 2 == 0 then
        scaler:unscale_(grads):clip_norm_(0.5)
      end
      assert.equal(step == 3, scaler:step(optimizer, 0.01, grads).skipped)
      losses[2 * step] = scaler:update()
      ema:update(optimizer)
    end)
  end
  return losses, optim.EMA(model, 0.5):load_state(ema:state()).averages[1]:to("cpu"):totable()
end

if not luda.has("cuda") then
  pending("no CUDA device; an emulated one is built with -DLUDA_EMULATOR=ON", function() end)
  return
end

describe("cuda", function()
  before_each(helper.before)
  after_each(helper.after)

  it("moves tensors there and back", function()
    local x = luda.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }):to("cuda:0")
    assert.equal("cuda:0", x.device)
    assert.same({ { 2, 8 }, { 4, 10 }, { 6, 12 } }, (x:t() * 2):totable())
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:to("cpu"):totable())
    assert.equal(21, x:sum():item())
    assert.equal(7, luda.full({ 2 }, 7, { device = "cuda" })[2]:item())
    assert.raises("device", "different devices", function() return x + luda.ones(3) end)
    assert.raises("device", "no cuda:99", function() return x:to("cuda:99") end)
  end)

  it("draws the numbers that the CPU draws", function()
    for _, name in ipairs { "rand", "randn" } do
      luda.manual_seed(3)
      local host = luda[name](5, 7)
      luda.manual_seed(3)
      assert.tensor_near(host, luda[name](5, 7, { device = "cuda" }):to("cpu"), 1e-6)
    end
    luda.manual_seed(3)
    local order = luda.randperm(100)
    luda.manual_seed(3)
    assert.same(order:totable(), luda.randperm(100, { device = "cuda" }):totable())
  end)

  it("says which position was bad, at the next look at a result", function()
    local x = luda.arange(4):to("cuda")
    local y = x[luda.tensor({ 4LL, 7LL }):to("cuda")]
    assert.raises("index", "position 7 is outside 1 %.%. 4 %(base 1%)", function() return y:totable() end)
    assert.equal(3, x[4]:item()) -- reported once; the device goes on
  end)

  it("leaves linear algebra to the processor, and says so", function()
    local x = luda.eye(3):to("cuda")
    assert.raises("unsupported", "inv: not supported for f32 on cuda; it runs on the processor, move .* with :to%(\"cpu\"%)",
      luda.inv, x)
    assert.equal(1, x:to("cpu"):det():item())
  end)

  it("says so too where the result moves to the CPU, of divisions by zero as well", function()
    local y = luda.floor_divide(luda.tensor({ 7 }, { dtype = "i32" }):to("cuda"), luda.zeros(1, { dtype = "i32" }):to("cuda"))
    assert.raises("invalid", "floor_divide: division of integers by zero", y.to, y, "cpu")
    local z = luda.arange(4):to("cuda")[luda.tensor({ 9LL }):to("cuda")]
    assert.raises("index", "position 9 is outside 1 %.%. 4", z.to, z, "cpu")
    assert.same({ 0, 1 }, luda.arange(2):to("cuda"):to("cpu"):totable())
  end)

  it("attends as the CPU does where queries see no key or heads share keys", function()
    for _, above in ipairs { 7, math.huge } do
      local q, k = luda.ones(3, 1):to("cuda"):detach():requires_grad_(), luda.ones(2, 1):to("cuda"):detach():requires_grad_()
      local v = luda.tensor({ { 1 }, { 3 } }):to("cuda"):detach():requires_grad_()
      local out = luda.scaled_dot_product_attention(q, k, v, { is_causal = true, scale = 1 })
      local grads = out:backward { gradient = luda.tensor({ { above }, { 10 }, { 1 } }):to("cuda") }
      assert.same({ { 10.5 }, { 0.5 } }, grads[v]:totable())
      assert.same({ { -0.5 }, { 0.5 } }, grads[k]:totable())
    end
    local q, k, v = luda.randn(1, 4, 3, 5), luda.randn(1, 2, 3, 5), luda.randn(1, 2, 3, 6)
    for _, is_causal in ipairs { true, false } do
      local options = { enable_gqa = true, is_causal = is_causal }
      local there = luda.scaled_dot_product_attention(q:to("cuda"), k:to("cuda"), v:to("cuda"), options)
      assert.tensor_near(luda.scaled_dot_product_attention(q, k, v, options), there:to("cpu"), 1e-5, 1e-6)
    end
  end)

  it("renews the rounded copies that autocast reads", function()
    luda.scope(function()
      local w = luda.randn(33, 5):to("cuda"):requires_grad_()
      local optimizer = luda.optim.AdamW { w }
      local unit = luda.eye(33):to("bf16"):to("cuda")
      for _ = 1, 2 do
        local copy = luda.autocast(luda.matmul, unit, w)
        assert.equal("bf16", copy.dtype)
        assert.same(w:detach():to("bf16"):totable(), copy:totable())
        optimizer:step(0.1, copy:to("f32"):square():sum():backward())
      end
      assert.same(w:detach():to("bf16"):totable(), luda.autocast(luda.matmul, unit, w):totable())
    end)
  end)

  for name, run in pairs { ["trains"] = train, ["trains a convolutional network"] = train_images,
    ["trains composed layers"] = train_composed, ["trains scaled"] = train_scaled } do
    it(name .. " as the CPU does", function()
      luda.scope(function()
        local losses, weight = run("cpu")
        local there, moved = run("cuda:0")
        assert.tensor_near(losses, there, 1e-10)
        assert.tensor_near(weight, moved, 1e-9, 1e-10)
      end)
    end)
  end

  it("says which position of max_pool2d was bad", function()
    local g, positions = luda.ones(1, 1, 1, 1):to("cuda"), luda.tensor({ { { { 10LL } } } }):to("cuda")
    local dx = luda.max_pool2d_backward(g, positions, { kernel = 3, size = 3 })
    assert.raises("index", "position 10 is outside 1 %.%. 9 %(base 1%)", function() return dx:totable() end)
  end)
end)
