--- GPT: its numbers against a twin in plain Lua, its gradient against differences, and what it writes.

local luda = require "luda"
local helper = require "spec.helper"
local nn = luda.nn

local TINY = { vocab = 5, context = 4, layers = 2, heads = 2, width = 4, mlp = 2 }

--- A tiny model in float64 whose weights are large enough to matter.
local function tiny(changes)
  local options = {}
  for name, value in pairs(TINY) do
    options[name] = value
  end
  for name, value in pairs(changes or {}) do
    options[name] = value
  end
  luda.manual_seed(7)
  local model = nn.GPT(options):to_dtype("f64")
  luda.no_grad(function()
    for path, parameter in model:named_parameters() do
      if parameter.ndim == 2 then
        parameter:mul_(20)
      elseif path:find("bias$") then
        parameter:add_(luda.randn(parameter.shape):to("f64") * 0.3)
      end
    end
  end)
  return model
end

-- The twin: tables of rows.

local function multiply(x, weight, bias)
  local y = {}
  for t, row in ipairs(x) do
    y[t] = {}
    for j = 1, #weight[1] do
      local sum = bias and bias[j] or 0
      for i, value in ipairs(row) do
        sum = sum + value * weight[i][j]
      end
      y[t][j] = sum
    end
  end
  return y
end

local function normalize(x, weight, bias)
  local y = {}
  for t, row in ipairs(x) do
    local mean, variance = 0, 0
    for _, value in ipairs(row) do
      mean = mean + value / #row
    end
    for _, value in ipairs(row) do
      variance = variance + (value - mean) ^ 2 / #row
    end
    y[t] = {}
    for i, value in ipairs(row) do
      y[t][i] = (value - mean) / math.sqrt(variance + 1e-5) * weight[i] + bias[i]
    end
  end
  return y
end

local function add(x, y)
  local z = {}
  for t, row in ipairs(x) do
    z[t] = {}
    for i, value in ipairs(row) do
      z[t][i] = value + y[t][i]
    end
  end
  return z
end

local function attend(joined, heads)
  local width = #joined[1] / 3
  local size, y = width / heads, {}
  for t = 1, #joined do
    y[t] = {}
    for h = 0, heads - 1 do
      local weights, total = {}, 0
      for s = 1, t do
        local dot = 0
        for d = h * size + 1, (h + 1) * size do
          dot = dot + joined[t][d] * joined[s][width + d]
        end
        weights[s] = math.exp(dot / math.sqrt(size))
        total = total + weights[s]
      end
      for d = h * size + 1, (h + 1) * size do
        local sum = 0
        for s = 1, t do
          sum = sum + weights[s] / total * joined[s][2 * width + d]
        end
        y[t][d] = sum
      end
    end
  end
  return y
end

local function gelu(x)
  local y = {}
  for t, row in ipairs(x) do
    y[t] = {}
    for i, v in ipairs(row) do
      y[t][i] = 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v ^ 3)))
    end
  end
  return y
end

--- Logits of one sequence, from the state as tables.
local function twin(p, ids, options)
  local x = {}
  for t, id in ipairs(ids) do
    x[t] = {}
    for i = 1, options.width do
      x[t][i] = p["tokens.weight"][id][i] + p["positions.weight"][t][i]
    end
  end
  for b = 1, options.layers do
    local function of(name)
      return p["blocks." .. b .. "." .. name .. ".weight"], p["blocks." .. b .. "." .. name .. ".bias"]
    end
    local joined = multiply(normalize(x, of("norm1")), of("attention.qkv"))
    x = add(x, multiply(attend(joined, options.heads), of("attention.projection")))
    x = add(x, multiply(gelu(multiply(normalize(x, of("norm2")), of("up"))), of("down")))
  end
  x = normalize(x, p["norm.weight"], p["norm.bias"])
  if p["head.weight"] then
    return multiply(x, p["head.weight"])
  end
  local logits = {}
  for t, row in ipairs(x) do
    logits[t] = {}
    for v, embedding in ipairs(p["tokens.weight"]) do
      local sum = 0
      for i, value in ipairs(row) do
        sum = sum + value * embedding[i]
      end
      logits[t][v] = sum
    end
  end
  return logits
end

local function cross_entropy(logits, targets)
  local total = 0
  for t, row in ipairs(logits) do
    local sum = 0
    for _, value in ipairs(row) do
      sum = sum + math.exp(value)
    end
    total = total + math.log(sum) - row[targets[t]]
  end
  return total / #targets
end

local function tables_of(model)
  local tables = {}
  for path, tensor in pairs(model:state()) do
    tables[path] = tensor:totable()
  end
  return tables
end

local function ids(list)
  return luda.tensor(list, { dtype = "i64" })
end

describe("a GPT", function()
  before_each(helper.before)
  after_each(helper.after)

  it("has the parts and the number of parameters that its options say", function()
    local model = nn.GPT { vocab = 65, context = 32, layers = 2, heads = 4, width = 16 }
    local block = 2 * 2 * 16 + (16 * 48 + 48) + (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16)
    assert.equal(65 * 16 + 32 * 16 + 2 * block + 2 * 16, model:count())
    assert.equal(2 + 2 * 12 + 2, #model:parameters())
    local plain = nn.GPT { vocab = 65, context = 32, layers = 2, heads = 4, width = 16, bias = false, tied = false }
    assert.equal(2 * 65 * 16 + 32 * 16 + 2 * (2 * 16 + 16 * 48 + 16 * 16 + 2 * 16 * 64) + 16, plain:count())
    local rms = nn.GPT { vocab = 65, context = 32, layers = 2, heads = 4, width = 16, norm = "rms" }
    assert.equal(model:count() - 5 * 16, rms:count())
    assert.raises("invalid", "width must be a whole number", nn.GPT, { vocab = 5, context = 4, layers = 1, heads = 1 })
    assert.raises("invalid", "unknown option 'depth'", nn.GPT, { depth = 5 })
    assert.raises("invalid", "norm is 'layer' or 'rms', not the string 'batch'", nn.GPT,
      { vocab = 5, context = 4, layers = 1, heads = 1, width = 4, norm = "batch" })
  end)

  it("starts near the loss of guessing, with the deviations of its kind", function()
    luda.manual_seed(1)
    local model = nn.GPT { vocab = 65, context = 32, layers = 8, heads = 4, width = 64 }
    local x, y = luda.randint(1, 66, { 4, 32 }), luda.randint(1, 66, { 4, 32 })
    assert.same({ 4, 32, 65 }, model(x).shape)
    assert.near(math.log(65), model(x, y):item(), 0.1)
    local function deviation(t)
      return math.sqrt(t:square():mean():item())
    end
    assert.near(0.02, deviation(model.tokens.weight), 0.001)
    assert.near(0.02, deviation(model.blocks[3].up.weight), 0.001)
    assert.near(0.005, deviation(model.blocks[3].down.weight), 0.0003)
    assert.near(0.005, deviation(model.blocks[3].attention.projection.weight), 0.0003)
    assert.equal(0, deviation(model.blocks[3].up.bias))
    assert.equal(1, deviation(model.norm.weight))
  end)

  it("equals its twin in plain numbers", function()
    local model = tiny()
    local p = tables_of(model)
    local x, y = { { 1, 5, 3, 2 }, { 4, 4, 1, 5 } }, { { 5, 3, 2, 1 }, { 4, 1, 5, 2 } }
    local first, second = twin(p, x[1], TINY), twin(p, x[2], TINY)
    assert.tensor_near({ first, second }, model(ids(x)), 1e-9, 1e-10)
    local loss = (cross_entropy(first, y[1]) + cross_entropy(second, y[2])) / 2
    assert.near(loss, model(ids(x), ids(y)):item(), 1e-10)
    assert.is_true(math.abs(loss - math.log(5)) > 0.1) -- far from guessing, so that the comparison means something
    assert.tensor_near({ twin(p, { 2, 2 }, TINY) }, model(ids { { 2, 2 } }), 1e-9, 1e-10)
  end)

  it("has the gradient that differences give, for every parameter", function()
    local model = tiny()
    local x, y = ids { { 1, 5, 3, 2 }, { 4, 4, 1, 5 } }, ids { { 5, 3, -100, 1 }, { 4, 1, 5, 2 } }
    local factor = -1.7
    local grads = (model(x, y) * factor):backward()
    assert.equal(#model:parameters(), grads:len())
    local function loss()
      return luda.scope(luda.no_grad, function() return model(x, y):item() * factor end)
    end
    for path, parameter in model:named_parameters() do
      local data, gradient = parameter:data(), grads[parameter]:contiguous()
      for i = 0, parameter.numel - 1, math.max(math.floor(parameter.numel / 5), 1) do
        local value = data[i]
        data[i] = value + 1e-6
        local above = loss()
        data[i] = value - 1e-6
        local below = loss()
        data[i] = value
        assert.near((above - below) / 2e-6, gradient:data()[i], 1e-6, path .. " at " .. i)
      end
    end
  end)

  it("uses an own head when it is not tied, and ids from its base", function()
    local model = tiny { tied = false, base = 0 }
    assert.tensor_near({ twin(tables_of(model), { 1, 5 }, TINY) }, model(ids { { 0, 4 } }), 1e-9, 1e-10)
    assert.raises("index", "", model, ids { { 5 } })
    assert.equal(29, model(ids { { 0 } }):sum():backward():len())
  end)

  it("draws dropout only in training", function()
    local model = tiny { dropout = 0.4 }
    local x = ids { { 1, 5, 3, 2 } }
    local a, b = model(x), model(x)
    assert.is_false(a:equal(b))
    model:eval()
    assert.is_true(model(x):equal(model(x)))
    assert.tensor_near({ twin(tables_of(model), { 1, 5, 3, 2 }, TINY) }, model(x), 1e-9, 1e-10)
  end)

  it("refuses ids that do not fit", function()
    local model = tiny()
    assert.raises("shape", "5 tokens in a row; the context has 4", model, ids { { 1, 1, 1, 1, 1 } })
    assert.raises("shape", "ids are a tensor %[B, T%]", model, ids { 1, 2 })
    assert.raises("index", "", model, ids { { 6 } })
  end)
end)

describe("generate", function()
  before_each(helper.before)
  after_each(helper.after)

  it("at temperature 0 takes the likeliest, over a window of the context", function()
    local model = tiny()
    local written = model:generate({ 1, 2 }, 6, { temperature = 0 }):totable()
    assert.equal(8, #written)
    for place = 3, 8 do
      local window = {}
      for k = math.max(place - 4, 1), place - 1 do
        window[#window + 1] = written[k]
      end
      local logits = twin(tables_of(model), window, TINY)
      local last, best = logits[#logits], 1
      for v = 2, 5 do
        if last[v] > last[best] then
          best = v
        end
      end
      assert.equal(best, written[place])
    end
    assert.same(written, model:generate({ 1, 2 }, 6, { top_k = 1 }):totable())
  end)

  it("is a function of the generator", function()
    local model = tiny()
    local function write(seed, more)
      local options = { generator = luda.generator(seed) }
      for name, value in pairs(more or {}) do
        options[name] = value
      end
      return model:generate(ids { { 1, 2 }, { 3, 4 } }, 30, options):totable()
    end
    assert.same(write(1), write(1))
    assert.is_not.same(write(1), write(2))
    for _, row in ipairs(write(1)) do
      for _, id in ipairs(row) do
        assert.is_true(id >= 1 and id <= 5)
      end
    end
  end)

  it("follows the probabilities, sharpened by temperature and cut by top_k", function()
    local model = tiny { context = 1 }
    local logits = twin(tables_of(model), { 3 }, TINY)[1]
    local order = { 1, 2, 3, 4, 5 }
    table.sort(order, function(a, b) return logits[a] > logits[b] end)
    local prompt, count = luda.full({ 2000, 1 }, 3, { dtype = "i64" }), {}
    for _, row in ipairs(model:generate(prompt, 1, { temperature = 2, top_k = 2, generator = luda.generator(4) }):totable()) do
      count[row[2]] = (count[row[2]] or 0) + 1
    end
    local a, b = math.exp(logits[order[1]] / 2), math.exp(logits[order[2]] / 2)
    assert.equal(2000, (count[order[1]] or 0) + (count[order[2]] or 0))
    assert.near(2000 * a / (a + b), count[order[1]] or 0, 90)
  end)

  it("gives the mode back, keeps dimensions, and honours the base", function()
    local model = tiny { base = 0, dropout = 0.5 }
    assert.same({ 1, 3 }, model:generate(ids { { 0 } }, 2).shape)
    assert.same({ 3 }, model:generate(ids { 0 }, 2).shape)
    assert.is_true(model.training)
    for _, id in ipairs(model:generate({ 0 }, 20):totable()) do
      assert.is_true(id >= 0 and id <= 4)
    end
    model:eval()
    assert.raises("index", "", model.generate, model, { 5 }, 1)
    assert.is_false(model.training)
    assert.raises("shape", "at least one id", model.generate, model, {}, 1)
    assert.raises("invalid", "cannot be negative", model.generate, model, { 1 }, 1, { temperature = -1 })
  end)
end)
