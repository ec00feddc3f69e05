--- The gradients of every elementwise row, as the table declares them.

local ops = require "luda.ops"
local helper = require "spec.helper"
local checks = require "spec.gradient_checks"

for _, row in ipairs(ops.rows) do
  local text, test = checks.test(row)
  if text and row.shape == "broadcast" then
    describe(row.name, function()
      before_each(helper.before)
      after_each(helper.after)

      it(text, function()
        test(row)
      end)
    end)
  end
end
