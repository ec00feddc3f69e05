--- One line about a running loop: on a terminal it is drawn over and over, elsewhere a plain line comes now and then.
-- Only rank 0 speaks.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local terminal = require "luda.cli.terminal"

local ffi = lib.ffi
ffi.cdef "int clock_gettime(int clock, void *time);"

local MONOTONIC = jit.os == "OSX" and 6 or 1
local time = ffi.new("int64_t[2]") -- seconds, nanoseconds

--- Seconds that go on evenly, from some beginning.
---@return number
local function now()
  ffi.C.clock_gettime(MONOTONIC, time)
  return tonumber(time[0]) + tonumber(time[1]) * 1e-9
end

---@class luda.Progress
---@overload fun(options: table): luda.Progress
local Progress = class("luda.Progress")
Progress.now = now

local BETWEEN_DRAWINGS, BAR = 0.1, 20

--- `start`: steps done before; `every`: seconds between plain lines; `unit`: of what update() counts.
function Progress:init(given)
  local options = args.options("progress", given, {
    total = args.absent, start = 0, rank = 0, unit = "tokens", every = 10, stream = io.stderr, tty = args.absent,
    clock = now,
  })
  self.total, self.start = args.integer("progress", "the total", options.total), options.start
  self.silent, self.unit, self.stream, self.clock = options.rank ~= 0, options.unit, options.stream, options.clock
  self.tty = options.tty
  if self.tty == nil then
    self.tty = options.stream == io.stderr and terminal.is_terminal(2)
  end
  self.pause = self.tty and BETWEEN_DRAWINGS or options.every
  self.began = self.clock()
  self.drawn, self.counted, self.done = self.began, 0, self.start
end

--- 1234567 as "1.23M".
local function short(value)
  for _, scale in ipairs { { 1e9, "G" }, { 1e6, "M" }, { 1e3, "k" } } do
    if value >= scale[1] then
      return ("%.3g%s"):format(value / scale[1], scale[2])
    end
  end
  return ("%.3g"):format(value)
end

--- Seconds as "3:07" or "1:02:03".
local function duration(seconds)
  seconds = math.floor(seconds + 0.5)
  local hours, minutes = math.floor(seconds / 3600), math.floor(seconds / 60) % 60
  if hours > 0 then
    return ("%d:%02d:%02d"):format(hours, minutes, seconds % 60)
  end
  return ("%d:%02d"):format(minutes, seconds % 60)
end

--- What is shown: speed and time left are nil where unknown.
local function line(self, step, values, speed, left)
  local parts = { ("step %d/%d"):format(step, self.total) }
  if self.tty then
    local filled = math.floor(BAR * math.min(step / math.max(self.total, 1), 1))
    parts[1] = parts[1] .. " [" .. ("="):rep(filled) .. (" "):rep(BAR - filled) .. "]"
  end
  if values.loss then
    parts[#parts + 1] = ("loss %.4f"):format(values.loss)
  end
  if values.rate then
    parts[#parts + 1] = ("rate %.2e"):format(values.rate)
  end
  if speed then
    parts[#parts + 1] = ("%s %s/s"):format(short(speed), self.unit)
  end
  if left then
    parts[#parts + 1] = duration(left) .. " left"
  end
  return table.concat(parts, "  ")
end

local function draw(self, step, values, moment)
  local elapsed, speed, left = moment - self.drawn, nil, nil
  if self.counted > 0 and elapsed > 0 then
    local latest = self.counted / elapsed
    self.speed = self.speed and self.tty and 0.8 * self.speed + 0.2 * latest or latest
    speed = self.speed
  end
  if step > self.start then
    left = (moment - self.began) / (step - self.start) * math.max(self.total - step, 0)
  end
  local text = line(self, step, values, speed, left)
  self.stream:write(self.tty and "\r" .. text .. "\27[K" or text .. "\n")
  self.stream:flush()
  self.drawn, self.counted, self.shown, self.open = moment, 0, step, self.tty
end

--- After step `step`: values are `loss`, `rate`, and `count`, how many units the step took.
---@param step integer
---@param values? {loss: number?, rate: number?, count: number?}
function Progress:update(step, values)
  values = args.options("update", values, { loss = args.absent, rate = args.absent, count = 0 })
  if self.silent then
    return
  end
  self.done, self.values, self.counted = step, values, self.counted + values.count
  local moment = self.clock()
  if moment - self.drawn >= self.pause then
    draw(self, step, values, moment)
  end
end

--- Writes a line of its own.
---@param text string
function Progress:note(text)
  if not self.silent then
    self.stream:write(self.open and "\r\27[K" or "", text, "\n")
    self.stream:flush()
    self.open = false
  end
end

--- Draws the last state, if it was not shown yet, and ends the line.
function Progress:finish()
  if self.silent or not self.values then
    return
  end
  if self.shown ~= self.done then
    draw(self, self.done, self.values, self.clock())
  end
  if self.open then
    self.stream:write("\n")
    self.stream:flush()
    self.open = false
  end
end

return Progress
