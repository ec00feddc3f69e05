--- What a disk and the page cache can do: plain system calls on the bytes that a record takes.

local lib = require "luda.ffi"
local limits = require "limits"

local ffi = lib.ffi

ffi.cdef [[
int open(const char *path, int flags, ...);
ssize_t read(int fd, void *data, size_t bytes);
ssize_t write(int fd, const void *data, size_t bytes);
int fsync(int fd);
int sync_file_range(int fd, int64_t offset, int64_t bytes, unsigned int flags);
int close(int fd);
int rename(const char *from, const char *to);
int posix_fadvise(int fd, int64_t offset, int64_t bytes, int advice);
void *malloc(size_t bytes);
void free(void *memory);
]]

local C = ffi.C
local WRITE_NEW = 577 -- O_WRONLY | O_CREAT | O_TRUNC
local DONT_NEED = 4
local CHUNK = 2 ^ 20
local START = 8 * CHUNK -- as much is sent on its way to the disk at once
local SYNC_FILE_RANGE_WRITE = 2

local M = {}

local function check(ok, what, path)
  if not ok then
    error(("cannot %s %s"):format(what, path), 0)
  end
end

--- Memory that was touched, for a bound to use again and again.
---@param bytes integer
function M.buffer(bytes)
  local memory = ffi.cast("char *", C.malloc(bytes))
  check(memory ~= nil, "get memory for", bytes)
  ffi.fill(memory, bytes, 1)
  return ffi.gc(memory, C.free)
end

--- Seconds of writing a file as a careful program does: under another name, flushed, renamed. The disk starts at once where
-- the system can be asked to, which is faster than to let everything gather.
function M.write(path, buffer, bytes)
  local start = limits.now()
  local fd = C.open(path .. ".new", WRITE_NEW, ffi.cast("int", 420))
  check(fd >= 0, "make", path)
  for done = 0, bytes - 1, CHUNK do
    local count = math.min(CHUNK, bytes - done)
    check(C.write(fd, buffer + done, count) == count, "write", path)
    if jit.os == "Linux" and (done + CHUNK) % START == 0 then
      C.sync_file_range(fd, done + CHUNK - START, START, SYNC_FILE_RANGE_WRITE)
    end
  end
  check(C.fsync(fd) == 0 and C.rename(path .. ".new", path) == 0, "flush", path)
  C.close(fd)
  return limits.now() - start
end

--- Seconds of reading a file into memory that is there already.
function M.read(path, buffer, bytes)
  local start = limits.now()
  local fd = C.open(path, 0)
  check(fd >= 0, "open", path)
  for done = 0, bytes - 1, CHUNK do
    local count = math.min(CHUNK, bytes - done)
    check(C.read(fd, buffer + done, count) == count, "read", path)
  end
  C.close(fd)
  return limits.now() - start
end

--- Seconds of copying as many bytes, in one thread.
function M.copy(target, source, bytes)
  local start = limits.now()
  ffi.copy(target, source, bytes)
  return limits.now() - start
end

--- Takes a flushed file out of the page cache.
function M.drop(path)
  local fd = C.open(path, 0)
  check(fd >= 0 and C.posix_fadvise(fd, 0, 0, DONT_NEED) == 0, "drop", path)
  C.close(fd)
end

return M
