--- Live memory by the line that made it, and the leak check that rests on it.

local luda = require "luda"
local helper = require "spec.helper"

--- The entry of a line of this file.
local function site(line)
  for _, entry in ipairs(luda.memory { sites = true }) do
    if entry.site:match("memory_spec%.lua:(%d+)$") == tostring(line) then
      return entry
    end
  end
end

local function here()
  return debug.getinfo(2, "l").currentline
end

describe("memory by site", function()
  before_each(helper.before)
  after_each(helper.after)
  after_each(function() luda.memory { track = false } end)

  it("is known of tensors made while tracking", function()
    local early = luda.ones(1000)
    luda.memory { track = true }
    local line, a, b = here(), luda.ones(1000), luda.zeros(500, { dtype = "f64" })
    local entry = site(line)
    assert.equal(8000, entry.live)
    assert.equal(2, entry.tensors)
    local view = a:narrow(1, 1, 10)
    a:release()
    assert.equal(8000, site(line).live) -- the view holds it
    view:release()
    assert.equal(4000, site(line).live)
    luda.memory { track = false }
    local late = luda.ones(1000)
    b:release()
    assert.is_nil(site(line))
    assert.equal(2000, early.numel + late.numel)
  end)

  it("includes what only the graph holds, and starts anew in a scope", function()
    local x = luda.ones(1000):requires_grad_()
    luda.memory { track = true }
    local line
    local y = luda.scope(function()
      line = here() + 1
      local kept = x:exp()
      return kept * kept
    end)
    assert.equal(4000, site(line).live)
    y:sum():backward()
    y:release()
    assert.is_nil(site(line))
  end)

  it("lists the largest first", function()
    luda.memory { track = true }
    local small = luda.ones(10)
    local large = luda.ones(1000)
    local list = luda.memory { sites = true }
    for i = 2, #list do
      assert.is_true(list[i - 1].live >= list[i].live)
    end
    assert.equal(1010, small.numel + large.numel)
    assert.raises("invalid", "track is true or false", luda.memory, { track = 1 })
  end)
end)

describe("the leak check", function()
  before_each(helper.before)
  after_each(helper.after)

  it("names the line that made what stays", function()
    local held = {}
    local line = here() + 2
    local fine, message = pcall(helper.no_leak, function()
      held[1] = luda.ones(100)
      held[2] = luda.ones(5):sum():item()
    end)
    assert.is_false(fine)
    assert.equal(5, held[2])
    assert.truthy(message:find("1 tensors and %d+ bytes remain"), message)
    assert.truthy(message:find("memory_spec.lua:" .. line .. " (1)", 1, true), message)
  end)

  it("is content with what goes", function()
    helper.no_leak(function(n)
      local x = luda.ones(n):requires_grad_()
      luda.scope(function()
        return (x * x):sum():backward()
      end)
      return x
    end, 50)
    assert.has_error(function()
      helper.no_leak(error, "passed on")
    end, "passed on")
  end)
end)
