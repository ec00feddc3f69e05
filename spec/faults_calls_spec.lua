--- Calls that do not fit together, and what goes on around a call: strangers, other jobs, other orders.

local helper = require "spec.helper"
local luda = require "luda"
local processes = require "spec.processes"

before_each(helper.before)
after_each(function()
  processes.finish()
  helper.after()
end)

--- How the field of a dispute is called in messages, and in the error's detail.
local NAMES = { ["number of dimensions"] = "shape" }

local function says_who(message, size)
  local named = {}
  for list in message:gmatch("ranks? ([%d, and]+) asks? for") do
    for rank in list:gmatch("%d+") do
      named[tonumber(rank)] = true
    end
  end
  for rank = 0, size - 1 do
    assert.is_true(named[rank], message)
  end
end

local function is_right(row, rank, size)
  local other = (row.odd + 1) % size
  assert.equal("mismatch", row.code, row.message)
  assert.equal(NAMES[row.field] or row.field, row.named, row.message)
  assert.same({ size * (size + 1) / 2, size * (size + 1) / 2, size * (size + 1) / 2 }, row.sum)
  if row.field == "sender" then
    assert.truthy(row.message:find(("ranks %d and %d pass a tensor each"):format(math.min(row.odd, other),
      math.max(row.odd, other)), 1, true), row.message)
    return
  end
  assert.same(size == 2 and { 0, 1 } or { row.odd }, row.culprits, row.message)
  assert.truthy(row.message:find("ranks disagree about the " .. (NAMES[row.field] or row.field), 1, true), row.message)
  says_who(row.message, size)
  assert.equal(size, #row.asked)
  assert.truthy(row.message:find("disputes.lua:%d+"), ("rank %d: %s"):format(rank, row.message))
end

describe("ranks that disagree about any field all learn which and who, and go on:", function()
  for _, size in ipairs { 2, 4 } do
    for _, kind in ipairs { "processes", "threads" } do
      it(("%d %s"):format(size, kind), function()
        local group = kind == "processes" and processes.start { size = size, task = "disputes" }
        local threads = not group and luda.dist.spawn(size, "spec/work/disputes.lua", {}, { timeout = 20 })
        for rank = 0, size - 1 do
          local rows = group and group:result(rank) or threads[rank + 1]
          assert.equal(10 * size, #rows)
          for _, row in ipairs(rows) do
            is_right(row, rank, size)
          end
        end
      end)
    end
  end
end)

describe("ranks", function()
  it("that make two calls in different orders learn it twice, and go on", function()
    local group = processes.start { size = 4, task = "calls", what = "wrong_order" }
    for rank = 0, 3 do
      local seen = group:result(rank)
      assert.same({ "mismatch", "mismatch" }, seen.codes)
      assert.same({ { 2 }, { 2 } }, seen.culprits)
      assert.truthy(seen.messages[1]:find("rank 2 asks for broadcast"), seen.messages[1])
      assert.truthy(seen.messages[2]:find("rank 2 asks for all_reduce"), seen.messages[2])
      assert.same({ 10, 10 }, seen.sum)
    end
  end)

  it("that do not know shape and dtype go along with those that do", function()
    local group = processes.start { size = 3, task = "calls", what = "unknown" }
    for rank = 0, 2 do
      assert.same({ pieces = { 2 * rank + 1, 2 * rank + 2 }, dtype = "i16", told = { 1, -2, 3 } }, group:result(rank))
    end
  end)
end)

describe("calls go on undisturbed", function()
  it("while strangers knock at the port of the meeting", function()
    local home = luda.dist.rendezvous { size = 3 }
    local homes = { { address = home.address, session = home.session } }
    local group = processes.start { size = 3, task = "sums", calls = 40, count = 100000, deadline = 5, homes = homes }
    group:expect(0, "joined")
    local port = home.address:match(":(%d+)$")
    local knocks = 0
    for _, words in ipairs { "GET / HTTP/1.0\\r\\n\\r\\n", "\\x16\\x03\\x01\\x02", "LUDA", "", ("x"):rep(5000) } do
      knocks = knocks + (processes.works(("bash -c 'printf \"%s\" >/dev/tcp/127.0.0.1/%s'"):format(words, port)) and 1 or 0)
    end
    for rank = 0, 2 do
      assert.equal(40, group:result(rank))
    end
    assert.is_true(knocks >= 3)
    home:close()
  end)

  it("in two jobs that were started at once on one host, without a flag that tells them apart", function()
    local command = (os.getenv("LUDA_BUILD") or "build") .. "/luda run -n 2 spec/work/run_script.lua sum 2>&1"
    local one, other = assert(io.popen(command)), assert(io.popen(command))
    for _, pipe in ipairs { one, other } do
      local text = pipe:read("*a")
      pipe:close()
      for rank = 0, 1 do
        assert.truthy(text:find(("rank %d of 2: sum 3,"):format(rank), 1, true), text)
      end
    end
  end)
end)
