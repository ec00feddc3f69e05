--- The most common mistakes, each with the whole message: operator, shapes or types, what was expected, and a hint.

local luda = require "luda"
local helper = require "spec.helper"
local nn, optim = luda.nn, luda.optim

local function zeros(...)
  return luda.zeros(...)
end

local function ints(...)
  return luda.zeros({ ... }, { dtype = "i64" })
end

local mistakes = {
  -- Labels and positions.
  { "a label counted from 0", "index",
    "cross_entropy: position 0 is outside 1 .. 3 (base 1); are these 0-based positions? pass base = 0",
    function() return nn.cross_entropy(zeros(2, 3), luda.tensor { 0LL, 2LL }) end },
  { "a label beyond the classes", "index", "cross_entropy: position 4 is outside 1 .. 3 (base 1)",
    function() return nn.cross_entropy(zeros(2, 3), luda.tensor { 1LL, 4LL }) end },
  { "labels of a floating type", "dtype",
    'cross_entropy: the targets [2] are f32; class labels are integers, convert them with to("i64")',
    function() return nn.cross_entropy(zeros(2, 3), luda.tensor { 1, 2 }) end },
  { "labels that were encoded one-hot", "shape",
    "cross_entropy: classes [2, 3] and targets [2, 3]; the targets have the shape of the input without its last dimension, "
      .. "the classes",
    function() return nn.cross_entropy(zeros(2, 3), ints(2, 3)) end },
  { "another number of labels than rows", "shape",
    "cross_entropy: classes [2, 3] and targets [3]; the targets have the shape of the input without its last dimension, "
      .. "the classes",
    function() return nn.cross_entropy(zeros(2, 3), ints(3)) end },
  { "a token counted from 0", "index",
    "index_select: position 0 is outside 1 .. 5 (base 1); are these 0-based positions? pass base = 0",
    function() return nn.Embedding(5, 2)(luda.tensor { 0LL }) end },
  { "tokens of a floating type", "dtype",
    'index_select: input 2 of shape [1] is f32; positions and labels are integers, convert it with :to("i64")',
    function() return nn.Embedding(5, 2)(luda.tensor { 1 }) end },
  { "position 0", "index", "index: a position is 0; positions count from 1, or from -1 at the end",
    function() return zeros(3)[0] end },
  { "a position beyond the end", "index", "index: position 4 of dimension 1, which has 3 (1-based), of a tensor [3, 2]",
    function() return zeros(3, 2)[4] end },
  { "a mask of bytes", "dtype",
    'index: an index tensor of type u8, shape [3]; masks are bool, positions are integers, convert it with :to("bool")',
    function() return zeros(3)[luda.ones(3, { dtype = "u8" })] end },
  { "a mask of another shape", "shape",
    "index: a mask [2] over a tensor [3]; its sizes must be those of the leading dimensions",
    function() return zeros(3)[luda.tensor { true, false }] end },
  { "a mask that is no comparison", "dtype",
    "where: input 1 of shape [2] is f32; a mask is bool, make one by comparing, as in x:ne(0)",
    function() return luda.where(zeros(2), 1, zeros(2)) end },
  { "dimension 0", "index", "sum: dim is 0; dimensions count from 1, or from -1 at the end",
    function() return zeros(2, 3):sum(0) end },
  { "a dimension too many", "index", "sum: a dimension is out of range for shape [2, 3], which has 2",
    function() return zeros(2, 3):sum(3) end },

  -- Shapes.
  { "a missing transpose", "shape",
    "matmul: shapes [2, 3] and [2, 3] do not fit; inner sizes 3 and 2 differ; did you mean b:t()?",
    function() return zeros(2, 3):matmul(zeros(2, 3)) end },
  { "an input of another width than the layer", "shape",
    "linear: shapes [2, 3] and [4, 2] do not fit; the weight is [in, out] and the input's last dimension has size in",
    function() return nn.Linear(4, 2)(zeros(2, 3)) end },
  { "shapes that do not broadcast", "shape",
    "add: shapes [2, 3] and [2] do not fit; sizes must be equal or 1, aligned at the last dimension",
    function() return zeros(2, 3) + zeros(2) end },
  { "a loss that would broadcast", "shape",
    "mse_loss: the input has shape [4, 1], the target [4]; losses do not broadcast, reshape or expand one of them",
    function() return nn.mse_loss(zeros(4, 1), zeros(4)) end },
  { "in-place addition of something larger", "shape",
    "add: the result has shape [2, 3], the tensor to write has [3] and cannot grow",
    function() return zeros(3):add_(zeros(2, 3)) end },
  { "a forgotten contiguous()", "shape",
    "view: the memory of shape [3, 2] does not lie as [6] needs; use :reshape or :contiguous first",
    function() return zeros(2, 3):t():view(6) end },
  { "the address of a strided tensor", "invalid",
    'data: only contiguous CPU tensors have an address; call contiguous() or to("cpu")',
    function() return zeros(2, 3):t():data() end },
  { "another number of elements", "shape", "reshape: 6 elements of shape [2, 3] cannot become [4, -1]",
    function() return zeros(2, 3):reshape(4, -1) end },
  { "pieces that do not fit together", "shape",
    "cat: shapes [2, 3] and [2, 4] do not fit; all but the joined dimension must be equal",
    function() return luda.cat({ zeros(2, 3), zeros(2, 4) }, 1) end },
  { "an image without a batch", "shape",
    "conv2d: images [N, C, H, W] are needed, the shape is [3, 8, 8]; add dimensions with unsqueeze",
    function() return nn.Conv2d(3, 4, 3)(zeros(3, 8, 8)) end },
  { "another number of channels", "shape",
    "conv2d: shapes [1, 1, 8, 8] and [4, 3, 3, 3] do not fit; the weight takes 3 channels in 1 groups, the input has 1",
    function() return nn.Conv2d(3, 4, 3)(zeros(1, 1, 8, 8)) end },
  { "a batch of one in training", "shape",
    "batch_norm: the input [1, 3] has 1 value a channel; training needs more than one, call eval() or take a larger batch",
    function() return nn.BatchNorm1d(3)(zeros(1, 3)) end },
  { "item() of many", "shape", "item: the tensor has 2 elements [2], one is needed",
    function() return zeros(2):item() end },
  { "ragged lists", "shape", "tensor: ragged lists: 1 entries where dimension 2 has 2 entries",
    function() return luda.tensor { { 1, 2 }, { 3 } } end },

  -- Types.
  { "floats into integers", "dtype",
    'add: a result of f32 cannot be written into i64, shape [3]; convert it with :to("i64") first',
    function() return ints(3):add_(0.5) end },
  { "a fraction assigned to an integer", "dtype",
    'index: a result of f32 cannot be written into i64, shape []; convert it with :to("i64") first',
    function() ints(3)[1] = 0.5 end },
  { "integers where floats are needed", "dtype",
    'linear: input 1 of shape [2, 3] is i64; a floating type is needed, convert it with :to("f32")',
    function() return nn.Linear(3, 2)(ints(2, 3)) end },
  { "the mean of integers", "dtype",
    'mean: input 1 of shape [2] is i64; a floating type is needed, convert it with :to("f32")',
    function() return ints(2):mean() end },
  { "arithmetic with booleans", "dtype",
    'add: input 1 of shape [1] is bool; numbers are needed, use logical operators or convert it with :to("i64")',
    function() return luda.tensor { true } + luda.tensor { true } end },
  { "numpy's name of a type", "dtype",
    "full: unknown element type 'float32'; the types are f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool",
    function() return zeros(2, { dtype = "float32" }) end },
  { "arithmetic with a list", "invalid",
    "add: expected a tensor or a number, got a table; luda.tensor makes a tensor of a list",
    function() return zeros(2) + { 1, 2 } end },
  { "an order of tensors", "unsupported",
    "compare: tensors have no order; elementwise comparison is a:lt(b), a:le(b), a:gt(b), a:ge(b)",
    function() return zeros(2) < zeros(2) end },
  { "an option of another library", "invalid", "sum: unknown option 'axis'; it knows dim, keepdim, out",
    function() return zeros(2, 3):sum { axis = 1 } end },
  { "a dot instead of a colon", "invalid", "sum: input 1 of 1 is missing; methods are called with a colon, x:sum(...)",
    function() return zeros(2).sum() end },

  -- Gradients, lifetime, training.
  { "a leaf changed in place", "graph",
    "add: a leaf that requires a gradient cannot be changed in place; use luda.no_grad",
    function() return zeros(2, { requires_grad = true }):add_(1) end },
  { "a result changed that the graph needs", "graph",
    "add: a tracked value cannot be written in place into storage that other tensors or the graph share; "
      .. "use the form without the underscore, where or cat, or luda.no_grad",
    function() return zeros(2, { requires_grad = true }):exp():add_(1) end },
  { "backward twice", "graph",
    "sum: its graph was consumed by an earlier backward; pass retain=true there to walk it again",
    function()
      local y = zeros(2, { requires_grad = true }):square():sum()
      y:backward()
      y:backward()
    end },
  { "backward from many elements", "graph", "backward: the root has shape [2], not one element; pass gradient=",
    function() zeros(2, { requires_grad = true }):square():backward() end },
  { "backward without a leaf", "graph",
    "backward: the root was not recorded; no input required a gradient, or luda.no_grad was on",
    function() zeros(2):sum():backward() end },
  { "a gradient of integers", "dtype", 'requires_grad_: a tensor of i64 has no gradient; convert with :to("f32")',
    function() ints(2):requires_grad_() end },
  { "a field instead of a call", "invalid",
    "tensor: field 'requires_grad' cannot be set; call requires_grad_()",
    function() zeros(2).requires_grad = true end },
  { "writing into an expanded tensor", "invalid",
    "add: elements of the tensor to write share memory (expanded?); clone it first",
    function() return zeros(1):expand(4):add_(1) end },
  { "a tensor whose scope has ended", "closed",
    "tensor: it was released, or its scope has ended; return it from the scope or :keep() it",
    function()
      local t
      luda.scope(function() t = zeros(2) end)
      return t + 1
    end },
  { "a rate for the optimizer", "invalid",
    "optim.SGD: there is no option 'lr'; the rate is the first argument of every step(rate, grads)",
    function() optim.SGD(nn.Linear(2, 2), { lr = 0.1 }) end },
  { "a step without gradients", "invalid",
    "step: expected gradients, as backward returns them, got nil; call opt:step(rate, loss:backward())",
    function() optim.SGD(nn.Linear(2, 2)):step(0.1) end },
}

describe("a common mistake", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, mistake in ipairs(mistakes) do
    local name, code, text, fn = unpack(mistake)
    it("is named: " .. name, function()
      local ok, err = pcall(fn)
      assert.is_false(ok)
      assert.equal(luda.Error, getmetatable(err), tostring(err))
      assert.equal(text, err.op .. ": " .. err.message)
      assert.equal(code, err.code)
      assert.is_truthy(err.where:find("mistakes_spec.lua", 1, true), err.where)
    end)
  end
end)
