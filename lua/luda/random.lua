--- Generators of random numbers. Element i of a draw is a function of seed, counter and i, on every device.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"

local ffi, C, context = lib.ffi, lib.C, lib.context

local M = {}

---@class luda.Generator
---@field pointer any luda_generator*
local Generator = class("luda.Generator")
M.Generator = Generator

--- A 64-bit word as a number where exact, else as hexadecimal text.
local function word_out(word)
  if word < 0x20000000000000ULL then
    return tonumber(word)
  end
  return "0x" .. bit.tohex(tonumber(word / 0x100000000ULL)) .. bit.tohex(tonumber(word % 0x100000000ULL))
end

local function word_in(op, value)
  if type(value) == "string" and value:match("^0x%x+$") then
    local word = 0ULL
    for digit in value:sub(3):gmatch("%x") do
      word = word * 16 + tonumber(digit, 16)
    end
    return word
  elseif args.is_boxed(value) then
    return ffi.cast("uint64_t", value)
  end
  return ffi.cast("uint64_t", ffi.cast("int64_t", args.integer(op, "the seed", value)))
end

---@param seed integer
function Generator:init(seed)
  local out = ffi.new("luda_generator *[1]")
  lib.check(C.luda_generator_new(word_in("generator", seed), out))
  self.pointer = ffi.gc(out[0], C.luda_generator_release)
end

function Generator:__tostring()
  local state = self:state()
  return ("luda.Generator(seed %s, counter %s)"):format(state[1], state[2])
end

--- A small table {seed, counter}, for set_state.
---@return table
function Generator:state()
  local state = ffi.new("uint64_t[2]")
  C.luda_generator_get(self.pointer, state)
  return { word_out(state[0]), word_out(state[1]) }
end

--- Goes on where a state was taken.
---@param state table
---@return luda.Generator self
function Generator:set_state(state)
  if type(state) ~= "table" or state[1] == nil or state[2] == nil then
    errors.raise("invalid", "set_state: expected what state() returned, got %s", args.describe(state))
  end
  local words = ffi.new("uint64_t[2]", word_in("set_state", state[1]), word_in("set_state", state[2]))
  lib.check(C.luda_generator_set(self.pointer, words))
  return self
end

--- A generator of its own with a seed; without one, the default generator.
---@param seed? integer
---@return luda.Generator
function M.generator(seed)
  if seed ~= nil then
    return Generator(seed)
  end
  local pointer = C.luda_context_generator(context)
  C.luda_generator_retain(pointer)
  return setmetatable({ pointer = ffi.gc(pointer, C.luda_generator_release) }, Generator)
end

--- Seeds the default generator.
---@param seed integer
function M.manual_seed(seed)
  C.luda_context_use(context)
  C.luda_manual_seed(word_in("manual_seed", seed))
end

return M
