local luda = require "luda"
local ops = require "luda.ops"
local tensors = require "luda.tensor"
local later = require "luda.ops.later"

local function copy(list)
  local result = {}
  for name, fn in pairs(list) do
    result[name] = fn
  end
  return result
end

describe("functions that are read at the first call", function()
  it("are those that their files define, and no others", function()
    for module in pairs(later.modules) do
      assert.is_nil(package.loaded[module])
    end
    local first = luda.inv
    local functions, methods = copy(ops.functions), copy(tensors.methods)
    later.read_all()
    for module, names in pairs(later.modules) do
      assert.truthy(package.loaded[module])
      for name in names:gmatch("%S+") do
        assert.is_function(ops.functions[name], name)
        assert.are_not.equal(functions[name], ops.functions[name], name)
        functions[name], methods[name] = ops.functions[name], tensors.methods[name]
      end
    end
    assert.same(functions, ops.functions)
    assert.same(methods, tensors.methods)
    assert.is_true(first(luda.eye(2)):equal(luda.eye(2)))
    assert.is_true(luda.eye(2):inv():equal(luda.eye(2)))
  end)
end)
