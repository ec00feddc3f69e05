--- Making batches of a data set, here or in worker threads.

local luda = require "luda"

local BATCH, PICTURES = 128, 20000
local BATCHES = 40 -- of one run, more than are made ahead

local function loader(bench, workers)
  local pictures = luda.keep(luda.randint(0, 256, { PICTURES, 28, 28 }, { dtype = "u8" }))
  local set = luda.data.dataset(bench.folder .. "images.lua", { pictures = pictures }):shuffle(1):batch(BATCH):collate()
  local made = set:prefetch { workers = workers }
  return { run = function()
    for _ = 1, BATCHES do
      made:next()
    end
  end }
end

return {
  data = function(bench)
    for workers = 0, 2 do
      bench:measure {
        section = "data", case = ("batch of %d pictures, %d workers"):format(BATCH, workers), unit = "us", step = "run()",
        operators = BATCHES,
        make = function()
          return loader(bench, workers)
        end,
        peer = { case = "pictures", workers = workers, batch = BATCH, count = PICTURES, batches = BATCHES },
      }
    end
  end,
}
