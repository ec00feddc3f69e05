--- Modules: registration, modes, state.

local luda = require "luda"
local helper = require "spec.helper"
local nn = luda.nn

local function names_of(iterator)
  local names = {}
  for name in iterator do
    names[#names + 1] = name
  end
  return names
end

describe("a module", function()
  before_each(helper.before)
  after_each(helper.after)

  local Pair = nn.module("Pair")

  function Pair:init()
    self.first = nn.Linear(2, 3)
    self.note = "text"
    self.second = nn.Linear(3, 2, { bias = false })
    self.scale = nn.parameter(luda.ones(2))
    self.seen = luda.zeros(1)
    self.more = { nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1) }
  end

  function Pair:forward(x)
    self.seen = self.seen + 1
    self.last = x:detach()
    return self.second(self.first(x)) * self.scale
  end

  it("registers parameters, buffers and parts in order of assignment", function()
    local model = Pair()
    assert.same({ "first.weight", "first.bias", "second.weight", "scale", "more.1.weight", "more.1.bias", "more.3.weight",
      "more.3.bias" }, names_of(model:named_parameters()))
    assert.same({ "seen" }, names_of(model:named_buffers()))
    assert.equal(8, #model:parameters())
    assert.equal(6 + 3 + 6 + 2 + 4 + 2 + 2 + 1, model:count())
    assert.equal("text", model.note)
    assert.same({ "", "first", "second", "more.1", "more.2", "more.3" }, names_of(model:named_modules()))
  end)

  it("keeps what it registers from scopes, also what forward assigns to a buffer", function()
    local model = luda.scope(Pair)
    luda.scope(function()
      model(luda.ones(4, 2))
      model(luda.ones(4, 2))
    end)
    assert.same({ 2 }, model.seen:totable())
    assert.equal(3, model.first.weight:size(2))
    -- what forward assigns under a new name is an ordinary field: not a buffer, and not kept
    assert.same({ "seen" }, names_of(model:named_buffers()))
    assert.equal("tensor (released)", tostring(model.last))
  end)

  it("gives ids in order of creation, so that ranks agree", function()
    local ids = {}
    for _, parameter in ipairs(Pair():parameters()) do
      ids[#ids + 1] = parameter.id
    end
    for i = 2, #ids do
      assert.is_true(ids[i] > ids[i - 1])
    end
  end)

  it("replaces and drops what is assigned again", function()
    local model = Pair()
    model.scale = nn.parameter(luda.full({ 2 }, 3))
    assert.equal(8, #model:parameters())
    assert.same({ 3, 3 }, model.scale:totable())
    model.scale = nil
    assert.equal(7, #model:parameters())
    model.second = 5
    assert.equal(6, #model:parameters())
    assert.raises("graph", "field 'weight' is a parameter", function()
      model.first.weight = model.first.weight * 2
    end)
    assert.equal(2, model.first.weight:size(1))
  end)

  it("counts tied parameters once, under the first path", function()
    local model = nn.Sequential(nn.Linear(3, 3, { bias = false }), nn.Linear(3, 3))
    model[2].weight = model[1].weight
    assert.same({ "1.weight", "2.bias" }, names_of(model:named_parameters()))
    assert.same({ ["2.weight"] = "1.weight" }, model:aliases())
    assert.equal(12, model:count())
    local x = luda.randn(2, 3)
    local grads = model(x):sum():backward()
    assert.equal(2, grads:len())
    -- d sum(x W W + b) / dW = x^T (1 W^T) + (x W)^T 1
    local ones, W = luda.ones(2, 3), model[1].weight:detach()
    local expected = x:t():matmul(ones:matmul(W:t())) + x:matmul(W):t():matmul(ones)
    assert.tensor_near(expected, grads[model[1].weight], 1e-5, 1e-5)
  end)

  it("is walked once where it occurs twice, and not for ever where it holds itself", function()
    local shared = nn.Linear(2, 2)
    local model = nn.Sequential(shared, nn.ReLU(), shared)
    assert.same({ "1.weight", "1.bias" }, names_of(model:named_parameters()))
    model.parent = model
    assert.equal(2, #model:parameters())
    assert.equal(4, select(2, tostring(model):gsub("[^\n]+", "")))
  end)

  it("freezes and unfreezes with the same ids", function()
    local model = nn.Linear(2, 1)
    local id = model.weight.id
    model:freeze()
    assert.is_false(model.weight.requires_grad)
    assert.equal(2, #model:parameters())
    assert.matches("frozen", tostring(model))
    assert.is_false(model(luda.ones(1, 2)).requires_grad)
    model:unfreeze()
    assert.equal(id, model.weight.id)
    local grads = model(luda.ones(1, 2)):sum():backward()
    assert.same({ { 1 }, { 1 } }, grads[model.weight]:totable())
  end)

  it("stays a module of frozen parameters when one of them is replaced", function()
    local model = nn.Linear(2, 1):freeze()
    model.weight = luda.zeros(2, 1)
    assert.same({ "weight", "bias" }, names_of(model:named_parameters()))
  end)

  it("switches the mode of every part, and applies a function to the parts first", function()
    local model, order = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5))), {}
    model:eval()
    assert.is_false(model[2][1].training)
    assert.is_true(model:train()[2][1].training)
    model:apply(function(part)
      order[#order + 1] = getmetatable(part).class_name
    end)
    assert.same({ "Dropout", "Dropout", "Sequential", "Sequential" }, order)
  end)

  it("converts floating tensors, keeps ties and flags", function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[2].weight = model[1].weight
    model[1].bias:requires_grad_(false)
    local before = model[1].weight:totable()
    model:to_dtype("f64")
    assert.equal("f64", model[2].bias.dtype)
    assert.is_true(model[1].weight == model[2].weight)
    assert.is_false(model[1].bias.requires_grad)
    assert.is_true(model[1].weight.requires_grad and model[1].weight.is_leaf)
    assert.same(before, model[1].weight:totable())
    local same = model[1].weight
    model:to("cpu"):to_dtype("f64")
    assert.is_true(same == model[1].weight)
    assert.raises("dtype", "cannot be i64", model.to_dtype, model, "i64")
  end)

  it("describes itself as a tree", function()
    local text = tostring(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert.equal("Sequential  9 parameters\n  1: Linear  weight [2, 3], bias [3]  9 parameters\n  2: ReLU", text)
  end)

  it("inherits from a class of modules", function()
    local Twice = nn.module("Twice", nn.Linear)
    function Twice:forward(x)
      return nn.Linear.forward(self, x) * 2
    end
    local layer = Twice(1, 1)
    layer:load_state { weight = luda.tensor { { 3 } }, bias = luda.tensor { 1 } }
    assert.same({ 14 }, layer(luda.tensor { 2 }):totable())
    assert.raises("invalid", "has no forward", nn.module("Empty")())
  end)
end)

describe("a state", function()
  before_each(helper.before)
  after_each(helper.after)

  it("goes into another module and leaves it independent", function()
    local a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    local report = b:load_state(a:state())
    assert.same({ missing = {}, unexpected = {}, mismatched = {} }, report)
    assert.same(a.weight:totable(), b.weight:totable())
    luda.no_grad(function() a.weight:zero_() end)
    assert.is_not.same(a.weight:totable(), b.weight:totable())
    assert.is_true(b.weight.requires_grad)
  end)

  it("is refused as a whole when strict, and used as far as it fits when not", function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    local before = model[1].weight:totable()
    local state = {
      ["1.weight"] = luda.zeros(2, 2), ["1.bias"] = luda.zeros(3), ["2.weight"] = luda.ones(2, 2), other = luda.zeros(1),
    }
    local err = assert.raises("mismatch", "1.bias has shape %[3%], the module's %[2%]", model.load_state, model, state)
    assert.same({ missing = { "2.bias" }, unexpected = { "other" }, mismatched = { "1.bias" } }, err.detail)
    assert.same(before, model[1].weight:totable())
    assert.same(err.detail, model:load_state(state, { strict = false }))
    assert.same({ { 0, 0 }, { 0, 0 } }, model[1].weight:totable())
    assert.same({ { 1, 1 }, { 1, 1 } }, model[2].weight:totable())
  end)

  it("knows a tied parameter by any of its paths", function()
    local model = nn.Sequential(nn.Linear(1, 1, { bias = false }), nn.Linear(1, 1, { bias = false }))
    model[2].weight = model[1].weight
    model:load_state { ["2.weight"] = luda.tensor { { 7 } } }
    assert.equal(7, model[1].weight:item())
  end)

  it("is checked for its kind", function()
    assert.raises("invalid", "entry 'weight' must be a tensor", nn.Linear(1, 1).load_state, nn.Linear(1, 1), { weight = 1 })
    assert.raises("invalid", "unknown option 'stric'", nn.Linear(1, 1).load_state, nn.Linear(1, 1), {}, { stric = true })
  end)
end)
