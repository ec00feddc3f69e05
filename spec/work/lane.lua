-- A rank of lane_spec: tensors in memory that the ranks share, and replicas whose gradients travel in it.
local luda = require "luda"

local dist = luda.dist
local comm = dist.init { timeout = 20 }
local sum = comm.size * (comm.size - 1) / 2

--- How many pieces of memory in common this process maps.
local function mappings()
  local count = 0
  for line in io.lines("/proc/self/maps") do
    count = count + (line:find("/memfd:luda", 1, true) and 1 or 0)
  end
  return count
end

local function values()
  local t = comm:empty({ 2, 3 }, { dtype = "f64" })
  assert(t.dtype == "f64" and t.shape[1] == 2 and t.shape[2] == 3 and t.device == "cpu")
  t:copy_(luda.tensor({ { 1, -2, 3 }, { -4, 5, -6 } }, { dtype = "f64" }) * (comm.rank + 1))
  assert(comm:all_reduce_(t, "sum") == t)
  local total = sum + comm.size
  assert(t:equal(luda.tensor({ { 1, -2, 3 }, { -4, 5, -6 } }, { dtype = "f64" }) * total))
  -- A part of it, and through a view.
  comm:all_reduce_(t:narrow(1, 2, 1), "max")
  assert(t[2][1]:item() == -4 * total)
  t:fill_(comm.rank - 1.5)
  t:requires_grad_()
  local gradients = (t * t):sum():backward()
  assert(gradients[t]:equal(t * 2))
  comm:barrier()
  comm:close()
  assert((t + 1):sum():item() == 6 * (comm.rank - 0.5))
end

local function mistakes()
  local ok, err = pcall(comm.empty, comm, { 2, -3 })
  assert(not ok and tostring(err):find("size 2 is -3", 1, true), tostring(err))
  ok, err = pcall(comm.empty, comm, { 2 }, { type = "f64" })
  assert(not ok and tostring(err):find("type", 1, true), tostring(err))
  ok, err = pcall(comm.empty, comm, { 2 + comm.rank })
  assert(not ok and err.code == "mismatch" and err.detail.field == "shape", tostring(err))
  assert(comm:all_reduce(luda.tensor { 1 }, "sum"):item() == comm.size)
end

local function replicas()
  local model = luda.nn.Linear(3, 2)
  local replica = dist.DataParallel(comm, model)
  local before
  for step = 1, 4 do
    local x = luda.tensor { { comm.rank + 1, -step, 2 } }
    local reduced, weight = replica:reduce(model(x):sum():backward(), 2)
    assert(weight == 2 * comm.size)
    local g = reduced[model.weight]
    assert(math.abs(g[1][1]:item() - (sum + comm.size) / weight) < 1e-6)
    assert(math.abs(g[2][2]:item() + step * comm.size / weight) < 1e-6)
    assert(math.abs(g[3][2]:item() - 2 * comm.size / weight) < 1e-6)
    assert(not before or mappings() == before)
    before = mappings()
  end
end

local tasks = { values = values, mistakes = mistakes, replicas = replicas }
local start = mappings()
assert((start > 0) == (arg[2] == "common"), "mappings: " .. start)
tasks[arg[1]]()
print(("rank %d is content"):format(comm.rank))
