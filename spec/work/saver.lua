--- Rank threads that save to one name at the same time; each reads back what is there after every save.

local luda = require "luda"

return function(comm, job)
  local torn = {}
  comm:barrier()
  for i = 1, job.times do
    luda.scope(function()
      luda.save(job.path, { a = luda.full({ 5000 }, comm.rank), b = luda.full({ 7 }, comm.rank) }, { rank = comm.rank })
      local tensors, facts = luda.load(job.path)
      local first = tensors.a[1]:item()
      if first ~= facts.rank or tensors.a:ne(first):any():item() or tensors.b:ne(first):any():item() then
        torn[#torn + 1] = i
      end
    end)
  end
  return torn
end
