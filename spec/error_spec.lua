--- Errors: objects with a code, the user's line, and nothing lost on the way.

local luda = require "luda"
local helper = require "spec.helper"

local function line()
  return debug.getinfo(2, "l").currentline
end

describe("an error", function()
  before_each(helper.before)
  after_each(helper.after)

  it("has a code, an operator, a message and the user's line", function()
    local a, b = luda.zeros(2, 3), luda.zeros(4)
    local here
    local ok, err = pcall(function()
      here = line(); local _ = a + b
    end)
    assert.is_false(ok)
    assert.equal(luda.Error, getmetatable(err))
    assert.equal("shape", err.code)
    assert.equal("add", err.op)
    assert.is_truthy(err.message:find("[2, 3] and [4]", 1, true))
    assert.is_truthy(err.where:find("error_spec.lua:" .. here, 1, true))
    assert.equal(err.where .. ": add: " .. err.message, tostring(err))
    assert.is_truthy(err.traceback:find("error_spec.lua:" .. here, 1, true))
  end)

  it("blames the line that called, through methods, options, scopes and tail calls", function()
    local x, here = luda.zeros(2, 3), nil
    local function where_of(fn)
      local _, err = pcall(fn)
      return tonumber(err.where:match("error_spec.lua:(%d+)$"))
    end
    assert.equal(line(), where_of(function() x:sum(7) end))
    assert.equal(line(), where_of(function() x:sum { axis = 1 } end))
    assert.equal(line(), where_of(function() x:reshape(7) end))
    assert.equal(line(), where_of(function() local _ = x[9] end))
    assert.equal(line(), where_of(function() luda.zeros(-1) end))
    assert.equal(line(), where_of(function() x:backward() end))
    local function inside()
      here = line(); x:split({ 1 }, 1)
    end
    assert.equal(where_of(function() luda.scope(inside) end), here)
    local err = select(2, pcall(function() return x:item() end))
    assert.is_truthy(err.where:find("error_spec.lua", 1, true))
  end)

  it("carries every code's word", function()
    assert.raises("closed", "", function()
      local t = luda.ones(1)
      t:release()
      return t:item()
    end)
    assert.raises("dtype", "", function() return luda.tensor({ true }) + luda.tensor { true } end)
    assert.raises("index", "", function() return luda.ones(2)[3] end)
    assert.raises("invalid", "", luda.full, { 2 }, "x")
    assert.raises("graph", "", function() return luda.ones(1):backward() end)
  end)

  it("leaves objects as they were", function()
    local x = luda.tensor { 1, 2 }
    assert.raises("shape", "", x.add_, x, luda.ones(3))
    assert.same({ 1, 2 }, x:totable())
  end)

  it("tells about a library of another version", function()
    -- a process of its own, with the declared version changed
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write([[
      package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path
      local ffi, cdef = require "ffi", nil
      local original = ffi.cdef
      ffi.cdef = function(text) original((text:gsub("LUDA_DECLARED_VERSION = [^}]*", "LUDA_DECLARED_VERSION = 999999 "))) end
      local ok, err = pcall(require, "luda")
      print(ok, err)
    ]])
    file:close()
    local process = assert(io.popen("luajit " .. path .. " 2>&1"))
    local output = process:read("*a")
    process:close()
    os.remove(path)
    assert.is_truthy(output:find("^false"), output)
    assert.is_truthy(output:find("version 99.99.99, the library .* is " .. luda.version:gsub("%.", "%%.")), output)
  end)
end)
