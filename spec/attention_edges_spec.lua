--- Attention at its edges: queries that see no key, masks, heads that share keys and values, unequal widths.

local luda = require "luda"
local helper = require "spec.helper"

local nan, inf = 0 / 0, math.huge
local attend = luda.nn.scaled_dot_product_attention

local function leaf(values, options)
  return luda.tensor(values, options):requires_grad_()
end

--- softmax(q k^T scale) v and its gradients for the gradient g, in plain numbers: q, k, v, g lists [heads][rows][width];
-- sees(t, s) says which keys a query sees. Query head h uses the head of keys that `head_of` names.
local function twin(q, k, v, g, sees, head_of)
  local out, dq, dk, dv = {}, {}, {}, {}
  local function zeros(list, width)
    local made = {}
    for i = 1, #list do
      made[i] = {}
      for j = 1, width do
        made[i][j] = 0
      end
    end
    return made
  end
  for h = 1, #k do
    dk[h], dv[h] = zeros(k[h], #k[h][1]), zeros(v[h], #v[h][1])
  end
  for h = 1, #q do
    local of, width, value_width = head_of(h), #q[h][1], #v[1][1]
    out[h], dq[h] = zeros(q[h], value_width), zeros(q[h], width)
    for t = 1, #q[h] do
      local p, dp, total, dot = {}, {}, 0, 0
      for s = 1, #k[of] do
        if sees(t, s) then
          local score = 0
          for d = 1, width do
            score = score + q[h][t][d] * k[of][s][d]
          end
          p[s] = math.exp(score / math.sqrt(width))
          total = total + p[s]
        end
      end
      for s in pairs(p) do
        p[s], dp[s] = p[s] / total, 0
        for e = 1, value_width do
          out[h][t][e] = out[h][t][e] + p[s] * v[of][s][e]
          dp[s] = dp[s] + g[h][t][e] * v[of][s][e]
          dv[of][s][e] = dv[of][s][e] + p[s] * g[h][t][e]
        end
        dot = dot + p[s] * dp[s]
      end
      for s in pairs(p) do
        local ds = p[s] * (dp[s] - dot) / math.sqrt(width)
        for d = 1, width do
          dq[h][t][d] = dq[h][t][d] + ds * k[of][s][d]
          dk[of][s][d] = dk[of][s][d] + ds * q[h][t][d]
        end
      end
    end
  end
  return out, dq, dk, dv
end

local function causal(queries, keys)
  return function(t, s) return s <= t + keys - queries end
end

local function all() return true end

local function dirty()
  for _ = 1, 4 do
    luda.full({ 8 * 37 * 104 }, nan):release()
    luda.full({ 64 }, nan):release()
  end
end

describe("a query that sees no key", function()
  before_each(helper.before)
  after_each(helper.after)

  it("gives 0 and no gradient, by a mask", function()
    local mask = luda.tensor { { true, true }, { false, false } }
    local added = luda.tensor { { 0, 0 }, { -inf, -inf } }
    for _, options in ipairs { { attn_mask = mask, scale = 1 }, { attn_mask = added, scale = 1 } } do
      for _, above in ipairs { 7, inf, nan } do
        local q, k, v = leaf { { 1 }, { 1 } }, leaf { { 1 }, { 1 } }, leaf { { 1 }, { 3 } }
        local out = attend(q, k, v, options)
        assert.same({ { 2 }, { 0 } }, out:totable())
        local grads = out:backward { gradient = luda.tensor { { 1 }, { above } } }
        assert.same({ { 0.5 }, { 0.5 } }, grads[v]:totable())
        assert.same({ { -0.5 }, { 0.5 } }, grads[k]:totable())
        assert.same({ { 0 }, { 0 } }, grads[q]:totable())
      end
    end
  end)

  it("gives 0 and no gradient, where causal queries are more than the keys", function()
    for _, above in ipairs { 7, inf, nan } do
      for _, dtype in ipairs { "f32", "f64" } do
        local q, k = leaf({ { 1 }, { 1 }, { 1 } }, { dtype = dtype }), leaf({ { 1 }, { 1 } }, { dtype = dtype })
        local v = leaf({ { 1 }, { 3 } }, { dtype = dtype })
        dirty()
        local out = attend(q, k, v, { is_causal = true, scale = 1 })
        assert.same({ { 0 }, { 1 }, { 2 } }, out:totable())
        local grads = out:backward { gradient = luda.tensor({ { above }, { 10 }, { 1 } }, { dtype = dtype }) }
        assert.tensor_near({ { 10.5 }, { 0.5 } }, grads[v], 1e-7, 0)
        assert.tensor_near({ { -0.5 }, { 0.5 } }, grads[k], 1e-7, 0)
        assert.tensor_near({ { 0 }, { 0 }, { 0 } }, grads[q], 0, 0)
      end
    end
  end)
end)

describe("second derivatives of causal attention", function()
  before_each(helper.before)
  after_each(helper.after)

  it("leave out queries that see no key", function()
    local options = { dtype = "f64" }
    local q, k = luda.randn(1, 5, 3, options):requires_grad_(), luda.randn(1, 3, 3, options):requires_grad_()
    local v = luda.randn(1, 3, 2, options):requires_grad_()
    assert.is_true(luda.autograd.gradcheck(function(a, b, c) return attend(a, b, c, { is_causal = true }) end, { q, k, v },
      { second = true }))
  end)
end)

describe("a mask", function()
  before_each(helper.before)
  after_each(helper.after)

  it("that is causal says what is_causal says, broadcast over the heads", function()
    for _, dtype in ipairs { "f32", "bf16" } do
      local q, k, v = luda.randn(2, 3, 5, 4):to(dtype), luda.randn(2, 3, 7, 4):to(dtype), luda.randn(2, 3, 7, 2):to(dtype)
      local mask = luda.ones(5, 7, { dtype = "bool" }):tril(2)
      local rtol = dtype == "f32" and 1e-5 or 1e-2
      local want, have = attend(q, k, v, { is_causal = true }), attend(q, k, v, { attn_mask = mask })
      assert.equal(dtype, have.dtype)
      assert.tensor_near(want, have, rtol, rtol)
      local added = luda.where(mask, 0, -inf)
      assert.tensor_near(have, attend(q, k, v, { attn_mask = added }), rtol, rtol)
    end
  end)

  it("has the gradients of differences, of both orders, and one itself where it is added", function()
    local options = { dtype = "f64" }
    local q, k, v = luda.randn(2, 4, 3, options), luda.randn(2, 5, 3, options), luda.randn(2, 5, 2, options)
    local bias = luda.randn(4, 5, options)
    assert.is_true(luda.autograd.gradcheck(function(a, b, c, d)
      return attend(a, b, c, { attn_mask = d })
    end, { q:requires_grad_(), k:requires_grad_(), v:requires_grad_(), bias:requires_grad_() }, { second = true }))
    local mask = luda.tensor { true, false, true, true, false }
    assert.is_true(luda.autograd.gradcheck(function(a, b, c)
      return attend(a, b, c, { attn_mask = mask, dropout_p = 0.3, generator = luda.generator(4) })
    end, { q, k, v }, { second = true }))
  end)

  it("is refused where it is none", function()
    local x = luda.ones(1, 2, 3, 4)
    assert.raises("dtype", "attn_mask is a tensor of bool.*not i64", attend, x, x, x, { attn_mask = luda.tensor { 1LL } })
    assert.raises("dtype", "not true", attend, x, x, x, { attn_mask = true })
    assert.raises("invalid", "are two masks", attend, x, x, x, { attn_mask = luda.ones(3, 3), is_causal = true })
    assert.raises("shape", "", attend, x, x, x, { attn_mask = luda.ones(3, 2) })
    assert.raises("invalid", "unknown option 'mask'; it knows attn_mask, dropout_p, enable_gqa", attend, x, x, x,
      { attn_mask = luda.ones(3, 3), mask = 1 })
  end)
end)

describe("heads that share keys and values", function()
  before_each(helper.before)
  after_each(helper.after)

  it("are consecutive, and their gradients add up in every place", function()
    for _, row in ipairs { { 4, 2, { 3, 7 } }, { 6, 2, { 6, 15 } }, { 8, 1, { 36 } }, { 3, 3, { 1, 2, 3 } } } do
      local heads, few, want = unpack(row)
      for _, is_causal in ipairs { false, true } do
        local q, k = luda.ones(1, heads, 1, 4):requires_grad_(), luda.ones(1, few, 1, 4):requires_grad_()
        local v = luda.arange(few):reshape(1, few, 1, 1):clone():requires_grad_()
        dirty()
        local out = attend(q, k, v, { enable_gqa = true, is_causal = is_causal })
        local values, list = {}, {}
        for h = 1, heads do
          values[h], list[h] = math.floor((h - 1) * few / heads), h
        end
        assert.same(values, out:reshape(heads):totable())
        local grads = out:backward { gradient = luda.tensor(list):reshape(1, heads, 1, 1) }
        assert.same(want, grads[v]:reshape(few):totable())
        assert.same({ 1, few, 1, 4 }, grads[k].shape)
        assert.equal(0, grads[k]:abs():sum():item())
        assert.equal(0, grads[q]:abs():sum():item())
      end
    end
  end)

  for _, row in ipairs { { 4, 2, 72, 8, 5, 7 }, { 6, 2, 104, 31, 9, 9 }, { 8, 1, 16, 104, 3, 37 }, { 4, 4, 7, 72, 6, 4 } } do
    local heads, few, width, value_width, queries, keys = unpack(row)
    for _, is_causal in ipairs { false, true } do
      it(("equal their twin in plain numbers: %d on %d, widths %d and %d, causal %s"):format(heads, few, width, value_width,
        tostring(is_causal)), function()
        luda.manual_seed(heads * 10 + few)
        local q = luda.randn(1, queries, heads, width):transpose(2, 3):detach():requires_grad_() -- as projections leave it
        local k, v = luda.randn(1, few, keys, width):requires_grad_(), luda.randn(1, few, keys, value_width):requires_grad_()
        local g = luda.randn(1, heads, queries, value_width)
        local sees = is_causal and causal(queries, keys) or all
        local out, dq, dk, dv = twin(q[1]:totable(), k[1]:totable(), v[1]:totable(), g[1]:totable(), sees, function(h)
          return math.floor((h - 1) * few / heads) + 1
        end)
        dirty()
        local mask = luda.ones(queries, keys, { dtype = "bool" }):tril(is_causal and keys - queries or keys)
        for _, options in ipairs { { is_causal = is_causal, enable_gqa = true }, { attn_mask = mask, enable_gqa = true } } do
          local y = attend(q, k, v, options)
          assert.tensor_near({ out }, y, 1e-4, 1e-5)
          local grads = y:backward { gradient = g }
          assert.tensor_near({ dq }, grads[q], 1e-4, 2e-5)
          assert.tensor_near({ dk }, grads[k], 1e-4, 2e-5)
          assert.tensor_near({ dv }, grads[v], 1e-4, 2e-5)
        end
      end)
    end
  end

  it("have the gradients of differences, of both orders, with dropout too", function()
    local options = { dtype = "f64" }
    local q, k = luda.randn(2, 4, 3, 2, options):requires_grad_(), luda.randn(2, 2, 3, 2, options):requires_grad_()
    local v = luda.randn(2, 2, 3, 1, options):requires_grad_()
    for _, is_causal in ipairs { false, true } do
      assert.is_true(luda.autograd.gradcheck(function(a, b, c)
        return attend(a, b, c, { enable_gqa = true, is_causal = is_causal, dropout_p = 0.3, generator = luda.generator(4) })
      end, { q, k, v }, { second = true }))
    end
  end)

  it("drop the same weights as repeated keys and values do", function()
    local q, k, v = luda.randn(1, 4, 6, 3), luda.randn(1, 2, 6, 3), luda.randn(1, 2, 6, 3)
    for _, is_causal in ipairs { false, true } do
      local function options(shared)
        return { is_causal = is_causal, dropout_p = 0.5, generator = luda.generator(7), enable_gqa = shared }
      end
      local repeated = attend(q, k:repeat_interleave(2, 2), v:repeat_interleave(2, 2), options(nil))
      assert.tensor_near(repeated, attend(q, k, v, options(true)), 1e-5, 1e-6)
    end
  end)

  it("are refused where they cannot be shared evenly, and where nobody asked", function()
    local q, k = luda.ones(1, 4, 2, 3), luda.ones(1, 3, 2, 3)
    assert.raises("shape", "4 heads of queries cannot share 3 heads of keys and 3 of values", attend, q, k, k,
      { enable_gqa = true })
    assert.raises("shape", "", attend, q, luda.ones(1, 2, 2, 3), luda.ones(1, 2, 2, 3))
    local flat = luda.ones(2, 3)
    assert.raises("shape", "grouped heads need", attend, flat, flat, flat, { enable_gqa = true })
    assert.raises("invalid", "enable_gqa is true or false, not 1", attend, q, q, q, { enable_gqa = 1 })
  end)
end)

describe("a layer with fewer heads of keys and values", function()
  before_each(helper.before)
  after_each(helper.after)

  it("equals a full one whose keys and values are repeated, and its gradients are sums over them", function()
    luda.manual_seed(21)
    local width, heads, few, size = 12, 4, 2, 3
    for _, is_causal in ipairs { true, false } do
      local shared = luda.nn.MultiheadAttention(width, heads, { causal = is_causal, kv_heads = few }):to_dtype("f64")
      local full = luda.nn.MultiheadAttention(width, heads, { causal = is_causal }):to_dtype("f64")
      assert.same({ width, width + 2 * few * size }, shared.qkv.weight.shape)
      local function repeated(t, dim) -- [.., q, k, v] with each head of k and v twice
        local k, v = t:narrow(dim, 13, 6), t:narrow(dim, 19, 6)
        local function twice(part)
          local a, b = part:narrow(dim, 1, size), part:narrow(dim, size + 1, size)
          return luda.cat({ a, a, b, b }, dim)
        end
        return luda.cat({ t:narrow(dim, 1, width), twice(k), twice(v) }, dim)
      end
      full:load_state {
        ["qkv.weight"] = repeated(shared.qkv.weight:detach(), 2), ["qkv.bias"] = repeated(shared.qkv.bias:detach(), 1),
        ["projection.weight"] = shared.projection.weight:detach(), ["projection.bias"] = shared.projection.bias:detach(),
      }
      local x, g = luda.randn(2, 5, width, { dtype = "f64" }), luda.randn(2, 5, width, { dtype = "f64" })
      for _, inputs in ipairs { { x }, is_causal and { x } or { x, luda.randn(2, 7, width, { dtype = "f64" }) } } do
        local y = shared(unpack(inputs))
        assert.tensor_near(full(unpack(inputs)), y, 1e-10, 1e-12)
        local weight = y:backward { gradient = g }[shared.qkv.weight]
        local wide = full(unpack(inputs)):backward { gradient = g }[full.qkv.weight]
        assert.tensor_near(wide:narrow(2, 1, width), weight:narrow(2, 1, width), 1e-10, 1e-12)
        assert.tensor_near(wide:narrow(2, 13, size) + wide:narrow(2, 16, size), weight:narrow(2, 13, size), 1e-10, 1e-12)
        assert.tensor_near(wide:narrow(2, 31, size) + wide:narrow(2, 34, size), weight:narrow(2, 22, size), 1e-10, 1e-12)
      end
    end
    assert.raises("invalid", "4 heads cannot share 3 heads", luda.nn.MultiheadAttention, 12, 4, { kv_heads = 3 })
    local gpt = luda.nn.GPT { vocab = 5, context = 4, layers = 1, heads = 4, width = 8, kv_heads = 1 }
    assert.same({ 8, 12 }, gpt.blocks[1].attention.qkv.weight.shape)
    local loss = gpt(luda.tensor { { 1LL, 2LL, 3LL } }, luda.tensor { { 2LL, 3LL, 4LL } })
    assert.is_truthy(loss:backward()[gpt.blocks[1].attention.qkv.weight])
  end)
end)
