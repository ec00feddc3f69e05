--- Transports by name: an installed MPI of either family, a third party's library, and what is not there.

local luda = require "luda"
local helper = require "spec.helper"

local dist = luda.dist
local build = os.getenv("LUDA_BUILD") or "build"
local WORK = "spec/work/battery.lua"

--- What the built-in rank threads find: the values in front are known, the bytes behind are the measure for the others.
local function expected(size)
  local found = dist.spawn(size, WORK, {}, { timeout = 60 })
  local culprits = size == 2 and "0 1" or "1"
  local parts = { "direct 1 1", "ring 1 1", "tree 1 1", "halving 1 1", "centralized 1 1" }
  for _ = 1, size do
    parts[#parts + 1] = "gathered"
  end
  parts[#parts + 1] = "false mismatch " .. culprits
  for rank = 1, size do
    assert.equal("local| " .. table.concat(parts, "; ") .. "; split; ", (found[rank]:gsub("%x+$", "")))
    assert.equal(found[1], found[rank])
  end
  return (found[1]:gsub("^local| ", ""))
end

local function present(program)
  return os.execute("command -v " .. program .. " >/dev/null 2>&1") == 0
end

--- The lines of ranks that a launcher started, and its status.
local function launched(command)
  local pipe = assert(io.popen(("LUDA_TRANSPORT=mpi timeout 120 %s 2>&1; echo status $?"):format(command)))
  local text = pipe:read("*a")
  pipe:close()
  return text, tonumber(text:match("status (%d+)\n$"))
end

--- Launchers refuse root and more ranks than cores, unless told.
local FAMILIES = {
  { name = "Open MPI", launcher = "mpirun.openmpi", options = "--oversubscribe --allow-run-as-root" },
  { name = "MPICH", launcher = "mpiexec.mpich", options = "" },
}

describe("the transport mpi", function()
  for _, family in ipairs(FAMILIES) do
    for _, size in ipairs { 2, 3 } do
      local title = ("over %s, %d processes: operations, and a replicated training run with the bits of rank threads")
      it(title:format(family.name, size), function()
        if not present(family.launcher) then
          return pending("there is no " .. family.launcher .. " here")
        end
        local text, status = launched(("%s %s -np %d %s/luda %s"):format(family.launcher, family.options, size,
          build, WORK))
        assert.equal(0, status, text)
        local want = expected(size)
        for rank = 0, size - 1 do
          assert.equal("mpi| " .. want, text:match("rank " .. rank .. " ([^\n]*)"), text)
        end
      end)
    end

    it(("over %s names the rank that is absent, and the one that left"):format(family.name), function()
      if not present(family.launcher) then
        return pending("there is no " .. family.launcher .. " here")
      end
      local folder = helper.new_folder()
      helper.write(folder .. "/late.lua", [[
        local comm = require("luda").dist.init { timeout = 0.3 }
        comm:barrier { timeout = 20 }
        if comm.rank == 1 then os.execute("sleep 1.5") end
        local ok, err = pcall(comm.barrier, comm)
        io.write("rank " .. comm.rank .. " timeout " .. err.code .. " " .. table.concat(err.culprits, " ") .. "\n")
        comm:barrier { timeout = 20 }
        if comm.rank == 2 then return comm:close() end
        ok, err = pcall(comm.barrier, comm, { timeout = 20 })
        io.write("rank " .. comm.rank .. " left " .. err.code .. " " .. table.concat(err.culprits, " ") .. "\n")]])
      local text, status = launched(("%s %s -np 3 %s/luda %s/late.lua"):format(family.launcher, family.options, build, folder))
      assert.equal(0, status, text)
      for rank = 0, 2 do
        assert.truthy(text:find(("rank %d timeout timeout 1"):format(rank), 1, true), text)
      end
      for rank = 0, 1 do
        assert.truthy(text:find(("rank %d left peer 2"):format(rank), 1, true), text)
      end
    end)
  end

  it("is one rank a process: a second one and rank threads are refused", function()
    if not present("mpirun.openmpi") then
      return pending("there is no mpirun.openmpi here")
    end
    local folder = helper.new_folder()
    helper.write(folder .. "/twice.lua", [[
      local dist = require("luda").dist
      local comm = dist.init { transport = "mpi" }
      local ok, err = pcall(dist.init, { transport = "mpi" })
      print(comm.size, err.code, err.message)]])
    local text = launched(("mpirun.openmpi --oversubscribe --allow-run-as-root -np 2 %s/luda %s/twice.lua"):format(build, folder))
    assert.truthy(text:find("2\tunsupported\tthis process is a rank already, and MPI gives it only one", 1, true), text)
    helper.write(folder .. "/thread.lua", 'return function() return require("luda").dist.init { transport = "mpi" } end')
    local ok, err = pcall(dist.spawn, 2, folder .. "/thread.lua", {}, { timeout = 20 })
    assert.is_false(ok)
    assert.equal("unsupported", err.code)
    assert.truthy(err.message:find("rank threads use the transport 'local'; 'mpi' is for processes", 1, true), err.message)
  end)

  it("says what to do where there is no MPI", function()
    local folder = helper.new_folder()
    helper.write(folder .. "/none.lua", 'print(select(2, pcall(require("luda").dist.init)).message)')
    local text = launched(("env LUDA_MPI_LIBRARY=/nowhere/libmpi.so %s/luda %s/none.lua"):format(build, folder))
    assert.truthy(text:find("there is no MPI here; install one", 1, true), text)
  end)
end)

describe("a third party's transport", function()
  local library = build .. "/spec/libpost_transport.so"

  for _, size in ipairs { 2, 3 } do
    it(("is registered at run time, and replicas and optimizers do not notice, %d ranks"):format(size), function()
      local job = { library = library, address = "here " .. size }
      local want = expected(size)
      for _, text in ipairs(dist.spawn(size, WORK, job, { timeout = 60 })) do
        local name, rest = text:match("^(%a+)| (.*)$")
        assert.equal("post", name)
        assert.equal(want, (rest:gsub("; the transport post cannot;", "; split;")))
      end
    end)
  end

  it("must be there, have a right name and a start function", function()
    assert.has_error(function() dist.load_transport(build .. "/nowhere.so") end)
    for _, case in ipairs {
      { "nccl", "io", "'nccl' is neither registered nor a library" },
      { "No such", "invalid", "no transport 'No such' joins processes" },
      { "local", "invalid", "no transport 'local' joins processes" },
    } do
      local ok, err = pcall(dist.connect, { transport = case[1] })
      assert.is_false(ok)
      assert.equal(case[2], err.code)
      assert.truthy(err.message:find(case[3], 1, true), err.message)
    end
    local ok, err = pcall(dist.load_transport, build .. "/libluda_host.so")
    assert.is_false(ok)
    assert.truthy(err.message:find("has no function luda_transport_start", 1, true), err.message)
  end)
end)
