--- NumPy's files: an array in a .npy, arrays by name in a .npz, both ways.
--
-- What a file makes a reader allocate is what its bytes can fill.

local lib = require "luda.ffi"
local args = require "luda.args"
local readers = require "luda.readers"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local headers = require "luda.npy.header"
local zip = require "luda.zip"
require "luda.values"

local ffi, C, methods, is_tensor = lib.ffi, lib.C, tensors.methods, tensors.is_tensor

local M = {}

local LIMIT = 16 * 2 ^ 30

-- bf16, which NumPy has not, is two opaque bytes as the package ml_dtypes writes it.
local written = {
  f64 = "<f8", f32 = "<f4", f16 = "<f2", bf16 = "<V2", i64 = "<i8", i32 = "<i4", i16 = "<i2", i8 = "|i1", u8 = "|u1",
  bool = "|b1",
}

local corrupt = headers.corrupt

--- A tensor of the elements, which lie behind the header.
local function read_elements(reader, name, header)
  local shape, wider, width, count = header.shape, header.wider, header.width, header.count
  if header.columns_first then
    shape = {}
    for i = #header.shape, 1, -1 do
      shape[#shape + 1] = header.shape[i]
    end
  end
  local dtype = header.dtype
  local t = create.empty(shape, { dtype = dtype == "bool" and "u8" or dtype })
  -- Narrower numbers are read into the end of the memory and move to the front as they widen.
  local target = ffi.cast("uint8_t *", methods.data(t))
  local bytes = target + count * (C.luda_dtype_size(args.dtype_numbers[t.dtype]) - width)
  if reader:read(bytes, count * width) < count * width then
    corrupt(name, "it ends within its elements")
  end
  if header.swapped then
    readers.swap(bytes, count, width)
  end
  if wider == "uint64_t *" and count > 0 and methods.item(methods.amin(t)) < 0 then
    errors.raise("dtype", "npy.load: %s: a number of 2^63 or more, which i64 cannot hold", name)
  elseif wider and width < 8 then
    local elements, source = methods.data(t), ffi.cast(wider, bytes)
    for i = 0, count - 1 do
      elements[i] = source[i]
    end
  elseif dtype == "bool" then
    t = methods.ne(t, 0)
  end
  if header.columns_first and #shape > 1 then
    local order = {}
    for i = 1, #shape do
      order[i] = #shape + 1 - i
    end
    t = methods.contiguous(methods.permute(t, order))
  end
  return t
end

local function load_archive(file, path, limit)
  local archive, entries = zip.open("npy.load", path, file)
  local total, found = 0, {}
  for _, entry in ipairs(entries) do
    total = total + entry.size
  end
  if total > limit then
    errors.raise("invalid", "npy.load: %s holds %.0f bytes; the limit is %.0f, which { limit = bytes } raises", path, total,
      limit)
  end
  for _, entry in ipairs(entries) do
    local name = entry.name:match("^(.+)%.npy$")
    if not name then
      errors.raise("unsupported", "npy.load: %s: '%s' is not an array, whose name would end in .npy", path, entry.name)
    end
    local member = zip.Member(archive, entry)
    local fine, problem = pcall(function()
      local label = ("%s '%s'"):format(path, name)
      found[name] = read_elements(member, label, headers.read(member, label, entry.size))
      member:check()
    end)
    member:close()
    if not fine then
      error(problem, 0)
    end
  end
  return found
end

--- The tensor in a .npy file, or the tensors by name in an .npz. What kind it is its content says.
---@param path string
---@param given? {limit: number} bytes that an archive may hold, 16 GiB where not given
---@return luda.Tensor|table<string, luda.Tensor>
function M.load(path, given)
  local limit = args.options("npy.load", given, { limit = LIMIT }).limit
  if type(path) ~= "string" then
    errors.raise("invalid", "npy.load: expected a path, got %s", args.describe(path))
  end
  local file, reason = io.open(path, "rb")
  if not file then
    errors.raise("io", "npy.load: cannot open %s", tostring(reason))
  end
  local fine, result = pcall(function()
    local start = file:read(2)
    if start == "PK" then
      return load_archive(file, path, args.number("npy.load", "limit", limit))
    end
    local size = file:seek("end")
    file:seek("set", 0)
    local reader = readers.Plain(file)
    return read_elements(reader, path, headers.read(reader, path, size))
  end)
  file:close()
  if not fine then
    error(result, 0)
  end
  return result
end

-- Writing.

--- Uncounted by Lua's own memory, which is small.
local function scratch(size)
  local owner = create.empty({ size }, { dtype = "u8" })
  return methods.data(owner), owner
end

--- Header and elements in one piece of memory: {name, memory, size, owner}.
local function image(name, t)
  t = methods.contiguous(methods.to(methods.detach(t), "cpu"))
  local sizes = table.concat(t.shape, ", ") .. (t.ndim == 1 and "," or "")
  local header = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }"):format(written[t.dtype], sizes)
  header = header .. (" "):rep(-(#header + 11) % 64) .. "\n"
  local start = headers.MAGIC .. "\1\0" .. string.char(#header % 256, math.floor(#header / 256)) .. header
  local bytes = t.numel * C.luda_dtype_size(args.dtype_numbers[t.dtype])
  local space, owner = scratch(#start + bytes)
  ffi.copy(space, start, #start)
  ffi.copy(space + #start, methods.data(t), bytes)
  return { name = name .. ".npy", memory = space, size = #start + bytes, owner = owner }
end

local function archive_of(named, compressed)
  local names, members = {}, {}
  for name, t in pairs(named) do
    if type(name) ~= "string" or name == "" or name:find("%z") or not is_tensor(t) then
      errors.raise("invalid", "npy.save: the table holds names and tensors; %s stands at %s", args.describe(t),
        args.describe(name))
    end
    names[#names + 1] = name
  end
  table.sort(names)
  for i, name in ipairs(names) do
    members[i] = image(name, named[name])
    zip.pack("npy.save", members[i], compressed, scratch)
  end
  local pieces, size = zip.layout("npy.save", members)
  local space, owner = scratch(size)
  local at = space
  for _, piece in ipairs(pieces) do
    local source, count = piece, #piece
    if type(piece) == "table" then
      source, count = piece[1], piece[2]
    end
    ffi.copy(at, source, count)
    at = at + count
  end
  return { memory = space, size = size, owner = owner }
end

--- Writes a tensor as .npy, or tensors by name as .npz (deflated with { compressed = true }). The path is taken as it is.
-- The file appears complete or not at all.
---@param path string
---@param what luda.Tensor|table<string, luda.Tensor>
---@param given? {compressed: boolean}
function M.save(path, what, given)
  local compressed = args.options("npy.save", given, { compressed = false }).compressed
  if type(path) ~= "string" or path == "" then
    errors.raise("invalid", "npy.save: the path must be a string, not %s", args.describe(path))
  elseif not is_tensor(what) and type(what) ~= "table" then
    errors.raise("invalid", "npy.save: expected a tensor or a table of tensors by name, got %s", args.describe(what))
  end
  local whole = is_tensor(what) and image("", what) or archive_of(what, compressed)
  lib.check(C.luda_file_write(path, ffi.cast("const char *", whole.memory), whole.size))
end

return M
