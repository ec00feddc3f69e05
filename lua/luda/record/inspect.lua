--- Looking into records without live objects: what is damaged, what differs.

local lib = require "luda.ffi"
local args = require "luda.args"
local files = require "luda.files"
local json = require "luda.json"
local manifest = require "luda.manifest"
local scope = require "luda.scope"
local values = require "luda.values"

local ffi = lib.ffi

local M = {}

--- Reads every byte of a file; one sentence for each damaged part, so none means that all is well.
---@param path string
---@return string[]
M.verify = files.verify

--- The first byte of two tensors of one size that differs, as a position from 0, or nil.
local function first_difference(a, b, bytes)
  local x, y = ffi.cast("const uint8_t *", a:data()), ffi.cast("const uint8_t *", b:data())
  for i = 0, bytes - 1 do
    if x[i] ~= y[i] then
      return i
    end
  end
end

local function compare_tensors(found, name, a, b)
  local first = ("%s %s"):format(a.dtype, args.shape_text(a.shape))
  local second = ("%s %s"):format(b.dtype, args.shape_text(b.shape))
  if first ~= second then
    found[#found + 1] = ("%s: %s, %s"):format(name, first, second)
    return
  end
  local width = tonumber(lib.C.luda_dtype_size(args.dtype_numbers[a.dtype]))
  local place = first_difference(a, b, a.numel * width)
  if place then
    place = math.floor(place / width)
    found[#found + 1] = ("%s: differs from element %d on: %s, %s"):format(name, place + 1,
      tostring(values.element(a, place)), tostring(values.element(b, place)))
  end
end

--- Metadata as data where it is JSON, so that single fields can be compared.
local function decoded(metadata)
  local data = {}
  for key, value in pairs(metadata) do
    local ok, result = pcall(json.decode, value)
    data[key] = ok and result or value
  end
  return data
end

local function compare_plain(found, where, a, b)
  if type(a) == "table" and type(b) == "table" then
    for _, key in ipairs(manifest.keys_of(a, b)) do
      compare_plain(found, where == "" and tostring(key) or where .. "." .. tostring(key), a[key], b[key])
    end
  elseif a ~= b and not (a ~= a and b ~= b) then
    local function text(value)
      return value == nil and "(missing)" or type(value) == "table" and "a table" or tostring(value)
    end
    found[#found + 1] = ("%s: %s, %s"):format(where, text(a), text(b))
  end
end

--- One sentence for each place where two files differ.
---@param first string path
---@param second string path
---@return string[]
function M.differences(first, second)
  return scope.scope(function()
    local a, a_metadata = files.read(first)
    local b, b_metadata = files.read(second)
    local found = {}
    compare_plain(found, "", decoded(a_metadata), decoded(b_metadata))
    for _, name in ipairs(manifest.keys_of(a, b)) do
      if a[name] and b[name] then
        compare_tensors(found, name, a[name], b[name])
      else
        found[#found + 1] = ("%s: only in %s"):format(name, a[name] and first or second)
      end
    end
    return found
  end)
end

return M
