--- Saving in the background: what is written is the state at the call, in the bytes of any other save; nothing is lost.

local luda = require "luda"
local helper = require "spec.helper"

local record, nn, optim = luda.record, luda.nn, luda.optim
local build = os.getenv("LUDA_BUILD") or "build"

local dir

local read = helper.read

--- What a shell command prints, and its status.
local function shell(command)
  local pipe = io.popen(("exec 2>&1; %s; echo =$?"):format(command))
  local text = pipe:read("*a")
  pipe:close()
  local said, status = text:match("^(.-)=(%d+)\n$")
  return said, tonumber(status)
end

--- Names in the folder, those with a dot too.
local function names()
  return (shell(("ls -A '%s'"):format(dir)))
end

local function run(what, path, before)
  return shell(("%s %s/luda spec/work/async_save.lua %s '%s'"):format(before or "", build, what, path))
end

describe("a save in the background", function()
  before_each(function()
    dir = helper.new_folder()
    helper.before()
  end)
  after_each(function()
    pcall(record.wait)
    helper.after()
  end)

  it("holds the state at the call, whatever training changes from then on", function()
    luda.manual_seed(1)
    local model = nn.Linear(2000, 1500)
    local opt = optim.AdamW(model, { amsgrad = true })
    local generator = luda.generator(5)
    local x = luda.randn(3, 2000)
    local parts = {
      model = model, optimizer = opt, generators = { g = generator },
      state = {
        half = luda.randn(700, 900, { dtype = "bf16" }):t(), i = luda.arange(3, { dtype = "i64" }), none = luda.zeros(0, 2),
      },
    }
    local function step()
      luda.scope(function()
        opt:step(0.1, (model(x) ^ 2):mean():backward())
        luda.rand(2, { generator = generator })
        parts.state.half:fill_(1)
      end)
    end
    step()
    for i = 1, 3 do
      record.save(dir .. "/expected", parts)
      assert.equal(dir .. "/run.safetensors", record.save(dir .. "/run", parts, { async = true }))
      for _ = 1, 3 do
        step()
      end
      record.wait()
      assert.is_true(read(dir .. "/expected.safetensors") == read(dir .. "/run.safetensors"), "save " .. i)
    end
    assert.equal("expected.safetensors\nrun.safetensors\n", names())
  end)

  it("has the bytes of a save in another process", function()
    run("sync", dir .. "/a")
    assert.same({ "", 0 }, { run("async", dir .. "/b") })
    assert.is_true(read(dir .. "/a.safetensors") == read(dir .. "/b.safetensors"))
  end)

  it("is complete when the program leaves, in whichever way", function()
    run("sync", dir .. "/a")
    for what, status in pairs { leave = 0, exit = 3, error = 1 } do
      local said, left = run(what, dir .. "/b")
      assert.equal(status, left)
      assert.equal(what == "error", said:find("the end", 1, true) ~= nil)
      assert.is_true(read(dir .. "/a.safetensors") == read(dir .. "/b.safetensors"), what)
      os.remove(dir .. "/b.safetensors")
    end
    -- a failure that nobody can be told any more
    local said, status = run("leave", dir .. "/none/b")
    assert.equal(0, status)
    assert.matches("^luda: in the background: save: cannot create a temporary file for .*/none/b.safetensors: No such file", said)
  end)

  it("waits for the one before, and a record that is being written is complete before it is read", function()
    local x = luda.zeros(4000000)
    for i = 1, 4 do
      record.save(dir .. "/run", { state = { i = i, x = x:fill_(i) } }, { async = true })
    end
    assert.equal(4, record.load(dir .. "/run"):restore({}).i)
    record.save(dir .. "/run", { state = { i = 5, x = x } }, { async = true })
    record.save(dir .. "/run", { state = { i = 6 } }) -- does not wait less for being small
    assert.equal(6, record.load(dir .. "/run"):restore({}).i)
    record.wait()
    assert.equal("run.safetensors\n", names())
  end)

  it("that fails says so once, at the wait or the next save, and what stood there stands", function()
    record.save(dir .. "/good", { state = { 1 } })
    local good = read(dir .. "/good.safetensors")
    local missing = dir .. "/none/run"
    record.save(missing, { state = { 1 } }, { async = true })
    assert.raises("io", "cannot create a temporary file for .*/none/run.safetensors: No such.*in the background", record.wait)
    record.wait()
    for _, async in ipairs { true, false } do
      record.save(missing, { state = { 1 } }, { async = true })
      assert.raises("io", "none/run.*nothing of this save was done, so save again", record.save, dir .. "/good",
        { state = { 2 } }, { async = async })
      assert.equal(good, read(dir .. "/good.safetensors"))
    end
    record.save(dir .. "/good", { state = { 2 } }, { async = true })
    record.wait()
    assert.equal(2, record.load(dir .. "/good"):restore({})[1])
    -- what is wrong with the parts is known at once
    assert.raises("invalid", "state.f: a function has no place", record.save, dir .. "/y", { state = { f = print } },
      { async = true })
    assert.raises("invalid", "unknown option 'asink'", record.save, dir .. "/y", { state = {} }, { asink = true })
  end)

  it("onto a disk that takes no more leaves the older record and no temporary file", function()
    local said, status = run("full", dir .. "/run", "trap '' XFSZ; ulimit -f 2000;")
    local full = "io: cannot write " .. dir .. "/run.safetensors: File too large"
    local background = full .. " (in the background; what stood there before stands"
    assert.equal(table.concat({
      "fine", full, "fine", background .. ")", "fine", "fine",
      background .. "; nothing of this save was done, so save again)", "1", "fine", "true", "" }, "\n"), said)
    assert.equal(0, status)
    assert.equal("run-2.safetensors\nrun.safetensors\n", names())
    assert.equal(1, record.load(dir .. "/run"):restore({}).step)
  end)

  it("whose calls fail, one after another, leaves the older record and says which file and why", function()
    local refused = 0
    local preload = ((os.getenv("LD_PRELOAD") or "") .. " " .. build .. "/spec/libkill_at.so"):match("^%s*(.*)$")
    for _, async in ipairs { "false", "true" } do
      for call = 1, 14 do
        os.remove(dir .. "/run.safetensors")
        record.save(dir .. "/run", { state = { step = 1 } })
        local said, status = shell(([[LD_PRELOAD='%s' KILL_AT=1.%de %s/luda -e 'local record = require("luda").record
          local ok, err = pcall(function()
            record.save("%s/run", { state = { step = 2 } }, { async = %s })
            record.wait()
          end)
          io.write(ok and "fine" or err.code .. " " .. err.message)']]):format(preload, call, build, dir, async))
        assert.equal(0, status)
        refused = refused + (said == "fine" and 0 or 1)
        if said ~= "fine" then
          assert.matches("^io cannot [%a ]+ /[^:]*/run.safetensors: No space left on device", said)
        end
        local step = record.load(dir .. "/run"):restore({}).step
        assert.equal((said == "fine" or said:find("flush the folder", 1, true)) and 2 or 1, step)
        assert.equal("run.safetensors\n", names())
      end
    end
    assert.equal(16, refused) -- not those of a lock, which some file systems lack, and of closing what is flushed
  end)
end)
