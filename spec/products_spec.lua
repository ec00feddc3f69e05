--- Products under PyTorch's names and einsum: values, gradients, element types, empty operands, refusals.

local luda = require "luda"
local lib = require "luda.ffi"
local helper = require "spec.helper"
local calls = require "spec.golden_calls"

local nan = 0 / 0

calls.run(getfenv(1), "products", 3)
calls.run(getfenv(1), "einsum", 4)

describe("products", function()
  before_each(helper.before)
  after_each(helper.after)

  local a, b = luda.tensor { { 1, 2 }, { 3, 4 } }, luda.tensor { { 0, 1 }, { -1, 2 } }

  it("take strided operands and integers", function()
    local x = luda.arange(6, { dtype = "i64" }):reshape(2, 3)
    assert.same({ { 5, 14 }, { 14, 50 } }, x:mm(x:t()):totable())
    assert.equal("i64", x:mm(x:t()).dtype)
    assert.equal(14, x[2][{ { 1, 2 } }]:dot(luda.tensor({ 2LL, 2LL })):item())
    assert.same({ { 0, 1, 2 }, { 9, 12, 15 } }, x:addr(luda.tensor { 0LL, 2LL }, x[2]):totable())
    local wide = luda.tensor { { 1, 9, 2, 9 }, { 3, 9, 4, 9 } }:narrow(2, 1, 2, 2)
    assert.same({ { -2, 5 }, { -4, 11 } }, wide:mm(b):totable())
    assert.same({ { -2, 5 }, { -4, 11 } }, luda.einsum("ij,jk", wide, b):totable())
  end)

  it("do not read an input whose factor is 0", function()
    local bad = luda.full({ 2, 2 }, nan)
    assert.same({ { -2, 5 }, { -4, 11 } }, luda.addmm(bad, a, b, { beta = 0 }):totable())
    assert.same({ -2, -4 }, luda.addmv(luda.full({ 2 }, nan), a, luda.tensor { 0, -1 }, { beta = 0 }):totable())
    assert.same({ { { -2, 5 }, { -4, 11 } } },
      luda.baddbmm(bad:unsqueeze(1), a:unsqueeze(1), b:unsqueeze(1), { beta = 0 }):totable())
    assert.same({ { -4, 10 }, { -8, 22 } }, luda.addbmm(bad, a:unsqueeze(1), b:unsqueeze(1), { beta = 0, alpha = 2 }):totable())
    local tracked = luda.full({ 2, 2 }, nan):requires_grad_()
    assert.is_false(luda.addmm(tracked, a, b, { beta = 0 }).requires_grad)
    assert.is_true(luda.addmm(tracked, a, b):isnan():all():item())
  end)

  it("are zeros over an empty inner size, and may be empty", function()
    local tall, wide = luda.ones(3, 0), luda.ones(0, 2)
    assert.same({ { 0, 0 }, { 0, 0 }, { 0, 0 } }, tall:mm(wide):totable())
    assert.same({ { 5, 5 }, { 5, 5 }, { 5, 5 } }, luda.addmm(luda.tensor(5), tall, wide):totable())
    assert.same({ 0, 0, 0 }, tall:mv(luda.ones(0)):totable())
    assert.equal(0, luda.ones(0):dot(luda.ones(0)):item())
    assert.same({ 0, 4, 2 }, luda.ones(0, 4, 3):bmm(luda.ones(0, 3, 2)).shape)
    assert.same({ 3, 2 }, luda.einsum("ij,jk->ik", tall, wide).shape)
    assert.same({ 3, 4 }, luda.ones(3, 0):cdist(luda.ones(4, 0)).shape)
    assert.same({ 0, 4 }, luda.ones(0, 2):cdist(luda.ones(4, 2)).shape)
    assert.same({ 6, 0 }, luda.ones(3, 0):kron(luda.ones(2, 2)).shape)
  end)

  it("have a distance 0 whose gradient is 0", function()
    for _, p in ipairs { 1, 2, 3, math.huge } do
      local x = luda.tensor({ { 1, 2 }, { 3, -4 } }, { dtype = "f64" }):requires_grad_()
      local y = x:detach():clone():requires_grad_()
      local distances = x:cdist(y, p)
      assert.equal(0, distances[1][1]:item())
      local upstream = luda.tensor({ { 3, 0 }, { 0, -2 } }, { dtype = "f64" })
      assert.same({ { 0, 0 }, { 0, 0 } }, distances:backward { gradient = upstream }[x]:totable())
    end
    -- rows in parts where nothing is recorded
    local many, few = luda.randn(3, 700, 16), luda.randn(600, 16)
    assert.is_true(many:cdist(few):equal(many:detach():requires_grad_():cdist(few)))
    -- by hand: 3, 4, 5
    local three = luda.tensor { { 0, 0 } }:cdist(luda.tensor { { 3, 4 } }):item()
    assert.equal(5, three)
    assert.equal(7, luda.tensor { { 0, 0 } }:cdist(luda.tensor { { 3, -4 } }, 1):item())
    assert.equal(4, luda.tensor { { 0, 0 } }:cdist(luda.tensor { { 3, -4 } }, { p = math.huge }):item())
  end)

  it("refuse other shapes with a hint", function()
    local c, v = luda.ones(2, 2, 2), luda.ones(2)
    assert.raises("shape", "mm: shapes %[2, 2, 2%] and %[2, 2%]; two matrices are needed; bmm takes batches", luda.mm, c, a)
    assert.raises("shape", "mm: shapes %[2, 2%] and %[3, 2%]; the inner sizes 2 and 3 differ", luda.mm, a, luda.ones(3, 2))
    assert.raises("shape", "bmm: shapes .*batches of 2 and 1 do not broadcast here; matmul does", luda.bmm, c, luda.ones(1, 2, 2))
    assert.raises("shape", "bmm: .*mm takes matrices", luda.bmm, a, a)
    assert.raises("shape", "mv: shapes .*a matrix and a vector are needed", luda.mv, a, a)
    assert.raises("shape", "dot: shapes .*two vectors are needed; mv, mm", luda.dot, a, v)
    assert.raises("shape", "outer: .*flatten", luda.outer, a, v)
    assert.raises("shape", "addmm: the input has shape %[3%], the product %[2, 2%]", luda.addmm, luda.ones(3), a, b)
    assert.raises("shape", "addmv: the input has shape %[1, 2%], the product %[2%]", luda.addmv, luda.ones(1, 2), a, v)
    assert.raises("dtype", "addmm: beta 0.5 and alpha 1 for i64; whole numbers", luda.addmm, a:to("i64"), a:to("i64"),
      a:to("i64"), { beta = 0.5 })
    assert.raises("invalid", "addmm: unknown option 'gamma'", luda.addmm, a, a, b, { gamma = 1 })
    assert.raises("shape", "addbmm: .*batches of 2 and 1 do not fit", luda.addbmm, a, c, luda.ones(1, 2, 2))
    assert.raises("shape", "tensordot: .*the sizes %[2%] and %[3%]", luda.tensordot, a, luda.ones(3), 1)
    assert.raises("invalid", "tensordot: dimension 1 is given twice", luda.tensordot, a, a, { { 1, 1 }, { 1, 2 } })
    assert.raises("invalid", "two lists of equal length", luda.tensordot, a, a, { { 1, 2 }, { 1 } })
    assert.raises("shape", "3 dimensions cannot be summed over", luda.tensordot, a, a, 3)
    assert.raises("shape", "inner: .*last sizes", luda.inner, a, luda.ones(3))
    assert.raises("shape", "kron: .*four dimensions", luda.kron, luda.ones(1, 1, 1, 1, 1), a)
    assert.raises("shape", "cross: .*no dimension has size 3", luda.cross, a, a)
    assert.raises("shape", "cross: .*dimension 2 must have size 3", luda.cross, luda.ones(3, 2), luda.ones(3, 2), 2)
    assert.raises("shape", "cdist: .*rows of 2 and 3 elements", luda.cdist, a, luda.ones(4, 3))
    assert.raises("shape", "cdist: .*unsqueeze a vector", luda.cdist, v, a)
    assert.raises("dtype", "cdist: a tensor of i64", luda.cdist, a:to("i64"), a)
    assert.raises("invalid", "cdist: p is %-1", luda.cdist, a, a, -1)
    assert.raises("invalid", "mm: expected a tensor, got 3", luda.mm, a, 3)
  end)
end)

describe("einsum", function()
  before_each(helper.before)
  after_each(helper.after)

  local a = luda.tensor({ { 1, 2 }, { 3, 4 } })

  it("is a view where nothing is computed, and takes lists, integers and 0-d tensors", function()
    local x = luda.zeros(2, 2)
    luda.einsum("ij->ji", x)[1][2] = 7
    assert.same({ { 0, 0 }, { 7, 0 } }, x:totable())
    luda.einsum("ii->i", x):fill_(1)
    assert.same({ { 1, 0 }, { 7, 1 } }, x:totable())
    local i = a:to("i64")
    assert.same({ { 7, 10 }, { 15, 22 } }, luda.einsum("ij,jk->ik", { i, i }):totable())
    assert.equal("i64", luda.einsum("ij,jk->ik", i, i).dtype)
    assert.equal(6, luda.einsum(",->", luda.tensor(2), luda.tensor(3)):item())
    assert.equal(10, luda.einsum("ij->", i):item())
  end)

  it("multiplies two operands by one matmul where it sums over what both have", function()
    local function runs(op)
      return tonumber(lib.C.luda_op_runs(lib.C["LUDA_OP_" .. op]))
    end
    local products, sums = runs "matmul", runs "sum"
    local c, d = luda.ones(2, 3, 4), luda.ones(2, 4, 5)
    assert.equal(4, luda.einsum("bij,bjk->bik", c, d)[1][1][1]:item())
    assert.equal(40, luda.einsum("bij,bjk,bkl->il", c, d, luda.ones(2, 5, 3))[1][1]:item())
    assert.equal(3, runs "matmul" - products)
    assert.equal(0, runs "sum" - sums)
  end)

  it("broadcasts sizes of 1", function()
    assert.same({ { 10, 20 }, { 30, 40 } }, luda.einsum("ij,ij->ij", a, luda.tensor { { 10 } }):totable())
    assert.same({ { 4, 4 }, { 6, 6 } }, luda.einsum("ij,...jk->ik", luda.tensor { { 4, 0 }, { 6, 0 } }, luda.ones(1, 2,
      2)):totable())
  end)

  it("explains what does not fit", function()
    assert.raises("shape", "einsum: subscript 'j' is 2 in operand 1 and 3 in operand 2, of shape %[3, 2%]", luda.einsum,
      "ij,jk", a, luda.ones(3, 2))
    assert.raises("shape", "einsum: operand 1 has shape %[2, 2%], its subscripts 'ijk' name 3 dimensions", luda.einsum, "ijk", a)
    assert.raises("shape", "its subscripts 'i' name 1 dimensions; ... stands for all others", luda.einsum, "i", a)
    assert.raises("shape", "subscript 'i' of operand 1, shape %[2, 3%], names sizes 2 and 3", luda.einsum, "ii", luda.ones(2, 3))
    assert.raises("invalid", "subscript 'k' of the result is in no operand of 'ij%->ik'", luda.einsum, "ij->ik", a)
    assert.raises("invalid", "subscript 'i' is twice in the result of 'ij%->ii'", luda.einsum, "ij->ii", a)
    assert.raises("invalid", "einsum: '1' in 'i1'; subscripts are letters", luda.einsum, "i1", a)
    assert.raises("invalid", "einsum: '%.' in '...i...'", luda.einsum, "...i...", a)
    assert.raises("invalid", "has subscripts for 2 operands, 1 were given", luda.einsum, "ij,jk", a)
    assert.raises("invalid", "has subscripts for 1 operands, 2 were given", luda.einsum, "ij", a, a)
    assert.raises("invalid", "the equation is a string", luda.einsum, a, a)
    assert.raises("invalid", "einsum: expected a tensor, got 3", luda.einsum, "ij,ij", a, 3)
  end)
end)
