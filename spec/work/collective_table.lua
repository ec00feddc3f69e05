--- What rank threads of collective_table_spec run: all types, reductions and algorithms against the twin, bit by bit.

local luda = require "luda"
local ffi = require "ffi"
local twin = require "spec.work.collective_twin"

local N = 12
local REDUCTIONS = { "sum", "mean", "min", "max", "prod", "and", "or", "xor" }
local DTYPES = { "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool" }

local function tensor_of(values, dtype)
  local plain = {}
  for i, v in ipairs(values) do
    plain[i] = v
    if dtype == "bool" then
      plain[i] = v ~= 0
    elseif twin.types[dtype].class == "int" and dtype ~= "i64" then
      plain[i] = tonumber(v)
    end
  end
  return #plain == 0 and luda.zeros({ 0 }, { dtype = dtype }) or luda.tensor(plain, { dtype = dtype })
end

--- The same values as a plain tensor, as a transposed view, as every second element of a longer one.
local LAYOUTS = {
  function(values, dtype)
    return tensor_of(values, dtype)
  end,
  function(values, dtype)
    local columns = {}
    for i = 0, #values - 1 do
      columns[i % 3 * (#values / 3) + math.floor(i / 3) + 1] = values[i + 1]
    end
    return tensor_of(columns, dtype):reshape(3, #values / 3):t()
  end,
  function(values, dtype)
    local spread = {}
    for i, v in ipairs(values) do
      spread[2 * i - 1], spread[2 * i] = v, v
    end
    return tensor_of(spread, dtype):reshape(#values, 2):select(2, 1)
  end,
}

local POINTERS = { f64 = "double *", f32 = "float *", i64 = "int64_t *", i32 = "int32_t *", i16 = "int16_t *", i8 = "int8_t *",
  u8 = "uint8_t *", bool = "uint8_t *" }

--- The elements of a tensor as the twin has them.
local function elements(t)
  t = t:contiguous()
  t = POINTERS[t.dtype] and t or t:to("f32") -- every half is one
  local list, pointer = {}, ffi.cast(POINTERS[t.dtype], t:data())
  for i = 1, t.numel do
    list[i] = pointer[i - 1]
  end
  return list
end

local function same(a, b)
  return #a == #b and (function()
    for i = 1, #a do
      if not (a[i] == b[i] or (a[i] ~= a[i] and b[i] ~= b[i])) then
        return false
      end
    end
    return true
  end)()
end

local function column(dtype, reduction, size, i)
  local values = {}
  for r = 0, size - 1 do
    values[r + 1] = twin.value(dtype, reduction, r, i)
  end
  return values
end

--- The piece of a balanced cut that element i of n lies in.
local function slice_of(i, n, size)
  local each, more = math.floor(n / size), n % size
  return i < more * (each + 1) and math.floor(i / (each + 1)) or more + math.floor((i - more * (each + 1)) / each)
end

local function expected(dtype, reduction, algorithm, size, n, root)
  local list = {}
  for i = 0, n - 1 do
    list[i + 1] = twin.reduce(dtype, reduction, algorithm, column(dtype, reduction, size, i), slice_of(i, n, size), root)
  end
  return list
end

local function own(comm, dtype, reduction, n)
  local values = {}
  for i = 0, n - 1 do
    values[i + 1] = twin.value(dtype, reduction, comm.rank, i)
  end
  return values
end

local function note(seen, good, ...)
  seen.cases = seen.cases + 1
  if not good then
    seen.wrong[#seen.wrong + 1] = table.concat({ ... }, " ")
  end
end

local EVERYWHERE = { "direct", "ring", "tree", "tree(1)", "tree(3)", "halving", "centralized" }
local ROOTED = { "direct", "tree", "tree(3)", "centralized" }

local function all_reduces(comm, seen)
  local turn = 0
  for _, dtype in ipairs(DTYPES) do
    for _, reduction in ipairs(REDUCTIONS) do
      local offered = twin.offered[twin.types[dtype].class][reduction]
      for _, algorithm in ipairs(EVERYWHERE) do
        luda.scope(function()
          turn = turn + 1
          local values = own(comm, dtype, reduction, N)
          local x = LAYOUTS[turn % #LAYOUTS + 1](values, dtype)
          local ok, y = pcall(comm.all_reduce, comm, x, reduction, { algorithm = algorithm })
          if not offered then
            note(seen, not ok and y.code == "dtype" and y.message:find("no " .. reduction .. " of " .. dtype, 1, true), "refusal",
              dtype, reduction)
            seen.refusal = seen.refusal or y.message
          else
            note(seen, ok and same(elements(y), expected(dtype, reduction, algorithm, comm.size, N)), "all_reduce", dtype,
              reduction, algorithm, tostring(y))
            note(seen, same(elements(x), values), "input of", dtype, reduction, algorithm)
          end
        end)
      end
    end
  end
end

--- No elements, one, fewer than ranks; without dimensions.
local function small(comm, seen)
  for _, dtype in ipairs { "f32", "bf16", "i64" } do
    for _, algorithm in ipairs(EVERYWHERE) do
      for _, n in ipairs { 0, 1, 3, 0.5 } do
        local count = math.ceil(n)
        local x = tensor_of(own(comm, dtype, "sum", count), dtype)
        x = n == 0.5 and x:reshape {} or x
        local y = comm:all_reduce(x, "sum", { algorithm = algorithm })
        note(seen, #y.shape == #x.shape and same(elements(y), expected(dtype, "sum", algorithm, comm.size, count)), "all_reduce",
          dtype, algorithm, n)
        comm:all_reduce_(x, "sum", { algorithm = algorithm })
        note(seen, same(elements(x), elements(y)), "all_reduce_", dtype, algorithm, n)
      end
    end
  end
end

local function rooted(comm, seen)
  for _, dtype in ipairs { "f32", "f16", "i16" } do
    for _, algorithm in ipairs(ROOTED) do
      for root = 0, comm.size - 1 do
        local values = own(comm, dtype, "sum", N)
        local y = comm:reduce(LAYOUTS[root % 3 + 1](values, dtype), "sum", root, { algorithm = algorithm })
        note(seen, comm.rank ~= root and y == nil
          or (y and same(elements(y), expected(dtype, "sum", algorithm, comm.size, N, root))), "reduce", dtype, algorithm, root)
        y = comm:broadcast(comm.rank == root and LAYOUTS[2](values, dtype) or nil, root, { algorithm = algorithm })
        local sent = {}
        for i = 0, N - 1 do
          sent[i + 1] = twin.value(dtype, "sum", root, i)
        end
        note(seen, same(elements(y), sent), "broadcast", dtype, algorithm, root)
      end
    end
  end
end

--- Slices along the middle of [2, L, 3], L cut evenly or not.
local function sliced(comm, seen)
  local size = comm.size
  local uneven, even, total = {}, {}, 0
  for r = 1, size do
    uneven[r], even[r] = (r * 3) % 4, 2
    total = total + uneven[r]
  end
  for _, dtype in ipairs { "f32", "bf16", "i64" } do
    for _, algorithm in ipairs { "direct", "ring", "halving" } do
      for which, sizes in ipairs { uneven, even } do
        local length = which == 1 and total or 2 * size
        local x = tensor_of(own(comm, dtype, "sum", 6 * length), dtype):reshape(2, length, 3)
        local y = comm:reduce_scatter(x, "sum", { dim = which == 1 and -2 or 2, sizes = which == 1 and sizes or nil,
          algorithm = algorithm })
        local before, list = 0, {}
        for r = 1, comm.rank do
          before = before + sizes[r]
        end
        for o = 0, 1 do
          for k = before, before + sizes[comm.rank + 1] - 1 do
            for i = 0, 2 do
              list[#list + 1] = twin.reduce(dtype, "sum", algorithm, column(dtype, "sum", size, (o * length + k) * 3 + i),
                comm.rank)
            end
          end
        end
        note(seen, same(elements(y), list) and y.shape[2] == sizes[comm.rank + 1], "reduce_scatter", dtype, algorithm, which)
        local back = comm:all_gather(y, { dim = 2, sizes = which == 1 and sizes or nil, algorithm = algorithm })
        local parts = {}
        for r = 1, size do -- what direct gathers is moved, not computed: compared with single messages
          parts[r] = comm:broadcast(r - 1 == comm.rank and y or nil, r - 1)
        end
        note(seen, same(elements(back), elements(luda.cat(parts, 2))), "all_gather", dtype, algorithm, which)
      end
    end
  end
end

return function(comm, job)
  local seen = { wrong = {}, cases = 0 }
  if job.address then
    comm = luda.dist.connect { address = job.address, session = job.session, rank = comm.rank, size = comm.size, timeout = 30 }
    seen.transport = comm.transport
  end
  luda.scope(function()
    for _, part in ipairs { all_reduces, small, rooted, sliced } do
      part(comm, seen)
    end
  end)
  if job.address then
    comm:barrier()
    comm:close()
  end
  return seen
end
