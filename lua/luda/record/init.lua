--- Training records: everything that a run needs to go on as if it had not stopped, in one safetensors file.
--
-- Tensors are called part.path. Metadata holds `luda.record` (format, library, instruction set, random state, a
-- fingerprint of what must match) and `luda.record.PART` for each part, all as JSON with sorted keys: the same state
-- gives the same bytes.

local lib = require "luda.ffi"
local args = require "luda.args"
local background = require "luda.record.background"
local errors = require "luda.error"
local files = require "luda.files"
local json = require "luda.json"
local parts = require "luda.record.parts"
local plain = require "luda.record.plain"
local random = require "luda.random"
local restore = require "luda.record.restore"
local scope = require "luda.scope"
local spans = require "luda.spans"
local inspect = require "luda.record.inspect"

---@class luda.record
local M = { verify = inspect.verify }

--- Until every save with async = true is on the disk; raises the failure of one, once.
function M.wait()
  background.wait()
end

--- Where a record with this name lies: the extension is added unless it is there.
---@param op string
---@param path string
---@return string
local function file_path(op, path)
  if type(path) ~= "string" or path == "" or path:sub(-1) == "/" then
    errors.raise("invalid", "%s: the path must name a file, it is %s", op, args.describe(path))
  end
  return path:match("%.safetensors$") and path or path .. ".safetensors"
end

local function read_parts(given)
  local known = {}
  for _, name in ipairs(parts.names) do
    known[name] = args.absent
  end
  if type(given) ~= "table" then
    errors.raise("invalid", "save: expected a table of parts, got %s", args.describe(given))
  end
  return args.options("save", given, known)
end

--- Tensors and metadata of the given parts, and the configurations that must match.
local function capture(given, header)
  local list, metadata, taken, structures = {}, {}, {}, {}
  local function put(name, tensor)
    local free, number = name, 1
    while taken[free] do
      number = number + 1
      free = name .. "~" .. number
    end
    taken[free] = true
    list[#list + 1] = { name = free, tensor = tensor }
    return free
  end
  for _, name in ipairs(parts.names) do
    if given[name] then
      local stored = {}
      if name == "state" then
        stored.data = plain.pack(given.state, "state", put)
      else
        stored.data, stored.configuration, structures[name] = parts.handlers[name].capture(given[name], put)
      end
      metadata["luda.record." .. name] = json.encode(stored)
    end
  end
  header.fingerprint = plain.fingerprint(json.encode(structures))
  metadata["luda.record"] = json.encode(header)
  return list, metadata
end

--- Writes a record with more fields in its header.
---@param path string where the file is to lie
---@param given table
---@param header table
---@param async boolean
function M.write(path, given, header, async)
  given = read_parts(given)
  header.format, header.library, header.simd = restore.FORMAT, lib.version, lib.ffi.string(lib.C.luda_simd())
  if given.generators ~= false then
    header.random = random.generator():state()
  end
  scope.scope(function()
    local list, metadata = capture(given, header)
    background.wait_before_saving();
    (async and background or files).write(path, list, metadata)
  end)
end

--- Writes a training record; whatever stood there before stands until the new one is complete. The default generator is
-- always saved, unless generators = false. async = true returns when everything is copied, into memory that is kept for the
-- next time: what training changes from then on is not in the file. A thread writes it; what goes wrong is raised by
-- record.wait() or the next save, and a program that ends waits for it.
---@param path string
---@param given table model, optimizer, scheduler, accumulator, scaler, ema, generators, loader, state
---@param options? {async: boolean}
---@return string path of the file
function M.save(path, given, options)
  path = file_path("save", path)
  M.write(path, given, {}, args.options("save", options, { async = false }).async)
  return path
end

--- Reads a training record and checks every byte of it.
---@param path string
---@return luda.Record
function M.load(path)
  path = file_path("load", path)
  background.wait_for(path)
  return restore.Record(path)
end

spans.watch(M, "record", "record", { "save", "load" })

M.Manager = require "luda.record.manager"

return M
