--- What rank threads of pieces_spec run: this rank's rows in pieces, then one reduction by tokens.

local luda = require "luda"

return function(comm, job)
  local net = luda.nn.Linear(job.width, job.classes):to_dtype("f64")
  luda.no_grad(function()
    net.weight:copy_(job.weight)
    net.bias:copy_(job.bias)
  end)
  local parallel, sums = luda.dist.DataParallel(comm, net), luda.optim.Accumulator(net)
  local mine = job.ranks[comm.rank + 1]
  return luda.scope(function()
    local x, y = job.x:narrow(1, mine.start, mine.rows), job.y:narrow(1, mine.start, mine.rows)
    local _, weight = sums:run({ x, y }, { sizes = mine.sizes }, function(a, b)
      return luda.nn.cross_entropy(net(a), b), b:ne(-100):sum()
    end)
    local grads, total = parallel:reduce(sums:grads(), weight, { missing = "zero" })
    return { weight = grads[net.weight]:totable(), bias = grads[net.bias]:totable(), total = total }
  end)
end
