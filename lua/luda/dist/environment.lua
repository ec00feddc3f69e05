--- What a launcher's environment says: which rank this is, and where the ranks meet when no rendezvous is named.

local errors = require "luda.error"
local session = require "luda.dist.session"

local M = {}

--- The variables of each launcher. The first whose `rank` (and `step`) is set counts; `job` tells its jobs apart.
local LAUNCHERS = {
  { name = "luda run", rank = "LUDA_RANK", size = "LUDA_WORLD_SIZE", local_rank = "LUDA_LOCAL_RANK", node = "LUDA_NODE",
    job = {} },
  { name = "torchrun", rank = "RANK", size = "WORLD_SIZE", local_rank = "LOCAL_RANK", node = "GROUP_RANK",
    local_size = "LOCAL_WORLD_SIZE",
    job = { "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT" } },
  { name = "mpirun", rank = "OMPI_COMM_WORLD_RANK", size = "OMPI_COMM_WORLD_SIZE", local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size = "OMPI_COMM_WORLD_LOCAL_SIZE", job = { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" } },
  -- A batch script has a rank too, but is no rank: only steps (srun) are.
  { name = "srun", rank = "SLURM_PROCID", step = "SLURM_STEP_ID", size = { "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS" },
    local_rank = "SLURM_LOCALID", node = "SLURM_NODEID", nodes = { "SLURM_STEP_NUM_NODES", "SLURM_NNODES" },
    host = { "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_LAUNCH_NODE_IPADDR" },
    job = { "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT" } },
}

-- Derived ports lie below those that systems give to outgoing connections.
local FIRST_PORT, PORTS, TRIES = 10000, 22000, 8

--- The first of some variables that is set.
local function value_of(names)
  for _, name in ipairs(type(names) == "table" and names or { names }) do
    local text = os.getenv(name)
    if text and text ~= "" then
      return text, name
    end
  end
end

local function number_of(names, needed_by)
  local text, name = value_of(names)
  local value = tonumber(text)
  if not value and needed_by then
    errors.raise("invalid", "init: this rank was started by %s, but %s is %s", needed_by,
      name or (type(names) == "table" and names[1] or names), text and "'" .. text .. "'" or "not set")
  end
  return value
end

local function launcher_here()
  for _, launcher in ipairs(LAUNCHERS) do
    if value_of(launcher.rank) and (not launcher.step or value_of(launcher.step)) then
      return launcher
    end
  end
end

--- The place that the environment gives to this process; that of a single rank without a launcher.
---@return {rank: integer, size: integer, local_rank: integer?, node: integer?, launcher: string?}
function M.place()
  local launcher = launcher_here()
  if not launcher then
    return { rank = 0, size = 1 }
  end
  return {
    launcher = launcher.name,
    rank = number_of(launcher.rank, launcher.name),
    size = number_of(launcher.size, launcher.name),
    local_rank = number_of(launcher.local_rank),
    node = number_of(launcher.node),
  }
end

--- The first name of a list such as "gpu[03-07,9],login", in Slurm's way of writing.
local function first_host(list)
  local head, ranges, rest = list:match("^([^,%[]*)%[([^%]]*)%]([^,]*)")
  if not head then
    return list:match("^[^,]+")
  end
  return head .. ranges:match("^[^,%-]+") .. rest
end

local function one_host(launcher, place)
  local here = launcher.local_size and number_of(launcher.local_size)
  return here == place.size or (launcher.nodes and number_of(launcher.nodes) == 1)
end

local function host_of_rank_0(launcher, place)
  if one_host(launcher, place) then
    return "127.0.0.1"
  end
  local host = os.getenv("MASTER_ADDR") or (launcher.host and first_host(value_of(launcher.host) or ""))
  if not host then
    errors.raise("invalid", "init: rank %d of %d was started by %s, which does not say where rank 0 is: set MASTER_ADDR (an "
      .. "address of its host) or LUDA_RENDEZVOUS (host:port of the meeting) on all ranks, or use luda run", place.rank,
      place.size, launcher.name)
  end
  return host:find(":", 1, true) and "[" .. host .. "]" or host
end

--- Where ranks meet: at a port that all derive from the job, or at MASTER_PORT, unless torchrun listens there itself.
local function ports_of(id)
  local port = not os.getenv("TORCHELASTIC_RUN_ID") and tonumber(os.getenv("MASTER_PORT"))
  if port then
    return { port }
  end
  local ports, start = {}, tonumber(id:sub(1, 8), 16)
  for try = 0, TRIES - 1 do
    ports[try + 1] = FIRST_PORT + (start + try * 2741) % PORTS
  end
  return ports
end

--- Words that tell this job from others, nil where the launcher says nothing about it.
local function job_of(launcher)
  local words, any = { launcher.name }, false
  for i, name in ipairs(launcher.job) do
    words[i + 1] = os.getenv(name) or ""
    any = any or words[i + 1] ~= ""
  end
  return any and words or nil
end

local meetings = 0

--- The meeting place of ranks whose launcher names no rendezvous: rank 0 serves there.
---@return {addresses: string[], session: string}
function M.meeting(place)
  local launcher = launcher_here()
  local words = job_of(launcher)
  if not words then
    errors.raise("invalid", "init: rank %d of %d was started by %s, but neither LUDA_RENDEZVOUS (host:port of the meeting) is "
      .. "set nor %s; start the ranks with luda run", place.rank, place.size, launcher.name,
      #launcher.job > 0 and table.concat(launcher.job, ", ") or "LUDA_SESSION")
  end
  local id = session("job", place.size, unpack(words))
  local host, addresses = host_of_rank_0(launcher, place), {}
  for i, port in ipairs(ports_of(id)) do
    addresses[i] = ("%s:%d"):format(host, port)
  end
  meetings = meetings + 1 -- a second init of the same ranks is another session
  return { addresses = addresses, session = session(id, meetings) }
end

return M
