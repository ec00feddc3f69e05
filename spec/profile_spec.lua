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

  it("shows one step from the script down to the operators: nested in place and in the order of time", function()
    luda.scope(function()
      local span, model = luda.profile.span, nn.Sequential(nn.Linear(3, 4), nn.Tanh())
      local opt, comm = optim.SGD(model), dist.init()
      local own = luda.autograd.Function {
        name = "own",
        forward = function(ctx, x)
          ctx:save(x)
          return x:exp()
        end,
        backward = function(ctx, g) return g * ctx.saved[1]:exp() end,
      }
      local again = function(x) return x:sigmoid() end
      luda.profile(function()
        span("step", function()
          local loss = span("forward", function()
            return luda.autograd.checkpoint(again, own(model(luda.ones(2, 3)))):sum()
          end)
          local grads = span("backward", function() return loss:backward() end)
          grads = span("reduce", function() return grads:all_reduce(comm, "sum") end)
          span("update", function() opt:step(0.1, grads) end)
          span("save", function() record.save(kept, { model = model }) end)
        end)
      end, path)
      comm:close()
    end)
    local trace, events, spans = read(path), {}, {}
    for _, event in ipairs(trace.traceEvents) do
      if event.ph == "X" then
        events[#events + 1] = event
        spans[event.name] = event.cat == "lua" and event or spans[event.name]
      end
    end
    local function last(event)
      return event.ts + event.dur
    end
    local function inside(event, other)
      return event.ts >= other.ts - 0.002 and last(event) <= last(other) + 0.002 -- nanoseconds are rounded
    end
    -- any two either lie one in the other or one after the other
    for i, event in ipairs(events) do
      assert.is_true(event.dur >= 0 and event.ts >= 0)
      assert.is_true(inside(event, spans.step), event.name)
      for k = 1, i - 1 do
        local other = events[k]
        local apart = last(event) <= other.ts + 0.002 or last(other) <= event.ts + 0.002
        assert.is_true(apart or inside(event, other) or inside(other, event), event.name .. " and " .. other.name)
      end
    end
    local order = { "forward", "backward", "reduce", "update", "save" }
    for i = 2, #order do
      assert.is_true(last(spans[order[i - 1]]) <= spans[order[i]].ts + 0.002, order[i])
    end
    -- what runs where: kind, name, the span around it, how often
    for _, row in ipairs {
      { "module", "Linear", "forward", 1 }, { "operator", "linear", "forward", 1 }, { "operator", "exp", "forward", 1 },
      { "operator", "exp", "backward", 1 }, { "operator", "sigmoid", "forward", 1 }, { "operator", "sigmoid", "backward", 1 },
      { "backward", "own", "backward", 1 }, { "backward", "tanh", "backward", 1 }, { "backward", "linear", "backward", 1 },
      { "backward", "sigmoid", "backward", 1 }, { "collective", "comm.all_reduce", "reduce", 2 },
      { "record", "record.save", "save", 1 },
    } do
      local count = 0
      for _, event in ipairs(by_name(trace, row[1])[row[2]] or {}) do
        count = count + (inside(event, spans[row[3]]) and 1 or 0)
      end
      assert.equal(row[4], count, ("%s %s in %s"):format(row[1], row[2], row[3]))
    end
    -- operators of a node's backward lie inside the node
    local node = by_name(trace, "backward").own[1]
    local count = 0
    for _, name in ipairs { "exp", "mul" } do
      for _, event in ipairs(by_name(trace, "operator")[name]) do
        count = count + (inside(event, node) and 1 or 0)
      end
    end
    assert.equal(2, count)
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
