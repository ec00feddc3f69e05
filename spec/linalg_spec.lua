--- Linear algebra: properties of factors, errors, empty and NaN matrices, threads, no library.

local luda = require "luda"
local helper = require "spec.helper"

local function draw(seed, ...)
  local shape = { ... }
  return luda.randn(shape, { dtype = "f64", generator = luda.generator(seed) })
end

local function turned(x)
  return x:transpose(-2, -1)
end

local function eye(size, dtype)
  return luda.eye(size, { dtype = dtype or "f64" })
end

local function positive(x)
  return x:matmul(turned(x)) + eye(x:size(-2), x.dtype)
end

local function symmetric(x)
  return x + turned(x)
end

local tolerance = { f64 = 1e-12, f32 = 2e-5 }

--- Runs a test for both types and for matrices of rows, of columns, and with gaps.
local function each_layout(shape, check)
  for dtype, near in pairs(tolerance) do
    local plain = draw(3, unpack(shape)):to(dtype)
    local wide = luda.zeros(shape[1] * 2, shape[2], shape[3], { dtype = dtype }):narrow(1, 1, shape[1], 2)
    wide:copy_(plain)
    for _, x in ipairs { plain, turned(turned(plain):contiguous()), wide } do
      check(x, near)
    end
  end
end

describe("factors", function()
  before_each(helper.before)
  after_each(helper.after)

  it("of cholesky give the matrix back, and read one triangle", function()
    each_layout({ 3, 5, 5 }, function(x, near)
      local a = positive(x)
      local l, u = a:cholesky(), luda.linalg.cholesky(a, { upper = true })
      assert.tensor_near(a, l:matmul(turned(l)), near, near)
      assert.tensor_near(a, turned(u):matmul(u), near, near)
      assert.tensor_near(l, l:tril(), 0, 0)
      assert.tensor_near(u, u:triu(), 0, 0)
      local above = luda.full({ 5, 5 }, 7, { dtype = a.dtype }):triu(1)
      assert.tensor_near(l, (a:tril() + above):cholesky(), 0, 0)
      assert.tensor_near(u, (a:triu() + turned(above)):cholesky(true), 0, 0)
    end)
  end)

  it("of qr are orthonormal columns and an upper triangle", function()
    for _, shape in ipairs { { 2, 6, 4 }, { 2, 4, 6 }, { 1, 5, 5 }, { 3, 1, 4 }, { 3, 4, 1 } } do
      each_layout(shape, function(x, near)
        local q, r = x:qr()
        local k = math.min(shape[2], shape[3])
        assert.same({ shape[1], shape[2], k }, q.shape)
        assert.same({ shape[1], k, shape[3] }, r.shape)
        assert.tensor_near(x, q:matmul(r), near, near)
        assert.tensor_near(eye(k, x.dtype):expand(shape[1], k, k), turned(q):matmul(q), near, near)
        assert.tensor_near(r, r:triu(), 0, 0)
      end)
    end
  end)

  it("of svd are orthonormal, with descending values", function()
    for _, shape in ipairs { { 2, 6, 4 }, { 2, 4, 6 }, { 1, 5, 5 }, { 3, 1, 4 } } do
      each_layout(shape, function(x, near)
        local u, s, vh = luda.linalg.svd(x)
        local k = math.min(shape[2], shape[3])
        assert.same({ shape[1], k }, s.shape)
        assert.tensor_near(x, u:matmul(s:unsqueeze(-1) * vh), near, near)
        assert.tensor_near(eye(k, x.dtype):expand(shape[1], k, k), turned(u):matmul(u), near, near)
        assert.tensor_near(eye(k, x.dtype):expand(shape[1], k, k), vh:matmul(turned(vh)), near, near)
        assert.tensor_near(s, (s:sort(-1, true)), 0, 0)
        assert.tensor_near(s, x:svdvals(), 0, 0)
      end)
    end
  end)

  it("of eigh are orthonormal, with ascending values, from one triangle", function()
    each_layout({ 3, 5, 5 }, function(x, near)
      local a = symmetric(x)
      local values, v = a:eigh()
      assert.tensor_near(a, v:matmul(values:unsqueeze(-1) * turned(v)), near, near)
      assert.tensor_near(eye(5, x.dtype):expand(3, 5, 5), turned(v):matmul(v), near, near)
      assert.tensor_near(values, (values:sort(-1)), 0, 0)
      assert.tensor_near(values, (a:tril() + luda.full({ 5, 5 }, 0 / 0, { dtype = a.dtype }):triu(1)):eigvalsh(), near, near)
      assert.tensor_near(values, (a:triu() + luda.full({ 5, 5 }, 9, { dtype = a.dtype }):tril(-1)):eigvalsh("U"), near, near)
    end)
  end)

  it("of solve and its like undo products", function()
    each_layout({ 4, 6, 6 }, function(x, near)
      local b = draw(9, 6, 3):to(x.dtype)
      near = near * 40
      assert.tensor_near(b:expand(4, 6, 3), x:matmul(x:solve(b)), near, near)
      assert.tensor_near(eye(6, x.dtype):expand(4, 6, 6), x:matmul(x:inv()), near, near)
      local well = x:tril(-1) * 0.3 + eye(6, x.dtype) * 2
      for _, transpose in ipairs { false, true } do
        local y = well:solve_triangular(b, { transpose = transpose })
        assert.tensor_near(b:expand(4, 6, 3), (transpose and turned(well) or well):matmul(y), near, near)
        local z = turned(well):solve_triangular(b, { upper = true, transpose = transpose })
        assert.tensor_near(b:expand(4, 6, 3), (transpose and well or turned(well)):matmul(z), near, near)
      end
      local many = draw(4, 2, 3, 6, 2):to(x.dtype)
      assert.tensor_near(many, x[1]:matmul(x[1]:solve(many)), near, near)
      assert.tensor_near(many, (well[2]:tril()):matmul(well[2]:solve_triangular(many)), near, near)
      assert.tensor_near(turned(many), x[1]:solve(turned(many), { left = false }):matmul(x[1]), near, near)
      assert.tensor_near(x:det(), x:slogdet() * select(2, x:slogdet()):exp(), near, near)
    end)
  end)
end)

describe("least squares", function()
  before_each(helper.before)
  after_each(helper.after)

  it("have residuals, rank and singular values", function()
    local a = luda.tensor({ { 1, 0 }, { 1, 1 }, { 1, 2 } }, { dtype = "f64" })
    local b = luda.tensor({ 1, 0, 2 }, { dtype = "f64" })
    local x, residuals, rank, s = a:lstsq(b) -- the line 0.5 + 0.5 t
    assert.tensor_near({ 0.5, 0.5 }, x, 1e-12, 1e-12)
    assert.tensor_near({ 1.5 }, residuals, 1e-12, 1e-12)
    assert.equal(2, rank:item())
    assert.tensor_near(a:svdvals(), s, 0, 0)
    local least = luda.tensor({ { 1, 1 }, { 1, 1 } }, { dtype = "f64" }):lstsq(luda.tensor({ 2, 4 }, { dtype = "f64" }))
    assert.tensor_near({ 1.5, 1.5 }, least, 1e-12, 1e-12)
  end)

  it("and ranks count what is above the bound", function()
    local a = luda.tensor({ { 4, 0, 0 }, { 0, 2, 0 }, { 0, 0, 1e-20 } }, { dtype = "f64" })
    assert.equal(2, a:matrix_rank():item())
    assert.equal(1, a:matrix_rank(2):item())
    assert.equal(1, a:matrix_rank { rtol = 0.75 }:item())
    assert.same({ 2, 0 }, luda.stack({ a, a * 0 }):matrix_rank():totable())
    assert.equal(math.huge, luda.zeros(2, 2):cond(1):item())
    assert.tensor_near({ math.huge, 1 }, luda.stack({ luda.zeros(2, 2), luda.eye(2) }):cond(1), 0, 0)
  end)
end)

describe("refusals", function()
  before_each(helper.before)
  after_each(helper.after)

  it("name the matrix", function()
    local good, bad = luda.eye(3), luda.tensor({ { 1, 0, 0 }, { 0, -1, 0 }, { 0, 0, 1 } })
    assert.raises("invalid", "cholesky: the matrix is not positive definite: its leading minor of order 2", bad.cholesky, bad)
    local batch = luda.stack { good, good, bad, bad }
    assert.raises("invalid", "cholesky: matrix 3 of the 4 is not positive definite", batch.cholesky, batch)
    assert.raises("invalid", "solve: the matrix is singular: pivot 1", luda.solve, luda.zeros(2, 2), luda.ones(2, 1))
    assert.raises("invalid", "inv: matrix 2 of the 2 is singular: pivot 2", luda.inv, luda.stack { good, bad:clamp_min(0) })
    assert.raises("invalid", "solve_triangular: the matrix is singular: on its diagonal, element 2", luda.solve_triangular,
      luda.tensor({ { 1, 0 }, { 5, 0 } }), luda.ones(2, 2))
    assert.same({ 0, 1 }, luda.stack({ luda.zeros(2, 2), luda.eye(2) }):det():totable())
    local sign, log = luda.ones(2, 2):slogdet()
    assert.same({ 0, -math.huge }, { sign:item(), log:item() })
  end)

  it("of shapes and types have hints", function()
    for _, name in ipairs { "cholesky", "eigh", "det", "slogdet", "inv", "eigvalsh", "logdet" } do
      assert.raises("shape", name .. ": .*%[2, 3%] is not square; qr", luda[name], luda.ones(2, 3))
      assert.raises("shape", name .. ": .*%[3%] is no matrix", luda[name], luda.ones(3))
      assert.raises("dtype", name .. ": .*to%(\"f32\"%)", luda[name], luda.ones(2, 2):to("i64"))
    end
    assert.raises("dtype", "qr: .* is f16; f32 or f64 is needed", luda.qr, luda.ones(2, 2, { dtype = "f16" }))
    assert.raises("shape", "svd: .*%[3%] is no matrix", luda.svd, luda.ones(3))
    assert.raises("shape", "solve: shapes %[2, 2%] and %[3, 1%] do not fit", luda.solve, luda.eye(2), luda.ones(3, 1))
    assert.raises("shape", "batch sizes", luda.solve, luda.ones(2, 1, 1), luda.ones(3, 1, 1))
    assert.raises("shape", "lstsq: shapes", luda.lstsq, luda.ones(3, 2), luda.ones(2, 2))
    assert.raises("unsupported", "svd: only the reduced form .* full_matrices = false", luda.svd, luda.ones(3, 2), true)
    assert.raises("unsupported", "qr: only the reduced form .* mode = reduced", luda.qr, luda.ones(3, 2), { mode = "complete" })
    assert.raises("shape", "solve: shapes %[2, 2%] and %[2, 3, 2%] do not fit", luda.solve, luda.eye(2), luda.ones(2, 3, 2))
    assert.raises("invalid", "matrix_norm: the norm of a matrix", luda.matrix_norm, luda.ones(3, 2), 3)
  end)

  it("of NaN and infinity come at once, or they stay NaN", function()
    local bad = luda.stack { luda.eye(40), luda.full({ 40, 40 }, 0 / 0) }
    for _, name in ipairs { "svd", "eigh", "svdvals", "pinv" } do
      assert.raises("invalid", name .. ": matrix 2 of the 2 holds NaN or infinity", luda[name], bad)
    end
    assert.raises("invalid", "holds NaN", luda.svd, luda.full({ 3, 2 }, math.huge))
    assert.raises("invalid", "cholesky: matrix 2 of the 2", luda.cholesky, bad)
    assert.equal(1, bad:det()[1]:item())
    assert.is_true(bad:det()[2]:isnan():item())
    assert.is_true(bad:qr():select(1, 2):isnan():any():item())
    assert.is_true(bad:inv():select(1, 2):isnan():any():item())
  end)
end)

describe("linear algebra", function()
  before_each(helper.before)
  after_each(helper.after)

  it("takes empty matrices and batches", function()
    for _, shape in ipairs { { 0, 0 }, { 2, 0, 0 }, { 0, 3, 3 } } do
      local x, lead = luda.zeros(shape), { unpack(shape, 1, #shape - 2) }
      local size = shape[#shape]
      for _, name in ipairs { "cholesky", "inv", "pinv" } do
        assert.same(shape, luda[name](x).shape)
      end
      assert.same(lead, x:det().shape)
      assert.same(lead, (x:slogdet()).shape)
      assert.same(shape, (select(2, x:eigh())).shape)
      assert.same(shape, (x:qr()).shape)
      assert.same(shape, x:solve(x).shape)
      assert.equal(#lead + 1, x:svdvals().ndim)
      assert.equal(size, x:eigvalsh():size(-1))
    end
    assert.equal(1, luda.zeros(0, 0):det():item())
    assert.same({ 1, 1 }, luda.zeros(2, 0, 0):det():totable())
    assert.same({ 5, 0 }, (luda.zeros(5, 0):svd()).shape)
    assert.same({ 0, 5 }, select(2, luda.zeros(0, 5):qr()).shape)
    assert.same({ 3, 0 }, luda.eye(3):solve(luda.zeros(3, 0)).shape)
    assert.same({ 0, 4 }, luda.zeros(4, 0):pinv().shape)
  end)

  it("has the same bits for any number of threads", function()
    local x = draw(5, 9, 40, 40)
    local function all()
      local list = { x:qr() }
      for _, t in ipairs { x:inv(), x:svdvals(), positive(x):cholesky(), symmetric(x):eigvalsh(), x:det() } do
        list[#list + 1] = t
      end
      return list
    end
    local threads = luda.threads()
    luda.set_threads(1)
    local alone = all()
    luda.set_threads(3)
    for i, t in ipairs(all()) do
      assert.is_true(alone[i]:equal(t))
    end
    luda.set_threads(threads)
  end)

  it("runs in f32 under autocast, and says what is missing", function()
    luda.autocast(function()
      assert.equal("f32", luda.eye(2):to("bf16"):inv().dtype)
    end)
    local command = "LUDA_LAPACK=/nowhere.so LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit -e 'local luda = require \"luda\" " ..
      "local ok, e = pcall(luda.det, luda.eye(2)) io.write(tostring(ok), e.code, \" \", tostring(e))' 2>&1"
    local pipe = io.popen(command)
    local text = pipe:read("*a")
    pipe:close()
    assert.truthy(text:find("falseunsupported .*det: LAPACK was not found; install Debian's liblapack3"), text)
  end)
end)
