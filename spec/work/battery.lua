--- What every transport must do alike: values that are known, and a training run whose bytes are compared. Run by
-- transport_spec in rank threads (returns a function) and as a script of rank processes (prints what each rank found).

local luda = require "luda"
local dist, nn, optim = luda.dist, luda.nn, luda.optim

local function hexadecimal(tensor)
  local bytes = {}
  local data = tensor:contiguous():data()
  local raw = require("ffi").cast("const uint8_t *", data)
  for i = 0, tensor.numel * 4 - 1 do
    bytes[i + 1] = ("%02x"):format(raw[i])
  end
  return table.concat(bytes)
end

--- Three replicated steps on data of each rank's own.
local function train(comm)
  luda.manual_seed(7 + comm.rank)
  local model = nn.Linear(3, 2)
  local replica = dist.DataParallel(comm, model)
  local optimizer = optim.AdamW(model:parameters())
  for step = 1, 3 do
    local x = luda.full({ 4, 3 }, (comm.rank + 1) * 0.25 - step)
    local grads = replica:reduce(model(x):pow(2):mean():backward(), 4)
    optimizer:step(0.1, grads)
  end
  return hexadecimal(model.weight)
end

local function battery(comm)
  local found = {}
  local n, size, rank = 70001, comm.size, comm.rank
  local total = size * (size + 1) / 2
  for _, algorithm in ipairs { "direct", "ring", "tree", "halving", "centralized" } do
    local sum = comm:all_reduce(luda.full({ n }, rank + 1), "sum", { algorithm = algorithm })
    found[#found + 1] = ("%s %g %g"):format(algorithm, sum[1]:item() / total, sum:sum():item() / total / n)
  end
  local gathered = comm:all_gather(luda.tensor { rank, -rank }):totable()
  for r = 0, size - 1 do
    found[#found + 1] = gathered[2 * r + 1] == r and gathered[2 * r + 2] == -r and "gathered" or "wrong"
  end
  local ok, err = pcall(comm.all_reduce, comm, luda.ones(rank == 1 and 3 or 2), "sum")
  found[#found + 1] = ("%s %s %s"):format(ok, err.code, table.concat(err.culprits, " "))
  if rank == 0 then
    comm:send(luda.arange(5), 1)
    comm:send(luda.full({ 100000 }, 0.5), 1)
  elseif rank == 1 then
    local first, second = comm:recv(0), comm:recv(0)
    assert(first[5]:item() == 4 and second:sum():item() == 50000)
  end
  local ok_split, half = pcall(comm.split, comm, rank % 2, { key = -rank })
  if ok_split then
    local sum = half:all_reduce(luda.tensor { rank }, "sum")[1]:item()
    local want, members, place = 0, 0, 0
    for r = rank % 2, size - 1, 2 do
      want, members, place = want + r, members + 1, place + (r > rank and 1 or 0)
    end
    assert(sum == want and half.size == members and half.rank == place, "split")
    half:close()
  end
  found[#found + 1] = ok_split and "split" or half.message:match("^[^:]*")
  found[#found + 1] = train(comm)
  return table.concat(found, "; ")
end

if dist.thread_comm() then
  return function(comm, job)
    if job.library then
      dist.load_transport(job.library)
      comm = dist.connect { transport = "post", address = job.address, rank = comm.rank, size = comm.size, timeout = 20 }
    end
    local text = comm.transport .. "| " .. battery(comm)
    comm:close()
    return text
  end
end
local comm = dist.init { timeout = 20 }
io.write(("rank %d %s| %s\n"):format(comm.rank, comm.transport, battery(comm))) -- one write: lines of ranks must not mix
comm:close()
