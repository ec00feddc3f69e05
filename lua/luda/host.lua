--- libluda_host: rank threads, the launcher, JSON. Opened when first needed.

local lib = require "luda.ffi"
local errors = require "luda.error"

local path = lib.path:gsub("libluda(%.%w+)$", "libluda_host%1")
local loaded, C = pcall(lib.ffi.load, path)
if not loaded then
  errors.raise("io", "host: cannot open %s (%s)", path, C)
end

return { C = C, path = path }
