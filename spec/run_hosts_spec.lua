--- Ranks on several hosts: here two launchers, side by side or in network namespaces with a cable between them.

local helper = require "spec.helper"
local runs = require "spec.runs"

local ffi = require "ffi"
ffi.cdef "int getpid(void);"

local ports = 0

--- Below those that the system hands out, and another each time.
local function address()
  ports = ports + 1
  return ("127.0.0.1:%d"):format(8000 + (ffi.C.getpid() * 7 + ports) % 2000)
end

--- Two launchers, the second with other options where they are given; their outputs and statuses. hosts: where they are.
local function both(options, arguments, second, act, hosts)
  local dir, at = helper.new_folder(), hosts and hosts.address or address()
  local function line(node, own)
    -- Namespaces of one host see the same memory: off, so that what is on the cable is all there is.
    return ("%s %s run --nnodes 2 --rendezvous %s --node-rank %d %s spec/work/run_stops.lua %s"):format(
      hosts and "exec env LUDA_LANE=off ip netns exec " .. hosts[node] or "exec", runs.program, at, node, own, arguments)
  end
  local text = runs.output(runs.SHELL .. ([[
    (%s) > %s/0 2>&1 & first=$!
    (%s) > %s/1 2>&1 & second=$!
    %s
    wait $first; echo "first $?"
    wait $second; echo "second $?"]]):format(line(0, options), dir, line(1, second or options), dir, act or ""))
  return { text = helper.read(dir .. "/0"), status = tonumber(text:match("first (%d+)")) },
    { text = helper.read(dir .. "/1"), status = tonumber(text:match("second (%d+)")) }
end

describe("several hosts", function()
  it("number their ranks by node, also where nodes differ", function()
    local first, second = both("-n 2,1", "sum")
    assert.same({ 0, 0 }, { first.status, second.status }, first.text .. second.text)
    for rank = 0, 1 do
      local line = ("[%d] rank %d of 3: sum 6, local rank %d, node 0"):format(rank, rank, rank)
      assert.truthy(first.text:find(line, 1, true), first.text)
    end
    assert.truthy(second.text:find("[2] rank 2 of 3: sum 6, local rank 0, node 1", 1, true), second.text)
  end)

  it("end together, and both launchers name the rank that failed", function()
    local first, second = both("-n 2", "fail - 1 3")
    assert.same({ 137, 137 }, { first.status, second.status }, first.text .. second.text)
    for _, launcher in ipairs { first, second } do
      assert.truthy(launcher.text:find("luda run: rank 3 (node 1) was killed by signal 9; the others were stopped", 1, true),
        launcher.text)
    end
    assert.truthy(first.text:find("barrier: lost rank 3", 1, true), first.text)
  end)

  it("start again together", function()
    local first, second = both("-n 1 --max-restarts 2", "fail - 1 0")
    assert.same({ 0, 0 }, { first.status, second.status }, first.text .. second.text)
    assert.truthy(first.text:find("rank 0 (node 0) was killed by signal 9; restart 1 of 2", 1, true), first.text)
    assert.truthy(second.text:find("rank 0 (node 0) was killed by signal 9; restart 1 of 2", 1, true), second.text)
    assert.truthy(second.text:find("rank 1 of 2, node 1, restart 1", 1, true), second.text)
  end)

  it("stop at one step when one launcher is asked", function()
    local place = helper.new_folder() .. "/rank"
    local first, second = both("-n 1", "steps " .. place, nil, ("await %s.0 %s.1; kill $second"):format(place, place))
    assert.same({ 0, 0 }, { first.status, second.status }, first.text .. second.text)
    local step = first.text:match("rank 0 stops at step (%d+)")
    assert.truthy(step, first.text)
    assert.equal(step, second.text:match("rank 1 stops at step (%d+)"))
  end)

  it("learn that a launcher was killed, and start nothing again", function()
    local place = helper.new_folder() .. "/rank"
    local first, second = both("-n 1 --max-restarts 3", "steps " .. place, nil,
      ("await %s.0 %s.1; kill -9 $second"):format(place, place))
    assert.equal(137, second.status)
    assert.not_equal(0, first.status, first.text)
    assert.truthy(first.text:find("luda run: node 1's launcher is gone", 1, true), first.text)
    assert.is_nil(first.text:find("restart 1", 1, true), first.text)
  end)

  it("must agree on the ranks", function()
    local first, second = both("-n 2,1", "sum", "-n 2,2")
    assert.is_true(first.status ~= 0 and second.status ~= 0, first.text .. second.text)
    assert.truthy(first.text:find("node 0 has 2,1 ranks by node, node 1 has 2,2", 1, true), first.text)
  end)

  it("need what they cannot do without", function()
    local function complaint(options)
      local text, status = runs.output(("%s run %s spec/work/run_stops.lua sum"):format(runs.program, options))
      return status, text:match("^luda[^\n]*\n")
    end
    local status, text = complaint("--nnodes 2 -n 1")
    assert.equal(2, status)
    assert.truthy(text:find("several nodes need --rendezvous host:port", 1, true), text)
    status, text = complaint("--nnodes 2 -n 1 --rendezvous 127.0.0.1:0")
    assert.equal(2, status)
    assert.truthy(text:find("several nodes need a port that all of them know", 1, true), text)
    status, text = complaint("--nnodes 2 --node-rank 2 -n 1 --rendezvous 127.0.0.1:7000")
    assert.equal(2, status)
    assert.truthy(text:find("--node-rank 2 of --nnodes 2; nodes are 0 to 1", 1, true), text)
    status, text = complaint("-n 2,2")
    assert.equal(2, status)
    assert.truthy(text:find("-n 2,2 names 2 nodes, --nnodes 1", 1, true), text)
    status, text = complaint("-n 2 --threads --max-restarts 1")
    assert.equal(2, status)
    assert.truthy(text:find("--threads is for one process", 1, true), text)
  end)
end)

describe("the file of a secret", function()
  local function complaint(bytes, mode)
    local path = helper.new_folder() .. "/secret"
    if bytes then
      helper.write(path, bytes)
      os.execute(("chmod %s %s"):format(mode, path))
    end
    local text, status = runs.output(("%s run -n 1 --secret-file %s spec/work/run_stops.lua sum"):format(runs.program, path))
    return status, text
  end

  it("is refused when others may read it, when it is short, or missing", function()
    local status, text = complaint(("s"):rep(32), "640")
    assert.equal(1, status)
    assert.truthy(text:find("is open to others (mode 640); chmod 600 it", 1, true), text)
    status, text = complaint("short", "600")
    assert.equal(1, status)
    assert.truthy(text:find("has 5 bytes; it needs at least 16", 1, true), text)
    status, text = complaint(nil)
    assert.equal(1, status)
    assert.truthy(text:find("No such file or directory", 1, true), text)
  end)
end)

describe("hosts with a cable between them", function()
  local id = runs.mark():gsub("[^%w]", ""):sub(-8)
  local hosts = { [0] = "luda-c-" .. id, "luda-d-" .. id, address = "10.78.0.1:4100" }
  local dir, why

  setup(function()
    why = runs.output("id -u"):match("^(%d+)") ~= "0" and "needs root"
      or runs.output("ip netns add " .. hosts[0] .. " && echo made"):match("^made") == nil and "ip netns does not work"
    if not why then
      runs.output(([[ip netns add %s; ip -n %s link add cable type veth peer name cable netns %s
        for n in "%s 1" "%s 2"; do set -- $n
          ip -n $1 addr add 10.78.0.$2/24 dev cable; ip -n $1 link set cable up; ip -n $1 link set lo up
        done]]):format(hosts[1], hosts[0], hosts[1], hosts[0], hosts[1]))
    end
  end)

  before_each(function()
    dir = helper.new_folder()
    helper.write(dir .. "/secret", "sixteen bytes or more\n")
    helper.write(dir .. "/other", "another secret, long enough\n")
    os.execute(("chmod 600 %s/*"):format(dir))
  end)

  teardown(function()
    runs.output(("ip netns del %s; ip netns del %s"):format(hosts[0], hosts[1]))
  end)

  local function cabled(name, fn)
    it(name, function()
      if why then
        return pending("no network namespaces: " .. why)
      end
      fn(("--secret-file %s/secret"):format(dir))
    end)
  end

  cabled("run one group with a secret, and start it again", function(secret)
    local first, second = both("-n 2,1 --max-restarts 1 " .. secret, "fail - 1 2", nil, nil, hosts)
    assert.same({ 0, 0 }, { first.status, second.status }, first.text .. second.text)
    assert.truthy(second.text:find("rank 2 of 3, node 1, restart 1", 1, true), second.text)
    assert.truthy(first.text:find("rank 2 (node 1) was killed by signal 9; restart 1 of 1", 1, true), first.text)
  end)

  cabled("are refused without a secret, and with another one", function(secret)
    local first, second = both("-n 1 --timeout 1", "sum", nil, nil, hosts)
    assert.is_true(first.status ~= 0 and second.status ~= 0)
    assert.truthy(first.text:find("10.78.0.1:4100 is not a loopback address", 1, true), first.text)
    local other = ("-n 1 --timeout 1 --secret-file %s/other"):format(dir)
    first, second = both("-n 1 --timeout 1 " .. secret, "sum", other, nil, hosts)
    assert.is_true(first.status ~= 0 and second.status ~= 0)
    assert.truthy(second.text:find("secret", 1, true), second.text)
  end)

  cabled("learn that the cable was pulled", function(secret)
    local place = dir .. "/rank"
    local first, second = both("-n 1 --timeout 2 --max-restarts 3 " .. secret, "steps " .. place, nil,
      ("await %s.0 %s.1; ip -n %s link set cable down"):format(place, place, hosts[1]), hosts)
    assert.is_true(first.status ~= 0 and second.status ~= 0, first.text .. second.text)
    assert.truthy(first.text:find("all_reduce: .*rank 1"), first.text)
    assert.truthy(first.text:find("luda run: node 1's launcher is gone", 1, true), first.text)
    assert.truthy(second.text:find("luda run: node 0's launcher is gone", 1, true), second.text)
  end)
end)
