--- What rank threads of collective_async_spec run: started calls, uneven pieces.

local luda = require "luda"
local ffi = require "ffi"

ffi.cdef "int usleep(unsigned microseconds);"

local tasks = {}

local function failure(f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok, "nothing was raised")
  return { code = err.code, message = err.message, culprits = err.culprits, field = err.detail and err.detail.field,
    asked = err.detail and err.detail[2] and err.detail[2].asked }
end

--- Every collective, started all at once, and waited for in the order of the start.
function tasks.every(comm)
  local rank, size = comm.rank, comm.size
  local x = luda.tensor({ rank + 1, 10 * (rank + 1) })
  local pair = luda.arange(2 * size) + 100 * rank
  local mine = x:clone()
  local works = {
    comm:all_reduce(x, "sum", { async = true }),
    comm:all_reduce_(mine, "max", { async = true }),
    comm:broadcast(rank == 1 and x or nil, 1, { async = true }),
    comm:reduce(x, "prod", 0, { async = true, algorithm = "tree(3)" }),
    comm:all_gather(x, { async = true, algorithm = "ring" }),
    comm:reduce_scatter(pair, "sum", { async = true }),
    comm:gather(x, 1, { async = true }),
    comm:scatter(rank == 0 and pair or nil, 0, { async = true }),
    comm:all_to_all(pair, { async = true }),
    comm:barrier({ async = true }),
  }
  local results = {}
  for i, work in ipairs(works) do
    local got = work:wait(20)
    results[i] = got and got:totable() or "nil"
    assert(work:done())
  end
  return { results = results, same = works[2]:wait() == mine, again = works[1]:wait():totable(), text = tostring(works[1]) }
end

--- A wait that ends too early, then one that does not; results belong to whoever waits.
function tasks.patience(comm, job)
  local work, early
  luda.scope(function()
    local x = luda.tensor({ 1 + comm.rank }) -- gone before the call is over; the work keeps it
    while comm.rank == 1 and not io.open(job.flag) do
      ffi.C.usleep(1000)
    end
    work = comm:all_reduce(x, "sum", { async = true })
  end)
  if comm.rank == 0 then
    early = { failure(work.wait, work, 0.05), work:done() }
    assert(io.open(job.flag, "w")):close()
  end
  local kept
  luda.scope(function()
    work:wait()
  end)
  kept = work:wait(10)
  collectgarbage()
  return { early = early, sum = kept:item(), refused = failure(comm.send, comm, kept, 0, { async = true }) }
end

function tasks.failures(comm)
  local work = comm:all_reduce(luda.ones(comm.rank == 1 and 3 or 2), "sum", { async = true })
  comm:barrier() -- another call in between
  local seen = failure(work.wait, work)
  seen.twice = failure(work.wait, work).message == seen.message
  local gone = comm:all_gather(luda.ones(comm.rank == 2 and 3 or 2), { async = true })
  seen.hint = failure(gone.wait, gone).message
  return seen
end

--- loss_r = w_r * sum of x over ranks, by a started call: the gradient is the sum of w.
function tasks.gradients(comm)
  return luda.scope(function()
    local x = luda.tensor({ 2, 3 }):requires_grad_()
    local work = comm:all_reduce(x, "sum", { async = true })
    local pieces = comm:all_gather(x, { async = true })
    local y, z = work:wait(), pieces:wait()
    local w = luda.arange(2 * comm.size) * (comm.rank + 1)
    local loss = (y * (comm.rank + 1)):sum() + (z * w):sum()
    local inside = failure(comm.all_reduce_, comm, x, "sum")
    local started = comm:all_reduce_(x, "sum", { async = true })
    return { g = loss:backward()[x]:totable(), tracked = y.requires_grad, inside = inside.code,
      started = failure(started.wait, started).code }
  end)
end

--- A rank that brings 0, 3 or 5 rows; which are cut and joined as sizes say.
function tasks.uneven(comm)
  local rank, sizes = comm.rank, { 3, 0, 5 }
  return luda.scope(function()
    local x = (luda.arange(2 * sizes[rank + 1]):reshape(sizes[rank + 1], 2) + 100 * rank)
    local all = comm:all_gather(x, { sizes = sizes })
    local back = comm:reduce_scatter(all, "mean", { sizes = sizes })
    local top = comm:gather(x:t(), 2, { sizes = sizes, dim = -1, algorithm = "tree", arity = 1 })
    local apart = comm:scatter(top, 2, { sizes = { 1, 7, 0 }, dim = 2 })
    local sends = ({ { 1, 2, 0 }, { 0, 0, 0 }, { 0, 1, 4 } })[rank + 1]
    local comes = ({ { 1, 0, 0 }, { 2, 0, 1 }, { 0, 0, 4 } })[rank + 1]
    local swapped = comm:all_to_all(x, { sizes = sends })
    local known = comm:all_to_all(x, { sizes = sends, received = comes, async = true }):wait()
    return {
      all = all:totable(), back = back:equal(x), shape = apart.shape, top = top and top:equal(all:t()),
      apart = apart.numel > 0 and apart:totable()[1] or "none", swapped = swapped.shape[1] > 0 and swapped:totable() or "none",
      known = known:equal(swapped),
      count = failure(comm.all_gather, comm, x, { sizes = { 3, 0 } }).message,
      sum = failure(comm.reduce_scatter, comm, all, "sum", { sizes = { 3, 0, 6 } }).message,
      negative = failure(comm.reduce_scatter, comm, all, "sum", { sizes = { 4, -1, 5 } }).message,
      kind = failure(comm.all_gather, comm, x, { sizes = 3 }).message,
      alone = failure(comm.all_to_all, comm, x, { received = comes }).message,
      arity = failure(comm.all_reduce, comm, x, "sum", { algorithm = "tree(0)" }).message,
      other = failure(comm.all_reduce, comm, x, "sum", { algorithm = "ring", arity = 2 }).message,
      odd = failure(comm.all_reduce, comm, all, "sum", { algorithm = rank == 1 and "tree(5)" or "tree" }).message,
    }
  end)
end

return function(comm, job)
  return tasks[job.task](comm, job)
end
