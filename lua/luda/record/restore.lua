--- A record that was read: everything in memory and checked, ready to be restored.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local examine = require "luda.examine"
local files = require "luda.files"
local manifest = require "luda.manifest"
local parts = require "luda.record.parts"
local plain = require "luda.record.plain"
local random = require "luda.random"
local scope = require "luda.scope"
local tensors = require "luda.tensor"

local FORMAT = 1

---@class luda.Record
---@field path string
---@field header table library, simd, fingerprint, random, …
---@field parts string[] names of the parts in the file
---@field checksum integer? of the whole content
local Record = class("luda.Record")

--- Reads and checks a whole file.
---@param path string
function Record:init(path)
  local found, metadata, checksum = scope.scope(files.read, path)
  if not metadata["luda.record"] then
    errors.raise("invalid", "load: %s is no training record; luda.load reads its tensors", path)
  end
  self.path, self.checksum = path, checksum
  self.header = examine.decode(path, "luda.record", metadata["luda.record"])
  if type(self.header.format) ~= "number" then
    examine.refuse(path, "luda.record", "it has no format")
  elseif self.header.format > FORMAT then
    errors.raise("mismatch", "load: %s has format %d, this library reads up to %d", path, self.header.format, FORMAT)
  end
  self.stored, self.parts = {}, {}
  for key, text in pairs(metadata) do
    local name = key:match("^luda%.record%.(.+)$")
    if name then
      self.stored[name] = examine.decode(path, key, text)
      self.parts[#self.parts + 1] = name
    end
  end
  table.sort(self.parts)
  self.tensors = scope.keep(found)
end

function Record:__tostring()
  return ("luda.Record(%s: %s)"):format(self.path, table.concat(self.parts, ", "))
end

--- Gives the memory back; the record cannot be restored any more.
function Record:close()
  for _, tensor in pairs(self.tensors) do
    tensor:release()
  end
  self.tensors, self.stored = {}, {}
end

local function read_parts(given)
  local known = {}
  for _, name in ipairs(parts.names) do
    known[name] = args.absent
  end
  return args.options("restore", given, known)
end

local function copy_of(tensor)
  return tensors.methods.clone(tensor)
end

--- What apply needs for every part that was named, and the caller's state; sentences about what differs.
local function prepare(self, given, upgraded)
  local prepared, found = {}, {}
  local function get(name)
    return self.tensors[name] or errors.raise_with("corrupt",
      ("restore: %s: tensor '%s' is missing"):format(self.path, tostring(name)), { detail = { tensor = tostring(name) } })
  end
  for _, name in ipairs(parts.names) do
    local stored, place = self.stored[name], "the part '" .. name .. "'"
    if given[name] and not stored then
      found[#found + 1] = ("%s: the file has no such part, it has %s"):format(name,
        #self.parts > 0 and table.concat(self.parts, ", ") or "none")
    elseif given[name] and name ~= "state" then
      prepared[name] = { examine.try(self.path, place, parts.handlers[name].check, given[name], stored, get, found, upgraded) }
    end
  end
  if self.header.random then -- fails here rather than after everything else
    random.generator(0):set_state(self.header.random)
  end
  manifest.refuse("restore", self.path .. " and the live objects", found)
  local state = self.stored.state
  return prepared, state and examine.try(self.path, "the part 'state'", plain.unpack, state.data, function(name)
    return copy_of(get(name))
  end)
end

--- Puts every prepared part in place; if one fails, those before it go back to what they were.
local function apply(given, prepared)
  local undo = {}
  for _, name in ipairs(parts.order) do
    local handler, object = parts.handlers[name], given[name]
    if prepared[name] then
      if handler.snapshot then
        undo[#undo + 1] = { handler, object, (handler.snapshot(object)) }
      end
      local ok, err = pcall(handler.apply, object, prepared[name][1])
      if not ok then
        for i = #undo, 1, -1 do
          pcall(undo[i][1].apply, undo[i][2], undo[i][3])
        end
        error(err, 0)
      end
    end
  end
end

local function warnings_of(self)
  local warnings, header = {}, self.header
  local simd = lib.ffi.string(lib.C.luda_simd())
  if not header.random then
    warnings[#warnings + 1] = "no random state in the file: random numbers go on from where they are, not from where they were"
  end
  if header.simd ~= simd then
    warnings[#warnings + 1] = ("saved with instruction set %s, running with %s: results may differ in the last bits"):format(
      tostring(header.simd), simd)
  end
  if header.library ~= lib.version then
    warnings[#warnings + 1] = ("saved by version %s of the library, this is %s: results may differ"):format(
      tostring(header.library), lib.version)
  end
  return warnings
end

---@class luda.RestoreReport
---@field unused string[] parts in the file that were not named
---@field warnings string[]
---@field upgraded string[] options that the file does not know, here at their defaults

--- Puts the parts of the file into live objects: all, or none and an error that lists every difference. The default
-- generator is part of every record; generators = false leaves it alone.
---@param given? table objects by part
---@return table? state what was saved as `state`
---@return luda.RestoreReport report
function Record:restore(given)
  given = read_parts(given)
  local report = { unused = {}, warnings = warnings_of(self), upgraded = {} }
  local prepared, state = prepare(self, given, report.upgraded)
  apply(given, prepared)
  if self.header.random and given.generators ~= false then
    random.generator():set_state(self.header.random)
  end
  for _, name in ipairs(self.parts) do
    if name ~= "state" and not given[name] then
      report.unused[#report.unused + 1] = name
    end
  end
  return state, report
end

return { Record = Record, FORMAT = FORMAT }
