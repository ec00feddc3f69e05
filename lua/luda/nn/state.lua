--- Values of a module by path: taking and loading them.

local args = require "luda.args"
local autograd = require "luda.autograd"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local fields = require "luda.nn.fields"
local Module = require("luda.nn.module").Module
require "luda.sugar"

local methods, is_tensor = tensors.methods, tensors.is_tensor

--- Parameters and buffers by path. They share the module's memory; clone them to hold on to today's values.
---@return table<string, luda.Tensor>
function Module:state()
  local state = {}
  for _, entry in ipairs(fields.entries(self)) do
    state[entry.path] = methods.detach(entry.tensor)
  end
  return state
end

local function same_shape(a, b)
  return args.shape_text(a.shape) == args.shape_text(b.shape)
end

--- Pairs of target and source that fit, the report, and sentences about what does not.
local function match(self, state)
  local pairs_found, sentences, expected = {}, {}, {}
  local report = { missing = {}, unexpected = {}, mismatched = {} }
  for _, entry in ipairs(fields.entries(self)) do
    local source
    for _, path in ipairs(entry.paths) do
      expected[path] = true
      source = source or state[path]
    end
    if not source then
      report.missing[#report.missing + 1] = entry.path
      sentences[#sentences + 1] = entry.path .. " is missing"
    elseif not same_shape(source, entry.tensor) then
      report.mismatched[#report.mismatched + 1] = entry.path
      sentences[#sentences + 1] = ("%s has shape %s, the module's %s"):format(entry.path,
        args.shape_text(source.shape), args.shape_text(entry.tensor.shape))
    else
      pairs_found[#pairs_found + 1] = { entry.tensor, source }
    end
  end
  for path in pairs(state) do
    if not expected[path] then
      report.unexpected[#report.unexpected + 1] = path
    end
  end
  table.sort(report.unexpected)
  for _, path in ipairs(report.unexpected) do
    sentences[#sentences + 1] = path .. " is unexpected"
  end
  return pairs_found, report, sentences
end

--- Copies values by path into parameters and buffers. Strict: any difference raises and nothing is copied; else what
-- fits is copied. Returns lists of names.
---@param state table<string, luda.Tensor>
---@param given? {strict: boolean}
---@return {missing: string[], unexpected: string[], mismatched: string[]}
function Module:load_state(state, given)
  local options = args.options("load_state", given, { strict = true })
  if type(state) ~= "table" then
    errors.raise("invalid", "load_state: expected a table of tensors by path, got %s", args.describe(state))
  end
  for path, tensor in pairs(state) do
    if not is_tensor(tensor) then
      errors.raise("invalid", "load_state: entry '%s' must be a tensor, not %s", tostring(path), args.describe(tensor))
    end
  end
  local found, report, sentences = match(self, state)
  if options.strict and #sentences > 0 then
    errors.raise_with("mismatch", ("load_state: the state does not fit %s: %s; strict = false loads what fits"):format(
      getmetatable(self).class_name, table.concat(sentences, ", ")), { detail = report })
  end
  autograd.no_grad(function()
    for _, pair in ipairs(found) do
      methods.copy_(pair[1], pair[2])
    end
  end)
  return report
end
