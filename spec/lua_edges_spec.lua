--- Where Lua ends and C begins: owners that die, memory that the collector does not see, calls back into Lua, 64-bit integers.

local luda = require "luda"
local helper = require "spec.helper"
local ffi = require "ffi"

local autograd = luda.autograd
local nan = 0 / 0

--- Runs a script in a process of its own, under `limits` of the shell; returns its output.
local function run(script, limits)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write('package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path\nlocal luda = require "luda"\n', script)
  file:close()
  local pipe = assert(io.popen(("%s luajit %s 2>&1; echo status $?"):format(limits or "", path)))
  local output = pipe:read "*a"
  pipe:close()
  os.remove(path)
  return output
end

--- New tensors of the same sizes, which would lie where freed ones lay.
local function trample()
  collectgarbage()
  collectgarbage()
  for _ = 1, 100 do
    luda.full({ 4 }, -1)
    luda.full({ 16 }, -1)
  end
end

describe("what was derived", function()
  before_each(helper.before)
  after_each(helper.after)

  local Holder = luda.nn.module "Holder"
  function Holder:init()
    self.weight = luda.full({ 4 }, 7):requires_grad_()
  end

  local makers = {
    ["a slice"] = function() return luda.full({ 16 }, 7):narrow(1, 5, 4) end,
    ["a view of a result"] = function() return (luda.full({ 2, 2 }, 3) + 4):view(4) end,
    ["a gradient"] = function()
      local x = luda.ones(4):requires_grad_()
      return (x * 7):sum():backward()[x]
    end,
    ["a parameter"] = function() return Holder().weight end,
    ["a detached result"] = function() return (luda.ones(4):requires_grad_() * 7):detach() end,
    ["an expanded number"] = function() return luda.tensor(7):expand(4) end,
  }

  for name, make in pairs(makers) do
    it("outlives its owner: " .. name, function()
      local kept = make()
      trample()
      assert.same({ 7, 7, 7, 7 }, kept:totable())
      for i = 1, 200 do -- long enough to be compiled
        local t = make()
        if i % 50 == 0 then
          trample()
        end
        assert(t[4]:item() == 7)
      end
    end)
  end

  it("is read by address while its tensor is held", function()
    local t = luda.full({ 16 }, 7)
    local p = t:data()
    trample()
    local sum = 0
    for i = 0, 15 do
      sum = sum + p[i]
    end
    assert.equal(16 * 7, sum)
    assert.equal(16, t.numel) -- holds it up to here
  end)

  it("is right with the compiler off and a collection at every call", function()
    assert.equal("7 7 7 14\nstatus 0\n", run [[
      jit.off()
      local function all(fn) collectgarbage() collectgarbage() return fn() end
      local a = all(function() return luda.full({ 16 }, 7):narrow(1, 5, 4) end)
      local b = all(function() return (luda.full({ 2, 2 }, 3) + 4):view(4) end)
      local x = luda.ones(4):requires_grad_()
      local g = all(function() return (x * 7):sum():backward() end)
      local c = all(function() return g[x] end)
      local d = all(function() return c + b end)
      for _ = 1, 20 do all(function() return luda.full({ 4 }, -1) end) end
      print(a[4]:item() .. " " .. b[4]:item() .. " " .. c[4]:item() .. " " .. d[4]:item())]])
  end)
end)

describe("native memory", function()
  if (os.getenv("LD_PRELOAD") or ""):find("asan", 1, true) then
    pending("stays bounded: AddressSanitizer holds back what is freed", function() end)
    return
  end

  local measure = [[
    local function resident()
      local file = assert(io.open("/proc/self/statm"))
      local pages = tonumber(file:read("*l"):match("^%d+ (%d+)"))
      file:close()
      return pages * 4096
    end
  ]]

  it("of a loop that only drops stays within the budget, without the help of a user", function()
    local output = run(measure .. [[
      for _ = 1, 100000 do luda.full({ 10000 }, 1, { dtype = "f64" }) end
      print(resident() < 512 * 2 ^ 20)]])
    assert.equal("true\nstatus 0\n", output)
  end)

  it("of training steps stays too, within an address space of 1 GiB", function()
    local output = run(measure .. [[
      luda.set_threads(1)
      local w = luda.zeros(10000, { dtype = "f64" }):requires_grad_()
      for _ = 1, 5000 do
        local loss = (w * 2 + luda.full({ 10000 }, 1, { dtype = "f64" })):square():sum()
        local grads = loss:backward()
        assert(grads[w] ~= nil)
      end
      print(resident() < 512 * 2 ^ 20)
      local keep = {}
      local ok, err = pcall(function()
        for i = 1, 2000 do keep[i] = luda.full({ 2 ^ 20 }, 1) end
      end)
      assert(not ok and err.code == "no_memory", tostring(err))
      keep = nil
      assert(luda.ones(2 ^ 20):sum():item() == 2 ^ 20) -- works on]], "ulimit -v 1048576;")
    assert.equal("true\nstatus 0\n", output)
  end)
end)

describe("calls back into Lua", function()
  before_each(helper.before)
  after_each(helper.after)

  local square = autograd.Function {
    forward = function(ctx, x)
      ctx:save(x)
      return x * x
    end,
    backward = function(ctx, g) return g * ctx.saved[1] * 2 end,
  }

  it("are safe in loops that are compiled, with a new function every time", function()
    local x = luda.tensor({ 3 }):requires_grad_()
    local total, hooks = 0, 0
    for i = 1, 20000 do
      luda.scope(function()
        local y = square(x)
        if i % 10 == 0 then
          local own = autograd.Function { forward = function(_, t) return t * 2 end, backward = function(_, g) return g * 2 end }
          y = own(y)
          y:register_hook(function() hooks = hooks + 1 end)
        end
        total = total + y:backward()[x]:item()
      end)
    end
    assert.equal(18000 * 6 + 2000 * 12, total)
    assert.equal(2000, hooks)
  end)

  it("that raise leave the message to the caller and everything usable", function()
    local x = luda.tensor({ 3 }):requires_grad_()
    local opt = luda.optim.SGD({ x }, { momentum = 0.9 })
    local fail = autograd.Function { forward = function(_, t) return t * 1 end, backward = function() error("not today", 0) end }
    for _ = 1, 300 do
      local ok, err = pcall(function() opt:step(0.1, fail(square(x)):backward()) end)
      assert.is_false(ok)
      assert.equal("not today", err)
    end
    assert.equal(3, x:item())
    opt:step(0.1, square(x):backward())
    assert.near(2.4, x:item(), 1e-6)
    assert.is_true(autograd.is_enabled())
  end)
end)

describe("64-bit integers", function()
  before_each(helper.before)
  after_each(helper.after)

  local high, low = 0x7fffffffffffffffLL, -0x7fffffffffffffffLL - 1

  it("are exact where Lua's numbers are not", function()
    local odd = 9007199254740993LL
    local x = luda.tensor { odd, odd, odd }
    assert.is_true(x[1]:item() == odd)
    assert.is_true(x:totable()[3] == odd)
    assert.is_true(x:narrow(1, 1, 2):sum():item() == 18014398509481986LL)
    assert.is_true((x + x)[2]:item() == 18014398509481986LL)
    assert.is_true((x + 2LL)[2]:item() == 9007199254740995LL)
    assert.is_true((x * 3LL)[2]:item() == 27021597764222979LL)
    assert.is_true((x - 1)[1]:item() == 9007199254740992LL)
    assert.is_true(x:amax():item() == odd and x:max():item() == odd)
    assert.is_true(x:cumsum(1)[3]:item() == 27021597764222979LL)
    assert.is_true(x:sort()[1]:item() == odd)
    assert.is_true(x:eq(9007199254740992LL):to("i64"):sum():item() == 0)
    local held = luda.zeros(2, { dtype = "i64" })
    held:fill_(odd)
    held[2] = odd + 2
    assert.is_true(held[1]:item() == odd and held[2]:item() == odd + 2)
    local ends = luda.tensor { high, low }
    assert.is_true(ends[1]:item() == high and ends[2]:item() == low)
    assert.is_true(luda.full({ 3 }, high, { dtype = "i64" })[3]:item() == high)
    assert.same({ 16777216 }, luda.tensor({ 16777217LL }):to("f32"):totable())
    assert.is_truthy(tostring(x):find("9007199254740993", 1, true))
  end)

  it("go to and from files exactly", function()
    local path = os.tmpname()
    luda.save(path, { x = luda.tensor { high, low, 9007199254740993LL } })
    local x = luda.load(path).x
    os.remove(path)
    assert.is_true(x[1]:item() == high and x[2]:item() == low and x[3]:item() == 9007199254740993LL)
  end)

  it("of shapes and counts are plain Lua numbers", function()
    local t = luda.zeros(2, 3)
    local seen = { [t.shape[1]] = "rows", [t:size(2)] = "columns", [t.numel] = "all", [t.ndim] = "dims" }
    assert.same({ [2] = "dims", [3] = "columns", [6] = "all" }, seen)
    for _, value in ipairs { t.shape[1], t:size(1), t.numel, t.ndim, t.id, #t, luda.ones(2):argmax():item() } do
      assert.equal("number", type(value))
    end
    local count = 0
    for i, size in ipairs(t.shape) do
      assert.equal(i + 1, size)
      count = count + 1
    end
    assert.equal(2, count)
    assert.same({ 2, 3 }, luda.zeros(2LL, ffi.new("int64_t", 3)).shape)
  end)

  it("of sizes and positions must be whole", function()
    for _, bad in ipairs { 2.5, nan, math.huge, 2 ^ 53, "3" } do
      assert.raises("invalid", "whole number", luda.zeros, bad)
      assert.raises("invalid", "whole number", luda.zeros, { 2, bad })
      assert.raises("invalid", "whole number", luda.ones(6).reshape, luda.ones(6), { 2, bad })
      assert.raises("invalid", "whole number", luda.ones(6).narrow, luda.ones(6), 1, 1, bad)
    end
    for _, call in ipairs { { nan }, { 0, nan }, { nan, 3 }, { 0, 3, nan } } do
      assert.raises("invalid", "a bound is not a number", luda.arange, unpack(call))
    end
    assert.raises("invalid", "the step is 0", luda.arange, 0, 3, 0)
    assert.raises("invalid", "whole number, not inf", luda.arange, math.huge)
    assert.raises("shape", "size 1 is %-1", luda.zeros, -1)
    assert.raises("invalid", "", function() return luda.ones(3)[1.5] end)
    assert.raises("invalid", "", function() return luda.ones(3)[nan] end)
    assert.raises("no_memory", "", luda.zeros, 2 ^ 40, 2 ^ 10)
  end)

  it("that do not fit are refused, not wrapped", function()
    for dtype, values in pairs { i8 = { 128, -129 }, u8 = { 256, -1 }, i16 = { 32768 }, i32 = { 2147483648, -2147483649 } } do
      for _, value in ipairs(values) do
        assert.raises("invalid", "does not fit", luda.tensor, { value }, { dtype = dtype })
        assert.raises("invalid", "does not fit", luda.full, { 2 }, value, { dtype = dtype })
        assert.raises("invalid", "does not fit", luda.add, luda.zeros(2, { dtype = dtype }), value)
        local x = luda.zeros(2, { dtype = dtype })
        assert.raises("invalid", "does not fit", x.fill_, x, value)
      end
    end
    assert.raises("invalid", "does not fit", luda.tensor, { nan }, { dtype = "i32" })
    assert.raises("invalid", "does not fit", luda.tensor, { 2 ^ 63 }, { dtype = "i64" })
    assert.raises("invalid", "does not fit", luda.tensor, { 300LL }, { dtype = "u8" })
    assert.raises("invalid", "does not fit", luda.full, { 2 }, 2 ^ 63, { dtype = "i64" })
    assert.raises("invalid", "does not fit", luda.full, { 2 }, 300LL, { dtype = "i8" })
    assert.raises("invalid", "does not fit", luda.full, { 2 }, 0x8000000000000000ULL, { dtype = "i64" })
    assert.raises("invalid", "arange: 299 does not fit u8", luda.arange, 300, { dtype = "u8" })
    assert.raises("invalid", "randint: 299 does not fit u8", luda.randint, 0, 300, { 2 }, { dtype = "u8" })
    assert.same({ 253, 254, 255 }, luda.arange(253, 256, { dtype = "u8" }):totable())
    assert.equal("i64", luda.full({ 2 }, 5LL).dtype)
  end)
end)
