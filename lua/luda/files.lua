--- Tensor files: safetensors, with a checksum for each tensor and one for the header.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local tensors = require "luda.tensor"

local ffi, C, context = lib.ffi, lib.C, lib.context

-- Metadata of the format is text; keys whose values are JSON text stand in this one.
local TYPED_KEYS = "luda.json"

local M = {}

--- Raises a failed call; for a damaged file `detail` says what is damaged: a tensor, or the header.
local function raise(status)
  local fields = {}
  if status == C.LUDA_ECORRUPT then
    fields.detail = { tensor = ffi.string(C.luda_last_error()):match("tensor '(.-)'") or "header" }
  end
  lib.raise(status, fields)
end

local function check_path(op, path)
  if type(path) ~= "string" or path == "" then
    errors.raise("invalid", "%s: the path must be a string, not %s", op, args.describe(path))
  end
end

-- Writing.

--- Writes named tensors and metadata of strings; the same content gives the same bytes.
---@param path string
---@param list {name: string, tensor: luda.Tensor}[]
---@param metadata table<string, string>
---@param saver? any luda_saver *: returns when a copy is made, and the saver's thread writes it
function M.write(path, list, metadata, saver)
  local entries = ffi.new("luda_file_entry[?]", math.max(#list, 1))
  for i, entry in ipairs(list) do
    entries[i - 1].name = entry.name
    entries[i - 1].tensor = memory.pointer(entry.tensor)
  end
  local keys, count = {}, 0
  for key in pairs(metadata) do
    count = count + 1
    keys[count] = key
  end
  table.sort(keys)
  local names, values = ffi.new("const char *[?]", count + 1), ffi.new("const char *[?]", count + 1)
  for i, key in ipairs(keys) do
    names[i - 1], values[i - 1] = key, metadata[key]
  end
  C.luda_context_use(context)
  if saver then
    lib.check(C.luda_saver_save(saver, path, entries, #list, names, values, count))
  else
    lib.check(C.luda_file_save(path, entries, #list, names, values, count))
  end
end

local function text_metadata(metadata)
  local text, typed = {}, {}
  if metadata ~= nil and type(metadata) ~= "table" then
    errors.raise("invalid", "save: metadata is a table, not %s", args.describe(metadata))
  end
  for key, value in pairs(metadata or {}) do
    if type(key) ~= "string" or key == TYPED_KEYS then
      errors.raise("invalid", "save: metadata keys are strings, other than '%s'; one is %s", TYPED_KEYS, args.describe(key))
    end
    if type(value) ~= "string" then
      value = require("luda.json").encode(value)
      typed[#typed + 1] = key
    end
    if key:find("%z") or value:find("%z") then
      errors.raise("invalid", "save: the metadata '%s' contains a zero byte", key)
    end
    text[key] = value
  end
  if #typed > 0 then
    table.sort(typed)
    text[TYPED_KEYS] = require("luda.json").encode(typed)
  end
  return text
end

--- Writes tensors by name (any strides, any device). The file appears complete or not at all.
---@param path string
---@param named table<string, luda.Tensor>
---@param metadata? table<string, any> strings, or plain data that is kept as JSON
function M.save(path, named, metadata)
  check_path("save", path)
  if type(named) ~= "table" then
    errors.raise("invalid", "save: expected a table of tensors by name, got %s", args.describe(named))
  end
  local list = {}
  for name, tensor in pairs(named) do
    if type(name) ~= "string" or name:find("%z") or not tensors.is_tensor(tensor) then
      errors.raise("invalid", "save: the table holds names and tensors; %s stands at %s", args.describe(tensor),
        args.describe(name))
    end
    list[#list + 1] = { name = name, tensor = tensor }
  end
  M.write(path, list, text_metadata(metadata))
end

-- Reading.

local cell = ffi.new("luda_tensor *[1]")

local function open(path)
  local out = ffi.new("luda_file *[1]")
  local status = C.luda_file_open(path, out)
  if status ~= 0 then
    raise(status)
  end
  return ffi.gc(out[0], C.luda_file_close)
end

local function close(file)
  C.luda_file_close(ffi.gc(file, nil))
end

local function metadata_of(file)
  local metadata, index = {}, 0
  local key = C.luda_file_metadata_key(file, index)
  while key ~= nil do
    metadata[ffi.string(key)] = ffi.string(C.luda_file_metadata(file, key))
    index = index + 1
    key = C.luda_file_metadata_key(file, index)
  end
  return metadata
end

--- Everything in a file, checked: tensors by name, metadata of strings, and the checksum of the whole (nil: it has none).
---@param path string
---@return table<string, luda.Tensor>, table<string, string>, integer?
function M.read(path)
  local file = open(path)
  local found = {}
  C.luda_context_use(context)
  for index = 0, C.luda_file_count(file) - 1 do
    local status = C.luda_file_read(file, index, cell)
    if status == C.LUDA_ENOMEM then
      memory.retry_status(status, C.luda_file_read, file, index, cell)
    elseif status ~= 0 then
      raise(status)
    end
    found[ffi.string(C.luda_file_name(file, index))] = memory.adopt(cell[0])
  end
  local metadata, checksum = metadata_of(file), tonumber(C.luda_file_checksum(file))
  close(file)
  return found, metadata, checksum >= 0 and checksum or nil
end

--- Tensors by name and metadata.
---@param path string
---@return table<string, luda.Tensor>, table<string, any>
function M.load(path)
  check_path("load", path)
  local found, metadata = M.read(path)
  if metadata[TYPED_KEYS] then
    local examine = require "luda.examine"
    for _, key in ipairs(examine.decode(path, TYPED_KEYS, metadata[TYPED_KEYS])) do
      metadata[key] = examine.try(path, TYPED_KEYS, require("luda.json").decode, metadata[key])
    end
    metadata[TYPED_KEYS] = nil
  end
  return found, metadata
end

-- Looking into a file.

---@class luda.FileEntry
---@field name string
---@field dtype string
---@field shape integer[]

--- What a file holds, from its header: entries by name, metadata, and the checksum (nil: it has none).
---@param path string
---@return luda.FileEntry[], table<string, string>, integer?
function M.list(path)
  local file = open(path)
  local entries = {}
  for index = 0, C.luda_file_count(file) - 1 do
    local shape, sizes = {}, C.luda_file_shape(file, index)
    for d = 1, C.luda_file_ndim(file, index) do
      shape[d] = tonumber(sizes[d - 1])
    end
    entries[index + 1] = {
      name = ffi.string(C.luda_file_name(file, index)),
      dtype = args.dtype_names[C.luda_file_dtype(file, index)],
      shape = shape,
    }
  end
  local metadata, checksum = metadata_of(file), tonumber(C.luda_file_checksum(file))
  close(file)
  return entries, metadata, checksum >= 0 and checksum or nil
end

--- Reads every byte; one sentence for each damaged part.
---@param path string
---@return string[]
function M.verify(path)
  local opened, file = pcall(open, path)
  if not opened then
    return { file.message }
  end
  local problems = {}
  for index = 0, C.luda_file_count(file) - 1 do
    if C.luda_file_read(file, index, cell) == 0 then
      C.luda_tensor_release(cell[0])
    else
      problems[#problems + 1] = ffi.string(C.luda_last_error()):gsub("^load: ", "")
    end
  end
  close(file)
  return problems
end

return M
