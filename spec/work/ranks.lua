--- What rank threads of dist_spec run: job.task names one of these.

local luda = require "luda"
local nn, optim = luda.nn, luda.optim

local tasks = {}

--- Code, culprits and what each rank asked for, of a call that must fail; then a call that must work.
local function failure_and_recovery(comm, call)
  local ok, err = pcall(call)
  local next_sum = comm:all_reduce(luda.full({ 3 }, comm.rank + 1), "sum"):totable()
  local asked = {}
  for i, entry in ipairs(not ok and err.detail or {}) do
    asked[i] = entry.asked
  end
  return { ok = ok, code = not ok and err.code, rank = not ok and err.rank, culprits = not ok and err.culprits, asked = asked,
    next_sum = next_sum, field = not ok and err.detail and err.detail.field }
end

function tasks.disagree(comm, job)
  local odd = comm.rank == job.odd
  return failure_and_recovery(comm, function()
    if job.field == "shape" then
      return comm:all_reduce(luda.ones(odd and 6 or 2, odd and 1 or 3), "sum")
    elseif job.field == "dtype" then
      return comm:all_reduce(luda.ones({ 4 }, { dtype = odd and "f64" or "f32" }), "sum")
    elseif job.field == "operation" then
      return odd and comm:broadcast(luda.ones(4), 0) or comm:all_reduce(luda.ones(4), "sum")
    elseif job.field == "reduction" then
      return comm:all_reduce(luda.ones(4), odd and "max" or "sum")
    elseif job.field == "root" then
      return comm:broadcast(luda.ones(4), odd and 1 or 0)
    end
  end)
end

function tasks.two_lines(comm)
  if comm.rank == 0 then
    return comm:broadcast(luda.tensor { 1, -2, 3 }, 0):totable()
  else
    return comm:broadcast(luda.zeros(3), 0):totable()
  end
end

local ffi = require "ffi"
ffi.cdef "int usleep(unsigned int microseconds);"

function tasks.late(comm, job)
  comm:barrier()
  if comm.rank == job.sleeper then
    ffi.C.usleep(900000)
  end
  local started = os.time()
  local ok, err = pcall(comm.all_reduce, comm, luda.ones(5), "sum", { timeout = 0.3 })
  return { ok = ok, code = not ok and err.code, culprits = not ok and err.culprits, seconds = os.time() - started }
end

function tasks.fails(comm, job)
  if comm.rank == job.rank then
    luda.ones(2, 3):matmul(luda.ones(2, 3))
  end
  comm:barrier()
end

--- Gradients of weight * sum of all ranks' x; every rank has its own weights, of mixed sign.
function tasks.gradient(comm, job)
  return luda.scope(function()
    local x = luda.tensor({ 1, -2, 0.5 }):mul(comm.rank + 1):detach():requires_grad_()
    local g = luda.tensor { comm.rank + 1, -3 * comm.rank - 1, 2 }
    local y = job.call == "broadcast" and comm:broadcast(x, 1) or comm:all_reduce(x, job.call)
    return { y = y:totable(), dx = (y * g):sum():backward()[x]:totable() }
  end)
end

--- Three SGD steps of a linear model on unequal parts of a batch; what a single process would get is in dist_spec.
function tasks.replicas(comm, job)
  luda.manual_seed(comm.rank) -- replicas differ until DataParallel makes them equal
  local model = nn.Linear(2, 1)
  luda.no_grad(function()
    if comm.rank == 0 then
      model.weight:copy_(luda.tensor(job.weight))
      model.bias:copy_(luda.tensor(job.bias))
    end
  end)
  local parallel = luda.dist.DataParallel(comm, model)
  local optimizer = optim.SGD(model)
  local from, count = comm.rank == 0 and 1 or 3, comm.rank == 0 and 2 or 1
  for _ = 1, 3 do
    luda.scope(function()
      local x, y = luda.tensor(job.x):narrow(1, from, count), luda.tensor(job.y):narrow(1, from, count)
      local loss = (model(x) - y):square():sum()
      local reduced, weight = parallel:reduce(loss:backward(), count)
      assert(weight == 3)
      optimizer:step(0.05, reduced)
    end)
  end
  return { model.weight:reshape(-1):totable(), model.bias:totable() }
end

function tasks.record(comm, job)
  local model = nn.Linear(3, 2)
  local parts = { model = model, state = { step = job.step, rank = comm.rank } }
  if job.save then
    luda.dist.record.save(job.dir, job.step, comm, parts)
    return model.weight:sum():item()
  end
  local ok, state, report, step = pcall(luda.dist.record.restore, job.dir, comm, { model = model })
  if not ok then
    return { code = state.code, message = state.message }
  end
  return { sum = model.weight:sum():item(), state = state, step = step, warnings = report and report.warnings }
end

function tasks.echo(comm, job)
  job.tensor:add_(1)
  return { tensor = job.tensor, list = job.list, rank = comm.rank }
end

return function(comm, job)
  return tasks[job.task](comm, job)
end
