--- What the peers of orchestrator_spec's nodes run: job.task names one of these. Thread r is peer job.peers[r + 1].

local ffi = require "ffi"
local luda = require "luda"
local dist = luda.dist

ffi.cdef "int getpid(void); int kill(int, int); int usleep(unsigned);"

local tasks = {}

local function register(comm, job, more)
  local options = {}
  for _, list in ipairs { job.config, more or {} } do
    for name, value in pairs(list) do
      options[name] = value
    end
  end
  if job.secrets then
    options.secret_file, options.encrypt = job.secrets[job.node], true
  end
  return dist.register { peer = job.peers[comm.rank + 1], config = dist.Config(options) }
end

--- What a call that must fail said.
local function failure(call, ...)
  local ok, err = pcall(call, ...)
  if ok then
    return { kind = "none" }
  end
  local detail = type(err) == "table" and err.detail or {}
  return { kind = detail.kind or "?", inner = detail.inner, nodes = detail.nodes, peers = detail.peers, field = detail.field,
    code = err.code, message = tostring(err.message or err):gsub("[^ -~]", "?") }
end

local function values_of(job, peer, dtype)
  return luda.tensor(job.values[tostring(peer.id)], { dtype = dtype or "f64" })
end

local function sum_of_ones(peer)
  return peer:all_reduce(luda.ones(1), "sum"):item()
end

--- Everything once by each of job.rounds, which are registrations: the group ends and begins again each time.
function tasks.numbers(comm, job)
  local results = {}
  for i, round in ipairs(job.rounds) do
    local peer = register(comm, job, round)
    local x = values_of(job, peer)
    local seen = { mean = peer:all_reduce(x, "mean"):totable(), sum = peer:all_reduce(x, "sum"):totable(),
      max = peer:all_reduce(x, "max"):totable(), sent = {}, reduced = {}, averaged = {} }
    for _, root in ipairs(job.roots) do
      local key = tostring(root)
      local at_root = peer:reduce(x, "sum", root)
      seen.reduced[key] = at_root and at_root:totable() or nil
      at_root = peer:reduce(x, "mean", root)
      seen.averaged[key] = at_root and at_root:totable() or nil
      seen.sent[key] = peer:broadcast(peer.id == root and x or nil):totable()
    end
    seen.x = x:totable()
    peer:finish()
    comm:barrier() -- until all of this process have finished
    results[i] = seen
  end
  return results
end

--- Element types, shapes and views.
--- Comes, adds ones up, and goes.
function tasks.meet(comm, job)
  local sum
  local seen = failure(function()
    local peer = register(comm, job)
    sum = sum_of_ones(peer)
    peer:finish()
  end)
  seen.sum = sum
  return seen
end

function tasks.types(comm, job)
  local peer = register(comm, job)
  local seen = {}
  for _, dtype in ipairs { "f32", "bf16", "f16", "i64", "u8" } do
    local sum = peer:all_reduce(luda.full({ 3 }, peer.id, { dtype = dtype }), "sum")
    seen[dtype] = { sum:to("f64"):totable(), sum.dtype }
  end
  seen.large = peer:all_reduce(luda.full({ 1 }, 30000, { dtype = "f16" }), "mean"):item()
  seen.fine = peer:all_reduce(luda.full({ 1 }, peer.id == job.first and 256 or 0.5, { dtype = "bf16" }), "sum"):item()
  seen.empty = peer:all_reduce(luda.zeros({ 0, 3 }), "sum").shape
  seen.scalar = peer:all_reduce(luda.tensor(peer.id, { dtype = "f64" }), "sum"):item()
  local rows = luda.tensor { { peer.id, 1 }, { 2, 3 }, { 4, 5 } }
  seen.view = peer:all_reduce(rows:t(), "sum"):totable()
  seen.any = peer:all_reduce(luda.tensor({ peer.id == job.first, false }, { dtype = "bool" }), "or"):totable()
  peer:finish()
  return seen
end

--- Calls that peer job.odd, or the whole node job.odd_node, makes otherwise; after each of them one that must work.
function tasks.disagree(comm, job)
  local peer = register(comm, job)
  local odd = peer.id == job.odd or job.node == job.odd_node
  local first = job.roots[1]
  local calls = {
    shape = function() return peer:all_reduce(luda.ones(odd and 2 or 3), "sum") end,
    dtype = function() return peer:all_reduce(luda.ones(3, { dtype = odd and "f64" or "f32" }), "sum") end,
    halves = function() return peer:all_reduce(luda.ones(3, { dtype = odd and "f16" or "bf16" }), "sum") end,
    operation = function() return peer:all_reduce(luda.ones(3), odd and "mean" or "sum") end,
    reduce_shape = function() return peer:reduce(luda.ones(odd and 2 or 3), "sum", first) end,
    reduce_operation = function() return peer:reduce(luda.ones(3), odd and "mean" or "sum", first) end,
    root = function() return peer:reduce(luda.ones(3), "sum", job.roots[odd and 2 or 1]) end,
    unknown_root = function() return peer:reduce(luda.ones(3), "sum", 999) end,
    no_tensor = function() return peer:broadcast() end,
    two_tensors = function() return peer:broadcast((odd or peer.id == first) and luda.ones(1) or nil) end,
    kinds = function()
      if odd then
        return peer:reduce(luda.ones(3), "sum", first)
      end
      return peer:all_reduce(luda.ones(3), "sum")
    end,
    kinds_broadcast = function()
      return odd and peer:broadcast(luda.ones(3)) or peer:all_reduce(luda.ones(3), "sum")
    end,
    bad_argument = function() return peer:all_reduce(odd and 7 or luda.ones(3), "sum") end,
    bad_root = function() return peer:reduce(luda.ones(3), "sum", odd and 0 / 0 or first) end,
    bad_reduction = function() return peer:all_reduce(luda.ones(3), odd and ("\255\n"):rep(2000) or "sum") end,
    bad_mean = function() return peer:all_reduce(luda.ones(3, { dtype = "i64" }), "mean") end,
    tracked = function() return peer:all_reduce(luda.ones(3):requires_grad_(), "sum") end,
  }
  local results = {}
  for i, name in ipairs(job.calls) do
    results[i] = failure(calls[name])
    results[i].after = sum_of_ones(peer)
  end
  peer:finish()
  return results
end

--- Node 1 speaks for itself, past what a peer would do.
function tasks.liars(comm, job)
  local peer = register(comm, job, { global_all_reduce = "ring" })
  local seen = {}
  local two = { op = "all_reduce", how = "sum", strategy = "ring", dtype = "f32", shape = { 2 }, devices = 1 }
  local sent = { op = "broadcast", strategy = "direct", dtype = "f32", shape = { 2 }, senders = 1 }
  if job.node == 1 then
    seen.reduce = failure(peer.node.all_reduce, peer.node, two, luda.ones(3))
    seen.broadcast = failure(peer.node.broadcast, peer.node, sent, luda.ones(3)).kind
  else
    seen.reduce = failure(peer.all_reduce, peer, luda.ones(2), "sum")
    seen.broadcast = failure(peer.broadcast, peer)
  end
  seen.short = failure(peer.all_reduce, peer, luda.ones(1), "sum")
  seen.after = peer:all_reduce(luda.ones(2), "sum"):totable()
  local node = peer.node
  peer:finish()
  seen.late = { failure(node.begin, node, { op = "all_reduce" }).inner, failure(node.begin, node, { op = "reduce" }).inner }
  return seen
end

--- Node 1 brings another strategy between nodes.
function tasks.strategy(comm, job)
  local peer = register(comm, job, { global_all_reduce = job.node == 1 and "tree(2)" or "tree(3)" })
  local seen = failure(peer.all_reduce, peer, luda.ones(2), "sum")
  seen.sent = peer:broadcast(job.node == 1 and luda.ones(1) or nil):item()
  peer:finish()
  return seen
end

--- Two threads of node 1 speak for it at once, while the other node is late.
function tasks.twice(comm, job)
  local peer = register(comm, job)
  local description = { op = "all_reduce", how = "sum", strategy = "direct", dtype = "f32", shape = { 1 }, devices = 1 }
  local seen
  if job.node == 1 and comm.rank < 2 then
    seen = failure(peer.node.begin, peer.node, description)
  elseif job.node == 2 then
    ffi.C.usleep(500000)
    seen = failure(peer.node.begin, peer.node, description)
  end
  comm:barrier()
  peer:finish()
  return seen or {}
end

--- The node job.victim, or its peer job.absent, is late for a call of 0.3 s. Every peer has one failed call, so that all meet
--- at the next.
function tasks.absent(comm, job)
  local peer = register(comm, job)
  local away = job.node == job.victim and (not job.absent or peer.id == job.absent)
  sum_of_ones(peer)
  peer.config.timeout = 0.3
  if away then
    ffi.C.usleep(800000)
  end
  local started = os.time()
  local seen = failure(sum_of_ones, peer)
  seen.took = os.time() - started
  peer.config.timeout = 20
  seen.after = sum_of_ones(peer)
  peer:finish()
  return seen
end

local function signal_soon(number)
  os.execute(("(sleep 0.2; kill -%s %d) >/dev/null 2>&1 &"):format(number, ffi.C.getpid()))
end

--- Node job.victim gets a signal in the middle of large sums; the others say whom they miss.
function tasks.death(comm, job)
  local peer = register(comm, job)
  local x = luda.ones(1e6)
  peer.config.timeout = 1
  if job.node == job.victim and comm.rank == 0 then
    local file = io.open(job.mark, "w")
    file:write(ffi.C.getpid())
    file:close()
    signal_soon(job.signal)
  end
  local progress = require "luda.progress"
  local seen
  repeat
    local started = progress.now()
    seen = failure(peer.all_reduce, peer, x, "sum")
    seen.took = progress.now() - started
  until seen.kind ~= "none"
  seen.again = failure(peer.all_reduce, peer, luda.ones(1), "sum")
  failure(peer.finish, peer)
  return seen
end

--- Node job.victim leaves while the others wait for it: in order, by a reset, or because a peer of it is lost.
function tasks.leave(comm, job)
  local peer = register(comm, job)
  local seen = { first = sum_of_ones(peer) }
  if job.node ~= job.victim then
    seen.lost = failure(sum_of_ones, peer)
    peer:finish()
  elseif job.how == "finish" then
    ffi.C.usleep(300000)
    peer:finish()
  elseif job.how == "reset" then
    if comm.rank == 0 then
      ffi.C.usleep(300000)
      dist.reset()
    else
      seen.lost = failure(sum_of_ones, peer)
    end
    comm:barrier()
    seen.finish = failure(peer.finish, peer).kind
  elseif comm.rank == 0 then
    peer = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
  else
    seen.lost = failure(sum_of_ones, peer)
    peer:finish()
  end
  comm:barrier()
  peer = register(comm, job)
  seen.after = sum_of_ones(peer)
  peer:finish()
  return seen
end

--- One peer of node 1 finishes; the mean is over those who remain.
function tasks.shrink(comm, job)
  local peer = register(comm, job)
  local seen = { before = peer:all_reduce(luda.tensor { peer.id }, "mean"):item(), connections = 0 }
  local port = (" 0100007F:%04X %%x+:%%x+ 01 "):format(job.config.data_service_port)
  for row in io.lines("/proc/net/tcp") do
    seen.connections = seen.connections + (row:find(port) and 1 or 0)
  end
  if job.node == 1 and comm.rank == 0 then
    ffi.C.usleep(200000)
    peer:finish()
    return seen
  end
  seen.after = peer:all_reduce(luda.tensor { peer.id }, "mean"):item()
  peer:finish()
  return seen
end

--- The orchestrator is killed between two calls.
function tasks.orphans(comm, job)
  local peer = register(comm, job)
  local seen = { before = sum_of_ones(peer) }
  if job.node == 1 and comm.rank == 0 then
    ffi.C.kill(job.orchestrator, 9)
    ffi.C.usleep(200000)
  end
  seen.after = sum_of_ones(peer)
  seen.finish = failure(peer.finish, peer)
  comm:barrier()
  if comm.rank == comm.size - 1 then
    seen.register = failure(register, comm, job, { num_devices = 1, connect_attempts = 2, retry_delay = 0.01 })
  end
  return seen
end

return function(comm, job)
  return tasks[job.task](comm, job)
end
