--- The progress line and the options of scripts.

local progress = require "luda.progress"
local options = require "luda.options"

--- A stream that remembers, and a clock that is set by hand.
local function bench()
  local written, time = {}, { 0 }
  local stream = {
    write = function(_, ...)
      for i = 1, select("#", ...) do
        written[#written + 1] = (select(i, ...))
      end
    end,
    flush = function() end,
  }
  return stream, function() return time[1] end, time, function() return table.concat(written) end
end

describe("progress", function()
  it("draws one line over itself on a terminal", function()
    local stream, clock, time, text = bench()
    local bar = progress { total = 10, stream = stream, clock = clock, tty = true }
    time[1] = 1
    bar:update(1, { loss = 2.5, rate = 1e-3, count = 2000 })
    bar:update(2, { loss = 2.4, rate = 1e-3, count = 2000 })
    assert.equal("\rstep 1/10 [==                  ]  loss 2.5000  rate 1.00e-03  2k tokens/s  0:09 left\27[K", text())
    bar:note("half")
    time[1] = 3
    bar:update(3, { loss = 2.3 })
    bar:finish()
    assert.matches("\r\27%[Khalf\n\rstep 3/10 .* loss 2.3000  1.8k tokens/s  0:07 left\27%[K\n$", text())
  end)

  it("writes a plain line now and then elsewhere, and the last one", function()
    local stream, clock, time, text = bench()
    local bar = progress { total = 4000, start = 1000, stream = stream, clock = clock, every = 10, unit = "images" }
    for step = 1001, 1025 do
      time[1] = time[1] + 1
      bar:update(step, { loss = 1, count = 5e5 })
    end
    bar:finish()
    assert.equal("step 1010/4000  loss 1.0000  500k images/s  49:50 left\n" ..
      "step 1020/4000  loss 1.0000  500k images/s  49:40 left\n" ..
      "step 1025/4000  loss 1.0000  500k images/s  49:35 left\n", text())
  end)

  it("is silent on other ranks", function()
    local stream, clock, time, text = bench()
    local bar = progress { total = 4, rank = 1, stream = stream, clock = clock, every = 0 }
    time[1] = 100
    bar:update(1, { loss = 1 })
    bar:note("x")
    bar:finish()
    assert.equal("", text())
  end)
end)

describe("options", function()
  local spec = {
    { "steps", 10, "how many" }, { "dir", "", "where" }, { "resume", false, "go on" }, { "valid-every", 5, "steps between" },
  }

  it("are typed by their defaults", function()
    assert.same({ steps = 10, dir = "", resume = false, valid_every = 5 }, options.parse({}, spec))
    assert.same({ steps = 1e3, dir = "--x", resume = true, valid_every = 2 },
      options.parse({ "--steps", "1e3", "--dir=--x", "--resume", "--valid-every=2" }, spec))
  end)

  it("are refused when unknown, without a value or of the wrong type", function()
    assert.raises("invalid", "no option %-%-step; these are known", options.parse, { "--step", "1" }, spec)
    assert.raises("invalid", "%-%-steps needs a number, not 'x'", options.parse, { "--steps", "x" }, spec)
    assert.raises("invalid", "%-%-steps needs a value", options.parse, { "--steps" }, spec)
    assert.raises("invalid", "'steps' is not an option", options.parse, { "steps" }, spec)
  end)
end)
