--- Rewrites tensor files without live objects: fewer parts of a record, weights alone, another element type or format.

local args = require "luda.args"
local errors = require "luda.error"
local examine = require "luda.examine"
local files = require "luda.files"
local json = require "luda.json"
local npy = require "luda.npy"
local plain = require "luda.record.plain"
local scope = require "luda.scope"
local tensors = require "luda.tensor"

local M = {}

--- Parts whose tensors have the parameters' types, or speak of them.
local FOLLOWING = { "optimizer", "accumulator", "ema" }

local function is_archive(path)
  return path:match("%.npz$") ~= nil
end

local function read(path)
  if not is_archive(path) then
    return files.read(path)
  end
  local found = npy.load(path)
  return tensors.is_tensor(found) and { array = found } or found, {}
end

--- Names of a record's parts, sorted; none where the file is no record.
local function parts_of(metadata)
  local names = {}
  for key in pairs(metadata) do
    names[#names + 1] = key:match("^luda%.record%.(.+)$")
  end
  table.sort(names)
  return names
end

--- What must match on restore, as a save of these parts would say it.
local function fingerprint(path, found, metadata)
  local structures = {}
  for _, name in ipairs(parts_of(metadata)) do
    local key = "luda.record." .. name
    local stored = examine.decode(path, key, metadata[key])
    structures[name] = stored.configuration
    if name == "model" then
      structures.model = { aliases = stored.data.aliases, parameters = {}, buffers = {} }
      for _, kind in ipairs { "parameters", "buffers" } do
        for place, fact in pairs(stored.data[kind]) do
          local tensor = found["model." .. place]
          structures.model[kind][place] = {
            dtype = tensor.dtype, shape = args.shape_text(tensor.shape), trainable = fact.trainable,
          }
        end
      end
    end
  end
  return plain.fingerprint(json.encode(structures))
end

--- Takes away every part that is not wanted.
local function keep_parts(path, found, metadata, wanted)
  local kept, there = {}, parts_of(metadata)
  for name in wanted:gmatch("[^,]+") do
    if not metadata["luda.record." .. name] then
      errors.raise("invalid", "convert: %s has no part '%s'; %s", path, name,
        #there > 0 and "it has " .. table.concat(there, ", ") or "it is no training record")
    end
    kept[name] = true
  end
  for name in pairs(found) do
    if not kept[name:match("^[^.]+")] then
      found[name] = nil
    end
  end
  for _, name in ipairs(there) do
    if not kept[name] then
      metadata["luda.record." .. name] = nil
    end
  end
end

--- The model's values under their own names, as luda.save(path, model:state()) writes them.
local function weights_of(path, found, metadata)
  keep_parts(path, found, metadata, "model")
  local weights = {}
  for name, tensor in pairs(found) do
    weights[name:sub(#"model." + 1)] = tensor
  end
  return weights, {}
end

--- Floating elements as another type; in a record those of the model.
local function change_type(path, found, metadata, dtype)
  if args.dtype_class(dtype) ~= "float" then
    errors.raise("invalid", "convert: --dtype names a floating type, not '%s'", dtype)
  end
  for _, name in ipairs(FOLLOWING) do
    if metadata["luda.record." .. name] then
      errors.raise("invalid", "convert: the part '%s' of %s belongs to parameters of the old type; leave it out: --parts model",
        name, path)
    end
  end
  for name, tensor in pairs(found) do
    if args.dtype_class(tensor.dtype) == "float" and (not metadata["luda.record"] or name:find("^model%.")) then
      found[name] = tensor:to(dtype)
    end
  end
end

local function write(path, found, metadata)
  if is_archive(path) then
    for name, tensor in pairs(found) do
      found[name] = tensor.dtype == "bf16" and tensor:to("f32") or tensor -- NumPy has no such type
    end
    return npy.save(path, found)
  end
  local list = {}
  for name, tensor in pairs(found) do
    list[#list + 1] = { name = name, tensor = tensor }
  end
  files.write(path, list, metadata)
end

--- Reads one file and writes another. Paths that end in .npz are NumPy's, all others safetensors.
---@param from string
---@param to string
---@param options {dtype: string?, parts: string?, weights: boolean?}
---@return integer tensors written
function M.convert(from, to, options)
  return scope.scope(function()
    local found, metadata = read(from)
    if options.weights then
      found, metadata = weights_of(from, found, metadata)
    elseif options.parts then
      keep_parts(from, found, metadata, options.parts)
    end
    if options.dtype then
      change_type(from, found, metadata, options.dtype)
    end
    if metadata["luda.record"] then
      local header = examine.decode(from, "luda.record", metadata["luda.record"])
      header.fingerprint = examine.try(from, "its parts", fingerprint, from, found, metadata)
      metadata["luda.record"] = json.encode(header)
    end
    write(to, found, metadata)
    local count = 0
    for _ in pairs(found) do
      count = count + 1
    end
    return count
  end)
end

return M
