--- What the project promises about its own sources: sizes, layers, the operator table, exported names. Exits 1 on a breach.

local LIMITS = { c = 500, h = 500, inc = 500, cu = 500, cuh = 500, lua = 300 }
-- Floors from the ground up: a file may include its own floor and those below.
local FLOORS = { "core", "autodiff", "optim", "collective", "host" }
local EXCEPTIONS = { ["runtime/luda.h"] = "the one public header, readable as the manual" }

local breaches = 0

local function breach(...)
  breaches = breaches + 1
  print("lint: " .. string.format(...))
end

local function lines_of(path)
  local lines = {}
  for line in io.lines(path) do
    lines[#lines + 1] = line
  end
  return lines
end

local function tracked(pattern)
  local list = {}
  local pipe = assert(io.popen("git ls-files -- " .. pattern))
  for path in pipe:lines() do
    if io.open(path) then
      list[#list + 1] = path
    end
  end
  pipe:close()
  return list
end

local height = {}
for i, floor in ipairs(FLOORS) do
  height[floor] = i
end

local function check_file(path)
  local lines, limit = lines_of(path), LIMITS[path:match("%.(%w+)$")]
  if limit and #lines > limit and not EXCEPTIONS[path] then
    breach("%s has %d lines; %d are allowed", path, #lines, limit)
  end
  local floor = path:match("^runtime/(%w+)/")
  for number, line in ipairs(lines) do
    local other = floor and line:match('^#include "%.%./(%w+)/')
    if other and height[other] and height[other] > height[floor] then
      breach("%s:%d: the floor %s must not know %s", path, number, floor, other)
    end
    if line:find("TO" .. "DO") or line:find("FIX" .. "ME") then
      breach("%s:%d: an unfinished mark", path, number)
    end
  end
end

--- The library exports what the public headers declare, and nothing else.
local function check_exports(library)
  local declared = {}
  local pipe = assert(io.popen("cc -E -P -DLUDA_API=EXPORT -include runtime/luda.h runtime/luda_transport.h 2>/dev/null"))
  for name in pipe:read("*a"):gmatch("EXPORT[^;]-(luda_[%w_]+)%s*%(") do
    declared[name] = true
  end
  pipe:close()
  pipe = assert(io.popen("nm -D --defined-only " .. library))
  for line in pipe:lines() do
    local name = line:match(" [TDBR] (%S+)$")
    if name and not declared[name] then
      breach("%s exports %s, which luda.h does not declare", library, name)
    end
  end
  pipe:close()
end

for _, pattern in ipairs { "'runtime/*'", "'kernels/*'", "'lua/*'", "'scripts/*'", "'examples/*'" } do
  for _, path in ipairs(tracked(pattern)) do
    check_file(path)
  end
end
check_exports("build/libluda.so")

package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
local lib = require "luda.ffi"
local fault = lib.C.luda_table_fault()
if fault ~= nil then
  breach("kernels/ops.def: the row %s has an unknown fact or attribute, or no sentence", lib.ffi.string(fault))
end

print(breaches == 0 and "lint: clean" or ("lint: %d breaches"):format(breaches))
os.exit(breaches == 0 and 0 or 1)
