--- Zip archives: a checked directory of members that are stored or deflated, and archives written whole.
--
-- Sizes come from the directory only, members must not overlap, and none may be larger than deflate can make it: what an
-- archive makes a reader allocate is bounded by its own size.

local lib = require "luda.ffi"
local readers = require "luda.readers"
local class = require "luda.class"
local errors = require "luda.error"

local ffi = lib.ffi

local M = {}

local STORED, DEFLATED, ENCRYPTED = 0, 8, 1
local UNKNOWN = 0xffffffff -- the 64-bit field has it
local MOST_RATIO, SLACK = 1032, 1024 -- of deflate

local function corrupt(archive, text, ...)
  errors.raise("corrupt", "%s: %s: %s", archive.op, archive.path, text:format(...))
end

--- A little-endian number of `width` bytes at position `at` of a string.
local function number(text, at, width)
  local value = 0
  for i = width - 1, 0, -1 do
    value = value * 256 + text:byte(at + i)
  end
  return value
end

--- `count` bytes of the file at an offset.
local function piece(archive, offset, count, what)
  if offset < 0 or offset + count > archive.size then
    corrupt(archive, "%s lies outside the file", what)
  end
  archive.file:seek("set", offset)
  local text = archive.file:read(count) or ""
  if #text < count then
    corrupt(archive, "it ends within %s", what)
  end
  return text
end

--- Where the directory lies, its size, and how many members it has.
local function find_directory(archive)
  local tail_size = math.min(archive.size, 22 + 0xffff)
  local tail = piece(archive, archive.size - tail_size, tail_size, "the end of the directory")
  local at
  for i = #tail - 21, 1, -1 do
    if tail:sub(i, i + 3) == "PK\5\6" and i + 21 + number(tail, i + 20, 2) == #tail then
      at = i
      break
    end
  end
  if not at then
    corrupt(archive, "there is no zip directory at its end; it may be cut off")
  end
  local count, size, offset = number(tail, at + 10, 2), number(tail, at + 12, 4), number(tail, at + 16, 4)
  local stop = archive.size - tail_size + at - 1
  if count == 0xffff or size == UNKNOWN or offset == UNKNOWN then
    local locator = piece(archive, stop - 20, 20, "the 64-bit directory's place")
    local place = number(locator, 9, 8)
    local wide = piece(archive, place, 56, "the 64-bit directory's end")
    if locator:sub(1, 4) ~= "PK\6\7" or wide:sub(1, 4) ~= "PK\6\6" then
      corrupt(archive, "its 64-bit directory is not where it should be")
    end
    count, size, offset, stop = number(wide, 33, 8), number(wide, 41, 8), number(wide, 49, 8), place
  end
  if offset + size > stop or count * 46 > size then
    corrupt(archive, "a directory of %.0f members does not fit where it should be", count)
  end
  return offset, size, count
end

--- Sizes and offset from the 64-bit field, where the 32-bit ones cannot hold them.
local function widen(archive, entry, extra)
  local at = 1
  while at + 3 <= #extra do
    local kind, size = number(extra, at, 2), number(extra, at + 2, 2)
    if kind == 1 then
      local place, stop = at + 4, math.min(at + 4 + size, #extra + 1)
      for _, field in ipairs { "size", "packed", "offset" } do
        if entry[field] == UNKNOWN then
          if place + 8 > stop then
            corrupt(archive, "the 64-bit sizes of '%s' are cut off", entry.name)
          end
          entry[field], place = number(extra, place, 8), place + 8
        end
      end
      return
    end
    at = at + 4 + size
  end
end

local function read_entry(archive, directory, at)
  if at + 45 > #directory or directory:sub(at, at + 3) ~= "PK\1\2" then
    corrupt(archive, "its directory is damaged")
  end
  local name_size, extra_size = number(directory, at + 28, 2), number(directory, at + 30, 2)
  local next_at = at + 46 + name_size + extra_size + number(directory, at + 32, 2)
  if next_at > #directory + 1 then
    corrupt(archive, "its directory is damaged")
  end
  local entry = {
    name = directory:sub(at + 46, at + 45 + name_size),
    flags = number(directory, at + 8, 2), method = number(directory, at + 10, 2), crc = number(directory, at + 16, 4),
    packed = number(directory, at + 20, 4), size = number(directory, at + 24, 4), offset = number(directory, at + 42, 4),
  }
  widen(archive, entry, directory:sub(at + 46 + name_size, at + 45 + name_size + extra_size))
  return entry, next_at
end

local function check_entry(archive, entry)
  if bit.band(entry.flags, ENCRYPTED) ~= 0 then
    errors.raise("unsupported", "%s: %s: '%s' is encrypted", archive.op, archive.path, entry.name)
  elseif entry.method ~= STORED and entry.method ~= DEFLATED then
    errors.raise("unsupported", "%s: %s: '%s' is compressed by method %d; stored and deflated can be read", archive.op,
      archive.path, entry.name, entry.method)
  elseif entry.method == STORED and entry.size ~= entry.packed then
    corrupt(archive, "'%s' is stored in %.0f bytes and said to have %.0f", entry.name, entry.packed, entry.size)
  elseif entry.size > entry.packed * MOST_RATIO + SLACK then
    corrupt(archive, "'%s' claims %.0f bytes from %.0f, more than deflate can give", entry.name, entry.size, entry.packed)
  end
  local head = piece(archive, entry.offset, 30, "'" .. entry.name .. "'")
  local name_size = number(head, 27, 2)
  entry.data = entry.offset + 30 + name_size + number(head, 29, 2)
  if head:sub(1, 4) ~= "PK\3\4" or number(head, 9, 2) ~= entry.method
    or piece(archive, entry.offset + 30, name_size, "'" .. entry.name .. "'") ~= entry.name then
    corrupt(archive, "'%s' is not where the directory says", entry.name)
  end
end

---@class luda.zip.Entry
---@field name string
---@field size number of its content

--- The members of an archive in the order of their places, all checked before any is read.
---@param op string for messages
---@param path string
---@param file file* open for reading
---@return {op: string, path: string, file: file*, size: number} archive
---@return luda.zip.Entry[]
function M.open(op, path, file)
  local archive = { op = op, path = path, file = file, size = file:seek("end") }
  local start, size, count = find_directory(archive)
  local directory, entries, names, at = piece(archive, start, size, "the directory"), {}, {}, 1
  for i = 1, count do
    entries[i], at = read_entry(archive, directory, at)
    if names[entries[i].name] then
      corrupt(archive, "it has '%s' twice", entries[i].name)
    end
    names[entries[i].name] = true
    check_entry(archive, entries[i])
  end
  table.sort(entries, function(a, b) return a.offset < b.offset end)
  for i, entry in ipairs(entries) do
    local limit = entries[i + 1] and entries[i + 1].offset or start
    if entry.data + entry.packed > limit then
      corrupt(archive, "'%s' reaches into what follows it", entry.name)
    end
  end
  return archive, entries
end

--- A reader of one member, which keeps its checksum.
local Member = class("luda.zip.Member")

function Member:init(archive, entry)
  self.archive, self.entry, self.crc, self.left = archive, entry, 0, entry.size
  self.zlib = readers.zlib(archive.op, archive.path .. " is a zip archive")
  archive.file:seek("set", entry.data)
  self.plain = readers.Plain(archive.file, entry.packed)
  self.reader = entry.method == STORED and self.plain or readers.Inflated(self.zlib, self.plain)
end

function Member:read(memory, size)
  local count = self.reader:read(memory, math.min(size, self.left))
  self.crc, self.left = readers.crc32(self.zlib, self.crc, memory, count), self.left - count
  return count
end

--- After all was read: raises unless the content is what the directory says.
function Member:check()
  local whole = self.entry.method == STORED or self.reader:is_whole()
  if self.left > 0 or not whole or self.crc ~= self.entry.crc then
    corrupt(self.archive, "'%s' is damaged: its content does not have the size and checksum of the directory", self.entry.name)
  end
end

function Member:close()
  if self.reader ~= self.plain then
    self.reader:close()
  end
end

M.Member = Member

-- Writing.

--- A number as `width` little-endian bytes.
local function little(value, width)
  local list = {}
  for i = 1, width do
    list[i] = string.char(value % 256)
    value = math.floor(value / 256)
  end
  return table.concat(list)
end

local DATE = little(0, 2) .. little(0x21, 2) -- midnight, 1 January 1980: equal content gives equal bytes

--- What stands before a member and in the directory about it.
local function description(entry)
  return little(20, 2) .. little(0, 2) .. little(entry.method, 2) .. DATE .. little(entry.crc, 4) .. little(entry.packed, 4)
    .. little(entry.size, 4) .. little(#entry.name, 2) .. little(0, 2)
end

--- The pieces of an archive in order, strings and {memory, size}, and its size.
---@param op string
---@param members {name: string, memory: any, size: number, packed: number, method: integer, crc: number, content: any}[]
---@return table pieces
---@return number size
function M.layout(op, members)
  local pieces, directory, at = {}, {}, 0
  for _, entry in ipairs(members) do
    local head = "PK\3\4" .. description(entry) .. entry.name
    directory[#directory + 1] = "PK\1\2" .. little(20, 2) .. description(entry) .. little(0, 2) .. little(0, 2) .. little(0, 2)
      .. little(0, 4) .. little(at, 4) .. entry.name
    pieces[#pieces + 1] = head
    pieces[#pieces + 1] = { entry.content, entry.packed }
    at = at + #head + entry.packed
    if at >= UNKNOWN or entry.size >= UNKNOWN or #members >= 0xffff then
      errors.raise("unsupported", "%s: an archive of more than 4 GiB or 65,534 tensors; luda.save has no such limit", op)
    end
  end
  local text = table.concat(directory)
  pieces[#pieces + 1] = text .. "PK\5\6" .. little(0, 4) .. little(#members, 2):rep(2) .. little(#text, 4) .. little(at, 4)
    .. little(0, 2)
  return pieces, at + #text + 22
end

--- Fills in the checksum, and the packed form where asked, of a member's memory. `scratch(size)` gives memory and its owner.
function M.pack(op, entry, deflate, scratch)
  local zlib = readers.zlib(op, "an archive has checksums")
  entry.crc = readers.crc32(zlib, 0, entry.memory, entry.size)
  entry.method, entry.packed, entry.content = STORED, entry.size, entry.memory
  if not deflate then
    return
  end
  local room = tonumber(zlib.compressBound(entry.size))
  local memory, owner = scratch(room)
  local size = ffi.new("unsigned long[1]", room)
  if zlib.compress2(memory, size, entry.memory, entry.size, 6) ~= 0 then
    errors.raise("no_memory", "%s: zlib has no memory to compress '%s'", op, entry.name)
  end
  -- zlib puts two bytes before the deflated stream and a checksum of four behind it.
  entry.method, entry.packed, entry.content, entry.owner = DEFLATED, tonumber(size[0]) - 6, memory + 2, owner
end

return M
