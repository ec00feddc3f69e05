local luda = require "luda"
local json = require "luda.json"
local nn = require "luda.nn"
local optim = require "luda.optim"
local record = require "luda.record"
local dist = require "luda.dist"
local helper = require "spec.helper"

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return json.decode(text)
end

--- The events of one kind by name.
local function by_name(trace, kind)
  local found = {}
  for _, event in ipairs(trace.traceEvents) do
    if event.cat == kind then
      found[event.name] = found[event.name] or {}
      table.insert(found[event.name], event)
    end
  end
  return found
end

describe("profile", function()
  local path, kept
  before_each(function()
    path, kept = os.tmpname(), os.tmpname()
    helper.before()
  end)
  after_each(function()
    helper.after()
    os.remove(path)
    os.remove(kept)
    os.remove(kept .. ".safetensors")
  end)

  it("writes operators, backward, modules, records, collectives and spans of the script", function()
    luda.scope(function()
      local model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
      local opt = optim.SGD(model)
      local comm = dist.init()
      local x = luda.randn(2, 3)
      local result = luda.profile(function(a)
        luda.profile.span("step \"one\"", function()
          local loss = model(x):square():sum()
          opt:step(0.1, loss:backward())
        end)
        comm:all_reduce(x, "sum")
        record.save(kept, { model = model })
        return a + 1
      end, path, 41)
      assert.equal(42, result)
      comm:close()
    end)
    local trace = read(path)
    local operators, backward = by_name(trace, "operator"), by_name(trace, "backward")
    assert.equal(1, #operators.linear)
    assert.equal(1, #operators.tanh)
    for _, name in ipairs { "linear", "tanh", "square", "sum" } do
      assert.equal(1, #backward[name])
    end
    assert.equal(1, #by_name(trace, "module").Linear)
    assert.equal(1, #by_name(trace, "collective")["comm.all_reduce"])
    assert.equal(1, #by_name(trace, "record")["record.save"])
    local span, inner = by_name(trace, "lua")["step \"one\""][1], operators.linear[1]
    assert.is_true(span.ts <= inner.ts and inner.ts + inner.dur <= span.ts + span.dur)
    assert.is_true(span.ts >= 0 and span.dur > 0)
    assert.equal(0, trace.otherData.lost)
  end)

  it("is off otherwise, also after an error, and does not nest", function()
    assert.has_error(function() luda.profile(function() error("mine", 0) end, path) end, "mine")
    assert.equal(3, luda.profile.span("x", function() return 3 end))
    assert.raises("invalid", "one is running already", function()
      luda.profile(function() luda.profile(function() end, path) end, path)
    end)
    luda.profile(function() end, path)
    assert.same({}, by_name(read(path), "operator"))
    assert.raises("io", "cannot write", function() luda.profile(function() end, path .. "/no/folder") end)
    assert.raises("invalid", "the path of the trace", function() luda.profile(function() end) end)
  end)
end)
