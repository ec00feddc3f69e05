--- luda run: a script on several ranks, as processes of one or several hosts, or as threads.

local lib = require "luda.ffi"
local host = require "luda.host"

local C = lib.C

local M = {}

local USAGE = [[
usage: luda run [OPTION…] SCRIPT.lua ARG…

  -n N             ranks on this host (default: one for each core); on several hosts also N,N,…, one for each
  --threads        rank threads of one process instead of processes
  --devices LIST   a device for each rank, as 0,1 (CUDA) or cpu,cuda:0
  --timeout S      seconds that a collective waits for a rank (default 300)
  --grace S        seconds between asking ranks to end and killing them (default: 30 when the launcher was asked to stop,
                   5 when a rank has failed)
  --max-restarts K start all ranks again, K times at most, when one has failed; LUDA_RESTART says how often
  --log-dir D      what rank R prints also goes to D/rank-R.txt
  --no-prefix      output as it comes, without its rank in front

On several hosts, the same command on each, but for the node's number:

  --nnodes N       hosts
  --node-rank I    this one, from 0; ranks are numbered by node
  --rendezvous H:P an address of node 0, where its launcher listens
  --session TEXT   tells this job from others at that address
  --secret-file F  at least 16 bytes that all ranks share and others cannot read; needed beyond this machine

Each rank gets cores / ranks threads, unless LUDA_THREADS is set. The first failure stops the others and is the exit status.
SIGTERM, Ctrl-C or the terminal's end ask the ranks to stop (luda.stop_requested); a second one, or the grace, kills them.
Nothing that a rank starts outlives the launcher. Exit status 0: all ranks ended with 0, also after a request to stop.
]]

local FLAGS = { ["--threads"] = "threads", ["--no-prefix"] = "bare", ["--help"] = "help", ["-h"] = "help" }
local VALUES = {
  ["-n"] = "counts", ["--devices"] = "devices", ["--timeout"] = "timeout", ["--grace"] = "grace", ["--max-restarts"] = "restarts",
  ["--log-dir"] = "log_dir", ["--nnodes"] = "nodes", ["--node-rank"] = "node", ["--rendezvous"] = "rendezvous",
  ["--session"] = "session", ["--secret-file"] = "secret_file",
}

local function complain(...)
  io.stderr:write("luda run: ", string.format(...), "\n", USAGE)
  return nil
end

--- Options up to the script, as texts; nil after a complaint.
local function read(list)
  local options, i = {}, 1
  while list[i] and list[i]:sub(1, 1) == "-" do
    local name, value = list[i]:match("^(%-%-[%w-]+)=(.*)$")
    name = name or list[i]
    if FLAGS[name] then
      options[FLAGS[name]] = true
    elseif VALUES[name] then
      if not value then
        i = i + 1
        value = list[i]
      end
      if not value then
        return complain("%s needs a value", name)
      end
      options[VALUES[name]] = value
    else
      return complain("unknown option %s", name)
    end
    i = i + 1
  end
  options.script = list[i]
  options.arguments = { unpack(list, i + 1) }
  return options
end

local WHOLE = { nodes = { 1, "--nnodes" }, node = { 0, "--node-rank" }, restarts = { 0, "--max-restarts" } }

--- Texts into numbers; false after a complaint.
local function convert(options)
  for _, name in ipairs { "timeout", "grace" } do
    local value = tonumber(options[name])
    if options[name] and not (value and value > 0 and value < math.huge) then
      return complain("%s must be a positive number, not '%s'", name, options[name])
    end
    options[name] = value
  end
  for name, rule in pairs(WHOLE) do
    local least, flag = rule[1], rule[2]
    local value = tonumber(options[name] or least)
    if not value or value < least or value ~= math.floor(value) or value > 1e6 then
      return complain("%s must be a whole number from %d, not '%s'", flag, least, options[name])
    end
    options[name] = value
  end
  if options.node >= options.nodes then
    return complain("--node-rank %d of --nnodes %d; nodes are 0 to %d", options.node, options.nodes, options.nodes - 1)
  end
  return true
end

--- The ranks of each node: this node's number and first rank, and the whole.
local function count_ranks(options)
  local counts = {}
  for text in (options.counts or tostring(C.luda_threads())):gmatch("[^,]+") do
    local count = tonumber(text)
    if not count or count < 1 or count ~= math.floor(count) then
      return complain("ranks must be a positive number, not '%s'", options.counts)
    end
    counts[#counts + 1] = count
  end
  if #counts == 1 then
    for node = 2, options.nodes do
      counts[node] = counts[1]
    end
  elseif #counts ~= options.nodes then
    return complain("-n %s names %d nodes, --nnodes %d", options.counts, #counts, options.nodes)
  end
  options.first_rank, options.size = 0, 0
  for node, count in ipairs(counts) do
    options.first_rank = options.first_rank + (node <= options.node and count or 0)
    options.size = options.size + count
  end
  options.ranks, options.counts = counts[options.node + 1], table.concat(counts, ",")
  return true
end

local function list_devices(options)
  local devices = {}
  for name in (options.devices or ""):gmatch("[^,]+") do
    devices[#devices + 1] = name:match("^%d+$") and "cuda:" .. name or name
  end
  if #devices > 0 and #devices ~= options.ranks then
    return complain("%d devices were given for %d ranks", #devices, options.ranks)
  end
  options.devices = devices
  return true
end

local function check_nodes(options)
  if options.nodes > 1 and not options.rendezvous then
    return complain("several nodes need --rendezvous host:port, an address of node 0")
  elseif options.nodes > 1 and options.rendezvous:match(":0$") then
    return complain("--rendezvous %s: several nodes need a port that all of them know", options.rendezvous)
  elseif options.threads and (options.nodes > 1 or options.restarts > 0 or options.log_dir) then
    return complain("--threads is for one process: it goes without --nnodes, --max-restarts and --log-dir")
  end
  options.session = options.session or ""
  return true
end

local function read_secret(options)
  if options.secret_file then
    lib.check(host.C.luda_secret_file_check(options.secret_file))
    options.secret = require("luda.dist.rendezvous").read_secret(options.secret_file)
  end
end

local function run_threads(options)
  local own = { [0] = options.script, unpack(options.arguments) }
  local ok, err = pcall(require("luda.dist.spawn").run_script, options.ranks, options.script, own,
    { timeout = options.timeout, devices = #options.devices > 0 and options.devices or nil })
  if ok then
    return 0
  elseif type(err) ~= "table" or not err.rank then
    error(err, 0)
  end
  io.stderr:write("luda: ", err.op and err.op .. ": " or "", err.message, "\n", (err.traceback:gsub("^\n", "")),
    ("\nluda run: rank %d failed; the others were stopped\n"):format(err.rank))
  return 1
end

---@param list string[]
---@param program string
---@return integer status
function M.main(list, program)
  local options = read(list)
  if options and options.help then
    io.write(USAGE)
    return 0
  end
  if not options or not convert(options) or not count_ranks(options) or not list_devices(options) or not check_nodes(options) then
    return 2
  end
  if not options.script then
    complain("which script?")
    return 2
  end
  local file = io.open(options.script, "rb")
  if not file then
    complain("there is no script %s", options.script)
    return 2
  end
  file:close()
  if options.threads then
    return run_threads(options)
  end
  read_secret(options)
  options.command = { program, options.script, unpack(options.arguments) }
  return require("luda.cli.launch").run(options)
end

return M
