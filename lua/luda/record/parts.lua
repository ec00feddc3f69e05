--- The parts of a record. Each knows how to become plain data with tensors, what must agree before it is restored, and
-- how to be restored.
--
-- An object is a part if it has state(), load_state(state) and, where it can refuse, check_state(state) → sentences and
-- configuration() → plain data that must be the same (and the values of options that nobody named).

local args = require "luda.args"
local autograd = require "luda.autograd"
local errors = require "luda.error"
local manifest = require "luda.manifest"
local plain = require "luda.record.plain"
local random = require "luda.random"
local tensors = require "luda.tensor"

local M = {}

---@class luda.RecordPart
---@field capture fun(object: any, put: function): any, table? data, configuration
---@field check fun(object: any, stored: table, get: function, found: string[], upgraded: string[]): any what apply gets
---@field apply fun(object: any, prepared: any)
---@field snapshot? fun(object: any): any what apply(object, …) takes to undo

local function need(name, object, method)
  local kind = type(object)
  if (kind ~= "table" and kind ~= "userdata") or type(object[method]) ~= "function" then
    errors.raise("invalid", "record: the part '%s' must have a method %s(), it is %s", name, method, args.describe(object))
  end
end

-- The model: values by path, what is trainable, what is tied.

local model = {}

local function entries_of(object)
  need("model", object, "named_parameters")
  local lists = { parameters = {}, buffers = {} }
  for path, tensor in object:named_parameters() do
    lists.parameters[#lists.parameters + 1] = { name = path, tensor = tensor }
  end
  if object.named_buffers then
    for path, tensor in object:named_buffers() do
      lists.buffers[#lists.buffers + 1] = { name = path, tensor = tensor }
    end
  end
  return lists, object.aliases and object:aliases() or {}
end

--- Facts by path that must agree.
local function facts_of(list, trainable)
  local facts = manifest.describe(list)
  for _, entry in ipairs(trainable and list or {}) do
    facts[entry.name].trainable = entry.tensor.requires_grad
  end
  return facts
end

function model.capture(object, put)
  local lists, aliases = entries_of(object)
  local data = { parameters = {}, buffers = {}, aliases = aliases }
  local structure = { aliases = aliases }
  for kind, list in pairs(lists) do
    structure[kind] = facts_of(list, kind == "parameters")
    for _, entry in ipairs(list) do
      put("model." .. entry.name, entry.tensor)
      data[kind][entry.name] = { trainable = structure[kind][entry.name].trainable }
    end
  end
  return data, nil, structure
end

function model.check(object, stored, get, found)
  local lists, aliases = entries_of(object)
  local copies = {}
  for _, kind in ipairs { "parameters", "buffers" } do
    local there = {}
    for path, fact in pairs(stored.data[kind]) do
      local tensor = get("model." .. path)
      there[path] = { dtype = tensor.dtype, shape = args.shape_text(tensor.shape), trainable = fact.trainable }
    end
    manifest.compare_named(found, "model", there, facts_of(lists[kind], kind == "parameters"))
    for _, entry in ipairs(lists[kind]) do
      copies[#copies + 1] = { entry.tensor, there[entry.name] and get("model." .. entry.name) }
    end
  end
  for _, path in ipairs(manifest.keys_of(stored.data.aliases, aliases)) do
    local there, here = stored.data.aliases[path], aliases[path]
    if there ~= here then
      found[#found + 1] = ("model: '%s' is %s in the file, %s here"):format(path,
        there and "tied to '" .. there .. "'" or "not tied", here and "tied to '" .. here .. "'" or "not tied")
    end
  end
  return copies
end

function model.apply(_, copies)
  autograd.no_grad(function()
    for _, copy in ipairs(copies) do
      tensors.methods.copy_(copy[1], copy[2])
    end
  end)
end

-- Objects that say themselves what their state is.

local function object_part(name)
  local part = {}

  function part.capture(object, put)
    need(name, object, "state")
    need(name, object, "load_state")
    local configuration = object.configuration and object:configuration() or nil
    return plain.pack(object:state(), name, put), configuration, configuration
  end

  function part.check(object, stored, get, found, upgraded)
    need(name, object, "load_state")
    local before = #found
    if object.configuration then
      local here, defaults = object:configuration()
      local there = stored.configuration or {}
      if there.kind ~= here.kind then
        found[#found + 1] = ("%s: the file has '%s', here is '%s'"):format(name, tostring(there.kind), tostring(here.kind))
        return nil
      end
      manifest.compare(found, name, there, here, defaults, upgraded)
    end
    local state = plain.unpack(stored.data, get)
    local known, own = false, nil
    if object.state then
      known, own = pcall(object.state, object) -- one that has no state now says why in check_state
    end
    if known then
      plain.compare_kinds(found, name, state, own)
    end
    if object.check_state and (#found == before or name ~= "scheduler") then
      for _, sentence in ipairs(object:check_state(state)) do
        found[#found + 1] = sentence
      end
    end
    return state
  end

  function part.apply(object, state)
    object:load_state(state)
  end

  function part.snapshot(object)
    return object:state()
  end
  return part
end

-- Generators by name.

local generators = {}

local function by_name(object)
  if getmetatable(object) == random.Generator then
    return { ["1"] = object }
  elseif type(object) ~= "table" then
    errors.raise("invalid", "record: generators are a table of generators by name, not %s", args.describe(object))
  end
  local named = {}
  for name, generator in pairs(object) do
    if getmetatable(generator) ~= random.Generator then
      errors.raise("invalid", "record: generators.%s must be a generator, not %s", tostring(name), args.describe(generator))
    end
    named[tostring(name)] = generator
  end
  return named
end

function generators.capture(object)
  local data = {}
  for name, generator in pairs(by_name(object)) do
    data[name] = generator:state()
  end
  return data
end

function generators.check(object, stored, _, found)
  local here = by_name(object)
  for _, name in ipairs(manifest.keys_of(stored.data, here)) do
    if not here[name] or not stored.data[name] then
      found[#found + 1] = ("generators: '%s' is %s"):format(name,
        here[name] and "here and not in the file" or "in the file and not here")
    end
  end
  return stored.data
end

function generators.apply(object, states)
  for name, generator in pairs(by_name(object)) do
    generator:set_state(states[name])
  end
end

generators.snapshot = generators.capture

---@type table<string, luda.RecordPart>
M.handlers = { model = model, generators = generators }
for _, name in ipairs { "optimizer", "scheduler", "accumulator", "scaler", "ema", "loader" } do
  M.handlers[name] = object_part(name)
end

--- In the order of being restored: what could still fail comes first, and is undone; values are copied last.
M.order = { "loader", "scaler", "generators", "scheduler", "accumulator", "optimizer", "ema", "model" }
--- In the order of being read.
M.names = { "model", "optimizer", "scheduler", "accumulator", "scaler", "ema", "generators", "loader", "state" }

return M
