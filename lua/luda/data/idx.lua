--- IDX files (the format of MNIST and its relatives), plain or gzip'd.

local lib = require "luda.ffi"
local args = require "luda.args"
local readers = require "luda.readers"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
require "luda.sugar"

local ffi, methods = lib.ffi, tensors.methods

local M = {}

local function open(path)
  if type(path) ~= "string" then
    errors.raise("invalid", "idx: expected a path, got %s", args.describe(path))
  end
  local file, reason = io.open(path, "rb")
  if not file then
    errors.raise("io", "idx: cannot open %s", tostring(reason))
  end
  local gzipped = file:read(2) == "\31\139"
  if not gzipped then
    file:seek("set", 0)
    return readers.Plain(file)
  end
  file:close()
  return readers.Gzip("idx", path)
end

-- The format: two zero bytes, the type, the number of dimensions, each size in four bytes, the elements; big-endian.

local types = {
  [0x08] = { "u8", 1 }, [0x09] = { "i8", 1 }, [0x0b] = { "i16", 2 }, [0x0c] = { "i32", 4 }, [0x0d] = { "f32", 4 },
  [0x0e] = { "f64", 8 },
}

local function corrupt(path, text, ...)
  errors.raise("corrupt", "idx: %s: %s", path, text:format(...))
end

local function read_header(reader, path)
  local bytes = ffi.new("uint8_t[4]")
  if reader:read(bytes, 4) < 4 or bytes[0] ~= 0 or bytes[1] ~= 0 or not types[bytes[2]] then
    corrupt(path, "it does not begin like an IDX file")
  end
  local kind, shape = types[bytes[2]], {}
  for i = 1, bytes[3] do
    if reader:read(bytes, 4) < 4 then
      corrupt(path, "it ends within the sizes")
    end
    shape[i] = ((bytes[0] * 256 + bytes[1]) * 256 + bytes[2]) * 256 + bytes[3]
  end
  return kind[1], kind[2], shape
end

local function read_all(reader, path)
  local dtype, width, shape = read_header(reader, path)
  local t = create.empty(shape, { dtype = dtype })
  local bytes, memory = t.numel * width, ffi.cast("uint8_t *", methods.data(t))
  local found = reader:read(memory, bytes)
  if found < bytes then
    corrupt(path, "shape %s needs %d bytes of elements, %d are there", args.shape_text(shape), bytes, found)
  end
  if reader:read(ffi.new("uint8_t[1]"), 1) ~= 0 then
    corrupt(path, "there is more than the %d bytes of shape %s", bytes, args.shape_text(shape))
  end
  if width > 1 then
    readers.swap(memory, t.numel, width)
  end
  return t
end

--- The tensor in an IDX file, as stored.
---@param path string
---@return luda.Tensor
function M.idx(path)
  local reader = open(path)
  local ok, result = pcall(read_all, reader, path)
  reader:close()
  if not ok then
    error(result, 0)
  end
  return result
end

return M
