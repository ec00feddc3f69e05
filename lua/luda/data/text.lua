--- Text as a sequence of ids from 1, one a character (of UTF-8), and the vocabulary that turns them back.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local create = require "luda.create"
local errors = require "luda.error"
local scope = require "luda.scope"
local tensors = require "luda.tensor"
require "luda.sugar"

local ffi = lib.ffi
local methods, is_tensor = tensors.methods, tensors.is_tensor

local M = {}

local CODES = 0x110000

--- Length of the sequence at p[i] and what its first byte contributes; 0 for a byte that begins none.
local function lead(byte)
  if byte < 0x80 then
    return 1, byte
  elseif byte >= 0xc2 and byte < 0xe0 then
    return 2, byte - 0xc0
  elseif byte >= 0xe0 and byte < 0xf0 then
    return 3, byte - 0xe0
  elseif byte >= 0xf0 and byte < 0xf5 then
    return 4, byte - 0xf0
  end
  return 0, 0
end

local function bad_byte(op, bytes, i)
  errors.raise("invalid", "%s: byte 0x%02x at position %d is not UTF-8; convert the text first", op, bytes[i], i + 1)
end

--- The code point at bytes[i] and the place of the next one.
local function decode(op, bytes, i, size)
  local length, code = lead(bytes[i])
  if length == 1 then
    return code, i + 1
  elseif length == 0 or i + length > size then
    bad_byte(op, bytes, i)
  end
  for k = i + 1, i + length - 1 do
    local byte = bytes[k]
    if byte < 0x80 or byte >= 0xc0 then
      bad_byte(op, bytes, k)
    end
    code = code * 64 + byte - 0x80
  end
  if code >= CODES or (length == 3 and code < 0x800) or (length == 4 and code < 0x10000) then
    bad_byte(op, bytes, i)
  end
  return code, i + length
end

--- The characters that occur: [1 … size] are they, in order of their code points.
---@class luda.data.Vocabulary
---@field size integer
local Vocabulary = class("luda.data.Vocabulary")

--- From a marked array of code points; `highest` is the last one marked.
local function vocabulary(seen, highest)
  local vocab = setmetatable({}, Vocabulary)
  local ids = ffi.new("int32_t[?]", highest + 1)
  local size = 0
  for code = 0, highest do
    if seen[code] ~= 0 then
      size = size + 1
      ids[code] = size
      vocab[size] = M.character(code)
    end
  end
  vocab.size, vocab.ids, vocab.highest = size, ids, highest
  return vocab
end

--- A code point in UTF-8.
---@param code integer
---@return string
function M.character(code)
  local floor = math.floor
  if code < 0x80 then
    return string.char(code)
  elseif code < 0x800 then
    return string.char(0xc0 + floor(code / 64), 0x80 + code % 64)
  elseif code < 0x10000 then
    return string.char(0xe0 + floor(code / 4096), 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
  end
  return string.char(0xf0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64, 0x80 + floor(code / 64) % 64,
    0x80 + code % 64)
end

--- How many characters the bytes have.
local function count_characters(bytes, size)
  local count = 0
  for i = 0, size - 1 do
    if bytes[i] < 0x80 or bytes[i] >= 0xc0 then
      count = count + 1
    end
  end
  return count
end

--- The ids of a string's characters, [N] of i64.
---@param text string
---@return luda.Tensor
function Vocabulary:encode(text)
  if type(text) ~= "string" then
    errors.raise("invalid", "encode: expected a string, got %s", args.describe(text))
  end
  local bytes, size = ffi.cast("const uint8_t *", text), #text
  local tokens = create.empty({ count_characters(bytes, size) }, { dtype = "i64" })
  local data, known, highest = methods.data(tokens), self.ids, self.highest
  local i, place = 0, 0
  while i < size do
    local code, following = decode("encode", bytes, i, size)
    local id = code <= highest and known[code] or 0
    if id == 0 then
      errors.raise("invalid", "encode: the character '%s' at byte %d is not among the %d of the vocabulary",
        M.character(code), i + 1, self.size)
    end
    data[place] = id
    place, i = place + 1, following
  end
  return tokens
end

--- The text of ids: a tensor of any shape, a list, or one number.
---@param ids luda.Tensor|integer[]|integer
---@return string
function Vocabulary:decode(ids)
  local list = ids
  if is_tensor(ids) then
    list = methods.totable(methods.reshape(methods.to(ids, "cpu"), { -1 }))
  elseif type(ids) == "number" then
    list = { ids }
  elseif type(ids) ~= "table" then
    errors.raise("invalid", "decode: expected ids, got %s", args.describe(ids))
  end
  local characters = {}
  for i, id in ipairs(list) do
    local character = self[tonumber(id)]
    if type(character) ~= "string" or type(id) == "string" then
      errors.raise("index", "decode: id %s at position %d; the vocabulary has 1 to %d", tostring(id), i, self.size)
    end
    characters[i] = character
  end
  return table.concat(characters)
end

function Vocabulary:__tostring()
  return ("luda.data.Vocabulary(%d)"):format(self.size)
end

--- The content of a file of that name, or the string itself where it cannot be meant as a name.
local function read(source)
  if type(source) ~= "string" then
    errors.raise("invalid", "text: expected a path or a text, got %s", args.describe(source))
  end
  if #source > 4096 or source:find("[\n%z]") then
    return source
  end
  local file, reason = io.open(source, "rb")
  local content
  if file then
    content, reason = file:read("*a")
    file:close()
    if content then
      return content
    end
  elseif source:find("%s") or not source:find("[/.]") then
    return source
  end
  return errors.raise("io", "text: cannot read %s", tostring(reason))
end

--- Ids of a text, split into a first part for training and the last `split` of it for validation.
---@param source string a file's path, or the text
---@param given? {level: "char", split: number}
---@return {train: luda.Tensor, valid: luda.Tensor, vocab: luda.data.Vocabulary}
function M.text(source, given)
  local options = args.options("text", given, { level = "char", split = 0.1 })
  if options.level ~= "char" then
    errors.raise("invalid", "text: level is 'char', not %s", args.describe(options.level))
  end
  local split = args.number("text", "split", options.split)
  if not (split >= 0 and split <= 1) then
    errors.raise("invalid", "text: split is %g; it must lie between 0 and 1", split)
  end
  local content = read(source)
  local bytes, size = ffi.cast("const uint8_t *", content), #content
  local seen, highest, i = ffi.new("uint8_t[?]", CODES), -1, 0
  while i < size do
    local code, following = decode("text", bytes, i, size)
    seen[code] = 1
    highest, i = math.max(highest, code), following
  end
  if size == 0 then
    errors.raise("invalid", "text: there is nothing in it")
  end
  local vocab = vocabulary(seen, highest)
  local tokens = scope.keep(vocab:encode(content))
  local count = methods.size(tokens, 1)
  local valid = math.floor(count * split)
  return scope.keep {
    train = methods.narrow(tokens, 1, 1, count - valid),
    valid = methods.narrow(tokens, 1, count - valid + 1, valid),
    vocab = vocab,
  }
end

return M
