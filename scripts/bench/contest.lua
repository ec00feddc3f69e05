--- The loop of contest.h from Lua, 4 bytes: luda run [--threads] --no-prefix -n RANKS contest.lua SCALE

local luda = require "luda"
local ffi = require "ffi"

ffi.cdef [[
typedef struct { long seconds, nanoseconds; } contest_time;
int clock_gettime(int clock, contest_time *out);
]]

local MONOTONIC = 1

local comm = luda.dist.init()
local time = ffi.new("contest_time")
local x = luda.zeros(1)
local data = ffi.cast("float *", x:data())

local function now()
  ffi.C.clock_gettime(MONOTONIC, time)
  return tonumber(time.seconds) + 1e-9 * tonumber(time.nanoseconds)
end

local function loop(repeats, with_sum)
  local start, read = now(), 0
  for _ = 1, repeats do
    data[0] = comm.rank + 1
    if with_sum then
      comm:all_reduce_(x, "sum")
    end
    read = read + data[0]
  end
  return (now() - start) / repeats, read
end

--- The largest of all ranks' times.
local function most(seconds)
  return comm:all_reduce(luda.tensor({ seconds }, { dtype = "f64" }), "max"):totable()[1]
end

local repeats = math.max(1, math.floor(tonumber(arg[1]) * 4e7 / 20004))
loop(repeats, true)
most(0)
local without = most((loop(repeats, false)))
local seconds = most((loop(repeats, true))) - without
assert(data[0] == comm.size * (comm.size + 1) / 2, "the sum is wrong")
if comm.rank == 0 then
  print(('{"bytes":4,"seconds":%.9g}'):format(seconds))
end
comm:close()
