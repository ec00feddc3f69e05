--- luda run: a script on several ranks, as processes of this host, or as threads.

local args = require "luda.args"
local lib = require "luda.ffi"
local host = require "luda.host"

local ffi, C = lib.ffi, lib.C

local M = {}

local USAGE = [[
usage: luda run [OPTION…] SCRIPT.lua ARG…

  -n N             ranks on this host (default: one for each core)
  --threads        rank threads of one process instead of processes
  --devices LIST   a device for each rank, as 0,1 (CUDA) or cpu,cuda:0
  --timeout S      seconds that a collective waits for a rank (default 300)
  --grace S        seconds between asking and killing, once a rank has failed (default 5)
  --no-prefix      output as it comes, without its rank in front

Each rank gets cores / ranks threads, unless LUDA_THREADS is set. The first failure stops the others and is the exit status.
]]

local FLAGS = { ["--threads"] = "threads", ["--no-prefix"] = "bare", ["--help"] = "help", ["-h"] = "help" }
local VALUES = { ["-n"] = "ranks", ["--devices"] = "devices", ["--timeout"] = "timeout", ["--grace"] = "grace" }

local function complain(...)
  io.stderr:write("luda run: ", string.format(...), "\n", USAGE)
  return nil
end

--- Options up to the script; nil after a complaint.
local function parse(list)
  local options, i = {}, 1
  while list[i] and list[i]:sub(1, 1) == "-" do
    if FLAGS[list[i]] then
      options[FLAGS[list[i]]] = true
    elseif VALUES[list[i]] then
      options[VALUES[list[i]]] = list[i + 1]
      i = i + 1
    else
      return complain("unknown option %s", list[i])
    end
    i = i + 1
  end
  options.script = list[i]
  options.arguments = { unpack(list, i + 1) }
  for _, name in ipairs { "ranks", "timeout", "grace" } do
    if options[name] and not (tonumber(options[name]) and tonumber(options[name]) > 0) then
      return complain("%s must be a positive number, not '%s'", name, options[name])
    end
  end
  if not options.script and not options.help then
    return complain("which script?")
  end
  return options
end

local function device_list(options, ranks)
  local devices = {}
  for name in (options.devices or ""):gmatch("[^,]+") do
    devices[#devices + 1] = name:match("^%d+$") and "cuda:" .. name or name
  end
  if #devices > 0 and #devices ~= ranks then
    return complain("%d devices were given for %d ranks", #devices, ranks)
  end
  return devices
end

--- NULL-ended array of C strings; `anchor` keeps them alive.
local function c_strings(list, anchor)
  local array = ffi.new("const char *[?]", #list + 1)
  for i, text in ipairs(list) do
    array[i - 1] = text
  end
  anchor[#anchor + 1] = { list, array }
  return array
end

local function environment(rank, ranks, meeting, devices, threads)
  local list = {
    "LUDA_RANK=" .. rank, "LUDA_WORLD_SIZE=" .. ranks, "LUDA_LOCAL_RANK=" .. rank, "LUDA_NODE=0",
    "LUDA_RENDEZVOUS=" .. meeting.address, "LUDA_SESSION=" .. meeting.session,
  }
  if devices[rank + 1] then
    list[#list + 1] = "LUDA_DEVICE=" .. devices[rank + 1]
  end
  if not os.getenv("LUDA_THREADS") then
    list[#list + 1] = "LUDA_THREADS=" .. threads
  end
  return list
end

local function run_processes(options, ranks, devices, program)
  local anchor, meeting = {}, require("luda.dist").rendezvous { size = ranks }
  local threads = math.max(1, math.floor(C.luda_threads() / ranks))
  local environments = ffi.new("const char *const *[?]", ranks)
  for rank = 0, ranks - 1 do
    environments[rank] = c_strings(environment(rank, ranks, meeting, devices, threads), anchor)
  end
  local settings = ffi.new("luda_launch_options", {
    size = ffi.sizeof("luda_launch_options"), ranks = ranks, first_rank = 0, prefix = options.bare and 0 or 1,
    arguments = c_strings({ program, options.script, unpack(options.arguments) }, anchor),
    environment = environments, grace = tonumber(options.grace) or 5,
  })
  local result = ffi.new("luda_launch_report[1]")
  lib.check(host.C.luda_launch(settings, result))
  meeting:close()
  if result[0].rank >= 0 then
    local how = result[0].signal ~= 0 and ("was killed by signal %d"):format(result[0].signal)
      or ("ended with status %d"):format(result[0].status)
    io.stderr:write(("luda run: rank %d %s; the others were stopped\n"):format(result[0].rank, how))
  end
  return result[0].status
end

---@param list string[]
---@param program string
---@return integer status
function M.main(list, program)
  local options = parse(list)
  if not options then
    return 2
  elseif options.help then
    io.write(USAGE)
    return 0
  end
  local file = io.open(options.script, "rb")
  if not file then
    complain("there is no script %s", options.script)
    return 2
  end
  file:close()
  local ranks = args.integer("run", "-n", tonumber(options.ranks) or C.luda_threads())
  local devices = device_list(options, ranks)
  if not devices then
    return 2
  end
  if not options.threads then
    return run_processes(options, ranks, devices, program)
  end
  local own = { [0] = options.script, unpack(options.arguments) }
  require("luda.dist.spawn").run_script(ranks, options.script, own,
    { timeout = tonumber(options.timeout), devices = #devices > 0 and devices or nil })
  return 0
end

return M
