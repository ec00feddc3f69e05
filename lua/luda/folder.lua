--- Folders: what is in one, and making one. Written in C (runtime/host/folder.c).

local host = require "luda.host"
local errors = require "luda.error"

local open, problem = package.loadlib(host.path, "luaopen_luda_folder")
if not open then
  errors.raise("io", "folder: cannot open %s (%s)", host.path, problem)
end
local native = open()

local M = {}

--- Names in a folder, sorted, without those that begin with a dot; none where there is no folder.
---@param path string
---@return string[]
function M.list(path)
  local names, reason = native.list(path)
  if not names then
    errors.raise("io", "folder: cannot read %s: %s", path, reason)
  end
  table.sort(names)
  return names
end

--- Makes a folder and those above it; one that is there is fine.
---@param path string
function M.make(path)
  local made, reason = native.make(path)
  if not made then
    errors.raise("io", "folder: cannot make %s: %s", path, reason)
  end
end

return M
