--- luda record: looks into training records and other tensor files.

local args = require "luda.args"
local errors = require "luda.error"
local examine = require "luda.examine"
local files = require "luda.files"
local inspect = require "luda.record.inspect"

local M = {}

local USAGE = [[
usage: luda record ls FILE…         what the files hold
       luda record verify FILE…     reads every byte; exit status 1 and a line for each damaged tensor
       luda record diff FILE FILE   what differs; exit status 1 if anything does
       luda record convert FROM TO  the same content in another file; TO may be an .npz, FROM too
         --parts model,state        these parts of a record alone, still a record
         --weights                  the model's values alone, for model:load_state(luda.load(TO)) and other programs
         --dtype bf16               floating values of the model as another type
Exit status 2: the words make no sense.
]]

local CONVERT = {
  { "parts", "", "parts of a record, with commas between them" },
  { "weights", false, "the model's values alone" },
  { "dtype", "", "a floating type" },
}

local function print_metadata(path, metadata)
  local header = metadata["luda.record"] and examine.decode(path, "luda.record", metadata["luda.record"])
  if header then
    local parts = {}
    for key in pairs(metadata) do
      parts[#parts + 1] = key:match("^luda%.record%.(.+)$")
    end
    table.sort(parts)
    print(("  training record: %s"):format(table.concat(parts, ", ")))
    print(("  library %s, instruction set %s, fingerprint %s%s"):format(tostring(header.library),
      tostring(header.simd), tostring(header.fingerprint), header.random and "" or ", no random state"))
  end
  local keys = {}
  for key in pairs(metadata) do
    if not key:match("^luda%.record") then
      keys[#keys + 1] = key
    end
  end
  table.sort(keys)
  for _, key in ipairs(keys) do
    print(("  %s = %s"):format(key, metadata[key]))
  end
end

local function list(path)
  local entries, metadata, checksum = files.list(path)
  print(("%s: %d tensors, %s"):format(path, #entries,
    checksum and "checksum " .. bit.tohex(checksum) or "no checksums (written by another program)"))
  print_metadata(path, metadata)
  for _, entry in ipairs(entries) do
    print(("  %-5s %-16s %s"):format(entry.dtype, args.shape_text(entry.shape), entry.name))
  end
  return 0
end

local function verify(path)
  local problems = inspect.verify(path)
  for _, problem in ipairs(problems) do
    print(problem)
  end
  if #problems == 0 then
    print(path .. ": good")
  end
  return #problems == 0 and 0 or 1
end

local function diff(first, second)
  local found = inspect.differences(first, second)
  for _, sentence in ipairs(found) do
    print(sentence)
  end
  if #found == 0 then
    print "identical"
  end
  return #found == 0 and 0 or 1
end

local function convert(from, to, options)
  local count = require("luda.record.convert").convert(from, to, options)
  print(("%s: %d tensors"):format(to, count))
  return 0
end

--- The options after two paths; nil and the reason where they make no sense.
local function read_options(arguments)
  local words = { unpack(arguments, 4) }
  local fine, given = pcall(require("luda.options").parse, words, CONVERT)
  if not fine then
    return nil, given.message
  elseif not given or (given.weights and given.parts ~= "") then
    return nil, "--weights or --parts"
  end
  local function text(value)
    return value ~= "" and value or nil
  end
  return { parts = text(given.parts), dtype = text(given.dtype), weights = given.weights }
end

--- Runs what is asked; a file that cannot be read is a line on the error output and status 1.
local function attempt(fn, ...)
  local ok, status = pcall(fn, ...)
  if ok then
    return status
  elseif getmetatable(status) ~= errors.Error then
    error(status, 0)
  end
  io.stderr:write("luda record: ", status.message, "\n")
  return 1
end

---@param arguments string[] after "record"
---@return integer status
function M.main(arguments)
  local command = arguments[1]
  if command == "diff" and #arguments == 3 then
    return attempt(diff, arguments[2], arguments[3])
  elseif (command == "ls" or command == "verify") and arguments[2] then
    local status = 0
    for i = 2, #arguments do
      status = math.max(status, attempt(command == "ls" and list or verify, arguments[i]))
    end
    return status
  elseif command == "convert" and arguments[3] then
    local options, problem = read_options(arguments)
    if options then
      return attempt(convert, arguments[2], arguments[3], options)
    end
    io.stderr:write("luda record convert: ", problem, "\n")
    return 2
  elseif command == "--help" or command == "-h" then
    io.write(USAGE)
    return 0
  end
  io.stderr:write(USAGE)
  return 2
end

return M
