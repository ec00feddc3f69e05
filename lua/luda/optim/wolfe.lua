--- A line search for the strong Wolfe conditions, by cubic interpolation.

local abs, min, max, sqrt = math.abs, math.min, math.max, math.sqrt

local M = {}

---@class luda.LinePoint
---@field t number
---@field loss number
---@field gradient luda.Tensor flat
---@field slope number along the direction

--- Where the cubic through two points has its minimum, kept between low and high; the middle where it has none.
local function cubic(a, b, low, high)
  if a.t > b.t then
    a, b = b, a
  end
  local d = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
  local square = d * d - a.slope * b.slope
  local t = (low + high) / 2
  if square >= 0 and square < math.huge then
    local root = sqrt(square)
    local found = b.t - (b.t - a.t) * (b.slope + root - d) / (b.slope - a.slope + 2 * root)
    if found == found then
      t = min(max(found, low), high)
    end
  end
  return t
end

--- The search so far: the start, the conditions, and how many evaluations are left.
local Search = {}
Search.__index = Search

function Search:evaluate(t)
  self.left = self.left - 1
  return self.at(t)
end

--- Too little decrease, or no number at all.
function Search:is_high(point)
  return point.loss ~= point.loss or point.loss > self.start.loss + self.c1 * point.t * self.start.slope
end

function Search:is_flat(point)
  return abs(point.slope) <= -self.c2 * self.start.slope
end

--- Steps out until two points have a minimum between them; returns them, or one that is good.
function Search:bracket(t)
  local before, point = self.start, self:evaluate(t)
  for step = 0, math.huge do
    if self:is_high(point) or (step > 1 and point.loss >= before.loss) then
      return before, point
    elseif self:is_flat(point) then
      return point
    elseif point.slope >= 0 then
      return before, point
    elseif self.left == 0 then
      return self.start, point
    end
    t = cubic(before, point, point.t + 0.01 * (point.t - before.t), point.t * 10)
    before, point = point, self:evaluate(t)
  end
end

--- Where to look next between two points: not near an end twice, unless the first time was enough.
function Search:between(a, b)
  local low, high = min(a.t, b.t), max(a.t, b.t)
  local t = cubic(a, b, low, high)
  local margin = 0.1 * (high - low)
  if min(high - t, t - low) >= margin then
    self.near_end = false
  elseif self.near_end or t >= high or t <= low then
    self.near_end = false
    t = abs(t - high) < abs(t - low) and high - margin or low + margin
  else
    self.near_end = true
  end
  return t
end

--- Narrows two points down to one that is good; the lower one where evaluations or progress end.
function Search:zoom(low, high)
  if high.loss < low.loss then
    low, high = high, low
  end
  while self.left > 0 and abs(high.t - low.t) * self.size >= self.tolerance do
    local point = self:evaluate(self:between(low, high))
    if self:is_high(point) or point.loss >= low.loss then
      high = point
      if point.loss < low.loss then
        low, high = high, low
      end
    else
      if self:is_flat(point) then
        return point
      elseif point.slope * (high.t - low.t) >= 0 then
        high = low
      end
      low = point
    end
  end
  return low
end

--- Searches along a direction.
---@param start luda.LinePoint at 0
---@param t number the first step
---@param at fun(t: number): luda.LinePoint
---@param given {size: number, tolerance: number, left: integer} size: the largest element of the direction
---@return luda.LinePoint
---@return integer evaluations
function M.search(start, t, at, given)
  local search = setmetatable({
    start = start, at = at, size = given.size, tolerance = given.tolerance, left = given.left, c1 = 1e-4, c2 = 0.9,
    near_end = false,
  }, Search)
  local low, high = search:bracket(t)
  local found = high and search:zoom(low, high) or low
  return found, given.left - search.left
end

return M
