--- Several TCP connections between two ranks, from Lua and from the environment.

require "spec.helper"
local luda = require "luda"

local dist = luda.dist
local program = (os.getenv("LUDA_BUILD") or "build") .. "/luda"

--- What two ranks print that were started with these words, each in the environment of its rank.
local function ranks(words, environment)
  local meeting = dist.rendezvous { size = 2 }
  local commands = {}
  for rank = 0, 1 do
    commands[rank + 1] = ("LUDA_LANE=off %s LUDA_RANK=%d LUDA_WORLD_SIZE=2 LUDA_RENDEZVOUS=%s LUDA_SESSION=%s %s %s %s"):format(
      environment[rank + 1], rank, meeting.address, meeting.session, program, "spec/work/wire.lua", words[rank + 1])
  end
  local pipe = assert(io.popen("(" .. table.concat(commands, " & ") .. " & wait) 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  meeting:close()
  return text
end

describe("connections", function()
  for connections, sockets in pairs { [1] = 2, [3] = 4 } do
    it(("may be %d between two ranks, beside one for control"):format(connections), function()
      local text = ranks({ connections, connections }, { "", "" })
      for rank = 0, 1 do
        assert.truthy(text:find(("rank %d: right, %d sockets"):format(rank, sockets), 1, true), text)
      end
    end)
  end

  it("come from the environment", function()
    local text = ranks({ "default", "default" }, { "LUDA_CONNECTIONS=2", "LUDA_CONNECTIONS=2" })
    assert.truthy(text:find("rank 1: right, 3 sockets", 1, true), text)
  end)

  it("must be equal on all ranks", function()
    local text = ranks({ 2, "default" }, { "", "" })
    assert.truthy(text:find("connections=%d and rank %d has %d; it must be equal on all ranks"), text)
  end)

  it("are 1 to 64", function()
    for _, connections in ipairs { 0, -1, 65 } do
      assert.raises("invalid", connections .. " connections; 1 to 64 are possible", dist.connect, {
        address = "127.0.0.1:1", session = ("0"):rep(32), rank = 0, size = 2, connections = connections,
      })
    end
  end)
end)
