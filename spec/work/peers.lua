--- What rank threads of peers_spec run: job.task names one of these. Thread r is peer job.peers[r + 1].

local luda = require "luda"
local dist = luda.dist

local tasks = {}

local function config(comm, job)
  local options = { num_devices = comm.size, timeout = 20 }
  for name, value in pairs(job.config or {}) do
    options[name] = value
  end
  return dist.Config(options)
end

local function register(comm, job)
  return dist.register { peer = job.peers[comm.rank + 1], config = config(comm, job) }
end

--- What a call that must fail said.
local function failure(call, ...)
  local ok, err = pcall(call, ...)
  if ok then
    return { kind = "none" }
  end
  local detail = err.detail or {}
  return { kind = detail.kind, code = err.code, message = err.message, peers = detail.peers }
end

local function tensor(peer, job)
  return luda.tensor(job.values[peer.id], { dtype = job.dtype or "f64" })
end

--- Everything once; the inputs come back to be compared.
function tasks.numbers(comm, job)
  local peer = register(comm, job)
  local x = tensor(peer, job)
  local result = { sum = peer:all_reduce(x, "sum"):totable(), mean = peer:all_reduce(x, "mean"):totable() }
  local at_root = peer:reduce(x, "sum", job.root)
  result.reduced = at_root and at_root:totable()
  result.sent = peer:broadcast(peer.id == job.root and x or nil):totable()
  result.x = x:totable()
  peer:finish()
  return result
end

--- One call that job.odd makes otherwise; then one that must work.
function tasks.disagree(comm, job)
  local peer = register(comm, job)
  local odd = comm.rank == job.odd
  local calls = {
    all_reduce_shape = function() return peer:all_reduce(luda.ones(odd and 2 or 3), "sum") end,
    all_reduce_dtype = function() return peer:all_reduce(luda.ones(3, { dtype = odd and "f64" or "f32" }), "sum") end,
    all_reduce_operation = function() return peer:all_reduce(luda.ones(3), odd and "mean" or "sum") end,
    reduce_shape = function() return peer:reduce(luda.ones(odd and 2 or 3), "sum", job.peers[1]) end,
    reduce_operation = function() return peer:reduce(luda.ones(3), odd and "mean" or "sum", job.peers[1]) end,
    reduce_root = function() return peer:reduce(luda.ones(3), "sum", job.peers[odd and 2 or 1]) end,
    unknown_root = function() return peer:reduce(luda.ones(3), "sum", 99) end,
    no_tensor = function() return peer:broadcast() end,
    two_tensors = function() return peer:broadcast(not odd and luda.ones(1) or nil) end,
    kinds = function() return odd and peer:broadcast(luda.ones(3)) or peer:all_reduce(luda.ones(3), "sum") end,
    bad_argument = function() return peer:all_reduce(odd and 7 or luda.ones(3), "sum") end,
  }
  local seen = failure(calls[job.call])
  seen.after = peer:all_reduce(luda.ones(2), "sum"):totable()
  peer:finish()
  return seen
end

--- Calls of a peer that has never registered, then of one that has finished, while the others are there.
function tasks.order(comm, job)
  local stranger = dist.Peer(job.peers[comm.rank + 1])
  local x = luda.ones(2)
  local seen = {
    all_reduce = failure(stranger.all_reduce, stranger, x, "sum").kind, broadcast = failure(stranger.broadcast, stranger, x).kind,
    reduce = failure(stranger.reduce, stranger, x, "sum", 1).kind, finish = failure(stranger.finish, stranger).kind,
  }
  comm:barrier()
  local peer = register(comm, job)
  if comm.rank == 0 then
    peer:finish()
    seen.again = failure(peer.finish, peer)
    seen.after = failure(peer.all_reduce, peer, x, "sum").kind
  end
  comm:barrier()
  if comm.rank > 0 then
    seen.rest = peer:all_reduce(x, "sum"):totable()
    peer:finish()
  end
  return seen
end

--- The peers register one after the other; the last is refused.
function tasks.refused(comm, job)
  local last = comm.rank == comm.size - 1
  local options = { num_devices = job.devices or comm.size - 1, timeout = 20 }
  if not last then
    local peer = dist.register { peer = job.peers[comm.rank + 1], config = dist.Config(options) }
    comm:barrier()
    comm:barrier()
    local sum = peer:all_reduce(luda.ones(1), "sum"):item()
    peer:finish()
    return sum
  end
  comm:barrier()
  for name, value in pairs(job.config or {}) do
    options[name] = value
  end
  local seen = failure(dist.register, { peer = job.peers[comm.rank + 1], config = dist.Config(options) })
  comm:barrier()
  return seen
end

--- Ranks above 0 wait in register or in a call; rank 0 resets.
function tasks.reset(comm, job)
  local peer = job.registered and register(comm, job)
  local seen
  comm:barrier()
  if comm.rank == 0 then
    local started = os.time()
    repeat until os.time() > started + 1 -- the others are waiting by now; nothing breaks if they are not
    dist.reset()
    seen = peer and failure(peer.all_reduce, peer, luda.ones(1), "sum") or {}
    seen.finish = peer and failure(peer.finish, peer).kind
  elseif peer then
    seen = failure(peer.all_reduce, peer, luda.ones(1), "sum")
  else
    seen = failure(register, comm, job)
  end
  comm:barrier()
  local again = register(comm, { peers = job.peers })
  seen.after = again:all_reduce(luda.ones(1), "sum"):item()
  again:finish()
  return seen
end

--- Rank 0 stays away.
function tasks.absent(comm, job)
  local peer = job.registered and register(comm, job)
  local seen = {}
  if comm.rank > 0 then
    seen = peer and failure(peer.all_reduce, peer, luda.ones(1), "sum") or failure(register, comm, job)
  end
  comm:barrier()
  if peer then
    peer:finish()
  end
  return seen
end

--- Rank 0 finishes while the others wait for it in a call: they do it among themselves.
function tasks.finish_meanwhile(comm, job)
  local peer = register(comm, job)
  if comm.rank == 0 then
    local started = os.time()
    repeat until os.time() > started + 1
    peer:finish()
    return {}
  end
  local sum = peer:all_reduce(luda.tensor { peer.id }, "sum"):item()
  peer:finish()
  return { sum = sum }
end

--- Rank 0 loses its peer, as a thread that ends in an error does.
function tasks.lost(comm, job)
  local peer = register(comm, job)
  local seen = {}
  if comm.rank == 0 then
    peer = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
  else
    seen = { failure(peer.all_reduce, peer, luda.ones(1), "sum"), failure(peer.all_reduce, peer, luda.ones(1), "sum") }
    peer:finish()
  end
  comm:barrier()
  local again = register(comm, job)
  seen.after = again:all_reduce(luda.ones(1), "sum"):item()
  again:finish()
  return seen
end

return function(comm, job)
  return tasks[job.task](comm, job)
end
