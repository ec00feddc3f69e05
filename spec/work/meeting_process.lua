--- A rank of rendezvous_spec in a process of its own: ADDRESS SESSION RANK SIZE.

local luda = require "luda"

local address, session, rank, size = ...
local comm = luda.dist.connect { address = address, session = session, rank = tonumber(rank), size = tonumber(size),
  timeout = 60 }
print("sum " .. comm:all_reduce(luda.full({ 1 }, comm.rank + 1), "sum"):item())
comm:close()
