--- What calling an operator costs where the work is nothing: ns an operator, on 1 and 64 floats.

local create = require "create"

local function tensors(n, recorded)
  return function()
    local x = create.randn(n)
    return { x = recorded and x:requires_grad_() or x, y = create.randn(n), w = create.randn(n), g = create.ones(n) }
  end
end

local CHAIN = "local z = x; for _ = 1, 10 do z = z * w end"

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
local CHAINS = {
  { "mul chain, forward", CHAIN, false },
  { "mul chain, forward + backward", CHAIN .. "; z:backward({ gradient = g })", true },
}

return {
  dispatch = function(bench)
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
    for _, case in ipairs(CHAINS) do
      bench:measure {
        section = "dispatch", case = case[1] .. ", 64", unit = "ns", make = tensors(64, true), operators = 10,
        step = case[2], peer = { case = "chain", n = 64, backward = case[3] },
      }
    end
  end,
}
