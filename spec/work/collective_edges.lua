--- What rank threads of collective_edges_spec run: few elements, whole numbers and halves, gradients.

local luda = require "luda"

local tasks = {}

--- Sums and means of rank + 1, of many sizes by every algorithm; true where each element is right and the input unchanged.
function tasks.counts(comm, job)
  local size, wrong = comm.size, {}
  for _, algorithm in ipairs { "direct", "ring", "tree", "halving", "centralized" } do
    for _, count in ipairs(job.counts) do
      luda.scope(function()
        local x = luda.full({ count }, comm.rank + 1)
        local sum = comm:all_reduce(x, "sum", { algorithm = algorithm })
        local mean = comm:all_reduce(x, "mean", { algorithm = algorithm })
        local good = sum:ne(size * (size + 1) / 2):any():item() == false and mean:ne((size + 1) / 2):any():item() == false
          and x:ne(comm.rank + 1):any():item() == false and sum.numel == count
        if not good then
          wrong[#wrong + 1] = ("%s of %d"):format(algorithm, count)
        end
      end)
    end
  end
  local none = comm:all_gather(luda.zeros(0, 3))
  local ok, err = pcall(comm.reduce_scatter, comm, luda.ones(size + 1), "sum")
  return {
    wrong = wrong, gathered = none.shape, refused = size == 1 or (not ok and err.code),
    after = comm:all_reduce(luda.ones(1), "sum"):item(),
  }
end

function tasks.types(comm)
  local rank = comm.rank
  local function reduced(value, dtype, operation)
    local ok, result = pcall(function()
      local y = comm:all_reduce(luda.tensor({ value }, { dtype = dtype }), operation)
      return { dtype = y.dtype, value = y[1]:item() }
    end)
    return ok and result or { code = result.code, message = result.message }
  end
  local odd = 9007199254740993LL
  return {
    mean_i32 = reduced(({ 1, 2, 3, 6 })[rank + 1], "i32", "mean"),
    max_i64 = tostring(reduced(odd, "i64", "max").value),
    broadcast_i64 = tostring(comm:broadcast(luda.tensor { rank == 1 and odd or 0LL }, 1)[1]:item()),
    mean_i64 = reduced(odd, "i64", "mean"),
    sum_i64 = tostring(reduced(odd, "i64", "sum").value),
    mean_f16 = reduced(40000, "f16", "mean"),
    sum_bf16 = reduced(rank == 0 and 256 or 1, "bf16", "sum"),
  }
end

function tasks.gradients(comm)
  local rank = comm.rank
  return luda.scope(function()
    local function slope(call, weights)
      local x = luda.tensor({ rank + 1 }):requires_grad_()
      return (call(x) * luda.tensor(weights)):sum():backward()[x]:totable()
    end
    local scattered = luda.tensor({ 10, 20 }):requires_grad_()
    local part = comm:reduce_scatter(scattered, "sum")
    return {
      sum = slope(function(x) return comm:all_reduce(x, "sum") end, { rank == 0 and 1 or 10 }),
      mean = slope(function(x) return comm:all_reduce(x, "mean") end, { rank == 0 and 1 or 10 }),
      gather = slope(function(x) return comm:all_gather(x) end, rank == 0 and { 1, 2 } or { 30, 40 }),
      scatter = (part * (rank == 0 and 5 or 7)):sum():backward()[scattered]:totable(),
    }
  end)
end

--- Tokens of gradients 3; 1, 1, 1; none over three ranks; a parameter that rank 0 alone uses and one that nobody uses.
function tasks.replicas(comm)
  local Net = luda.nn.module "Net"
  function Net:init()
    for _, name in ipairs { "common", "some", "unused" } do
      self[name] = luda.ones(1):requires_grad_()
    end
  end
  local net = Net()
  local parallel = luda.dist.DataParallel(comm, net)
  local opt = luda.optim.SGD(net, { momentum = 0.9, weight_decay = 0.1 })
  return luda.scope(function()
    local first = (net.common + net.some + net.unused):sum():backward()
    opt:step(0.1, (parallel:reduce(first, 1)))
    local before, state = net.unused:item(), opt:state().momentum_buffer["unused"]:item()
    local factors, weight = ({ { 3 }, { 1, 1, 1 }, {} })[comm.rank + 1], ({ 1, 3, 0 })[comm.rank + 1]
    local loss = net.common * 0
    for _, factor in ipairs(factors) do
      loss = loss + net.common * factor
    end
    if comm.rank == 0 then
      loss = loss + net.some * 8
    end
    local grads, total = parallel:reduce(loss:sum():backward(), weight, { missing = "zero" })
    opt:step(0.1, grads)
    return {
      common = grads[net.common]:item(), some = grads[net.some]:item(), unused = grads[net.unused] == nil, total = total,
      kept = net.unused:item() == before and opt:state().momentum_buffer["unused"]:item() == state and opt:steps "unused" == 1,
    }
  end)
end

return function(comm, job)
  return tasks[job.task](comm, job)
end
