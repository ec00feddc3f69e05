--- A session's number from words that its ranks share and others do not.

local ffi = require "ffi"
local bit = require "bit"

ffi.cdef "unsigned getuid(void);"

local PRIME = 0x100000001b3ULL

local function hash(text, start)
  local value = start
  for i = 1, #text do
    value = bit.bxor(value, ffi.cast("uint64_t", text:byte(i))) * PRIME
  end
  -- The last byte reaches every bit.
  value = bit.bxor(value, bit.rshift(value, 29)) * 0x9e3779b97f4a7c15ULL
  return bit.bxor(value, bit.rshift(value, 32))
end

--- 32 hexadecimal digits that depend on every word, their order and the user.
---@param ... string|number
---@return string
return function(...)
  local words = { ffi.C.getuid(), ... }
  for i, word in ipairs(words) do
    words[i] = tostring(word)
    words[i] = #words[i] .. ":" .. words[i]
  end
  local text = table.concat(words)
  return bit.tohex(hash(text, 0xcbf29ce484222325ULL), 16) .. bit.tohex(hash(text, 0x6c62272e07bb0142ULL), 16)
end
