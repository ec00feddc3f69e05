--- Handles under adversity: random programs against a model, finalizers that compute, states closed at bad moments.

local luda = require "luda"
local lib = require "luda.ffi"
local helper = require "spec.helper"

--- Runs a script in a process of its own; returns its output and whether it ended well.
local function run(script)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write('package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path\nlocal luda = require "luda"\n', script)
  file:close()
  local process = assert(io.popen("luajit " .. path .. " 2>&1; echo status $?"))
  local output = process:read("*a")
  process:close()
  os.remove(path)
  return output
end

--- A random program: every live tensor's value is known; dead ones must raise; collections come at any time.
local function program(seed)
  local state = seed
  local function random(n)
    state = (state * 1103515245 + 12345) % 2147483648
    return math.floor(state / 2147483648 * n) + 1
  end
  local live, dead = {}, {}

  local function pick()
    return #live > 0 and live[random(#live)] or nil
  end

  local function add(t, value, depth)
    live[#live + 1] = { t = t, value = value, depth = depth }
  end

  --- What the scope at `depth` made dies, except `survivor`.
  local function leave(depth, survivor)
    for i = #live, 1, -1 do
      local entry = live[i]
      if entry.depth >= depth then
        if entry == survivor then
          entry.depth = depth - 1
        else
          dead[#dead + 1] = entry.t
          table.remove(live, i)
        end
      end
    end
  end

  local function step(depth)
    local action, entry = random(12), pick()
    if action <= 3 or not entry then
      local value = random(100)
      add(luda.full({ random(3) }, value), value, depth)
    elseif action <= 5 then
      add(entry.t + 1, entry.value + 1, depth)
    elseif action == 6 then
      entry.t:add_(2)
      entry.value = entry.value + 2
    elseif action == 7 then
      entry.t:release()
      for i = #live, 1, -1 do
        if live[i] == entry then
          dead[#dead + 1] = entry.t
          table.remove(live, i)
        end
      end
    elseif action == 8 then
      entry.t:keep()
      entry.depth = 0
    elseif action == 9 then
      collectgarbage(random(2) == 1 and "collect" or "step")
    elseif action == 10 and #dead > 0 then
      local t = dead[random(#dead)]
      assert(not pcall(function() return t + 1 end), "a dead tensor was used")
    elseif action == 11 and depth < 5 then
      local fails, survivor = random(4) == 1, nil
      local ok = pcall(luda.scope, function()
        for _ = 1, random(8) do
          step(depth + 1)
        end
        if fails then
          error("on purpose", 0)
        end
        survivor = pick()
        return survivor and survivor.t
      end)
      assert(ok == not fails)
      leave(depth + 1, ok and survivor or nil)
    else
      table.remove(live, 1) -- unreachable now, if no scope holds it
    end
    for _, other in ipairs(live) do
      local found = other.t:totable()[1]
      assert(found == other.value, ("expected %d, found %s"):format(other.value, tostring(found)))
    end
  end

  for _ = 1, 60 do
    step(0)
  end
end

describe("handles", function()
  before_each(helper.before)
  after_each(helper.after)

  it("agree with a model in random programs", function()
    for seed = 1, 60 do
      local ok, err = pcall(program, seed)
      assert(ok, "seed " .. seed .. ": " .. tostring(err))
    end
  end)

  it("are given back while others are made", function()
    for i = 1, 20000 do
      local t = luda.full({ 1 }, i)
      if i % 997 == 0 then
        assert.equal(i, t:item())
      end
    end
    assert.is_true(lib.signals.handles < 15000, lib.signals.handles .. " handles live")
  end)

  it("survive finalizers that compute", function()
    local runs = 0
    for i = 1, 3000 do
      local guard = newproxy(true)
      getmetatable(guard).__gc = function()
        runs = runs + 1
        local t = luda.ones(2) + 1
        assert(t:sum():item() == 4)
      end
      local x = luda.full({ 2 }, i)
      if i % 50 == 0 then
        collectgarbage("step", 50)
      end
      assert(x:sum():item() == 2 * i)
    end
    collectgarbage()
    assert.is_true(runs > 1000)
  end)

  it("cannot be forged", function()
    local ffi = lib.ffi
    for _, number in ipairs { 0 / 0, -1, 0, 0.5, 1e300, math.huge, 2 ^ 51, 2 ^ 24 + 0.5, 123 } do
      local forged = ffi.new("struct luda_lua_tensor", number)
      assert.raises("closed", "released", function() return forged:item() end)
      assert.equal("tensor (released)", tostring(forged))
    end
  end)

  it("end with the state, in a scope, outside, and in an error", function()
    assert.equal("status 0\n", run [[
      local x = luda.ones(3, { requires_grad = true })
      luda.scope(function()
        local g = (x * 2):sum():backward()
        x:register_hook(function() end)
        os.exit(0, true)
      end)]])
    assert.equal("status 0\n", run [[
      KEPT = {}
      for i = 1, 5000 do KEPT[i] = luda.ones(3) end
      FUNCTION = luda.autograd.Function { forward = function(_, x) return x * 2 end, backward = function(_, g) return g end }
      Y = FUNCTION(luda.ones(2, { requires_grad = true }))]])
    local output = run [[luda.scope(function() local x = luda.ones(2) + luda.ones(3) end)]]
    assert.is_truthy(output:find("shapes %[2%] and %[3%]"), output)
    assert.is_truthy(output:find("status 1\n$"))
  end)

  it("work the same when the module is loaded again", function()
    assert.equal("6\ttrue\nstatus 0\n", run [[
      local x = luda.ones(3)
      for name in pairs(package.loaded) do
        if name:find("^luda") then package.loaded[name] = nil end
      end
      local again = require "luda"
      local y = x + again.ones(3)
      print(y:sum():item(), again.is_tensor(x) and getmetatable(select(2, pcall(again.zeros, -1))) == luda.Error)]])
  end)
end)
