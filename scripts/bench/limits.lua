--- Bounds of rows, measured by limits.c, and what that library knows of time and of this process.

local lib = require "luda.ffi"

local ffi = lib.ffi

ffi.cdef [[
double luda_limits_now(void);
double luda_limits_cpu(void);
void luda_limits_release(void);
double luda_limits_bandwidth(int kind, size_t bytes, int threads, double seconds);
double luda_limits_flops(int bf16, int threads, double seconds);
double luda_limits_loop(int function, int threads, double seconds);
void luda_limits_values(int function, const float *x, float *y);
double luda_limits_adamw(size_t parameters, int threads, double seconds);
float luda_limits_call(const float *x, const float *y, size_t count);
void luda_limits_scalar(int function, const float *x, float *y, size_t count);
double luda_limits_fault(int huge);
double luda_limits_spawn(const char *const *arguments, const char *output);
]]

local folder = lib.path:match("^(.*/)") or "./"
local found, C = pcall(ffi.load, folder .. "libluda_limits.so")
if not found then
  error(("bench: %slibluda_limits.so is missing; build it: ninja -C build bench_limits"):format(folder), 0)
end

local M = { C = C, now = C.luda_limits_now, folder = folder }

local KINDS = { read = 0, ["in place"] = 1, copy = 2, ["streaming copy"] = 3 } -- ORDER kinds, limits.c
local LOOPS = { exp = 0, tanh = 1, gelu_tanh = 2 } -- ORDER loops, limits.c
local SMALL = 16 * 1024 -- a buffer below this is not divided among threads

M.loops = LOOPS

-- Measures of the machine: each is one sample.

--- Bytes a second on buffers of so many bytes, read and written ones counted.
---@param kind string
---@param bytes integer of one buffer
---@param threads integer
---@param seconds number
---@return number
function M.bandwidth(kind, bytes, threads, seconds)
  local speed = C.luda_limits_bandwidth(KINDS[kind], bytes, bytes < SMALL and 1 or threads, seconds)
  if speed <= 0 then
    error(("no memory for buffers of %d MiB"):format(bytes / 2 ^ 20), 0)
  end
  return speed
end

--- Operations a second; nil where the processor does not multiply this type.
---@param dtype string
---@param threads integer
---@param seconds number
---@return number?
function M.peak(dtype, threads, seconds)
  local speed = C.luda_limits_flops(dtype == "bf16" and 1 or 0, threads, seconds)
  return speed > 0 and speed or nil
end

-- Bounds: `kind` is the word for it, `sample` measures now and returns the seconds of one run.

--- Each input read once, each output written once. Buffers have the size that makes the row's own memory altogether.
---@param kind string "read", "in place" or "copy" (the better of ordinary and streaming stores)
---@param bytes number
---@param threads integer
---@return table
function M.bytes(kind, bytes, threads)
  local one = kind == "read" and bytes or bytes / 2
  return { kind = kind, bytes = true, sample = function(seconds)
    local speed = M.bandwidth(kind, one, threads, kind == "copy" and seconds / 2 or seconds)
    if kind == "copy" and one >= SMALL then
      speed = math.max(speed, M.bandwidth("streaming copy", one, threads, seconds / 2))
    end
    return bytes / speed
  end }
end

--- Products and sums. Where the processor has none of the type the f32 ones count, and the kind says so.
---@param dtype string
---@param count number
---@param threads integer
---@return table
function M.flops(dtype, count, threads)
  local native = dtype == "f32" or M.peak(dtype, 1, 1e-3) ~= nil
  return { kind = native and "flops" or "flops (f32)", sample = function(seconds)
    return count / M.peak(native and dtype or "f32", threads, seconds)
  end }
end

--- So many values of a transcendental function, with all data in the first-level cache.
---@param name string
---@param count number
---@param threads integer
---@return table
function M.arithmetic(name, count, threads)
  return { kind = "arithmetic", sample = function(seconds)
    return count / C.luda_limits_loop(LOOPS[name], count * 4 < SMALL and 1 or threads, seconds)
  end }
end

--- One pass of AdamW over so many parameters.
---@param parameters integer
---@param threads integer
---@return table
function M.adamw(parameters, threads)
  return { kind = "in place", sample = function(seconds)
    return C.luda_limits_adamw(parameters, threads, seconds)
  end }
end

--- So many seconds, whatever the machine does: what a row is to stay below.
---@param seconds number
---@return table
function M.goal(seconds)
  return { kind = "goal", sample = function()
    return seconds
  end }
end

--- A loop of scalar.c over arrays of `count` floats.
---@param function_number integer
---@param x any float *
---@param y any float *
---@param count integer
---@return table
function M.scalar(function_number, x, y, count)
  return { kind = "scalar C", sample = function(seconds)
    local runs, start = 0, M.now()
    repeat
      for _ = 1, 32 do
        C.luda_limits_scalar(function_number, x, y, count)
      end
      runs = runs + 32
    until M.now() - start > seconds
    return (M.now() - start) / runs
  end }
end

-- Programs.

--- Seconds from the start of a program to its end.
---@param command string[]
---@return number
function M.spawn(command)
  local arguments = ffi.new("const char *[?]", #command + 1)
  for i, word in ipairs(command) do
    arguments[i - 1] = word
  end
  local took = C.luda_limits_spawn(arguments, "/dev/null")
  if took < 0 then
    error(("%s failed"):format(table.concat(command, " ")), 0)
  end
  return took
end

-- Who else uses the machine.

local function first_line(path)
  local file = io.open(path)
  local line = file and file:read("*l")
  if file then
    file:close()
  end
  return line or ""
end

--- CPU seconds that a process has used, or (with offset 2) those of its children that have ended.
local function cpu_of(pid, offset)
  local rest, ticks, i = first_line(("/proc/%s/stat"):format(pid)):match("%) (.*)$") or "", 0, 0
  for field in rest:gmatch("%S+") do
    i = i + 1
    if i == 12 + offset or i == 13 + offset then -- user and system time
      ticks = ticks + tonumber(field)
    end
  end
  return ticks / 100
end

local function busy()
  local ticks, i = 0, 0
  for field in first_line("/proc/stat"):gmatch("%d+") do
    i = i + 1
    if i <= 7 and i ~= 4 and i ~= 5 then -- all but idle and waiting for a disk
      ticks = ticks + tonumber(field)
    end
  end
  return ticks / 100
end

--- Starts counting; the returned function gives the share of all cores that other processes have used since.
---@param cores integer
---@param pids integer[] processes that count as ours
---@return fun(): number
function M.foreign(cores, pids)
  local function own()
    local sum = C.luda_limits_cpu() + cpu_of("self", 2)
    for _, pid in ipairs(pids) do
      sum = sum + cpu_of(pid, 0)
    end
    return sum
  end
  local start, before = M.now(), busy() - own()
  return function()
    return math.max(0, (busy() - own() - before) / ((M.now() - start) * cores))
  end
end

return M
