--- One of two rank threads: rank 0 records and rank 1 does not, each with its own seed, while they run at the same time.

local luda = require "luda"
local lib = require "luda.ffi"

local function draw(seed, steps)
  luda.manual_seed(seed)
  local sum = 0
  for _ = 1, steps do
    sum = sum + luda.scope(function()
      return luda.rand(3):sum():item()
    end)
  end
  return sum
end

return function(comm, job)
  comm:barrier()
  local grad
  local function work()
    local sum = draw(comm.rank + 1, job.steps)
    grad = (luda.ones(2):requires_grad_() * 2).requires_grad
    return sum
  end
  local sum = comm.rank == 0 and work() or luda.no_grad(work)
  comm:barrier()
  return { grad = grad, sum = sum, depth = lib.signals.depth, expected = draw(comm.rank + 1, job.steps) }
end
