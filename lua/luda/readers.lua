--- Bytes of files: readers that fill memory, and byte order. zlib is opened when it is first needed.
--
-- A reader has `read(memory, size)`, which fills memory and returns how many bytes came, and `close()`.

local lib = require "luda.ffi"
local class = require "luda.class"
local errors = require "luda.error"

local ffi = lib.ffi

local M = {}

local AT_ONCE, CHUNK = 2 ^ 24, 2 ^ 16
local OK, STREAM_END = 0, 1

local zlib

--- The library, or an error that says what needs it.
---@param op string
---@param why string such as "x.gz is gzip'd"
function M.zlib(op, why)
  if not zlib then
    ffi.cdef [[
      void *gzopen(const char *path, const char *mode);
      int gzread(void *file, void *memory, unsigned size);
      int gzclose(void *file);
      const char *zlibVersion(void);
      int inflateInit2_(void *stream, int window, const char *version, int size);
      int inflate(void *stream, int flush);
      int inflateEnd(void *stream);
      unsigned long compressBound(unsigned long size);
      int compress2(uint8_t *target, unsigned long *target_size, const uint8_t *source, unsigned long size, int level);
      unsigned long crc32(unsigned long crc, const uint8_t *memory, unsigned size);
    ]]
    for _, name in ipairs { "libz.so.1", "z" } do
      local found, library = pcall(ffi.load, name)
      zlib = zlib or (found and library) or nil
    end
  end
  if not zlib then
    errors.raise("unsupported", "%s: %s and zlib (libz.so.1) is not installed; install it", op, why)
  end
  return zlib
end

--- CRC-32 of bytes, going on from that of the bytes before.
function M.crc32(library, crc, memory, size)
  memory = ffi.cast("const uint8_t *", memory)
  for done = 0, size - 1, AT_ONCE do
    crc = tonumber(library.crc32(crc, memory + done, math.min(size - done, AT_ONCE)))
  end
  return crc
end

--- Bytes of an open file from where it stands, at most `left` of them.
---@class luda.readers.Plain
local Plain = class("luda.readers.Plain")
M.Plain = Plain

function Plain:init(file, left)
  self.file, self.left = file, left or math.huge
end

function Plain:read(memory, size)
  memory, size = ffi.cast("uint8_t *", memory), math.min(size, self.left)
  local done = 0
  while done < size do
    local text = self.file:read(math.min(size - done, AT_ONCE))
    if not text then
      break
    end
    ffi.copy(memory + done, text, #text)
    done = done + #text
  end
  self.left = self.left - done
  return done
end

function Plain:close()
  self.file:close()
end

--- The content of a gzip'd file.
---@class luda.readers.Gzip
local Gzip = class("luda.readers.Gzip")
M.Gzip = Gzip

function Gzip:init(op, path)
  self.zlib = M.zlib(op, path .. " is gzip'd")
  self.file = self.zlib.gzopen(path, "rb")
  if self.file == nil then
    errors.raise("io", "%s: cannot open %s", op, path)
  end
end

function Gzip:read(memory, size)
  memory = ffi.cast("uint8_t *", memory)
  local done = 0
  while done < size do
    local count = self.zlib.gzread(self.file, memory + done, math.min(size - done, AT_ONCE))
    if count <= 0 then
      break
    end
    done = done + count
  end
  return done
end

function Gzip:close()
  self.zlib.gzclose(self.file)
end

local Stream = ffi.typeof [[struct {
  const uint8_t *next_in; unsigned avail_in; unsigned long total_in;
  uint8_t *next_out; unsigned avail_out; unsigned long total_out;
  const char *message; void *state, *allocate, *free, *opaque;
  int data_type; unsigned long adler, reserved;
}]]

--- What another reader's bytes, a deflated stream, inflate to.
---@class luda.readers.Inflated
local Inflated = class("luda.readers.Inflated")
M.Inflated = Inflated

function Inflated:init(library, source)
  self.zlib, self.source, self.ended = library, source, false
  self.stream, self.input = ffi.new(ffi.typeof("$[1]", Stream)), ffi.new("uint8_t[?]", CHUNK)
  if library.inflateInit2_(self.stream, -15, library.zlibVersion(), ffi.sizeof(Stream)) ~= OK then
    errors.raise("no_memory", "inflate: zlib has no memory for a stream")
  end
end

--- Ends early where the stream does, or where it is damaged.
function Inflated:read(memory, size)
  local stream, done = self.stream[0], 0
  memory = ffi.cast("uint8_t *", memory)
  while done < size and not self.ended do
    if stream.avail_in == 0 then
      stream.next_in, stream.avail_in = self.input, self.source:read(self.input, CHUNK)
    end
    local room = math.min(size - done, AT_ONCE)
    stream.next_out, stream.avail_out = memory + done, room
    local code = self.zlib.inflate(self.stream, 0)
    done = done + room - stream.avail_out
    self.ended = code == STREAM_END
    if code ~= OK and not self.ended then
      break
    end
  end
  return done
end

--- True where the stream came to its end with its last byte.
function Inflated:is_whole()
  self:read(ffi.new("uint8_t[1]"), 1)
  return self.ended and self.stream[0].avail_in == 0 and self.source.left == 0
end

function Inflated:close()
  self.zlib.inflateEnd(self.stream)
end

--- Turns big-endian elements into little-endian ones and back.
function M.swap(memory, count, width)
  for first = 0, (count - 1) * width, width do
    for k = 0, width / 2 - 1 do
      local other = first + width - 1 - k
      memory[first + k], memory[other] = memory[other], memory[first + k]
    end
  end
end

return M
