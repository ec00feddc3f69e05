--- A manager that saves in the background: what it keeps and when the older records go.

local luda = require "luda"
local folder = require "luda.folder"
local helper = require "spec.helper"

local record = luda.record

local dir

local function parts_of(step)
  return { state = { step = step, x = luda.full({ 100000 }, step) } }
end

describe("a manager in the background", function()
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    helper.before()
  end)
  after_each(function()
    pcall(record.wait)
    os.execute("rm -rf '" .. dir .. "'")
    helper.after()
  end)

  it("keeps the older records until the new one is complete", function()
    local manager = record.Manager { dir = dir, keep = 1, every = 10, async = true }
    for step = 1, 60 do
      local path = manager:save(step, parts_of(step))
      assert.equal(step % 10 == 0 and ("%s/step-%d.safetensors"):format(dir, step), path)
      if step >= 20 then
        local steps, before = manager:steps(), math.floor(step / 10) * 10 - 10
        assert.is_true(#steps >= 1 and #steps <= 2 and steps[1] >= before)
      end
    end
    manager:wait()
    assert.same({ 60 }, manager:steps())
    local state = record.load(manager:newest()):restore {}
    assert.same({ 60, 60 * 100000 }, { state.step, state.x:sum():item() })
    manager:wait()
  end)

  it("saves a step that is not due when it is asked to", function()
    local manager = record.Manager { dir = dir, keep = 2, every = 10 }
    assert.is_false(manager:save(7, parts_of(7)))
    assert.equal(dir .. "/step-7.safetensors", manager:save(7, parts_of(7), { now = true }))
    manager:save(10, parts_of(10))
    assert.same({ 7, 10 }, manager:steps())
  end)

  it("keeps the best, too", function()
    local manager = record.Manager { dir = dir, keep = 2, every = 1, best = "max", async = true }
    for step, metric in ipairs { 1, 5, 2, 0 / 0, 3 } do
      manager:save(step, parts_of(step), { metric = metric })
    end
    manager:wait()
    assert.same({ 2, 4, 5 }, manager:steps())
    assert.equal(dir .. "/step-2.safetensors", manager:best())
  end)

  it("goes on after a save that failed, and has lost no older record", function()
    local manager = record.Manager { dir = dir, keep = 1, every = 1, async = true }
    manager:save(1, parts_of(1))
    manager:wait()
    folder.make(dir .. "/step-2.safetensors") -- a folder in the way
    manager:save(2, parts_of(2))
    assert.raises("io", "cannot rename to .*/step%-2.safetensors: Is a directory.*nothing of this save was done, so save again",
      manager.save, manager, 3, parts_of(3))
    assert.equal(dir .. "/step-1.safetensors", manager:newest())
    manager:save(3, parts_of(3))
    manager:wait()
    assert.equal(dir .. "/step-3.safetensors", manager:newest())
    assert.is_nil((os.rename(dir .. "/step-1.safetensors", dir .. "/gone")))
    manager:save(4, parts_of(4))
    manager:wait()
    assert.same({ 4 }, manager:steps())
    assert.raises("invalid", "unknown option 'asink'", record.Manager, { dir = dir, asink = true })
  end)

  it("and one that is not share what is written in which order", function()
    local first = record.Manager { dir = dir .. "/a", every = 1, async = true }
    local second = record.Manager { dir = dir .. "/b", every = 1 }
    first:save(1, parts_of(1))
    second:save(1, parts_of(2))
    assert.equal(dir .. "/a/step-1.safetensors", first:newest()) -- the second save waited for it
    first:save(2, parts_of(3))
    first:wait()
    assert.same({ { 1, 2 }, { 1 } }, { first:steps(), second:steps() })
  end)
end)
