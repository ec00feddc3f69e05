--- Ranks in processes with a shared secret: right, wrong, missing, on one host and between two.

local luda = require "luda"
local lib = require "luda.ffi"
local rendezvous = require "luda.dist.rendezvous"

local dist = luda.dist
local program = (os.getenv("LUDA_BUILD") or "build") .. "/luda"
local SECRET, OTHER = "a secret of more than 16 bytes", "another secret of 27 bytes."

local function output(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

--- A file that holds text, for as long as fn runs.
local function with_file(text, fn)
  local path = os.tmpname()
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  local results = { pcall(fn, path) }
  os.remove(path)
  assert(unpack(results))
  return unpack(results, 2)
end

--- The command of one rank; file: of its secret, or nil.
local function rank(r, size, address, session, file, mode, namespace)
  return ("%s env LUDA_RANK=%d LUDA_WORLD_SIZE=%d LUDA_RENDEZVOUS=%s LUDA_SESSION=%s %s %s spec/work/secret.lua rank %s"):format(
    namespace and "ip netns exec " .. namespace or "", r, size, address, session, file and "LUDA_SECRET_FILE=" .. file or "",
    program, mode or "plain")
end

local function together(commands)
  return output("(" .. table.concat(commands, " & ") .. " & wait)")
end

local function expect_right(text, size)
  for r = 0, size - 1 do
    assert.truthy(text:find(("rank %d of %d: all right"):format(r, size), 1, true), text)
  end
end

describe("ranks with a secret", function()
  for _, size in ipairs { 2, 4 } do
    for _, mode in ipairs { "plain", "encrypt" } do
      it(("exchange what ranks without one do (%d, %s)"):format(size, mode), function()
        with_file(SECRET .. "\n", function(file)
          local meeting = dist.rendezvous { size = size, secret = SECRET }
          local commands = {}
          for r = 0, size - 1 do
            commands[r + 1] = rank(r, size, meeting.address, meeting.session, file, mode)
          end
          expect_right(together(commands), size)
          meeting:close()
        end)
      end)
    end
  end

  it("turn away those with another, with none, and those who encrypt alone; then the right one comes", function()
    with_file(SECRET, function(file)
      with_file(OTHER, function(other)
        local meeting = dist.rendezvous { size = 2, secret = SECRET }
        local waiting = assert(io.popen(rank(0, 2, meeting.address, meeting.session, file) .. " 2>&1"))
        local function second(...)
          return output(rank(1, 2, meeting.address, meeting.session, ...))
        end
        while lib.C.luda_rendezvous_missing(meeting.pointer, nil, 0) == 2 do
          os.execute("sleep 0.02")
        end
        local started = os.time()
        assert.truthy(second(other):find("refused: .*connect: rank 1 is turned away: rank 1 does not know the secret"))
        assert.truthy(second(nil):find("refused: .*rank 1 has no secret and the session has one; .*luda run %-%-secret%-file"))
        assert.truthy(second(file, "encrypt"):find("rank 1 encrypts and rank 0 does not; encrypt must be equal on all ranks"))
        assert.is_true(os.time() - started < 18) -- each would wait 20 seconds
        expect_right(second(file) .. waiting:read("*a"), 2)
        waiting:close()
        meeting:close()
      end)
    end)
  end)
end)

describe("a secret", function()
  it("has sixteen bytes or more, and is a string", function()
    local err = assert.raises("invalid", "5 bytes and needs at least 16; \"head %-c 32 /dev/urandom", dist.rendezvous,
      { size = 2, secret = "short" })
    assert.is_nil(err.message:find("short", 1, true))
    assert.raises("invalid", "secret must be a string, not a number$", dist.rendezvous, { size = 2, secret = 1234567890123456 })
    assert.raises("invalid", "encrypt needs a secret", dist.connect,
      { address = "127.0.0.1:1", session = ("0"):rep(32), rank = 0, size = 2, encrypt = true })
    assert.raises("io", "cannot read /nothing/here", rendezvous.read_secret, "/nothing/here")
  end)

  it("is for connections of LUDA's own", function()
    assert.raises("unsupported", "mpi: what MPI carries is neither authenticated nor encrypted", dist.init,
      { transport = "mpi", secret = SECRET })
  end)

  it("in a file may end with a line's end, and keeps every other byte", function()
    for _, text in ipairs { SECRET, SECRET .. "\n", SECRET .. "\r\n" } do
      assert.equal(SECRET, with_file(text, rendezvous.read_secret))
    end
    assert.equal(" \0\255 x ", with_file(" \0\255 x \n", rendezvous.read_secret))
  end)

  it("needs libsodium, and says so", function()
    local text = output("LUDA_SODIUM=/nothing.so " .. program
      .. [[ -e 'require("luda").dist.rendezvous { size = 2, secret = "a secret of 21 bytes." }']])
    assert.truthy(text:find("rendezvous: a secret needs libsodium, which was not found; install libsodium23", 1, true), text)
  end)

  it("is what other addresses than loopback need", function()
    assert.raises("unsupported", "0.0.0.0:0 is not a loopback address, .* secret= %(luda run %-%-secret%-file%)", dist.rendezvous,
      { size = 2, bind = "0.0.0.0:0" })
    assert.raises("unsupported", "192.0.2.1:5000 is not a loopback address", dist.connect,
      { address = "192.0.2.1:5000", session = ("0"):rep(32), rank = 0, size = 2 })
    dist.rendezvous({ size = 2, bind = "0.0.0.0:0", secret = SECRET }):close()
  end)
end)

-- Two hosts: network namespaces with a cable between them.
describe("ranks on two hosts", function()
  local mark = os.tmpname()
  os.remove(mark)
  local id = mark:match("%w+$")
  local here, there = "luda-a-" .. id, "luda-b-" .. id
  local session = ("0123456789abcdef"):rep(2)
  local why

  setup(function()
    why = output("id -u") ~= "0\n" and "needs root" or output("ip netns add " .. here):match("%S.*")
    if not why then
      why = output(([[ip netns add %s && ip -n %s link add cable type veth peer name cable netns %s
        for n in "%s 1" "%s 2"; do set -- $n
          ip -n $1 addr add 10.77.0.$2/24 dev cable; ip -n $1 addr add fd77::$2/64 dev cable nodad
          ip -n $1 link set cable up; ip -n $1 link set lo up
        done]]):format(there, here, there, here, there)):match("%S.*")
    end
  end)

  teardown(function()
    output(("ip netns del %s; ip netns del %s"):format(here, there))
  end)

  --- What rank 0, beside the rendezvous, and rank 1, across the cable, print.
  local function meet(bind, first, second, file, mode)
    local serve = ("ip netns exec %s %s spec/work/secret.lua serve %s %s 2 %s"):format(here, program, bind, session, file or "")
    return output(([[fifo=$(mktemp -u); mkfifo $fifo; %s <$fifo & exec 9>$fifo; rm $fifo
      %s & %s & wait %%2 %%3; exec 9>&-; wait]]):format(serve, rank(0, 2, first, session, file, mode, here),
      rank(1, 2, second, session, file, mode, there)))
  end

  local function hosts(name, fn)
    it(name, function()
      if why then
        pending("no network namespaces: " .. why)
      end
      fn()
    end)
  end

  for _, mode in ipairs { "plain", "encrypt" } do
    hosts(("meet with a secret (%s)"):format(mode), function()
      with_file(SECRET, function(file)
        expect_right(meet("10.77.0.1:4000", "10.77.0.1:4000", "10.77.0.1:4000", file, mode), 2)
      end)
    end)
  end

  hosts("meet over IPv6, and where the rendezvous listens everywhere", function()
    with_file(SECRET, function(file)
      expect_right(meet("[fd77::1]:4000", "[fd77::1]:4000", "[fd77::1]:4000", file), 2)
      expect_right(meet("0.0.0.0:4000", "10.77.0.1:4000", "10.77.0.1:4000", file), 2)
      expect_right(meet("[::]:4000", "[fd77::1]:4000", "10.77.0.1:4000", file), 2)
    end)
  end)

  hosts("are refused without one", function()
    local text = meet("10.77.0.1:4000", "10.77.0.1:4000", "10.77.0.1:4000")
    assert.truthy(text:find("not serving: .*rendezvous: 10.77.0.1:4000 is not a loopback address"), text)
    local _, refused = text:gsub("refused: [^\n]*connect: 10.77.0.1:4000 is not a loopback address", "")
    assert.equal(2, refused, text)
  end)

  hosts("learn who came over loopback, where nobody else can call back", function()
    with_file(SECRET, function(file)
      local text = meet("0.0.0.0:4000", "127.0.0.1:4000", "10.77.0.1:4000", file)
      local _, told = text:gsub("connect: rank 0 joined from 127.0.0.1:%d+, which the others cannot reach", "")
      assert.equal(2, told, text)
    end)
  end)
end)
