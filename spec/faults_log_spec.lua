--- What a failed call leaves to read: the flight record's states, and each rank's last calls beside its log.

local folder = require "luda.folder"
local helper = require "spec.helper"
local processes = require "spec.processes"

before_each(helper.before)
after_each(function()
  processes.finish()
  helper.after()
end)

local function mismatch(options)
  options.size, options.task, options.what = 3, "calls", "mismatch"
  return processes.start(options)
end

describe("the flight record", function()
  it("shows a call queued, running and done, with what it moves", function()
    local rows = processes.start({ size = 2, task = "calls", what = "states" }):result(0)
    local states = {}
    for i, row in ipairs(rows) do
      states[i] = row.state
      assert.equal(2, row.seq)
      assert.equal("f32", row.dtype)
      assert.same({ 16777216 }, row.shape)
      assert.equal(67108864, row.bytes)
      assert.equal("here.lua:1", row.site)
      assert.equal(row.state == "done", row.finished >= row.started)
    end
    assert.same({ "queued", "running", "done" }, states)
  end)

  it("shows a failed call with its place", function()
    local group = mismatch {}
    for rank = 0, 2 do
      local seen = group:result(rank)
      assert.equal("mismatch", seen.code)
      assert.equal("failed", seen.row.state)
      assert.equal("all_reduce", seen.row.op)
      assert.truthy(seen.row.site:find("spec/work/calls.lua:%d+"))
      assert.is_nil(seen.message:find("last calls", 1, true))
    end
  end)
end)

describe("the failure log", function()
  it("holds each rank's last calls, what was asked and who is blamed", function()
    local dir = helper.new_folder() .. "/logs/of this run"
    local group = mismatch { environment = ("LUDA_LOG_DIR='%s'"):format(dir) }
    for rank = 0, 2 do
      local seen = group:result(rank)
      local path = ("%s/rank-%d.calls.txt"):format(dir, rank)
      assert.truthy(seen.message:find("this rank's last calls are in " .. path, 1, true), seen.message)
      local text = helper.read(path)
      assert.truthy(text:find(("^%%d+%%-%%d+%%-%%d+T[%%d:]+Z rank %d of 3 %%(%%a+%%)\n"):format(rank)), text)
      assert.truthy(text:find("\nmismatch: all_reduce: ranks disagree about the shape", 1, true), text)
      assert.truthy(text:find("\nblamed: rank 0, rank 1, rank 2\n", 1, true), text)
      for asker = 0, 2 do
        assert.truthy(text:find(("\nrank %d asked for all_reduce sum f32 [%d] at "):format(asker, asker + 1), 1, true), text)
      end
      assert.truthy(text:find("\n     1  done     barrier "), text)
      assert.truthy(text:find("\n     2  done     broadcast       f32    %[2%] +8  "), text)
      local failed = ("\n     3  failed   all_reduce      f32    %%[%d%%] +%d  "):format(rank + 1, 4 * (rank + 1))
      assert.truthy(text:find(failed), text)
    end
    assert.same({ "rank-0.calls.txt", "rank-1.calls.txt", "rank-2.calls.txt" }, folder.list(dir))
  end)

  it("is written by survivors of a stopped rank, and by rank threads", function()
    local dir = helper.new_folder()
    local group = processes.start { size = 3, victims = { 1 }, act = "busy", busy = 60, deadline = 0.3, survivors = 2,
      environment = "LUDA_LOG_DIR=" .. dir }
    for rank = 0, 2, 2 do
      assert.truthy(group:expect(rank, "failed").message:find(("rank %d"):format(1), 1, true))
      local text = helper.read(("%s/rank-%d.calls.txt"):format(dir, rank))
      assert.truthy(text:find("timeout: all_reduce: timed out after 0.3 s: rank 1 has not arrived", 1, true), text)
      assert.truthy(text:find("blamed: rank 1\n", 1, true), text)
    end
    local threads = helper.new_folder()
    assert.is_true(processes.works(("LUDA_LOG_DIR=%s %s/luda run --threads -n 2 spec/work/run_script.lua differ"):format(threads,
      os.getenv("LUDA_BUILD") or "build")))
    assert.same({ "rank-0.calls.txt", "rank-1.calls.txt" }, folder.list(threads))
  end)

  it("that cannot be written leaves the failure what it was", function()
    local group = mismatch { environment = "LUDA_LOG_DIR=/dev/null/logs" }
    for rank = 0, 2 do
      local seen = group:result(rank)
      assert.equal("mismatch", seen.code)
      assert.truthy(seen.message:find("disagree about the shape", 1, true), seen.message)
      assert.truthy(seen.message:find("; /dev/null/logs/rank%-%d.calls.txt could not be written %(.+%)$"), seen.message)
    end
  end)

  it("on a full disk leaves the failure what it was, and no half file", function()
    local dir = helper.new_folder()
    local full = ([[unshare -m sh -c 'mount -t tmpfs -o size=8k none %s && ! head -c 64k /dev/zero 2>/dev/null >%s/full &&
      exec "$@"']]):format(dir, dir)
    if not processes.works(full .. " sh true") then
      io.write("faults: no private mounts here (not root, or no unshare): a full disk is not tried\n")
      pending("a full disk needs root and unshare")
    end
    local group = mismatch { environment = "LUDA_LOG_DIR=" .. dir, prefix = full .. " sh" }
    for rank = 0, 2 do
      local seen = group:result(rank)
      assert.equal("mismatch", seen.code)
      assert.truthy(seen.message:find("could not be written %(.*No space left on device%)$"), seen.message)
    end
  end)
end)
