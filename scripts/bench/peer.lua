--- The other side: PyTorch in processes of its own, which sleep until they are asked for a sample.
--
-- With several threads there are two of them: in one idle threads spin for a while (fast on a quiet machine), in the other
-- they sleep at once (fast on a busy one). The first sample of a row decides which of them the row is compared with.

local luda_json = require "luda.json"

local M = {}
M.__index = M

local Worker = {}
Worker.__index = Worker

-- What makes PyTorch fastest here: its kernels for AVX-512, the OpenBLAS that shares its threads, memory that is kept.
local SETTINGS = {
  "MALLOC_MMAP_THRESHOLD_=17179869184", "MALLOC_TRIM_THRESHOLD_=68719476736", "MALLOC_TOP_PAD_=268435456",
}
local OPENBLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp"

local function has_avx512()
  local file = io.open("/proc/cpuinfo")
  local text = file and file:read("*a") or ""
  if file then
    file:close()
  end
  return text:find(" avx512vl ", 1, true) ~= nil
end

--- The words in front of a command that give it the best settings.
local function environment(threads)
  local list = { "env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE", unpack(SETTINGS) }
  list[#list + 1] = ("OMP_NUM_THREADS=%d OPENBLAS_NUM_THREADS=%d"):format(threads, threads)
  list[#list + 1] = ("LD_LIBRARY_PATH=%s:%s"):format(OPENBLAS, os.getenv("LD_LIBRARY_PATH") or "")
  if has_avx512() then
    list[#list + 1] = "ATEN_CPU_CAPABILITY=avx512"
  end
  return table.concat(list, " ")
end

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

--- Whether the first interpreter has PyTorch, then the next.
local function find_python()
  for _, python in ipairs { os.getenv("PYTHON") or "python3", "/usr/bin/python3" } do
    if os.execute(quoted(python) .. " -c 'import torch' >/dev/null 2>&1") == 0 then
      return python
    end
  end
end

--- Starts a process; false when it ends at once.
local function start_worker(command)
  local self, answers = setmetatable({}, Worker), os.tmpname()
  os.remove(answers)
  assert(os.execute("mkfifo " .. quoted(answers)) == 0, "cannot make a pipe at " .. answers)
  self.requests = assert(io.popen(("exec %s --serve >%s"):format(command, quoted(answers)), "w"))
  self.answers = assert(io.open(answers))
  os.remove(answers)
  local hello = self.answers:read("*l")
  self.about = hello and luda_json.decode(hello)
  return self.about and self
end

--- Seconds of one run; nil and what was wrong.
function Worker:sample(request, seconds)
  if not self.about then
    return nil, "the peer has ended"
  end
  self.requests:write(luda_json.encode({ request = request, seconds = seconds }), "\n")
  self.requests:flush()
  local line = self.answers:read("*l")
  if not line then
    self.about = nil
    return nil, "the peer has ended"
  end
  local answer = luda_json.decode(line)
  return answer.seconds, answer.error
end

--- Starts the peer; nil and a sentence where there is none.
---@param script string path of bench_torch.py
---@param threads integer
---@return table?
---@return string?
function M.start(script, threads)
  local python = find_python()
  if not python then
    return nil, "no peer: python3 has no torch (Debian: apt-get install python3-torch)"
  end
  local self = setmetatable({ python = python, command = ("%s %s"):format(quoted(python), quoted(script)) }, M)
  self.environment, self.workers, self.pids = environment(threads), {}, {}
  for i, policy in ipairs(threads > 1 and { "", "OMP_WAIT_POLICY=passive" } or { "" }) do
    local worker = start_worker(("%s %s %s"):format(self.environment, policy, self.command))
    if not worker then
      return nil, "no peer: it ended at once"
    end
    self.workers[i], self.pids[i] = worker, worker.about.pid
    self.name, self.version = worker.about.name, worker.about.version
  end
  return self
end

--- Seconds of one run; nil and what was wrong. Samples of one row pass the same table.
---@param request table
---@param seconds number
---@return number?
---@return string?
function M:sample(request, seconds)
  if self.request == request then
    return self.chosen:sample(request, seconds)
  end
  local best, problem
  for _, worker in ipairs(self.workers) do
    local took, what = worker:sample(request, seconds)
    problem = what or problem
    if took and not (best and best <= took) then
      best, self.chosen, self.request = took, worker, request
    end
  end
  return best, not best and problem or nil
end

--- What the peer's script prints as JSON when it is run apart with these words.
---@param words string
---@return table?
function M:apart(words)
  local pipe = assert(io.popen(("%s %s %s"):format(self.environment, self.command, words)))
  local line = pipe:read("*l")
  pipe:close()
  return line and luda_json.decode(line)
end

function M:close()
  for _, worker in ipairs(self.workers) do
    worker.requests:close()
    worker.answers:close()
  end
end

return M
