--- Fourier transforms: PyTorch's values and gradients, a plain sum as reference for many sizes, layouts, refusals.

local luda = require "luda"
local helper = require "spec.helper"
local calls = require "spec.golden_calls"

local fft = luda.fft

calls.run(getfenv(1), "fft", 6)

--- What the definition says, in plain numbers: lists of real and imaginary parts.
local function plain(re, im, sign)
  local n, out = #re, {}
  for k = 0, n - 1 do
    local a, b = 0, 0
    for j = 0, n - 1 do
      local angle = sign * 2 * math.pi * (j * k % n) / n
      local c, s = math.cos(angle), math.sin(angle)
      a, b = a + re[j + 1] * c - im[j + 1] * s, b + re[j + 1] * s + im[j + 1] * c
    end
    out[k + 1] = { a, b }
  end
  return out
end

local function numbers(n, seed)
  local list = {}
  for i = 1, n do
    list[i] = ((i * 13 + seed * 7) % 29 - 14) / 8
  end
  return list
end

describe("a transform", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is the sum of its definition for every kind of size", function()
    -- 1, primes, powers, small and large factors, and sizes that go through a convolution (37, 74, 101, 2 * 53)
    for _, n in ipairs { 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 29, 30, 31, 32, 37, 49, 60, 64, 74, 77, 96, 101,
      106, 128, 210, 243 } do
      local re, im = numbers(n, 1), numbers(n, 2)
      local z = fft.complex(luda.tensor(re, { dtype = "f64" }), luda.tensor(im, { dtype = "f64" }))
      assert.tensor_near(plain(re, im, -1), fft.fft(z), 1e-12, 1e-12 * n)
      assert.tensor_near(plain(re, im, 1), fft.ifft(z, { norm = "forward" }), 1e-12, 1e-12 * n)
      local half = fft.rfft(luda.tensor(re, { dtype = "f64" }))
      local none = {}
      for i = 1, n do
        none[i] = 0
      end
      assert.tensor_near({ unpack(plain(re, none, -1), 1, math.floor(n / 2) + 1) }, half, 1e-12, 1e-12 * n)
    end
  end)

  it("and its inverse give back what was there, also of long lines", function()
    for _, n in ipairs { 1000, 1024, 4099, 10007 } do -- the last two are primes
      local x = luda.randn(2, n, { dtype = "f64", generator = luda.generator(n) })
      local z = fft.complex(x, x * x)
      assert.tensor_near(z, fft.ifft(fft.fft(z)), 0, 1e-11)
      assert.tensor_near(x, fft.irfft(fft.rfft(x), n), 0, 1e-11)
      local energy = fft.fft(z, { norm = "ortho" }):square():sum():item()
      assert.near(z:square():sum():item(), energy, 1e-9 * energy)
    end
  end)

  it("takes strided tensors, integers and half types", function()
    local z = luda.randn(5, 3, 2, 4, { dtype = "f64", generator = luda.generator(2) }):permute(1, 4, 2, 3)
    assert.is_false(z:is_contiguous())
    for dim = 1, 3 do
      assert.same(fft.fft(z:contiguous(), { dim = dim }):totable(), fft.fft(z, { dim = dim }):totable())
      assert.same(fft.irfft(z:contiguous(), { dim = dim }):totable(), fft.irfft(z, { dim = dim }):totable())
    end
    assert.same({ { 10, 0 }, { -2, 2 }, { -2, 0 } }, fft.rfft(luda.tensor { 1LL, 2LL, 3LL, 4LL }):totable())
    for _, dtype in ipairs { "f16", "bf16" } do
      local y = fft.rfft(luda.tensor({ 1, 2, 3, 4 }, { dtype = dtype }))
      assert.equal(dtype, y.dtype)
      assert.same({ { 10, 0 }, { -2, 2 }, { -2, 0 } }, y:totable())
    end
  end)

  it("ignores the imaginary ends of half a line, and passes them no gradient", function()
    local z = luda.tensor({ { 1, 5 }, { 2, -3 }, { 4, 7 } }, { dtype = "f64" }):requires_grad_()
    local y = fft.irfft(z)
    assert.tensor_near({ 2.25, 0.75, 0.25, -2.25 }, y, 1e-15, 1e-15) -- (1 + 2 (2 c + 3 s) + 4 (-1)^j) / 4
    local grads = y:backward { gradient = luda.tensor({ 1, -2, 3, 0.5 }, { dtype = "f64" }) }
    assert.equal(0, grads[z][1][2]:item())
    assert.near(0, grads[z][3][2]:item(), 1e-15)
  end)

  it("gives the same bits for any number of threads", function()
    local x = luda.randn(300, 210, { generator = luda.generator(3) })
    local threads = luda.threads()
    luda.set_threads(1)
    local one = fft.rfft(x)
    luda.set_threads(2)
    assert.is_true(one:equal(fft.rfft(x)))
    luda.set_threads(threads)
  end)

  it("may have no lines", function()
    assert.same({ 0, 4, 2 }, fft.fft(luda.zeros(0, 4, 2)).shape)
    assert.same({ 0, 3, 2 }, fft.rfft(luda.zeros(0, 4)).shape)
    assert.same({ 0, 6 }, fft.irfft(luda.zeros(0, 4, 2)).shape)
  end)

  it("explains what it does not take", function()
    local x, z = luda.ones(4, 3), luda.ones(4, 3, 2)
    assert.raises("shape", "fft: the input has shape %[4, 3%]; a complex tensor has a last dimension of 2.*rfft takes real",
      fft.fft, x)
    assert.raises("shape", "irfft: the input has shape %[2%]", fft.irfft, luda.ones(2))
    assert.raises("shape", "rfft: a number has nothing", fft.rfft, luda.tensor(1))
    assert.raises("index", "fft: dimension 3 of a tensor with 2; the pair", fft.fft, z, { dim = 3 })
    assert.raises("index", "fft: dim is 0", fft.fft, z, { dim = 0 })
    assert.raises("shape", "fft: 0 points", fft.fft, z, 0)
    assert.raises("shape", "rfft: 0 points", fft.rfft, luda.ones(2, 0))
    assert.raises("shape", "irfft: 0 points", fft.irfft, luda.ones(1, 2))
    assert.raises("invalid", "fft: norm is backward, ortho or forward, not the string 'half'", fft.fft, z, { norm = "half" })
    assert.raises("invalid", "fft: unknown option 'axis'", fft.fft, z, { axis = 1 })
    assert.raises("invalid", "fft2: dimension 1 is given twice", fft.fft2, z, { dim = { 1, 1 } })
    assert.raises("invalid", "fft2: s and dim are lists of two", fft.fft2, z, { dim = 1 })
    assert.raises("shape", "dft: the input has shape %[4, 3%]; a complex", luda.dft, x, { dim = 1 })
    assert.raises("shape", "dft: 5 results need 3 numbers", luda.dft, z, { dim = 1, transform = "hermitian", size = 5 })
    assert.raises("dtype", "dft: input 1 of shape %[4, 3, 2%] is i64", luda.dft, z:to("i64"), { dim = 1 })
  end)
end)

describe("frequencies", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are PyTorch's, and shifts put them in order", function()
    assert.tensor_near({ 0, 0.2, 0.4, -0.4, -0.2 }, fft.fftfreq(5))
    assert.tensor_near({ 0, 0.5, -1, -0.5 }, fft.fftfreq(4, 0.5))
    assert.tensor_near({ 0, 0.5, 1 }, fft.rfftfreq(4, 0.5))
    assert.tensor_near({ 0, 0.2, 0.4 }, fft.rfftfreq(5))
    assert.same({ 0 }, fft.fftfreq(1):totable())
    assert.equal("f64", fft.fftfreq(3, { dtype = "f64" }).dtype)
    assert.tensor_near({ -0.4, -0.2, 0, 0.2, 0.4 }, fft.fftshift(fft.fftfreq(5)))
    for n = 1, 6 do
      local x = luda.arange(n)
      assert.same(x:totable(), fft.ifftshift(fft.fftshift(x)):totable())
    end
    assert.same({ { 3, 4 }, { 5, 6 }, { 1, 2 } },
      fft.ifftshift(luda.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }, { complex = true }):totable())
    assert.raises("shape", "fftshift: .*last dimension of 2", fft.fftshift, luda.ones(3), { complex = true })
    assert.raises("shape", "fftfreq: 0 points", fft.fftfreq, 0)
  end)
end)
