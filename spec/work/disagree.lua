--- What rank threads of collective_disagree_spec run: calls that differ on the last rank, and a thousand that agree.

local luda = require "luda"
local over = require "spec.work.over"
local ffi = require "ffi"

ffi.cdef "int usleep(unsigned int microseconds);"

local function filled(shape, dtype)
  return luda.full(shape, 3, { dtype = dtype or "f32" })
end

--- In order: field, call(comm, odd, options, x), shape and type of the odd one's and of the others' tensor. `x` is what a
-- call in place would overwrite.
local CASES = {
  { name = "more_rows", field = "shape", odd = { { 200, 2560 } }, even = { { 100, 2560 } } },
  { name = "same_count", field = "shape", odd = { { 2, 3 } }, even = { { 6 } } },
  { name = "type", field = "dtype", odd = { { 6 }, "f16" }, even = { { 6 }, "f32" } },
  { name = "reduction", field = "reduction", call = function(comm, odd, options, x)
    comm:all_reduce_(x, odd and "mean" or "sum", options)
  end },
  { name = "operation", field = "operation", call = function(comm, odd, options, x)
    if odd then
      comm:broadcast(x, 0)
    else
      comm:all_reduce_(x, "sum", options)
    end
  end },
  { name = "root", field = "root", reduce = true, call = function(comm, odd, options, x)
    comm:reduce(x, "sum", odd and 1 or 0, options)
  end },
  { name = "no_sender", reduce = true, call = function(comm, _, options)
    comm:broadcast(nil, 0, options)
  end },
}

local tasks = {}

local function unchanged(x, sum)
  return x:ne(3):any():item() == false and sum
end

local function tells(comm, case, err)
  if case.field then
    return err.code == "mismatch" and err.detail.field == case.field and err.message:find("rank " .. comm.size - 1, 1, true)
  end
  return err.code == (comm.rank == 0 and "invalid" or "mismatch") and err.message:find("rank 0 must pass a tensor", 1, true)
end

--- One call that must fail on every rank, then one that must work; nil, or what was wrong.
local function attempt(comm, case, algorithm)
  local odd = comm.rank == comm.size - 1
  local given = case[odd and "odd" or "even"] or { { 5 } }
  local x = filled(given[1], given[2])
  local options = { timeout = 20, algorithm = not (case.reduce and algorithm == "ring") and algorithm or nil }
  local ok, err = pcall(case.call or function(_, _, settings, tensor)
    comm:all_reduce_(tensor, "sum", settings)
  end, comm, odd, options, x)
  local sum = comm:all_reduce(luda.full({ 3 }, comm.rank + 1), "sum", { algorithm = algorithm }):totable()
  local all = comm.size * (comm.size + 1) / 2
  local right = unchanged(x, sum[1] == all and sum[2] == all and sum[3] == all)
  if not right or ok or not tells(comm, case, err) then
    return ("%s by %s: %s; then %s"):format(case.name, algorithm, ok and "no error" or tostring(err), table.concat(sum, " "))
  end
end

function tasks.disagree(comm)
  local wrong = {}
  for _, algorithm in ipairs { "ring", "tree", "centralized" } do
    for _, case in ipairs(CASES) do
      wrong[#wrong + 1] = attempt(comm, case, algorithm)
    end
  end
  comm:barrier()
  return wrong
end

--- The last rank stays away for a while, once per algorithm.
function tasks.absent(comm, job)
  local odd, wrong = comm.rank == comm.size - 1, {}
  for _, algorithm in ipairs(job.algorithms) do
    local x = filled { 7 }
    comm:barrier()
    if odd then
      ffi.C.usleep(700000)
    end
    local ok, err = pcall(comm.all_reduce_, comm, x, "sum", { timeout = 0.3, algorithm = algorithm })
    local sum = comm:all_reduce(luda.ones(1), "sum", { algorithm = algorithm }):item()
    local names = not ok and #err.culprits == 1 and err.culprits[1] == comm.size - 1
    if ok or err.code ~= "timeout" or not names or not unchanged(x, sum == comm.size) then
      wrong[#wrong + 1] = ("%s: %s; then %g"):format(algorithm, ok and "no error" or tostring(err), sum)
    end
  end
  comm:barrier()
  return wrong
end

--- A thousand calls of changing sizes, operations and algorithms; ranks dawdle at random, so that some are a call ahead.
function tasks.thousand(comm)
  local size, rank, wrong = comm.size, comm.rank, 0
  local dice = rank + 1
  local reductions = { { "sum", size * (size + 1) / 2 }, { "max", size }, { "mean", (size + 1) / 2 }, { "min", 1 } }
  local algorithms = { "direct", "ring", "tree", "halving", "centralized" }
  for call = 1, 1000 do
    luda.scope(function()
      local reduction = reductions[call % #reductions + 1]
      local x = luda.full({ call * 7919 % 263 }, rank + 1)
      dice = (dice * 1103515245 + 12345) % 2147483648
      if dice % 16 == rank then
        ffi.C.usleep(dice % 997)
      end
      local y = comm:all_reduce(x, reduction[1], { algorithm = algorithms[call % #algorithms + 1], timeout = 20 })
      wrong = wrong + (y:ne(reduction[2]):any():item() and 1 or 0) + (y.numel == x.numel and 0 or 1)
    end)
  end
  return luda.scope(function()
    local first = comm:reduce(luda.full({ 2 }, rank + 1), "sum", 0)
    local sent = comm:broadcast(luda.full({ 2 }, rank + 1), size - 1)
    local again = comm:reduce(luda.full({ 2 }, rank + 1), "max", 0)
    comm:barrier()
    return { wrong = wrong, first = first and first:totable(), sent = sent:totable(), again = again and again:totable() }
  end)
end

return function(comm, job)
  local used = over.comm(comm, job)
  local result = luda.scope(function()
    return tasks[job.task](used, job)
  end)
  if used ~= comm then
    used:close()
  end
  return result
end
