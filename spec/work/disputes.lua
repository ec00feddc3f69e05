--- Ranks that ask for different things, one field after another, and what each learns. For rank threads and processes.

local luda = require "luda"
local ask = require "luda.dist.ask"
local lib = require "luda.ffi"
local memory = require "luda.memory"

local ffi, C = lib.ffi, lib.C

--- The call of a rank whose arguments are odd, or as the others'.
local calls = {}

function calls.operation(comm, odd)
  local x = luda.ones(3, 2)
  return odd and comm:broadcast(x, 0) or comm:all_reduce(x, "sum")
end

function calls.dtype(comm, odd)
  return comm:all_reduce(luda.ones({ 3, 2 }, { dtype = odd and "f64" or "f32" }), "sum")
end

function calls.shape(comm, odd)
  return comm:all_reduce(luda.ones(odd and 2 or 3, odd and 3 or 2), "sum")
end

calls["number of dimensions"] = function(comm, odd)
  return comm:all_reduce(odd and luda.ones(3, 2, 1) or luda.ones(3, 2), "sum")
end

function calls.reduction(comm, odd)
  return comm:all_reduce(luda.ones(3, 2), odd and "max" or "sum")
end

function calls.root(comm, odd)
  return comm:reduce(luda.ones(3, 2), "sum", odd and 1 or 0)
end

function calls.algorithm(comm, odd)
  return comm:all_reduce(luda.ones(3, 2), "sum", { algorithm = odd and "ring" or "tree" })
end

function calls.dim(comm, odd)
  return comm:all_gather(luda.ones(3, 2), { dim = odd and 2 or 1 })
end

function calls.tracked(comm, odd)
  local x = luda.ones(3, 2)
  return comm:all_reduce(odd and x:requires_grad_() or x, "sum")
end

--- Two ranks pass a tensor where nobody names the root.
function calls.sender(comm, odd)
  local out = ffi.new("luda_tensor *[1]")
  local x = odd and luda.ones(3, 2)
  return ask.result(comm, C.luda_comm_broadcast(comm.pointer, x and memory.pointer(x) or nil, -1,
    ask.call_options(comm, "broadcast", nil, ask.PLAIN), out), out)
end

local function texts(detail)
  local list = {}
  for i, entry in ipairs(detail or {}) do
    list[i] = entry.asked
  end
  return list
end

--- One dispute: what this rank learns, and a sum afterwards.
local function dispute(comm, field, odd)
  local mine = comm.rank == odd or (field == "sender" and comm.rank == (odd + 1) % comm.size)
  local fine, problem = pcall(calls[field], comm, mine)
  local row = { field = field, odd = odd, fine = fine }
  if not fine then
    row.code, row.culprits, row.message = problem.code, problem.culprits, tostring(problem)
    row.named, row.asked = problem.detail and problem.detail.field, texts(problem.detail)
  end
  row.sum = comm:all_reduce(luda.full({ 3 }, comm.rank + 1), "sum"):totable()
  return row
end

return function(comm)
  return luda.scope(function()
    local rows, fields = {}, {}
    for field in pairs(calls) do
      fields[#fields + 1] = field
    end
    table.sort(fields)
    for _, field in ipairs(fields) do
      for odd = 0, comm.size - 1 do
        rows[#rows + 1] = dispute(comm, field, odd)
      end
    end
    return rows
  end)
end
