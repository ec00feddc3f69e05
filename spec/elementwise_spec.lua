--- Elementwise rows against plain Lua, over sizes that leave remainders, with the ends of the range.

local luda = require "luda"
local ops = require "luda.ops"
local helper = require "spec.helper"
local reference = require "spec.reference"

describe("elementwise", function()
  before_each(helper.before)
  after_each(helper.after)

  for _, row in ipairs(ops.rows) do
    local fn = reference.functions[row.name]
    local elementwise = row.shape == "broadcast" and not row.facts.random
    if elementwise and fn then -- spec/reference.lua states the formula a second time
      it(row.name .. " is what plain Lua computes", function()
        for dtype, rtol in pairs { f64 = 4e-15, f32 = 6e-7 } do
          for _, count in ipairs { 1, 67, 1037 } do
            local lists, tensors = {}, {}
            for i = 1, row.inputs do
              lists[i] = reference.values(row.name, i, count)
              tensors[i] = luda.tensor(lists[i], row.name == "where" and i == 1 and {} or { dtype = dtype })
              lists[i] = tensors[i]:totable() -- rounded as the operator sees them
            end
            local want = {}
            for k = 1, count do
              want[k] = fn(lists[1][k], lists[2] and lists[2][k], lists[3] and lists[3][k])
            end
            local looser = reference.looser[row.name] or 1
            local tolerance = rtol * looser
            assert.tensor_near(want, ops.functions[row.name](unpack(tensors)), tolerance, reference.absolute[row.name] and
              tolerance or 0)
          end
        end
      end)

      it(row.name .. " takes empty and 0-d tensors", function()
        local empty, single, one = {}, {}, {}
        for i = 1, row.inputs do
          local mask = row.name == "where" and i == 1
          empty[i] = luda.full({ 2, 0 }, mask and true or 1)
          single[i] = luda.tensor(mask and true or 0.75)
          one[i] = luda.tensor(mask and { true } or { 0.75 })
        end
        assert.same({ 2, 0 }, ops.functions[row.name](unpack(empty)).shape)
        local result = ops.functions[row.name](unpack(single))
        assert.same({}, result.shape)
        assert.equal(ops.functions[row.name](unpack(one)):item(), result:item())
      end)

      if row.inputs == 2 then
        it(row.name .. " refuses shapes that do not broadcast", function()
          assert.raises("shape", row.name .. ": shapes %[2, 3%] and %[4%]", ops.functions[row.name], luda.ones(2, 3),
            luda.ones(4))
        end)
      end
    end
  end
end)
