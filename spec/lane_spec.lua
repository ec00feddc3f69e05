--- Memory in common between ranks of a host, from Lua: comm:empty and the buckets of replicas, in processes and threads.

local program = (os.getenv("LUDA_BUILD") or "build") .. "/luda"

local KINDS = {
  { name = "in processes", options = "", memory = "common" },
  { name = "in processes without memory in common", options = "", environment = "LUDA_LANE=off ", memory = "none" },
  { name = "in threads", options = "--threads", memory = "none" },
}

for _, kind in ipairs(KINDS) do
  describe("comm:empty " .. kind.name, function()
    for task, what in pairs {
      values = "gives tensors like any other", mistakes = "refuses mistakes on every rank",
      replicas = "carries the gradients of replicas",
    } do
      it(what, function()
        local pipe = assert(io.popen(("%s%s run -n 3 %s spec/work/lane.lua %s %s 2>&1"):format(kind.environment or "", program,
          kind.options, task, kind.memory)))
        local text = pipe:read("*a")
        pipe:close()
        for rank = 0, 2 do
          assert.truthy(text:find(("rank %d is content"):format(rank), 1, true), text)
        end
      end)
    end
  end)
end
