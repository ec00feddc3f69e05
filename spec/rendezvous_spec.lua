--- Meetings as scripts see them: who is turned away and why, who is missing, ports that are taken. More, and strangers by the
-- thousand, in spec/c/collective_rendezvous_test.c and collective_strangers_test.c.

local luda = require "luda"
local ffi = require "ffi"

ffi.cdef "int usleep(unsigned int microseconds);"

local dist = luda.dist

--- A place at a meeting, with some fields of its own.
local function place(meeting, rank, size, other)
  local fields = { address = meeting.address, session = meeting.session, rank = rank, size = size }
  for name, value in pairs(other or {}) do
    fields[name] = value
  end
  return fields
end

local function apply(places)
  return dist.spawn(#places, "spec/work/meeting.lua", places, { timeout = 60 })
end

--- A rank in a process of its own; the pipe has what it prints.
local function start(fields)
  return assert(io.popen(("'%s/luda' spec/work/meeting_process.lua %s %s %d %d 2>&1"):format(os.getenv "LUDA_BUILD" or "build",
    fields.address, fields.session, fields.rank, fields.size)))
end

local function refused(seen, code, pattern)
  assert.equal(code, seen.code)
  assert.truthy(seen.message:find(pattern), seen.message)
end

describe("a rendezvous", function()
  it("sends ranks on that come in any order, one of them late", function()
    local meeting = dist.rendezvous { size = 3 }
    assert.same({ 0, 1, 2 }, meeting:missing())
    local seen = apply { place(meeting, 2, 3), place(meeting, 0, 3, { after = 0.5 }), place(meeting, 1, 3) }
    for i = 1, 3 do
      assert.same({ 6, 6 }, seen[i].sum, seen[i].message)
    end
    assert.same({}, meeting:missing())
    meeting:close()
    assert.raises("closed", "was closed", meeting.missing, meeting)
  end)

  it("tells a second one of a rank, one too many, and one of another size, and waits for the right ones", function()
    local meeting = dist.rendezvous { size = 2 }
    local first = start(place(meeting, 0, 2))
    for _ = 1, 2000 do
      if #meeting:missing() == 1 then
        break
      end
      ffi.C.usleep(10000)
    end
    assert.same({ 1 }, meeting:missing())
    assert.raises("mismatch", "rank 0 already", dist.connect, place(meeting, 0, 2))
    assert.raises("mismatch", "expects 3 ranks, the session has 2", dist.connect, place(meeting, 1, 3))
    assert.same({ 1 }, meeting:missing())
    local second = start(place(meeting, 1, 2))
    for _, pipe in ipairs { first, second } do
      local output = pipe:read("*a")
      pipe:close()
      assert.truthy(output:find("sum 3\n", 1, true), output)
    end
    assert.raises("mismatch", "the group is complete", dist.connect, place(meeting, 1, 2))
    meeting:close()
    assert.raises("invalid", "rank 4 of 4 ranks", dist.connect, place(meeting, 4, 4))
  end)

  it("and its ranks know who never came", function()
    local meeting = dist.rendezvous { size = 3 }
    for _, seen in ipairs(apply { place(meeting, 0, 3, { timeout = 0.5 }), place(meeting, 2, 3, { timeout = 0.5 }) }) do
      refused(seen, "timeout", "1 .*did not join")
    end
    meeting:close()
  end)

  it("on a port in use fails with that port, and takes the port again right after a job on it", function()
    local meeting = dist.rendezvous { size = 2 }
    local address, session = meeting.address, meeting.session
    assert.truthy(address:find("^127%.0%.0%.1:%d%d+$"))
    assert.raises("io", address:gsub("%p", "%%%0") .. " is in use", dist.rendezvous, { size = 2, bind = address })
    for _ = 1, 2 do
      for _, seen in ipairs(apply { place(meeting, 0, 2), place(meeting, 1, 2) }) do
        assert.same({ 3, 3 }, seen.sum, seen.message)
      end
      meeting:close()
      meeting = dist.rendezvous { size = 2, bind = address, session = session }
    end
    meeting:close()
  end)

  it("that ends while ranks wait tells them, and one that nobody finds is named", function()
    assert.raises("io", "xxx", dist.connect, { address = ("x"):rep(64) .. ":4000", session = ("0"):rep(32), rank = 0, size = 2 })
    local gone = dist.rendezvous { size = 2 }
    gone:close()
    local err = assert.raises("timeout", "no rendezvous at 127", dist.connect, place(gone, 0, 2, { timeout = 0.3 }))
    assert.truthy(err.message:find(gone.address, 1, true))
  end)

  it("of one job is not that of another on the same machine", function()
    local first, second = dist.rendezvous { size = 2 }, dist.rendezvous { size = 2 }
    local stray = place(second, 1, 2, { session = first.session, after = 0.1 })
    local seen = apply { place(first, 0, 2), place(second, 0, 2), stray, place(first, 1, 2, { after = 0.3 }),
      place(second, 1, 2, { after = 0.3 }) }
    refused(seen[3], "mismatch", "another session")
    for _, i in ipairs { 1, 2, 4, 5 } do
      assert.same({ 3, 3 }, seen[i].sum, seen[i].message)
    end
    first:close()
    second:close()
  end)
end)
