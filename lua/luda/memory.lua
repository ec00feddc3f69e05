--- Handles as Lua values, and what keeps native memory bounded without finalizers.
--
-- Outside scopes a new handle is entered by its slot in a table with weak values. An entry that a collector cycle has
-- emptied means that nobody can reach the handle any more; a sweep gives such handles back (one whose slot has another
-- tensor by now is stale, which the core ignores). The core says through
-- `signals.attend` when to register and when to look, so that an operator inside a scope costs one load and test.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local sites = require "luda.sites"

local registry = debug.getregistry()
if registry["luda.memory"] then
  return registry["luda.memory"]
end

local ffi, C, context, signals = lib.ffi, lib.C, lib.context, lib.signals
local band, ceil, max, min = bit.band, math.ceil, math.max, math.min

local SLOT_LIMIT = 0x1000000
-- Bits of signals.attend; the last is luda.sites' own.
local UNSCOPED_OR_LARGE, COLLECT, NOTE_SITE, TRACK = 5, 2, 8, 16

local Tensor = ffi.typeof("struct luda_lua_tensor")
lib.Tensor = Tensor

local M = {}

-- Garbage that is always borne, in bytes; a Lua heap that is collected whole, in KiB (a millisecond for each 1,024).
local SMALL_GARBAGE, SMALL_HEAP = 32 * 2 ^ 20, 6144

local MANY_HANDLES = 2048

-- How many bytes of garbage are borne before a whole collector cycle, and how often the collector is stepped on the way.
local budget, quantum = 256 * 2 ^ 20, 16 * 2 ^ 20

local reachable = setmetatable({}, { __mode = "v" }) -- slot → tensor
local cycle = setmetatable({ {} }, { __mode = "v" }) -- emptied by each collector cycle
local slots = 0
local numbers = ffi.new("double[1]") -- slot → the handle that was registered there last, or 0
local DEAD = 256
local dead = ffi.new("double[?]", DEAD)

--- Follows the growth of the core's slot table.
local function follow_slots()
  local grown = ffi.new("double[?]", signals.slots)
  ffi.copy(grown, numbers, slots * 8)
  numbers, slots = grown, signals.slots
end

local function register(tensor)
  if signals.slots ~= slots then
    follow_slots()
  end
  local handle = tensor.handle
  local slot = handle % SLOT_LIMIT
  reachable[slot] = tensor
  numbers[slot] = handle -- last: until then an empty entry means a handle that is stale
end

--- Gives back every registered handle that a finished collector cycle found unreachable.
local function sweep()
  if signals.slots ~= slots then
    follow_slots()
  end
  local count = 0
  for slot = 1, slots - 1 do
    if numbers[slot] ~= 0 and reachable[slot] == nil then
      if count == DEAD then
        C.luda_handle_sweep(context, dead, count)
        count = 0
      end
      dead[count], numbers[slot] = numbers[slot], 0
      count = count + 1
    end
  end
  if count > 0 then
    C.luda_handle_sweep(context, dead, count)
  end
end

--- How much garbage may come before the next look: in proportion to what lives, never more than the budget.
local function allowance()
  return min(budget, max(SMALL_GARBAGE, signals.live_bytes / 2))
end

--- How many handles may come before the next look: more where a whole collection has more to walk.
local function many()
  return max(MANY_HANDLES, collectgarbage("count"), signals.handles / 2)
end

--- A look at the collector that the core asked for. A small Lua heap is collected whole, at a fixed amount of garbage, so
-- that resident memory settles after the first look and stays; walking a large one would take too long at once, so it is
-- stepped in proportion to the bytes, and swept after each cycle.
local function collect()
  if not collectgarbage("isrunning") then
    return
  end
  local heap = collectgarbage("count")
  if heap < SMALL_HEAP then
    collectgarbage()
    sweep()
    C.luda_context_rearm(context, -1, many()) -- refreshes live_bytes
    C.luda_context_rearm(context, allowance(), many())
    return
  end
  local over = signals.live_bytes > signals.limit_bytes
  if over and cycle[1] then
    collectgarbage("step", ceil(heap * quantum / budget))
  end
  if not cycle[1] then
    sweep()
    cycle[1] = {}
    over = true
  end
  C.luda_context_rearm(context, over and quantum or -1, many())
end

local function attend_to(tensor, attend)
  if band(attend, TRACK) ~= 0 then
    sites.mark(tensor)
  end
  if band(attend, UNSCOPED_OR_LARGE) ~= 0 then
    register(tensor)
  end
  if band(attend, COLLECT) ~= 0 then
    collect()
  end
  if band(attend, NOTE_SITE) ~= 0 then
    M.note_site(tensor)
  end
end

--- A tensor that has been written to, in a call that may have recorded it anew.
function M.noted(tensor)
  if band(signals.attend, NOTE_SITE) ~= 0 then
    M.note_site(tensor)
  end
  return tensor
end

--- After much was released at once: the limit that the peak pushed up comes down again.
function M.lower_limit()
  if signals.limit_bytes - signals.live_bytes > 2 * quantum then
    C.luda_context_rearm(context, quantum, many())
  end
end

--- Everything unreachable goes back now.
function M.collect_all()
  collectgarbage()
  collectgarbage()
  sweep()
  cycle[1] = {}
end

--- The tensor of a fresh handle; 0 raises the failure that the core has just reported.
---@param handle number
---@return luda.Tensor
function M.wrap(handle)
  if handle == 0 then
    M.raise(signals.status)
  end
  local tensor, attend = Tensor(handle), signals.attend
  if attend ~= 0 then
    attend_to(tensor, attend)
  end
  return tensor
end

--- The tensor of a reference that passes to it.
function M.adopt(pointer)
  return M.wrap(C.luda_handle_new(context, pointer))
end

--- Enters a tensor that has left every scope.
M.register = register

--- What is done with each new handle under luda.autograd.detect_anomaly, which sets it.
---@type fun(tensor: luda.Tensor)
M.note_site = nil

--- Where a scope that is open was entered, and how many handles came since; set by luda.scope.
---@type fun(): string?
M.describe_scope = nil

--- Raises the last failure; when memory was used up it says what is being held.
---@param status any
function M.raise(status)
  if status ~= C.LUDA_ENOMEM then
    lib.raise(status)
  end
  local text = ffi.string(C.luda_last_error())
  local scope = M.describe_scope()
  if scope then
    text = text .. "; " .. scope
  end
  errors.raise_with("no_memory", text, {})
end

--- Repeats a failed call that returns a handle, once, after everything unreachable was given back, if memory was short.
function M.retry(call, ...)
  if signals.status ~= C.LUDA_ENOMEM then
    lib.raise(signals.status)
  end
  M.collect_all()
  return M.wrap(call(context, ...))
end

--- The same for calls that return a status.
function M.retry_status(status, call, ...)
  if status ~= C.LUDA_ENOMEM then
    lib.raise(status)
  end
  M.collect_all()
  status = call(...)
  if status ~= 0 then
    M.raise(status)
  end
end

--- The tensor behind a handle, lent: valid until something else runs.
function M.pointer(tensor)
  local pointer = C.luda_handle_tensor(context, tensor.handle)
  if pointer == nil then
    lib.raise(signals.status)
  end
  return pointer
end

local function device_memory(kind, index)
  local info = ffi.new("luda_memory_info[1]")
  lib.check(C.luda_memory(ffi.new("luda_device", kind, index), info))
  local now = info[0]
  return {
    live = tonumber(now.live),
    peak = tonumber(now.peak),
    cached = tonumber(now.cached),
    tensors = tonumber(now.tensors),
    budget = budget,
  }
end

--- Bytes and tensors by device; of one device when its name is given; `{reset_peak=true}` starts the peak anew. After
-- `{track=true}` every new tensor's memory is known by the line that made it, and `{sites=true}` gives the list of these.
---@param what? string|{reset_peak: boolean, track: boolean, sites: boolean}
---@return table
function M.memory(what)
  if type(what) == "string" then
    return device_memory(args.device("memory", what))
  end
  local options = args.options("memory", what, { reset_peak = false, sites = false, track = args.absent })
  if options.track ~= nil then
    signals.attend = sites.wanted("track", options.track) and bit.bor(signals.attend, TRACK)
      or band(signals.attend, bit.bnot(TRACK))
  end
  if options.sites then
    return sites.list()
  end
  local result = {}
  for kind, name in pairs { [tonumber(C.LUDA_CPU)] = "cpu", [tonumber(C.LUDA_CUDA)] = "cuda:%d" } do
    for index = 0, C.luda_device_count(kind) - 1 do
      if options.reset_peak then
        C.luda_memory_reset_peak(ffi.new("luda_device", kind, index))
      end
      result[name:format(index)] = device_memory(kind, index)
    end
  end
  return result
end

--- How many bytes of unreachable tensors may pile up before the collector has finished a cycle (default 256 MiB).
---@param bytes number
function M.set_memory_budget(bytes)
  if args.number("set_memory_budget", "bytes", bytes) < 2 ^ 20 then
    errors.raise("invalid", "set_memory_budget: %d bytes; at least 2^20 are needed", bytes)
  end
  budget, quantum = bytes, bytes / 16
  C.luda_context_rearm(context, quantum, many())
end

C.luda_context_rearm(context, quantum, MANY_HANDLES)

registry["luda.memory"] = M
return M
