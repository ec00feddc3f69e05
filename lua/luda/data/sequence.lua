--- The items of a data set by number, over epochs, from a sample of an epoch on.

local class = require "luda.class"

local floor, min = math.floor, math.min

---@class luda.data.Sequence
local Sequence = class("luda.data.Sequence")

---@param set luda.data.Dataset
---@param epoch integer
---@param sample integer samples of that epoch that are left out
function Sequence:init(set, epoch, sample)
  self.set, self.epoch, self.sample = set, epoch, sample
  self.first = sample == 0 and set or set:from(sample)
  if self.first.size <= 0 then
    self.first, self.epoch, self.sample = set, epoch + 1, 0
  end
end

--- The set that item `number` (from 0) is of, its place there, and its epoch.
function Sequence:place(number)
  if number < self.first.size then
    return self.first, number + 1, self.epoch
  end
  number = number - self.first.size
  local size = self.set.size
  return self.set, number % size + 1, self.epoch + 1 + floor(number / size)
end

--- Epoch and sample before item `number`.
---@return integer epoch
---@return integer sample
function Sequence:standing(number)
  local _, i, epoch = self:place(number)
  local before = epoch == self.epoch and self.sample or 0
  return epoch, min(before + (i - 1) * self.set.span, self.set.samples)
end

--- Item `number`.
function Sequence:make(number)
  local set, i, epoch = self:place(number)
  return set.item(i, epoch)
end

return Sequence
