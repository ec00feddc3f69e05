--- Every element type with every reduction by every algorithm, against plain Lua that combines in the same order: equal to the
--- last bit, on all ranks, over both transports. What a type does not have is refused with its name.

local luda = require "luda"

local function expect_right(size, job)
  for _, seen in ipairs(luda.dist.spawn(size, "spec/work/collective_table.lua", job, { timeout = 60 })) do
    assert.same({}, seen.wrong)
    assert.is_true(seen.cases > 900)
    assert.matches("no and of f64", seen.refusal, 1, true)
    assert.equal(job.address and "tcp" or nil, seen.transport)
  end
end

describe("the table of types and reductions", function()
  for _, size in ipairs { 1, 2, 3, 5, 8 } do
    it(("holds on %d ranks"):format(size), function()
      expect_right(size, {})
    end)
  end

  it("holds over connections", function()
    local meeting = luda.dist.rendezvous { size = 3 }
    expect_right(3, { address = meeting.address, session = meeting.session })
    meeting:close()
  end)
end)
