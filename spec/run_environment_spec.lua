--- Ranks that torchrun, srun, mpirun or a person started: they meet without luda run.

local helper = require "spec.helper"
local runs = require "spec.runs"
local environment = require "luda.dist.environment"

local RANK = runs.program .. " spec/work/run_stops.lua sum"

local ffi = require "ffi"
ffi.cdef "int getpid(void);"

--- A number that no other test, and no other run of this one, has.
local number = ffi.C.getpid() % 10000

local function next_number()
  number = number + 10000
  return number % 60000
end

--- Starts a rank for each set of variables, all at once.
local function start(list)
  local lines = {}
  for i, variables in ipairs(list) do
    lines[i] = ("%s %s &"):format(variables, RANK)
  end
  return (runs.output("unset LUDA_RANK LUDA_RENDEZVOUS\n" .. table.concat(lines, "\n") .. "\nwait"))
end

local function assert_sums(text, size, sum)
  for rank = 0, size - 1 do
    assert.truthy(text:find(("rank %d of %d: sum %d,"):format(rank, size, sum), 1, true), text)
  end
end

--- Calls fn with these environment variables only.
local function with_variables(variables, fn)
  local real = os.getenv
  os.getenv = function(name) -- luacheck: ignore
    return variables[name]
  end
  local ok, result = pcall(fn)
  os.getenv = real -- luacheck: ignore
  return ok, result
end

local function meeting(variables)
  local ok, result = with_variables(variables, function()
    return environment.meeting(environment.place())
  end)
  assert.is_true(ok, tostring(result))
  return result
end

describe("the environment of", function()
  it("a hand that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", function()
    local list = {}
    for rank = 0, 2 do
      list[rank + 1] = ("RANK=%d WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(2 - rank, 2000 + number % 6000)
    end
    assert_sums(start(list), 3, 6)
  end)

  it("torchrun, whose own store listens at MASTER_PORT", function()
    local store = require("luda.dist").rendezvous { size = 2, session = ("0"):rep(32) } -- turns LUDA's ranks away
    local port, list = store.address:match(":(%d+)$"), {}
    for rank = 0, 1 do
      list[rank + 1] = ("RANK=%d LOCAL_RANK=%d GROUP_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%s "
        .. "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0"):format(rank, rank, port)
    end
    local text = start(list)
    store:close()
    assert_sums(text, 2, 3)
    assert.truthy(text:find("local rank 1, node 0", 1, true), text)
  end)

  it("srun, for two jobs at once", function()
    local list = {}
    for job = 1, 2 do
      local id = next_number()
      for rank = 0, job do
        list[#list + 1] = ("SLURM_PROCID=%d SLURM_NTASKS=%d SLURM_LOCALID=%d SLURM_NODEID=0 SLURM_NNODES=1 SLURM_JOB_ID=%d "
          .. "SLURM_STEP_ID=0 SLURM_JOB_NODELIST=gpu7"):format(rank, job + 1, rank, id)
      end
    end
    local text = start(list)
    assert_sums(text, 2, 3)
    assert_sums(text, 3, 6)
  end)

  it("mpirun, for two jobs at once", function()
    if os.execute("command -v mpirun > /dev/null") ~= 0 then
      return pending("there is no mpirun here")
    end
    -- A folder for each: Open MPI's own jobs trip over each other's in one.
    local job = "TMPDIR=%s mpirun --allow-run-as-root --oversubscribe -np %d " .. RANK .. " &\n"
    local text = runs.output("unset LUDA_RANK LUDA_RENDEZVOUS\n" .. job:format(helper.new_folder(), 2)
      .. job:format(helper.new_folder(), 3) .. "wait")
    assert_sums(text, 2, 3)
    assert_sums(text, 3, 6)
  end)

  it("srun on several hosts names the first of them and a port of the job", function()
    local variables = { SLURM_PROCID = "1", SLURM_STEP_ID = "0", SLURM_JOB_ID = "4711", SLURM_STEP_NUM_TASKS = "4",
      SLURM_NNODES = "2", SLURM_JOB_NODELIST = "gpu[03-07,9],login" }
    local first = meeting(variables)
    assert.truthy(first.addresses[1]:find("^gpu03:%d+$"), first.addresses[1])
    for list, host in pairs { ["a,b[1-2]"] = "a", ["n[7]-ib,x"] = "n7-ib", single = "single" } do
      variables.SLURM_JOB_NODELIST = list
      assert.equal(host, meeting(variables).addresses[1]:match("^(.*):"))
    end
    variables.SLURM_JOB_ID = "4712"
    local other = meeting(variables)
    assert.not_equal(first.session, other.session)
    assert.not_equal(first.addresses[1]:match("%d+$"), other.addresses[1]:match("%d+$"))
    variables.MASTER_ADDR, variables.MASTER_PORT = "fd00::7", "29500"
    assert.equal("[fd00::7]:29500", meeting(variables).addresses[1])
  end)

  it("torchrun tells its starts apart", function()
    local variables = { RANK = "1", WORLD_SIZE = "2", MASTER_ADDR = "10.0.0.7", MASTER_PORT = "29500",
      TORCHELASTIC_RUN_ID = "run", TORCHELASTIC_RESTART_COUNT = "0" }
    local first = meeting(variables)
    assert.equal("10.0.0.7", first.addresses[1]:match("^(.*):"))
    variables.TORCHELASTIC_RESTART_COUNT = "1"
    local again = meeting(variables)
    assert.not_equal(first.addresses[1], again.addresses[1])
  end)

  it("a batch script of Slurm is none: only steps have ranks", function()
    local ok, place = with_variables({ SLURM_PROCID = "0", SLURM_NTASKS = "4", SLURM_JOB_ID = "1" }, environment.place)
    assert.is_true(ok)
    assert.equal(1, place.size)
  end)

  it("a launcher that says too little is refused with what is missing", function()
    local function refusal(variables)
      local ok, problem = with_variables(variables, function()
        return environment.meeting(environment.place())
      end)
      assert.is_false(ok)
      return tostring(problem)
    end
    assert.truthy(refusal({ RANK = "0", WORLD_SIZE = "2" }):find("MASTER_ADDR, MASTER_PORT", 1, true))
    assert.truthy(refusal({ RANK = "0" }):find("WORLD_SIZE is not set", 1, true))
    assert.truthy(refusal({ OMPI_COMM_WORLD_RANK = "0", OMPI_COMM_WORLD_SIZE = "4", OMPI_COMM_WORLD_LOCAL_SIZE = "2",
      PMIX_NAMESPACE = "77" }):find("set MASTER_ADDR", 1, true))
  end)
end)
