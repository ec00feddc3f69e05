--- Live memory by the line that made it, of tensors made while luda.memory { track = true } holds.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"

local ffi, C, context = lib.ffi, lib.C, lib.context

local M = {}

--- A true or false option of luda.memory.
function M.wanted(name, value)
  if type(value) ~= "boolean" then
    errors.raise("invalid", "memory: %s is true or false, not %s", name, args.describe(value))
  end
  return value
end

--- A new tensor's memory belongs to the line that runs.
function M.mark(tensor)
  lib.check(C.luda_memory_mark(C.luda_handle_tensor(context, tensor.handle), errors.where()))
end

--- The lines that made what lives, the most first.
---@return {site: string, live: number, tensors: number}[]
function M.list()
  local list, bytes, storages = {}, ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
  for index = 0, math.huge do
    local name = C.luda_memory_site(index, bytes, storages)
    if name == nil then
      break
    elseif storages[0] > 0 then
      list[#list + 1] = { site = ffi.string(name), live = tonumber(bytes[0]), tensors = tonumber(storages[0]) }
    end
  end
  table.sort(list, function(a, b)
    return a.live > b.live or (a.live == b.live and a.site < b.site)
  end)
  return list
end

return M
