--- NumPy's files: what numpy wrote is read, what is written comes back, and damaged or hostile files are refused.

local luda = require "luda"
local helper = require "spec.helper"
local npy = luda.npy

local function temporary(content)
  local path = os.tmpname()
  if content then
    local file = assert(io.open(path, "wb"))
    file:write(content)
    file:close()
  end
  finally(function() os.remove(path) end)
  return path
end

local function content_of(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

--- A .npy of a header and elements, written here byte by byte.
local function file_of(header, elements, version)
  local length = #header
  local size = string.char(length % 256, math.floor(length / 256)) .. (version == 2 and "\0\0" or "")
  return "\147NUMPY" .. string.char(version or 1, 0) .. size .. header .. (elements or "")
end

local function dictionary(descr, shape, order)
  return ("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n"):format(descr, order or "False", shape)
end

describe("what numpy wrote", function()
  before_each(helper.before)
  after_each(helper.after)

  local count24 = {}
  for i = 1, 2 do
    count24[i] = {}
    for j = 1, 3 do
      count24[i][j] = {}
      for k = 1, 4 do
        count24[i][j][k] = (i - 1) * 12 + (j - 1) * 4 + k - 1
      end
    end
  end
  local expected = {
    f64 = { "f64", { { 1.5, -2.25, 0 }, { 1e300, -1e-300, 0.1 } } }, f32 = { "f32", { 1.5, -0.25, 2 ^ 127 } },
    f16 = { "f16", { 1.5, -65504, 2 ^ -24 } }, i64 = { "i64", { -4611686018427387904LL, 9007199254740991 } },
    i32 = { "i32", { -2147483648, 2147483647 } }, i16 = { "i16", { -32768, 32767 } }, i8 = { "i8", { -128, 127 } },
    u8 = { "u8", { 0, 255 } }, bool = { "bool", { true, false, true } }, u16 = { "i32", { 1, 65535, 256 } },
    u32 = { "i64", { 1, 4294967295, 65536 } }, u64 = { "i64", { 1, 1099511627776 } },
    big_f64 = { "f64", { { 1, 2 }, { 3, 4.5 } } }, big_i16 = { "i16", { 1, -2, 256 } }, big_u32 = { "i64", { 1, 4294967294 } },
    columns = { "f32", count24 }, columns_big = { "i32", { { 0, 1, 2 }, { 3, 4, 5 } } }, single = { "f64", 7 },
  }

  for _, name in ipairs { "arrays", "arrays_deflated" } do
    it("is read: " .. name, function()
      local found = npy.load("spec/golden/" .. name .. ".npz")
      for key, want in pairs(expected) do
        assert.equal(want[1], found[key].dtype)
        assert.same(want[2], key == "single" and found[key]:item() or found[key]:totable(), key)
        assert.is_true(found[key]:is_contiguous())
      end
      assert.same({ 0, 3 }, found.empty.shape)
      assert.equal("f32", found.empty.dtype)
      assert.same({ 5000 }, found.long.shape)
      assert.equal(4999 * 5000 / 2, found.long:sum():item())
    end)
  end

  it("is read: many unsigned numbers, and of the other byte order", function()
    local little, big = {}, {}
    for i = 1, 9000 do
      local low, high = string.char(i * 7 % 256), string.char(i % 256)
      little[i], big[i] = low .. high, high .. low
    end
    local a = npy.load(temporary(file_of(dictionary("<u2", "(3, 3000)"), table.concat(little))))
    local b = npy.load(temporary(file_of(dictionary(">u2", "(3, 3000)"), table.concat(big))))
    assert.equal(9000 * 7 % 256 + 256 * (9000 % 256), a[{ 3, 3000 }]:item())
    assert.equal(100 * 7 % 256 + 256 * 100, a[{ 1, 100 }]:item())
    assert.is_true(a:equal(b))
  end)

  it("is read: a header of version 2", function()
    assert.same({ { 1, 2, 3 } }, npy.load("spec/golden/version2.npy"):totable())
  end)
end)

describe("what is saved", function()
  before_each(helper.before)
  after_each(helper.after)

  local path

  it("comes back with every type and shape", function()
    path = temporary()
    for _, dtype in ipairs { "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool" } do
      local t = luda.tensor({ { 1, 0, 3 }, { 4, 5, 6 } }, { dtype = dtype })
      npy.save(path, t)
      local back = npy.load(path)
      assert.equal(dtype, back.dtype)
      assert.same(t:totable(), back:totable())
      npy.save(path, t:t():narrow(1, 2, 2)) -- a view
      assert.same(t:t():narrow(1, 2, 2):totable(), npy.load(path):totable())
    end
    npy.save(path, luda.tensor(2.5))
    assert.same({}, npy.load(path).shape)
    npy.save(path, luda.zeros(2, 0, 3))
    assert.same({ 2, 0, 3 }, npy.load(path).shape)
    npy.save(path, luda.tensor({ 1, 2 }):requires_grad_())
    assert.is_false(npy.load(path).requires_grad)
  end)

  it("has the bytes that numpy writes", function()
    path = temporary()
    npy.save(path, luda.tensor({ 1, 2 }, { dtype = "i16" }))
    local header = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }"
    assert.equal("\147NUMPY\1\0v\0" .. header .. (" "):rep(0x76 - #header - 1) .. "\n" .. "\1\0\2\0", content_of(path))
  end)

  for _, compressed in ipairs { false, true } do
    it("comes back by name" .. (compressed and ", deflated" or ""), function()
      path = temporary()
      local long = luda.arange(20000, { dtype = "i32" })
      npy.save(path, { w = luda.ones(2, 3), ["a/b"] = luda.tensor(5), none = luda.zeros(0), long = long },
        { compressed = compressed })
      assert.equal(compressed, #content_of(path) < 60000)
      local back = npy.load(path)
      assert.same({ { 1, 1, 1 }, { 1, 1, 1 } }, back.w:totable())
      assert.equal(5, back["a/b"]:item())
      assert.same({ 0 }, back.none.shape)
      assert.is_true(back.long:equal(long))
      local first = content_of(path)
      npy.save(path, back, { compressed = compressed })
      assert.equal(first, content_of(path))
    end)
  end

  it("may be an archive of nothing", function()
    path = temporary()
    npy.save(path, {})
    assert.same({}, npy.load(path))
  end)

  it("is refused where it is no tensor", function()
    assert.raises("invalid", "a table of tensors", npy.save, "x", 5)
    assert.raises("invalid", "names and tensors", npy.save, "x", { 5 })
    assert.raises("invalid", "the path", npy.save, nil, luda.ones(1))
    assert.raises("io", "npy.load", npy.load, "/nowhere/x.npy")
  end)
end)

it("a file that is refused leaves nothing behind", function()
  local bad = temporary(file_of(dictionary("<u8", "(1000,)"), ("\255"):rep(8000)))
  helper.no_leak(function()
    for _ = 1, 5 do
      assert.is_false(pcall(npy.load, bad))
    end
  end)
end)

describe("a hostile .npy", function()
  before_each(helper.before)
  after_each(helper.after)

  local function refused(code, pattern, content)
    assert.raises(code, pattern, npy.load, temporary(content))
  end

  it("is refused at any length but its own", function()
    local whole = file_of(dictionary("<f4", "(2, 3)"), ("\0"):rep(24))
    assert.same({ 2, 3 }, npy.load(temporary(whole)).shape)
    for size = 0, #whole - 1 do
      refused("corrupt", "", whole:sub(1, size))
    end
    refused("corrupt", "needs 24 bytes of elements, 25 are there", whole .. "\0")
  end)

  it("is refused for its shape", function()
    for _, shape in ipairs {
      "(-1,)", "(2)", "2", "[2]", "(2, 3", "(1e3,)", "(2.0,)", "('2',)", "(2,,)", "(,)", "(0x10,)", "(2, 3) * 9", "(None,)",
      "(9999999999999999999999,)", "(4611686018427387904, 4)", "(2**40,)", "__import__('os')",
    } do
      refused("corrupt", "", file_of(dictionary("<f4", shape), ("\0"):rep(8)))
    end
    refused("corrupt", "needs 4000000000000 bytes", file_of(dictionary("<f4", "(1000000000000,)"), "\0\0\0\0"))
    refused("unsupported", "9 dimensions", file_of(dictionary("|u1", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "\0"))
    assert.same({ 3, 0 }, npy.load(temporary(file_of(dictionary("<f4", "(3L, 0L)")))).shape)
  end)

  it("is refused for its type", function()
    for _, descr in ipairs { "|O", "<c16", "<f16", "<U5", "|S3", "<M8[ns]", "<m8", "|V5", "f4", "<f3", "" } do
      refused("dtype", "NumPy's", file_of(dictionary(descr, "(1,)"), ("\0"):rep(16)))
    end
    refused("corrupt", "no byte order", file_of(dictionary("|f4", "(1,)"), "\0\0\0\0"))
    refused("unsupported", "several fields", file_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n"))
    refused("dtype", "2^63 or more", file_of(dictionary("<u8", "(1,)"), ("\255"):rep(8)))
  end)

  it("is refused for its header", function()
    for _, header in ipairs {
      "", "{}", "{'descr': '<f4'}", dictionary("<f4", "(1,)", "0"), dictionary("<f4", "(1,)", "true"),
      "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1, }",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } + 1", "{'descr': '<f4' 'fortran_order': False 'shape': (1,)}",
      "dict(descr='<f4', fortran_order=False, shape=(1,))", "{'descr': \"<f4', 'fortran_order': False, 'shape': (1,), }",
    } do
      refused("corrupt", "header", file_of(header, "\0\0\0\0"))
    end
    refused("corrupt", "a header of 4294967295 bytes", "\147NUMPY\2\0\255\255\255\255")
    refused("unsupported", "version 9", "\147NUMPY\9\0\1\0 ")
    assert.same({ 1 }, npy.load(temporary(file_of("{\"shape\": (1,), \"fortran_order\": True, \"descr\": \"<f4\"}", "\0\0\0\0",
      2))).shape)
  end)

  it("has booleans of 0 and 1 whatever it holds", function()
    local t = npy.load(temporary(file_of(dictionary("|b1", "(3,)"), "\0\1\7")))
    assert.equal("\0\1\1", require("ffi").string(t:data(), 3))
  end)
end)

describe("a hostile .npz", function()
  before_each(helper.before)
  after_each(helper.after)

  local whole, deflated
  setup(function()
    local path = os.tmpname()
    npy.save(path, { a = luda.arange(40), b = luda.ones(3) })
    whole = content_of(path)
    npy.save(path, { a = luda.arange(40), b = luda.zeros(3000) }, { compressed = true })
    deflated = content_of(path)
    os.remove(path)
  end)

  it("is refused at any length but its own", function()
    for size = 2, #whole - 1, 3 do
      assert.raises("corrupt", "", npy.load, temporary(whole:sub(1, size)))
    end
  end)

  it("does not load with any byte of its members changed", function()
    for _, text in ipairs { whole, deflated } do
      for at = 1, #text, 7 do
        local changed = text:sub(1, at - 1) .. string.char(bit.bxor(text:byte(at), 0x40)) .. text:sub(at + 1)
        local fine, result = pcall(npy.load, temporary(changed))
        if fine then -- dates and versions say nothing about the content
          assert.equal(text == whole and 783 or 780, result.a:sum():item() + result.b:sum():item())
        else
          assert.is_true(luda.Error == getmetatable(result))
        end
      end
    end
  end)

  --- The archive with a 32-bit number of the directory's entry for `a` replaced.
  local function with_field(text, offset, value)
    local at = text:find("PK\1\2", 1, true) + offset
    local bytes = {}
    for i = 1, 4 do
      bytes[i] = string.char(value % 256)
      value = math.floor(value / 256)
    end
    return text:sub(1, at - 1) .. table.concat(bytes) .. text:sub(at + 4)
  end

  it("cannot claim more than its bytes give", function()
    assert.raises("corrupt", "more than deflate can give", npy.load, temporary(with_field(deflated, 24, 2 ^ 31)))
    assert.raises("corrupt", "said to have", npy.load, temporary(with_field(whole, 24, 2 ^ 31)))
    assert.raises("corrupt", "reaches into", npy.load, temporary(with_field(with_field(whole, 24, 500), 20, 500)))
    assert.raises("corrupt", "is not where", npy.load, temporary(with_field(whole, 42, 50)))
    assert.raises("invalid", "the limit is 1000", npy.load, temporary(deflated), { limit = 1000 })
  end)

  it("cannot use a member's bytes twice", function()
    local start = whole:find("PK\1\2", 1, true)
    local second = whole:find("PK\1\2", start + 1, true)
    local doubled = whole:sub(1, second - 1) .. whole:sub(start, second - 1):gsub("a%.npy", "c.npy") .. whole:sub(second)
    local stop = doubled:find("PK\5\6", 1, true)
    local size = stop - start
    doubled = doubled:sub(1, stop + 7) .. "\3\0\3\0" .. string.char(size % 256, math.floor(size / 256), 0, 0)
      .. doubled:sub(stop + 16)
    assert.raises("corrupt", "", npy.load, temporary(doubled))
  end)

  it("is refused where a member is no array or cannot be read", function()
    assert.raises("unsupported", "is not an array", npy.load, temporary((whole:gsub("a%.npy", "a.txt"))))
    assert.raises("unsupported", "encrypted", npy.load, temporary((whole:gsub("(PK\1\2....)%z", "%1\1"))))
    assert.raises("corrupt", "twice", npy.load, temporary((whole:gsub("b%.npy", "a.npy"))))
    assert.raises("corrupt", "no zip directory", npy.load, temporary("PK" .. ("\0"):rep(100)))
  end)
end)
