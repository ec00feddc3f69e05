--- Convolution and pooling: PyTorch's values, rounding, special values, refusals, libraries against each other, layers.

local luda = require "luda"
local helper = require "spec.helper"
local nn = luda.nn

-- Random cases, for comparison between processes.

local cases = {
  { 5, 3, 16, 19, 17, 7, { stride = 2, padding = 3 } },
  { 3, 16, 32, 14, 15, 3, { padding = 1 } },
  { 19, 8, 24, 9, 11, 3, { padding = 2, dilation = 2 } },
  { 2, 48, 32, 13, 13, 5, { padding = 2, groups = 2 } },
  { 2, 32, 32, 12, 12, 3, { padding = 1, groups = 32 } },
  { 4, 24, 40, 9, 10, 1, {} },
}

--- Results and gradients of random convolutions, flat.
local function results()
  luda.manual_seed(11)
  local list = {}
  for _, case in ipairs(cases) do
    local n, inputs, outputs, height, width, kernel, options = unpack(case)
    local x = luda.randn(n, inputs, height, width):requires_grad_()
    local w = luda.randn(outputs, inputs / (options.groups or 1), kernel, kernel):requires_grad_()
    local b = luda.randn(outputs):requires_grad_()
    local y = luda.conv2d(x, w, b, options)
    local grads = y:backward { gradient = luda.randn(y.shape) }
    for _, t in ipairs { y, grads[x], grads[w], grads[b] } do
      list[#list + 1] = t:reshape(-1):totable()
    end
  end
  return list
end

if ... == "print" then
  for _, entry in ipairs(luda.scope(results)) do
    local parts = {}
    for i, value in ipairs(entry) do
      parts[i] = ("%.9g"):format(value)
    end
    print(table.concat(parts, " "))
  end
  os.exit(0)
end

local golden = helper.golden("conv")

local values = helper.eighths

local function inputs_of(case, dtype)
  local inputs = { values(case.x, 1, dtype) }
  if case.w then
    inputs[2] = values(case.w, 2, dtype)
    inputs[3] = case.bias and values({ case.w[1] }, 3, dtype) or nil
  end
  for _, t in ipairs(inputs) do
    t:requires_grad_()
  end
  return inputs
end

local function call(name, inputs, options)
  local arguments = { unpack(inputs) }
  arguments[#arguments + 1] = options
  return luda[name](unpack(arguments))
end

describe("PyTorch's values", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, name in ipairs { "conv2d", "max_pool2d", "avg_pool2d" } do
    for number, case in ipairs(golden[name]) do
      -- Sums of eighths are exact in float32; halves are rounded once. Means divide, so that they are not exact.
      for dtype, unit in pairs { f64 = 1e-15, f32 = 6e-8, f16 = 5e-4, bf16 = 4e-3 } do
        it(("of %s, case %d, %s"):format(name, number, dtype), function()
          local rtol = name == "avg_pool2d" and 4 * unit or 0
          local function expect(list, have)
            local want = luda.tensor(list, { dtype = "f64" }):reshape(have.shape)
            if rtol == 0 then
              want = want:to(dtype)
            end
            assert.tensor_near(want, have, rtol, rtol)
          end
          local inputs = inputs_of(case, dtype)
          local y = call(name, inputs, case.options)
          assert.same(case.shape, y.shape)
          expect(case.y, y)
          local grads = y:backward { gradient = values(case.shape, 4, dtype) }
          for i, list in ipairs(case.grads) do
            expect(list, grads[inputs[i]])
          end
        end)
      end
    end
  end
end)

describe("conv2d", function()
  before_each(helper.before)
  after_each(helper.after)

  it("takes options by place and by name, numbers and pairs", function()
    local x, w = values({ 1, 4, 7, 6 }, 1, "f32"), values({ 6, 2, 3, 3 }, 2, "f32")
    local b = values({ 6 }, 3, "f32")
    local by_name = luda.conv2d(x, w, b, { stride = { 2, 1 }, padding = 1, dilation = { 1, 2 }, groups = 2 })
    assert.same({ 1, 6, 4, 4 }, by_name.shape)
    assert.same(by_name:totable(), luda.conv2d(x, w, b, { 2, 1 }, 1, { 1, 2 }, 2):totable())
    local pairs_only = { stride = { 2, 1 }, padding = { 1, 1 }, dilation = { 1, 2 }, groups = 2 }
    assert.same(by_name:totable(), x:conv2d(w, b, pairs_only):totable())
    assert.same((by_name - b:reshape(6, 1, 1)):totable(),
      luda.conv2d(x, w, { stride = { 2, 1 }, padding = 1, dilation = { 1, 2 }, groups = 2 }):totable())
    assert.same(by_name.shape, luda.conv2d(x, w, nil, { 2, 1 }, 1, { 1, 2 }, 2).shape)
  end)

  it("keeps a float32 bias beside halves, and its gradient", function()
    local x, w = luda.ones(2, 1, 33, 33, { dtype = "bf16" }), luda.ones(1, 1, 1, 1, { dtype = "bf16" })
    local b = luda.tensor { 0.25 }:requires_grad_()
    local y = luda.conv2d(x, w, b)
    assert.equal("bf16", y.dtype)
    assert.equal(1.25, y[{ 1, 1, 1, 1 }]:item())
    local gradient = y:backward { gradient = luda.ones(2, 1, 33, 33, { dtype = "bf16" }) }[b]
    assert.equal("f32", gradient.dtype)
    assert.equal(2 * 33 * 33, gradient:item()) -- 2178 is no bf16
  end)

  it("promotes images and kernels to one type", function()
    local x, w = luda.ones(1, 1, 2, 2), luda.ones(1, 1, 2, 2, { dtype = "f64" })
    assert.equal("f64", luda.conv2d(x, w).dtype)
    assert.equal("f32", luda.conv2d(x:to("f16"), w:to("bf16")).dtype)
    assert.raises("dtype", "conv2d: input 1 of shape %[1, 1, 2, 2%] is i64", luda.conv2d, x:to("i64"), w)
  end)

  it("of no images or no channels", function()
    local w, b = luda.ones(3, 2, 2, 2):requires_grad_(), luda.tensor({ 1, 2, 3 }):requires_grad_()
    local y = luda.conv2d(luda.zeros(0, 2, 4, 4), w, b)
    assert.same({ 0, 3, 3, 3 }, y.shape)
    local grads = y:sum():backward()
    assert.equal(0, grads[w]:abs():sum():item())
    assert.same({ 0, 0, 0 }, grads[b]:totable())
    y = luda.conv2d(luda.zeros(1, 0, 2, 2), luda.zeros(3, 0, 2, 2), b)
    assert.same({ { { { 1 } }, { { 2 } }, { { 3 } } } }, y:totable())
  end)

  it("has each gradient alone, also of the second order", function()
    local plain = { luda.randn(2, 2, 5, 4):to("f64"), luda.randn(3, 2, 2, 2):to("f64"), luda.randn(3):to("f64") }
    for tracked = 1, 3 do
      local inputs = { unpack(plain) }
      inputs[tracked] = plain[tracked]:clone():requires_grad_()
      luda.autograd.gradcheck(function(t)
        inputs[tracked] = t
        return luda.conv2d(inputs[1], inputs[2], inputs[3]):square()
      end, { inputs[tracked] }, { second = true, eps = 1e-5, atol = 2e-5 })
    end
  end)

  it("says with numbers what does not fit", function()
    local x = luda.zeros(1, 4, 5, 5)
    assert.raises("shape", "a kernel of 6 x 2 %(dilation 1 x 1%) is larger than the image of 5 x 5 with its padding of 0 x 0",
      luda.conv2d, x, luda.zeros(2, 4, 6, 2))
    assert.raises("shape", "4 channels in and 2 out cannot be divided into 3 groups", luda.conv2d, x, luda.zeros(2, 4, 3, 3),
      { groups = 3 })
    assert.raises("shape", "the weight takes 3 channels in 1 groups, the input has 4", luda.conv2d, x, luda.zeros(2, 3, 3, 3))
    assert.raises("shape", "one element for each output channel", luda.conv2d, x, luda.zeros(2, 4, 3, 3), luda.zeros(3))
    assert.raises("shape", "images %[N, C, H, W%] are needed, the shape is %[4, 5, 5%]", luda.conv2d, x[1],
      luda.zeros(2, 4, 3, 3))
    assert.raises("invalid", "stride is 0 x 1", luda.conv2d, x, luda.zeros(2, 4, 3, 3), { stride = { 0, 1 } })
    assert.raises("invalid", "padding is %-1 x %-1", luda.conv2d, x, luda.zeros(2, 4, 3, 3), { padding = -1 })
    assert.raises("invalid", "the list has 3", luda.conv2d, x, luda.zeros(2, 4, 3, 3), { padding = { 1, 2, 3 } })
    assert.raises("shape", "images of 5 x 5 have windows of 3 x 3, the gradient has 3 x 4", luda.conv2d_input,
      luda.zeros(1, 2, 3, 4), luda.zeros(2, 4, 3, 3), { size = 5 })
  end)
end)

describe("pooling", function()
  before_each(helper.before)
  after_each(helper.after)

  local nan, inf = 0 / 0, math.huge

  it("lets NaN win, and the first of equals", function()
    local x = luda.tensor({ { { { 1, nan, -inf, -inf }, { nan, 9, -inf, -inf }, { 3, 3, inf, 2 }, { 3, 3, 7, inf } } } })
      :requires_grad_()
    local y = luda.max_pool2d(x, 2)
    local list = y:totable()[1][1]
    assert.is_true(list[1][1] ~= list[1][1])
    assert.same({ -inf, 3, inf }, { list[1][2], list[2][1], list[2][2] })
    local dx = y:backward { gradient = luda.tensor { { { { 2, -3 }, { 5, 7 } } } } }[x]
    assert.same({ { { { 0, 2, -3, 0 }, { 0, 0, 0, 0 }, { 5, 0, 7, 0 }, { 0, 0, 0, 0 } } } }, dx:totable())
  end)

  it("never takes the padding, and adds gradients of windows that share an element", function()
    local x = luda.tensor({ { { { -4, -2 }, { -3, -1 } } } }):requires_grad_()
    local y = luda.max_pool2d(x, 2, 1, 1)
    assert.same({ { { { -4, -2, -2 }, { -3, -1, -1 }, { -3, -1, -1 } } } }, y:totable())
    local dx = y:backward { gradient = luda.tensor { { { { 1, 2, 4 }, { 8, 16, 32 }, { 64, 128, 256 } } } } }[x]
    assert.same({ { { { 1, 6 }, { 72, 432 } } } }, dx:totable())
  end)

  it("with ceil_mode keeps a last window that begins inside", function()
    local x = luda.arange(5):reshape(1, 1, 1, 5)
    assert.same({ { { { 1, 3 } } } }, luda.max_pool2d(x, { 1, 2 }):totable())
    assert.same({ { { { 1, 3, 4 } } } }, luda.max_pool2d(x, { 1, 2 }, { ceil_mode = true }):totable())
    assert.same({ { { { 0.5, 2.5, 4 } } } }, luda.avg_pool2d(x:to("f32"), { 1, 2 }, { ceil_mode = true }):totable())
    -- left of the image: padding 1, stride 4; a third window would begin in the padding on the right
    local y = luda.max_pool2d(x, { kernel = { 1, 2 }, stride = { 1, 4 }, padding = { 0, 1 }, ceil_mode = true })
    assert.same({ 1, 1, 1, 2 }, y.shape)
  end)

  it("counts the padding or not", function()
    local x = luda.tensor { { { { 4, 8 } } } }
    assert.same({ { { { 2, 6, 4 } } } }, luda.avg_pool2d(x, { 1, 2 }, 1, { 0, 1 }):totable())
    assert.same({ { { { 4, 6, 8 } } } }, luda.avg_pool2d(x, { 1, 2 }, 1, { 0, 1 }, { count_include_pad = false }):totable())
  end)

  it("of whole numbers stays whole; a mean of them is refused", function()
    local x = luda.tensor { { { { 4LL, 8LL }, { -1LL, 2LL } } } }
    assert.same({ { { { 8 } } } }, luda.max_pool2d(x, 2):totable())
    assert.raises("dtype", "avg_pool2d", luda.avg_pool2d, x, 2)
  end)

  it("says with numbers what does not fit", function()
    local x = luda.zeros(1, 1, 3, 3)
    assert.raises("invalid", "kernel is 0 x 0", luda.max_pool2d, x)
    assert.raises("invalid", "padding of 2 x 2 is more than half of the kernel of 3 x 3", luda.max_pool2d, x, 3, 1, 2)
    assert.raises("shape", "a kernel of 4 x 4", luda.avg_pool2d, x, 4)
    assert.raises("shape", "meets none of 3 elements", luda.max_pool2d, x, { kernel = 2, padding = 1, dilation = 4 })
    assert.raises("index", "position 10 is outside 1 .. 9", luda.max_pool2d_backward, luda.zeros(1, 1, 1, 1),
      luda.tensor { { { { 10LL } } } }, { kernel = 3, size = 3 })
  end)
end)

describe("libraries and threads", function()
  before_each(helper.before)
  after_each(helper.after)

  it("give the same bits for any number of threads", function()
    local before = luda.threads()
    luda.set_threads(1)
    local alone = luda.scope(results)
    for _, threads in ipairs { 2, 3, 7 } do
      luda.set_threads(threads)
      assert.same(alone, luda.scope(results))
    end
    luda.set_threads(before)
  end)

  it("agree: oneDNN and products of matrices, within a few last places of the largest element", function()
    local pipe = assert(io.popen(("LUDA_GEMM=builtin LUA_PATH='%s' luajit spec/conv_spec.lua print"):format(package.path)))
    local here, place = luda.scope(results), 0
    for line in pipe:lines() do
      place = place + 1
      local largest, worst, k = 0, 0, 0
      for number in line:gmatch("%S+") do
        k = k + 1
        largest = math.max(largest, math.abs(tonumber(number)))
        worst = math.max(worst, math.abs(tonumber(number) - here[place][k]))
      end
      assert.equal(#here[place], k)
      assert.is_true(worst <= 2e-6 * largest, ("result %d: %g apart, the largest is %g"):format(place, worst, largest))
    end
    pipe:close()
    assert.equal(#here, place)
  end)
end)

describe("an image layer", function()
  before_each(helper.before)
  after_each(helper.after)

  it("Conv2d starts uniform within 1 / sqrt of the terms of a sum", function()
    luda.manual_seed(3)
    local layer, bound = nn.Conv2d(16, 60, { 3, 2 }, { groups = 2, padding = { 1, 0 }, stride = 2 }), math.sqrt(1 / 48)
    assert.same({ 60, 8, 3, 2 }, layer.weight.shape)
    assert.same({ 60 }, layer.bias.shape)
    assert.is_true(layer.weight:abs():max():item() <= bound and layer.weight:abs():max():item() > 0.98 * bound)
    assert.near(bound * bound / 3, layer.weight:square():mean():item(), 0.1 * bound * bound)
    assert.is_true(layer.bias:abs():max():item() <= bound and layer.bias:abs():max():item() > 0.8 * bound)
    local x = luda.randn(2, 16, 9, 8)
    local expected = luda.conv2d(x, layer.weight, layer.bias, { groups = 2, padding = { 1, 0 }, stride = 2 })
    assert.same(expected:totable(), layer(x):totable())
    assert.equal(1, #nn.Conv2d(1, 2, 3, { bias = false }):parameters())
    assert.raises("invalid", "3 channels in and 4 out cannot be divided into 2 groups", nn.Conv2d, 3, 4, 3, { groups = 2 })
    assert.raises("invalid", "kernel is 0", nn.Conv2d, 3, 4, 0)
    assert.raises("invalid", "unknown option 'strides'", nn.Conv2d, 3, 4, 3, { strides = 2 })
  end)

  it("MaxPool2d, AvgPool2d and Flatten do what their functions do", function()
    local x = luda.randn(2, 3, 7, 6)
    assert.same(luda.max_pool2d(x, 2):totable(), nn.MaxPool2d(2)(x):totable())
    local y = nn.MaxPool2d({ 3, 2 }, { stride = 1, padding = { 1, 0 } })(x)
    assert.same(luda.max_pool2d(x, { 3, 2 }, 1, { 1, 0 }):totable(), y:totable())
    assert.same(luda.avg_pool2d(x, 3, 2, 1):totable(), nn.AvgPool2d(3, { stride = 2, padding = 1 })(x):totable())
    assert.same({ 2, 126 }, nn.Flatten()(x).shape)
    assert.same({ 2, 21, 6 }, nn.Flatten(2, 3)(x).shape)
  end)

  it("in a row have the gradients of differences, twice", function()
    luda.manual_seed(5)
    local inputs = { luda.randn(2, 2, 4, 5), luda.randn(3, 2, 3, 3), luda.randn(3) }
    for i, t in ipairs(inputs) do
      inputs[i] = t:to("f64"):requires_grad_()
    end
    luda.autograd.gradcheck(function(x, w, b)
      return luda.avg_pool2d(luda.max_pool2d(luda.conv2d(x, w, b, { padding = 1 }):tanh(), 2, 1), 3, 2, 1)
    end, inputs, { second = true, eps = 1e-5, atol = 2e-6 })
  end)
end)
