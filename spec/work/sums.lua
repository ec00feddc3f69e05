--- So many sums in a row, with pauses between them; how many were right.

local luda = require "luda"
local processes = require "spec.processes"

return function(comm, job)
  local x, right = luda.full({ job.count }, comm.rank + 1), 0
  local expected = comm.size * (comm.size + 1) / 2
  comm:barrier { timeout = 20 }
  for _ = 1, job.calls do
    comm:barrier { timeout = 20 }
    processes.sleep(job.pause or 0)
    luda.scope(function()
      local y = comm:all_reduce(x, "sum", { timeout = job.deadline, algorithm = job.algorithm })
      right = right + (y:min():item() == expected and y:max():item() == expected and 1 or 0)
    end)
  end
  return right
end
