--- Attention with dropout on its weights: the mask is replayed in backward, fused and composed.

local luda = require "luda"
local helper = require "spec.helper"

describe("attention with dropout", function()
  before_each(helper.before)
  after_each(helper.after)

  local function leaves(...)
    local list = {}
    for i, shape in ipairs { ... } do
      list[i] = (luda.randn(shape, { dtype = "f64" })):requires_grad_()
    end
    return list
  end

  --- The same mask at every call.
  local function dropped(q, k, v)
    return luda.scaled_dot_product_attention(q, k, v, { is_causal = true, dropout_p = 0.4, generator = luda.generator(9) })
  end

  it("has the gradients of differences, of first and second order", function()
    luda.scope(function()
      luda.manual_seed(3)
      assert.is_true(luda.autograd.gradcheck(dropped, leaves({ 2, 5, 3 }, { 2, 5, 3 }, { 2, 5, 2 }), { second = true }))
    end)
  end)

  it("drops whole weights and scales the others", function()
    luda.scope(function()
      -- Equal scores over 500 keys: each weight is 1/500, kept with probability 0.6 and divided by it; v is the identity.
      local n = 500
      local zeros = luda.zeros(1, n, 1)
      local out = luda.scaled_dot_product_attention(zeros, zeros, luda.eye(n):unsqueeze(1), {
        dropout_p = 0.4, generator = luda.generator(9),
      })
      local kept = out:gt(0):to("f32"):mean():item()
      assert.is_true(math.abs(kept - 0.6) < 0.005, ("%g of the weights were kept"):format(kept))
      assert.tensor_near({ 1 / 500 / 0.6 }, luda.amax(out):reshape(1), 1e-5, 0)
    end)
  end)
end)
