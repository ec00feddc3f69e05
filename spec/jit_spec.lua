--- Operators on the hot path compile: no trace is aborted.

local luda = require "luda"
local helper = require "spec.helper"

local max = math.max -- a global of a spec is behind tables of the test runner

-- Reasons that pass by themselves: a loop that ends or begins while it is recorded, a C function's first use, no room for
-- machine code at the first try.
local transient = { [8] = true, [9] = true, [21] = true, [27] = true, [29] = true }

--- Calls fn(…) from interpreted code on, with `watch` told of every trace.
local function watched(watch, fn, ...)
  jit.flush()
  jit.attach(watch, "trace")
  local ok, err = pcall(fn, ...)
  jit.attach(watch)
  assert(ok, err)
end

--- Trace aborts in LUDA's own code while fn runs, as "file:line reason" texts. A recording that the end of a loop here, or
-- a line of the test runner, interrupts says nothing of LUDA.
local function aborts(fn, ...)
  local list = {}
  local funcinfo = require("jit.util").funcinfo
  local function watch(what, _, func, pc, code)
    if what == "abort" then
      local info = type(func) == "function" and funcinfo(func, pc) or {}
      if not transient[code] and (not info.source or info.source:find("lua/luda/", 1, true)) then
        list[#list + 1] = ("%s (%s)"):format(tostring(info.loc), tostring(code))
      end
    end
  end
  watched(watch, fn, ...)
  return list
end

--- Whether a loop of the function `loop` becomes machine code while fn(…) runs.
local function compiles(loop, fn, ...)
  local traceinfo = require("jit.util").traceinfo
  local begun, found = nil, false
  local function watch(what, trace, func)
    if what == "start" then
      begun = func
    elseif what == "stop" and begun == loop then
      found = found or traceinfo(trace).linktype == "loop"
    end
  end
  watched(watch, fn, ...)
  return found
end

local function adds(x, y, count)
  local z = x
  for _ = 1, count do
    z = x + y
  end
  return z
end

local function chain(x, y, count)
  local z = x
  for _ = 1, count do
    z = -(x * y - z / y) + 1
    z = (z ^ 2):tanh()
  end
  return z
end

describe("the compiler", function()
  before_each(function()
    helper.before()
    assert.is_true(jit.status())
  end)
  after_each(helper.after)

  it("takes x + y, 20,000 times in one scope", function()
    local x, y = luda.ones(8), luda.ones(8)
    assert.same({}, luda.scope(aborts, adds, x, y, 20000))
  end)

  it("takes x + y outside of scopes", function()
    local x, y = luda.ones(8), luda.ones(8)
    assert.same({}, aborts(adds, x, y, 2000))
  end)

  it("takes operators, numbers and methods mixed", function()
    local x, y = luda.ones(8), luda.full({ 8 }, 2)
    assert.same({}, luda.scope(aborts, chain, x, y, 3000))
  end)

  it("takes calls of a Function in Lua", function()
    local scaled = luda.autograd.Function {
      forward = function(ctx, x, y)
        ctx:save(y)
        return x * y
      end,
      backward = function(ctx, g) return g * ctx.saved[1] end,
    }
    local function calls(x, y, count)
      local z = x
      for _ = 1, count do
        z = scaled(x, y)
      end
      return z
    end
    local x, y = luda.ones(8, { requires_grad = true }), luda.ones(8)
    assert.is_true(compiles(calls, luda.scope, calls, x, y, 3000))
  end)

  it("takes loops over t:data(), also where the pointer is fetched each time", function()
    local function elements(x, y, count)
      for _ = 1, 20 do
        local from, to = x:data(), y:data()
        for i = 0, count - 1 do
          to[i] = to[i] + max(from[i], 0) * 0.5
        end
      end
      return y:data()[1]
    end
    local x, y = luda.tensor { 1, 2, -3, 4 }, luda.zeros(4)
    x, y = x:repeat_interleave(4096), y:repeat_interleave(4096)
    assert.same({}, aborts(elements, x, y, 16384))
    assert.is_true(compiles(elements, elements, x, y:clone(), 16384))
    assert.same({ 10, 20, 0, 40 }, { y[1]:item(), y[4097]:item(), y[8193]:item(), y[12289]:item() })
  end)

  it("takes loops around recorded operators", function()
    local x, y = luda.ones(8, { requires_grad = true }), luda.ones(8)
    assert.same({}, luda.scope(aborts, adds, x, y, 3000))
  end)
end)
