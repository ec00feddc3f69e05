--- Files under adversity: savers that are killed, two savers of one name, folders that fill with what was left.

local luda = require "luda"
local folder = require "luda.folder"
local helper = require "spec.helper"
local json = require "luda.json"

local dir

describe("a file", function()
  before_each(function()
    dir = helper.new_folder()
    helper.before()
  end)
  after_each(helper.after)

  --- Saves records 1, 2, … over one another until somebody ends it.
  local function endless(path)
    return ([[
      package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path
      local luda = require "luda"
      for i = 1, math.huge do
        luda.scope(function()
          luda.record.save(%q, { state = { i = i, x = luda.full({ 200000 }, i) } })
        end)
        io.stdout:write("x")
        io.stdout:flush()
      end]]):format(path)
  end

  it("whose saver is killed at any moment is the old one or the new one, and leftovers go at the next save", function()
    local path, script = dir .. "/run.safetensors", dir .. "/script.lua"
    local file = assert(io.open(script, "w"))
    file:write(endless(path))
    file:close()
    for attempt = 1, 12 do
      -- runs until its first save is done, then a little longer
      local command = "luajit $D/script.lua >$D/out 2>&1 & p=$!; while ! [ -s $D/out ]; do sleep 0.01; done; sleep 0.0"
        .. attempt * 7 % 10 .. "; kill -9 $p && wait $p 2>/dev/null; grep -q '^x*$' $D/out"
      assert.equal(0, os.execute((command:gsub("%$D", dir))))
      os.remove(dir .. "/out")
      local state = luda.record.load(path):restore {}
      assert.equal(200000 * state.i, state.x:sum():item())
    end
    luda.record.save(path, { state = { i = 0 } })
    local left = {}
    for _, name in ipairs(folder.list(dir)) do
      if name:find("safetensors", 1, true) then
        left[#left + 1] = name
      end
    end
    assert.same({ "run.safetensors" }, left)
  end)

  it("with two savers at once is always one of theirs", function()
    for _, torn in ipairs(luda.dist.spawn(2, "spec/work/saver.lua", { path = dir .. "/both", times = 60 }, { timeout = 60 })) do
      assert.same({}, torn)
    end
    assert.same({ "both" }, folder.list(dir))
  end)

  it("of a newer format is refused, and leaves what is live alone", function()
    local layer = luda.nn.Linear(2, 1)
    local path = luda.record.save(dir .. "/new", { model = layer })
    local tensors, metadata = luda.load(path)
    local header = json.decode(metadata["luda.record"])
    header.format = header.format + 1
    metadata["luda.record"] = json.encode(header)
    luda.save(path, tensors, metadata)
    local before = layer.weight:totable()
    luda.no_grad(function() layer.bias:fill_(5) end)
    local ok, err = pcall(function() luda.record.load(path):restore { model = layer } end)
    assert.is_false(ok)
    assert.matches("format", tostring(err))
    assert.same({ before, { 5 } }, { layer.weight:totable(), layer.bias:totable() })
  end)

  it("whose lengths lie is damaged, whoever wrote it", function()
    local function write(shape, first, last, bytes)
      local header = ('{"x":{"dtype":"F32","shape":[%s],"data_offsets":[%s,%s]}}'):format(shape, first, last)
      local file = assert(io.open(dir .. "/foreign", "wb"))
      local size = #header
      file:write(string.char(size % 256, math.floor(size / 256), 0, 0, 0, 0, 0, 0), header, ("\0"):rep(bytes))
      file:close()
      return pcall(luda.load, dir .. "/foreign")
    end
    local ok, tensors = write("2", 0, 8, 8)
    assert.is_true(ok)
    assert.same({ 0, 0 }, tensors.x:totable())
    for _, row in ipairs {
      { "0", 0, 8, 8 }, { "2147483648", 0, 8, 8 }, { "9223372036854775808", 0, 8, 8 }, { "-1", 0, 8, 8 }, { "2", 8, 0, 8 },
      { "2", 0, 8, 7 }, { "2", 0, 8, 9 }, { "2", 0, 12, 8 }, { "3", 0, 8, 8 }, { "2", "1e99", 8, 8 },
      { "2,4611686018427387904", 0, 8, 8 },
    } do
      local fine, err = write(unpack(row))
      assert.is_false(fine, table.concat(row, " "))
      assert.equal("corrupt", err.code)
    end
  end)
end)
