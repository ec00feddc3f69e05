--- The only cdef and ffi.load: the library, this Lua state's context, and what a failed call becomes.

local ffi = require "ffi"
local errors = require "luda.error"

-- A state has one context and one set of C types, even where package.loaded is emptied (busted does that).
local registry = debug.getregistry()
if registry["luda.ffi"] then
  return registry["luda.ffi"]
end

local folder = debug.getinfo(1, "S").source:match("^@(.*)ffi%.lua$") or "./"

local function exists(path)
  local file = io.open(path, "rb")
  if file then
    file:close()
  end
  return file ~= nil
end

--- The library's path: LUDA_LIB, else beside the Lua files (in the tree, then in an installation), else left to the loader.
local function library_path()
  local named = os.getenv("LUDA_LIB")
  if named and named ~= "" then
    return named
  end
  local name = jit.os == "OSX" and "libluda.dylib" or "libluda.so"
  for _, place in ipairs { "../../build/", "../../../lib/", "../../../../lib/" } do
    if exists(folder .. place .. name) then
      return folder .. place .. name
    end
  end
  return name
end

--- The declarations lie beside the library that they were made with, else on the module path.
local function declarations(library)
  local beside = (library:match("^(.*/)") or "./") .. "lua/luda/cdef.lua"
  if exists(beside) then
    return dofile(beside)
  end
  return require("luda.cdef")
end

local function version_text(number)
  return ("%d.%d.%d"):format(math.floor(number / 10000), math.floor(number / 100) % 100, number % 100)
end

local path = library_path()
if not registry["luda.cdef"] then
  ffi.cdef(declarations(path))
  ffi.cdef "struct luda_lua_tensor { double handle; };"
  registry["luda.cdef"] = true
end
local loaded, C = pcall(ffi.load, path)
if not loaded then
  errors.raise("io", "luda: cannot open the library %s (%s); set LUDA_LIB to its path", path, C)
end
if C.luda_version() ~= C.LUDA_DECLARED_VERSION then
  errors.raise("mismatch", "luda: the Lua files are of version %s, the library %s is %s; install both from one build",
    version_text(C.LUDA_DECLARED_VERSION), path, version_text(C.luda_version()))
end

local M = { C = C, ffi = ffi, path = path, version = version_text(C.luda_version()) }

local function word(status)
  return ffi.string(C.luda_status_word(status))
end

--- Raises the calling thread's last failure.
---@param status any luda_status
---@param fields? table
function M.raise(status, fields)
  local text = ffi.string(C.luda_last_error())
  errors.raise_with(word(status), text, fields or {})
end

--- Raises unless the status is LUDA_OK.
---@param status any luda_status
function M.check(status)
  if status ~= 0 then
    M.raise(status)
  end
end

local out = ffi.new("luda_context *[1]")
M.check(C.luda_context_new(out))
M.context = ffi.gc(out[0], C.luda_context_release)
M.signals = C.luda_context_signals(M.context)

registry["luda.ffi"] = M
return M
