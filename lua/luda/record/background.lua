--- Saving in the background: one saver of the Lua state, with its thread and the memory that it copies into.

local lib = require "luda.ffi"
local errors = require "luda.error"
local files = require "luda.files"

local ffi, C = lib.ffi, lib.C

local M = {}

local saver, path
local guard -- luacheck: ignore (its collection ends the saver)

--- The failure of the save in flight, or nil when it is complete or there is none.
local function failure()
  local status = C.luda_saver_wait(saver)
  if status ~= 0 then
    return ffi.string(C.luda_status_word(status)), ffi.string(C.luda_last_error())
  end
end

--- Nobody can be told any more when the state closes but the one who reads the error output.
local function last_words()
  local word, text = failure()
  if word then
    io.stderr:write("luda: in the background: ", text, "\n")
  end
  C.luda_saver_close(saver)
end

local function open()
  local out = ffi.new("luda_saver *[1]")
  lib.check(C.luda_saver_new(out))
  saver = out[0]
  guard = newproxy(true)
  getmetatable(guard).__gc = last_words
end

--- Until what was begun is on the disk; raises what kept it from there, once.
---@param hint? string what it means for the caller
function M.wait(hint)
  if saver then
    local word, text = failure()
    path = nil
    if word then
      errors.raise_with(word, ("%s (in the background; what stood there before stands%s)"):format(text, hint or ""), {})
    end
  end
end

--- What else is to be written waits, so that of two saves to one name the later one stands.
function M.wait_before_saving()
  M.wait("; nothing of this save was done, so save again")
end

--- A file that is still being written is complete before it is read.
---@param wanted string
function M.wait_for(wanted)
  if path == wanted then
    M.wait()
  end
end

--- Copies everything and returns; the file appears later.
---@param target string
---@param list {name: string, tensor: luda.Tensor}[]
---@param metadata table<string, string>
function M.write(target, list, metadata)
  if not saver then
    open()
  end
  files.write(target, list, metadata, saver)
  path = target
end

return M
