--- luda info: what this installation is and has.

local luda = require "luda"
local lib = require "luda.ffi"

local C, ffi = lib.C, lib.ffi

local M = {}

local function cuda()
  local count = C.luda_device_count(C.LUDA_CUDA)
  return count > 0 and ("%d"):format(count) or "none (" .. ffi.string(C.luda_device_problem(C.LUDA_CUDA)) .. ")"
end

local LIBRARIES = {
  { "oneDNN", "libdnnl.so.2", "fast convolutions" },
  { "LAPACK", "liblapack.so.3", "linear algebra", "libopenblas.so.0" },
  { "zlib", "libz.so.1", "compressed data sets" },
}

function M.main()
  print(("LUDA           %s"):format(luda.version))
  print(("library        %s"):format(lib.path))
  print(("LuaJIT         %s"):format(jit.version))
  print(("instructions   %s"):format(ffi.string(C.luda_simd())))
  print(("threads        %d"):format(C.luda_threads()))
  print(("cuda devices   %s"):format(cuda()))
  for _, row in ipairs(LIBRARIES) do
    local found = pcall(ffi.load, row[2]) or row[4] and pcall(ffi.load, row[4])
    print(("%-14s %s"):format(row[1], found and "found" or "not found: needed for " .. row[3]))
  end
  return 0
end

return M
