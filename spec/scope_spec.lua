--- Scopes: what dies, what survives, what passes through; and memory without them.

local luda = require "luda"
local lib = require "luda.ffi"
local helper = require "spec.helper"

local function alive(t)
  return tostring(t) ~= "tensor (released)"
end

describe("a scope", function()
  before_each(helper.before)
  after_each(helper.after)

  it("releases what was made inside and passes results on", function()
    local inner
    local result, text, nothing, number = luda.scope(function(a, b)
      inner = luda.ones(3)
      return inner + a, "text", nil, b
    end, 1, 5)
    assert.is_false(alive(inner))
    assert.same({ 2, 2, 2 }, result:totable())
    assert.equal("text", text)
    assert.is_nil(nothing)
    assert.equal(5, number)
  end)

  it("keeps many results and arguments in order", function()
    local list = { luda.scope(function(...)
      return select("#", ...), ...
    end, 1, nil, 3, nil, 5, 6, nil) }
    assert.equal(7, list[1])
    assert.same({ 1, 3, 5, 6 }, { list[2], list[4], list[6], list[7] })
    assert.is_nil(list[3])
  end)

  it("holds on to nothing that it was called with", function()
    local held = setmetatable({}, { __mode = "v" })
    for _, results in ipairs { 0, 1, 5, 7 } do
      for i = 1, 7 do
        held[i] = {}
      end
      luda.scope(function()
        return unpack({ 1, 2, 3, 4, 5, 6, 7 }, 1, results)
      end, held[1], held[2], held[3], held[4], held[5], held[6], held[7])
      collectgarbage()
      collectgarbage()
      assert.is_nil(next(held))
    end
  end)

  it("finds survivors in tables of any depth, with cycles", function()
    local hidden
    local tree = luda.scope(function()
      hidden = luda.zeros(1)
      local t = { a = luda.ones(1), b = { { luda.ones(2) } }, plain = 3 }
      t.self = t
      local deep = t
      for _ = 1, 20000 do
        deep.next = {}
        deep = deep.next
      end
      deep.last = luda.full({ 1 }, 4)
      return t
    end)
    assert.is_false(alive(hidden))
    assert.equal(1, tree.a:item())
    assert.same({ 1, 1 }, tree.b[1][1]:totable())
    local deep = tree
    while deep.next do
      deep = deep.next
    end
    assert.equal(4, deep.last:item())
  end)

  it("does not find them in closures or keys", function()
    local read, t
    luda.scope(function()
      t = luda.ones(1)
      local captured = t
      read = function() return captured:item() end
      return read
    end)
    assert.raises("closed", "its scope has ended", read)
  end)

  it("nests; survivors belong to the outer one", function()
    local outer_result, inner_result
    luda.scope(function()
      inner_result = luda.scope(function()
        return luda.ones(1) + 1
      end)
      assert.equal(2, inner_result:item())
      outer_result = luda.scope(function()
        return luda.scope(function() return luda.full({ 1 }, 9) end)
      end)
      assert.equal(9, outer_result:item())
    end)
    assert.is_false(alive(inner_result))
    assert.is_false(alive(outer_result))
  end)

  it("lets tensors be kept from any depth", function()
    local kept, listed
    luda.scope(function()
      luda.scope(function()
        kept = luda.ones(2):keep()
        listed = luda.keep { luda.zeros(1), { luda.full({ 1 }, 3) } }
      end)
    end)
    assert.same({ 1, 1 }, kept:totable())
    assert.equal(3, listed[2][1]:item())
  end)

  it("passes errors through unchanged and releases all the same", function()
    local made
    local object = { "mine" }
    local ok, err = pcall(luda.scope, function()
      luda.scope(function()
        made = luda.ones(1)
        error(object)
      end)
    end)
    assert.is_false(ok)
    assert.is_true(rawequal(err, object))
    assert.is_false(alive(made))
    assert.equal(0, lib.signals.depth)
    ok, err = pcall(luda.scope, function() error("plain", 0) end)
    assert.is_false(ok)
    assert.equal("plain", err)
  end)

  it("cannot be left by a yield", function()
    local made
    local thread = coroutine.create(function()
      luda.scope(function()
        made = luda.ones(1)
        coroutine.yield()
      end)
    end)
    local ok, err = coroutine.resume(thread)
    assert.is_false(ok)
    assert.is_truthy(tostring(err):find("yield across"))
    assert.is_false(alive(made))
    assert.equal(0, lib.signals.depth)
  end)

  it("may be run whole in coroutines, and coroutines resumed in it", function()
    local generator = coroutine.wrap(function()
      for i = 1, 3 do
        local sum = luda.scope(function() return (luda.ones(2) * i):sum():item() end)
        coroutine.yield(luda.full({ 1 }, sum))
      end
    end)
    local first
    local total = luda.scope(function()
      first = generator()
      return first:item() + generator():item()
    end)
    assert.equal(6, total)
    assert.is_false(alive(first))
    assert.equal(6, generator():item())
    assert.is_nil(generator())
  end)

  it("takes only functions", function()
    assert.raises("invalid", "scope: the first argument must be a function", luda.scope, 3)
    assert.equal(0, lib.signals.depth)
  end)

  it("lets go at once of what is released", function()
    local t = luda.ones(1)
    t:release()
    t:release()
    assert.is_false(alive(t))
    local same = t
    assert.is_true(t == same)
    assert.raises("closed", "released", function() return t + 1 end)
    assert.raises("closed", "released", function() return luda.ones(1) + t end)
    assert.raises("closed", "released", function() return t.shape end)
    assert.raises("closed", "released", function() return t:sum() end)
    assert.raises("closed", "released", function() return t:add_(1) end)
  end)

  it("never takes a dead handle for the tensor that has its slot now", function()
    local dead = luda.ones(1)
    dead:release()
    for _ = 1, 100 do
      local other = luda.zeros(1)
      assert.is_false(dead == other)
      assert.raises("closed", "released", function() return dead:item() end)
      other:release()
    end
  end)

  it("owns gradients too", function()
    local lost
    local kept = luda.scope(function()
      local x = luda.tensor({ 2 }, { requires_grad = true })
      lost = (x * x):backward()
      return { (x * 3):backward(), x }
    end)
    assert.raises("closed", "gradients", lost.len, lost)
    assert.equal(3, kept[1][kept[2]]:item())
  end)

  it("does not end the graph of a returned loss", function()
    local x = luda.tensor({ 3 }, { requires_grad = true })
    local loss = luda.scope(function() return (x * x * x):sum() end)
    assert.equal(27, loss:backward()[x]:item())
  end)
end)

describe("memory without scopes", function()
  before_each(helper.before)
  after_each(helper.after)
  after_each(function()
    luda.set_memory_budget(256 * 2 ^ 20)
  end)

  it("stays within the budget while garbage piles up", function()
    luda.set_memory_budget(32 * 2 ^ 20)
    helper.live()
    luda.memory { reset_peak = true }
    local base = luda.memory("cpu").live
    local x = luda.ones(256, 1024) -- 1 MiB
    for _ = 1, 400 do
      x = x + 1
    end
    assert.equal(401, x[{ 1, 1 }]:item())
    assert.is_true(luda.memory("cpu").peak - base < 96 * 2 ^ 20, "peak " .. luda.memory("cpu").peak - base)
  end)

  it("stays within it inside one scope too", function()
    luda.set_memory_budget(32 * 2 ^ 20)
    helper.live()
    luda.memory { reset_peak = true }
    local base = luda.memory("cpu").live
    luda.scope(function()
      local x = luda.ones(256, 1024)
      for _ = 1, 400 do
        x = x + 1
      end
    end)
    assert.is_true(luda.memory("cpu").peak - base < 128 * 2 ^ 20, "peak " .. luda.memory("cpu").peak - base)
  end)

  it("goes back to the budget after a scope that held much", function()
    luda.set_memory_budget(32 * 2 ^ 20)
    luda.scope(function()
      local list = {}
      for i = 1, 100 do
        list[i] = luda.ones(256, 1024)
      end
      return #list
    end)
    assert.is_true(lib.signals.limit_bytes - lib.signals.live_bytes <= 4 * 2 ^ 20)
  end)

  it("collects and tries again when it is used up", function()
    helper.live()
    local ffi, C = lib.ffi, lib.C
    local cpu = ffi.new("luda_device")
    luda.set_memory_budget(2 ^ 40)
    lib.check(C.luda_set_memory_limit(cpu, luda.memory("cpu").live + 40 * 2 ^ 20))
    finally(function() C.luda_set_memory_limit(cpu, 0) end)
    local x = luda.ones(256, 1024)
    for _ = 1, 100 do
      x = x + 1
    end
    assert.equal(101, x[{ 1, 1 }]:item())
    local ok, err = pcall(luda.scope, function()
      local list = {}
      for i = 1, 100 do
        list[i] = luda.zeros(256, 1024)
      end
      return #list
    end)
    assert.is_false(ok)
    assert.equal("no_memory", err.code)
    assert.is_truthy(tostring(err):find("the scope entered at [^ ]*scope_spec.lua:%d+ holds %d+ tensors"))
  end)

  it("is reported by device", function()
    local all = luda.memory()
    assert.is_true(all.cpu.budget == 256 * 2 ^ 20)
    local before = luda.memory("cpu")
    local x = luda.ones(1024)
    assert.is_true(luda.memory("cpu").live >= before.live + x.numel * 4)
    assert.is_true(luda.memory("cpu").tensors >= before.tensors + 1)
    assert.raises("invalid", "unknown option 'reset'", luda.memory, { reset = true })
    assert.raises("invalid", "2%^20", luda.set_memory_budget, 5)
  end)
end)
