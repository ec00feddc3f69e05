--- Linear algebra against PyTorch in float64: values and gradients where signs and rotations of factors do not matter.

local luda = require "luda"
local helper = require "spec.helper"

local golden = helper.golden("linalg")

--- The formula of scripts/golden_linalg.py.
local function values(shape, seed)
  local list, count = {}, 1
  for _, size in ipairs(shape) do
    count = count * size
  end
  for k = 0, count - 1 do
    list[k + 1] = ((k * k * 5 + k * 7 + seed * 5) % 23 - 11) / 8
  end
  return luda.tensor(list, { dtype = "f64" }):reshape(shape)
end

local function turned(x)
  return x:transpose(-2, -1)
end

local function eye(x)
  return luda.eye(x:size(-2), { dtype = x.dtype })
end

local function symmetric(x)
  return x + turned(x)
end

local words = {
  luda = luda, math = math, select = select, symmetric = symmetric,
  positive = function(x) return x:matmul(turned(x)) + eye(x) end,
  lower = function(x) return x:tril(-1) + eye(x) * 2 end,
  low_rank = function(x)
    local u, s, vh = x:svd()
    return u:narrow(-1, 1, 2):matmul(s:narrow(-1, 1, 2):unsqueeze(-1) * vh:narrow(-2, 1, 2))
  end,
  projector = function(x, z)
    local _, v = symmetric(x):eigh()
    v = v:narrow(-1, 1, 2)
    return v:matmul(turned(v):matmul(z))
  end,
  q_times = function(x, z)
    local q = x:qr()
    return q:matmul(turned(q):matmul(z))
  end,
}

local function weights_of(y)
  local list = {}
  for k = 1, y.numel do
    list[k] = ({ 1, -2, 3 })[(k - 1) % 3 + 1]
  end
  return luda.tensor(list, { dtype = "f64" }):reshape(y.shape)
end

describe("PyTorch's linear algebra", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, case in ipairs(golden.cases) do
    local shapes = {}
    for i, shape in ipairs(case.inputs) do
      shapes[i] = "[" .. table.concat(shape, ", ") .. "]"
    end
    it(("%s of %s"):format(case.lua, table.concat(shapes, " and ")), function()
      local fn = setfenv(assert(loadstring("local x, z = ... return " .. case.lua)), words)
      local inputs = {}
      for i, shape in ipairs(case.inputs) do
        inputs[i] = values(shape, i):requires_grad_()
      end
      local results = { fn(unpack(inputs)) }
      assert.equal(#case.y, #results)
      for i, y in ipairs(results) do
        assert.tensor_near(case.y[i], y:reshape(-1), 1e-10, 1e-11)
      end
      local y = results[#results]
      assert.same(case.shape, y.shape)
      local grads = luda.autograd.grad(y, inputs, { gradient = weights_of(y) })
      for i, grad in ipairs(grads) do
        assert.same(case.inputs[i], grad.shape)
        assert.tensor_near(case.grads[i], grad:reshape(-1), 1e-8, 1e-9)
      end
      -- The same in f32, of matrices that lie otherwise in memory.
      local singles = {}
      for i, input in ipairs(inputs) do
        singles[i] = input:detach():to("f32")
        if input.ndim > 1 then
          singles[i] = turned(turned(singles[i]):contiguous())
        end
      end
      luda.no_grad(function()
        for i, single in ipairs { fn(unpack(singles)) } do
          if single.dtype == "f32" then
            assert.tensor_near(case.y[i], single:reshape(-1), 2e-3, 2e-3)
          end
        end
      end)
    end)
  end
end)
