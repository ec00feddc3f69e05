--- Calls written in Lua whose results PyTorch computed (scripts/golden_products.py), checked with their gradients.

local assert = require "luassert"
local luda = require "luda"
local helper = require "spec.helper"

local M = {}

local golden = helper.golden("products")

local values = helper.eighths

--- A cell with the given weights; its other bias is zero.
local function cell_of(class, weight_ih, weight_hh, bias, nonlinearity)
  local width = weight_hh.shape[2]
  local cell = class(weight_ih.shape[2], width, nonlinearity and { nonlinearity = nonlinearity })
  cell.weight_ih, cell.weight_hh, cell.bias_ih = weight_ih, weight_hh, bias
  cell.bias_hh = luda.nn.parameter(luda.zeros(bias.shape[1], { dtype = bias.dtype }))
  return cell
end

--- The tensors by name, made when they are named.
local function environment(dtype, used)
  local fixed = {
    luda = luda, nn = luda.nn, fft = luda.fft, math = math, select = select, cell_of = cell_of,
    i64 = function(list) return luda.tensor(list, { dtype = "i64" }) end,
  }
  return setmetatable(fixed, {
    __index = function(_, name)
      for seed, entry in ipairs(golden.shapes) do
        if entry[1] == name and not used[name] then
          used[name] = values(entry[2], seed, dtype):requires_grad_()
        end
      end
      return used[name]
    end,
  })
end

local function check(case, dtype, bound)
  local used = {}
  local y = setfenv(assert(loadstring("return (" .. case.lua .. ")")), environment(dtype, used))()
  assert.same(case.shape, y.shape)
  assert.equal(dtype, y.dtype)
  local function wanted(list, like)
    return luda.tensor(list, { dtype = "f64" }):reshape(like.shape)
  end
  assert.tensor_near(wanted(case.y, y), y, bound, bound)
  local names, leaves = {}, {}
  for name, t in pairs(used) do
    names[#names + 1], leaves[#leaves + 1] = name, t
  end
  local grads = luda.autograd.grad(y, leaves, { gradient = values(y.shape, 4, dtype), allow_unused = true })
  for i, name in ipairs(names) do
    if case.grads[name] then
      assert.tensor_near(wanted(case.grads[name], leaves[i]), grads[i], 4 * bound, 4 * bound)
    end
  end
end

--- One test for each call of a group and element type, and one of second order for every `sparse`th call. `spec` is the
-- environment of a spec file.
function M.run(spec, group, sparse)
  local it = spec.it
  spec.describe("PyTorch's values", function()
    spec.before_each(helper.before)
    spec.after_each(helper.after)

    for number, case in ipairs(golden[group]) do
      for dtype, bound in pairs { f64 = 1e-10, f32 = 3e-5 } do
        it(("of %s, %s"):format(case.lua, dtype), function()
          check(case, dtype, bound)
        end)
      end
      if number % sparse == 0 then
        it("and gradients of both orders of " .. case.lua, function()
          local used = {}
          local fn = assert(loadstring("return (" .. case.lua .. ")"))
          setfenv(fn, environment("f64", used))()
          local names, leaves = {}, {}
          for name, t in pairs(used) do
            names[#names + 1], leaves[#leaves + 1] = name, t
          end
          luda.autograd.gradcheck(function(...)
            local given = {}
            for i, name in ipairs(names) do
              given[name] = select(i, ...)
            end
            return setfenv(fn, environment("f64", given))()
          end, leaves, { second = true, eps = 1e-5, atol = 1e-5, rtol = 1e-4 })
        end)
      end
    end
  end)
end

return M
