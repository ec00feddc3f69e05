--- What recording and backward cost where the work is nothing; functions with a backward of their own; loops over the
--- elements of a tensor in plain Lua; a chain of a million operators.

local ffi = require "ffi"
local luda = require "luda"
local chain = require "chain"
local create = require "create"
local limits = require "limits"
local loops = require "loops"

local autograd = luda.autograd

local MILLION = 1000000
local FEW = { samples = 3, threads = 1 }
local ELEMENTS = 4096 -- of a loop in Lua: both arrays are in the first-level cache

-- Ten recorded operators on 64 floats: case, code, the peer's name of it.
local CHAINS = {
  { "10 mul", "for _ = 1, 10 do z = z * w end", "mul" },
  { "10 of mul, add, tanh", "for _ = 1, 3 do z = (z * w + b):tanh() end; z = z * w", "mul, add, tanh" },
  { "10 of mul, add with numbers", "for _ = 1, 5 do z = z * 0.5 + 0.25 end", "numbers" },
}
local ENDS = {
  { "forward", "" },
  { "forward, backward", "; z:backward({ gradient = g })", backward = true },
  { "to a loss and back", "; local _ = z:sum():backward()[x]", loss = true },
}

local function operands(more)
  return function()
    local values = {
      x = create.randn(64):requires_grad_(), y = create.randn(64), w = create.randn(64), b = create.randn(64),
      g = create.ones(64),
    }
    for name, value in pairs(more or {}) do
      values[name] = value
    end
    return values
  end
end

local function chains(bench)
  for _, case in ipairs(CHAINS) do
    for _, ending in ipairs(ENDS) do
      bench:measure {
        section = "autograd", case = case[1] .. ": " .. ending[1], unit = "ns", make = operands(), operators = 10,
        step = "local z = x; " .. case[2] .. ending[2],
        peer = { case = "chain", n = 64, kind = case[3], backward = ending.backward, loss = ending.loss },
      }
    end
  end
end

-- Functions: ten in a chain against the operators that they are written with.

-- What is taken off: forward and backward as plain calls.
local SWISH = "local z, h = y, g; for _ = 1, 10 do z = run(z, 1) end; for _ = 1, 10 do h = run(h, 1) end"
local PLAIN = "local z, h = y, g; for _ = 1, 10 do z = z * w end; for _ = 1, 10 do h = h * w end"

local CHAIN = "local z = x; for _ = 1, 10 do z = run(%s) end; z:backward({ gradient = g })"

local function function_row(bench, case, fn, arguments, minus)
  bench:measure {
    section = "autograd", case = case, unit = "ns", operators = 10, make = operands { run = fn }, minus = minus,
    step = CHAIN:format(arguments), bounds = { limits.goal(10 * 1e-6) },
  }
end

--- examples/own_operator.c, where it is built.
local function native()
  ffi.cdef "luda_status own_swish(luda_tensor *x, double beta, luda_tensor **out);"
  local found, library = pcall(ffi.load, limits.folder .. "examples/libown_operator.so")
  return found and autograd.native(library.own_swish, { name = "swish" })
end

local function functions(bench)
  function_row(bench, "what a Function in Lua adds", autograd.Function {
    forward = function(ctx, x, w)
      ctx:save(w)
      return x * w
    end,
    backward = function(ctx, g)
      return g * ctx.saved[1]
    end,
  }, "z, w", PLAIN)
  local swish = native()
  if swish then
    -- its own two loops of exponentials are taken off with the calls: without a gradient they are run alone
    function_row(bench, "what a backward in C adds", swish, "z, 1", SWISH)
  else
    bench:skip("autograd", "what a backward in C adds", "build it: ninja -C build own_operator")
  end
  bench:measure {
    section = "autograd", case = "luda.profile.span while no profile runs", unit = "ns", operators = 10,
    make = operands { run = luda.profile.span, index = function() end },
    step = 'for _ = 1, 10 do run("s", index) end', minus = "for _ = 1, 10 do index() end",
  }
end

-- Elements.

local function elements(bench)
  local x, y = create.randn(ELEMENTS), create.randn(ELEMENTS)
  for number, loop in ipairs(loops) do
    local fn = loop[2]
    bench:measure {
      section = "autograd", case = "loop in Lua: " .. loop[1], unit = "ns", operators = ELEMENTS, outside = "run()",
      make = function()
        return { run = function()
          fn(x:data(), y:data(), ELEMENTS)
        end }
      end,
      bounds = { limits.scalar(number - 1, x:data(), y:data(), ELEMENTS) },
    }
  end
end

-- A million operators.

local function long_chain(bench)
  local count, result, leaf = MILLION, nil, nil
  local function timed(fn)
    local start = limits.now()
    fn()
    return (limits.now() - start) / count * 1e9
  end
  bench:sampled("autograd", "a chain of 1 M operators: forward", "ns", function()
    local took = timed(function()
      result, leaf = chain(count)
    end)
    result:release()
    return took
  end, FEW)
  bench:sampled("autograd", "a chain of 1 M operators: freeing", "ns", function()
    result = chain(count)
    return timed(function()
      result:release()
    end)
  end, FEW)
  bench:sampled("autograd", "a chain of 1 M operators: backward, freeing", "ns", function()
    result, leaf = chain(count)
    return timed(function()
      result:backward():release()
      result:release()
    end)
  end, FEW)
  leaf:release()
end

local function chain_memory(bench)
  local own = bench:apart("chain", MILLION)
  bench:add {
    section = "autograd", case = "a chain of 1 M operators: peak memory", dtype = "f32", threads = bench.options.threads,
    unit = "MB", value = own.peak - own.before, samples = 1, spread = 0,
  }
end

return {
  autograd = function(bench)
    chains(bench)
    functions(bench)
    if bench.options.device ~= "cpu" then
      return -- the rest is of the processor
    end
    elements(bench)
    if not bench.options.quick then
      bench:try("autograd", "a chain of 1 M operators", long_chain, bench)
      bench:try("autograd", "a chain of 1 M operators: peak memory", chain_memory, bench)
    end
  end,
}
