--- `secret.lua rank [encrypt]`: a rank, with the secret of the environment. `secret.lua serve ADDRESS SESSION SIZE [FILE]`: a
--- rendezvous.

local luda = require "luda"
local dist = luda.dist

local task = arg[1]

if task == "serve" then
  local secret = arg[5] and require("luda.dist.rendezvous").read_secret(arg[5])
  local ok, meeting = pcall(dist.rendezvous, { bind = arg[2], session = arg[3], size = tonumber(arg[4]), secret = secret })
  print(ok and "serving" or "not serving: " .. tostring(meeting))
  io.stdout:flush()
  if ok then
    io.read("*a") -- until the other end of the pipe is closed
    meeting:close()
  end
  return
end

local ok, comm = pcall(dist.init, { timeout = 20, encrypt = arg[2] == "encrypt" })
if not ok then
  print("refused: " .. tostring(comm))
  os.exit(3)
end
local rank, size = comm.rank, comm.size

--- [n]: i % 13 + r at position i, counted from 0.
local function ramp(n, r)
  return (luda.arange(n, { dtype = "i64" }) % 13) + r
end

local function same(what, expected, actual)
  if tostring(actual.shape[1]) ~= tostring(expected.shape[1]) or not luda.equal(expected, actual) then
    error(("%s of %d: rank %d has another result"):format(what, expected:numel(), rank))
  end
end

for _, n in ipairs { 0, 1, 7, 65537, 400000 } do
  luda.scope(function()
    local x = ramp(n, rank)
    same("all_reduce", ramp(n, 0) * size + size * (size - 1) / 2, comm:all_reduce(x, "sum"))
    same("ring", ramp(n, 0) * size + size * (size - 1) / 2, comm:all_reduce(x, "sum", { algorithm = "ring" }))
    same("broadcast", ramp(n, 1), comm:broadcast(rank == 1 and x or nil, 1))
    local joined = {}
    for r = 0, size - 1 do
      joined[r + 1] = ramp(n, r)
    end
    same("all_gather", luda.cat(joined), comm:all_gather(x))
    local slices = {}
    for r = 0, size - 1 do
      slices[r + 1] = ramp(n, rank * size + r)
    end
    local got = {}
    for r = 0, size - 1 do
      got[r + 1] = ramp(n, r * size + rank)
    end
    same("all_to_all", luda.cat(got), comm:all_to_all(luda.cat(slices)))
    comm:send(x, (rank + 1) % size)
    same("recv", ramp(n, (rank - 1) % size), comm:recv((rank - 1) % size))
  end)
end
comm:barrier()
print(("rank %d of %d: all right"):format(rank, size))
comm:close()
