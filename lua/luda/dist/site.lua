--- Where in the program a collective is called: text that C copies in the call.

local lib = require "luda.ffi"
local host = require "luda.host"
local errors = require "luda.error"

local SIZE = 64

local open, problem = package.loadlib(host.path, "luaopen_luda_site")
if not open then
  errors.raise("io", "site: %s", problem)
end

local M = { text = lib.ffi.new("char[?]", SIZE) }
--- Writes it.
M.write = open(M.text, SIZE, errors.ours)

return M
