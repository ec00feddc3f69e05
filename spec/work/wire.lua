--- One rank of spec/wire_spec.lua; arg[1]: connections, or "default".

local luda = require "luda"

local ok, problem = pcall(function()
  local comm = luda.dist.init { timeout = 1, connections = tonumber(arg[1]) }
  local sum = comm:all_reduce(luda.arange(1000003) % 7 + comm.rank, "sum")
  assert(sum[5]:item() == 2 * 4 + 1 and sum[1000003]:item() == 2 * (1000002 % 7) + 1, "a wrong sum")
  comm:send(luda.tensor { comm.rank }, 1 - comm.rank, { tag = 5 })
  assert(comm:recv(1 - comm.rank, { tag = 5 }):item() == 1 - comm.rank, "a wrong message")
  local files = 0
  for line in io.popen("ls -l /proc/$PPID/fd"):lines() do
    files = files + (line:find("socket:", 1, true) and 1 or 0)
  end
  comm:barrier()
  io.write(("rank %d: right, %d sockets\n"):format(comm.rank, files))
  comm:close()
end)
if not ok then
  io.write(tostring(problem), "\n")
end
