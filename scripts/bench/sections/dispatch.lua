--- What calling an operator costs where the work is nothing: ns an operator, on 1 and 64 floats.

local ffi = require "ffi"
local create = require "create"

local function tensors(n, recorded)
  return function()
    local x = create.randn(n)
    return { x = recorded and x:requires_grad_() or x, y = create.randn(n) }
  end
end

--- One call into C that allocates, adds and frees, and nothing of LUDA: what no library can be faster than.
local function bare(n)
  return function()
    local limits = require("limits").C
    return { x = ffi.new("float[?]", n), y = ffi.new("float[?]", n), run = limits.luda_limits_call }
  end
end

--- Operands of unlike shapes or types.
local function unlike(n, size, dtype)
  return function()
    return { x = create.randn(n), y = create.randn(size):to(dtype) }
  end
end

-- Columns: case, statement, sizes, the peer's case, operators in it.
local CASES = {
  { "x + y", "local _ = x + y", { 1, 64 }, "add" },
  { "x:add_(y)", "local _ = x:add_(y)", { 1, 64 }, "add_" },
  { "x * 2", "local _ = x * 2", { 1, 64 }, "mul_scalar" },
  { "exp", "local _ = x:exp()", { 1, 64 }, "exp" },
  { "sum", "local _ = x:sum()", { 1, 64 }, "sum" },
  { "item", "local _ = x:item()", { 1 }, "item" },
  { "view", "local _ = x:view(8, 8)", { 64 }, "view" },
}

-- What broadcasting, promotion, recording and the interpreter add: case, make, more fields of the row.
local ADD = "local _ = x + y"
local EXTRA = {
  { "one call that allocates, adds, frees, 64", bare(64), { outside = "local _ = run(x, y, 64)" } },
  { "x + y, 64, y of one element", unlike(64, 1, "f32"), { statement = ADD } },
  { "x + y, 64, y of f64", unlike(64, 64, "f64"), { statement = ADD } },
  { "x + y, 64, recorded, in a scope", tensors(64, true), { statement = ADD, peer = { case = "add_recorded", n = 64 } } },
  { "x + y, 64, in a scope, without the JIT", tensors(64), {
    statement = ADD, interpreted = true, peer = { case = "add", n = 64 },
  } },
}

return {
  dispatch = function(bench)
    for _, case in ipairs(EXTRA) do
      local row = { section = "dispatch", case = case[1], unit = "ns", make = case[2] }
      for key, value in pairs(case[3]) do
        row[key] = value
      end
      bench:measure(row)
    end
    for _, case in ipairs(CASES) do
      for _, n in ipairs(case[3]) do
        for _, place in ipairs { "in a scope", "outside" } do
          bench:measure {
            section = "dispatch", case = ("%s, %d, %s"):format(case[1], n, place), unit = "ns", make = tensors(n),
            [place == "outside" and "outside" or "statement"] = case[2], peer = { case = case[4], n = n },
          }
        end
      end
    end
  end,
}
