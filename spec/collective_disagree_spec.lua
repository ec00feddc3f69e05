--- Ranks that ask for different things, one that stays away, and a thousand calls in a row: by each algorithm, over each
-- transport.

local over = require "spec.work.over"

local WORK = "spec/work/disagree.lua"

for _, transport in ipairs { "local", "tcp" } do
  for _, size in ipairs { 2, 4 } do
    describe(("%d ranks over %s"):format(size, transport), function()
      it("that disagree learn what differs and with whom, keep their tensors, and go on", function()
        for _, wrong in ipairs(over.run(transport, size, WORK, { task = "disagree" })) do
          assert.same({}, wrong)
        end
      end)

      it("of which one does not call name it, keep their tensors, and go on", function()
        local algorithms = (transport == "tcp") == (size == 4) and { "ring", "tree", "centralized" } or { "ring" }
        for _, wrong in ipairs(over.run(transport, size, WORK, { task = "absent", algorithms = algorithms })) do
          assert.same({}, wrong)
        end
      end)
    end)
  end

  it("a thousand calls over " .. transport .. " of changing sizes and kinds do not mix", function()
    for rank, seen in ipairs(over.run(transport, 3, WORK, { task = "thousand" })) do
      assert.equal(0, seen.wrong)
      assert.same(rank == 1 and { 6, 6 } or nil, seen.first)
      assert.same({ 3, 3 }, seen.sent)
      assert.same(rank == 1 and { 3, 3 } or nil, seen.again)
    end
  end)
end
