--- The context of a call of a luda.autograd.Function: what forward leaves for backward.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"

local Tensor = lib.Tensor
local istype, band, lshift = lib.ffi.istype, bit.band, bit.lshift

local M = {}

-- Lists of flags by count and bits: which arguments want gradients. Few different ones occur, so calls share them.
local flags = {}

local function make_flags(count, bits)
  local list = {}
  for i = 1, count do
    list[i] = band(bits, lshift(1, i - 1)) ~= 0
  end
  flags[count] = flags[count] or {}
  flags[count][bits] = list
  return list
end

function M.flags_of(count, bits)
  local known = flags[count]
  return known and known[bits] or make_flags(count, bits)
end

--- Of more arguments than C has bits for.
function M.many_flags(given, count)
  local list = {}
  for i = 1, count do
    list[i] = istype(Tensor, given[i]) and given[i].requires_grad
  end
  return list
end

--- The context of one call: `needs[i]` says whether argument i wants a gradient, `saved` holds what was saved; other
-- fields are the user's.
local Context = class("luda.autograd.Context")

---@param called luda.autograd.Function
---@param needs boolean[]
function M.new(called, needs)
  return setmetatable({ [0] = called, needs = needs, saved = false }, Context)
end

local function refuse(i, value)
  errors.raise("invalid", "save: argument %d is %s; other values are fields of ctx", i, args.describe(value))
end

-- Lists of one or two tensors, emptied when they have served: what a call leaves behind costs the collector its time.
local spare, spares, MANY = {}, 0, 256

function M.list_of(a, b)
  local list
  if spares > 0 then
    list = spare[spares]
    spare[spares] = false -- it may die with its call
    spares = spares - 1
    list[1], list[2] = a, b
  else
    list = { a, b }
  end
  return list
end

function M.give_back(list)
  if #list <= 2 and spares < MANY then
    list[1], list[2] = nil, nil
    spares = spares + 1
    spare[spares] = list
  end
end

--- Keeps tensors for backward. They live in the graph, so that they die with it.
---@param ... luda.Tensor
function Context:save(...)
  local count = select("#", ...)
  if count == 1 or count == 2 then
    local a, b = ...
    if not istype(Tensor, a) then
      refuse(1, a)
    elseif count == 2 and not istype(Tensor, b) then
      refuse(2, b)
    end
    self.saved = M.list_of(a, b)
  else
    local list = { ... }
    for i = 1, count do
      if not istype(Tensor, list[i]) then
        refuse(i, list[i])
      end
    end
    self.saved = list
  end
end

return M
