--- The program `luda`: scripts, -e, and the commands. Exit status 0 is success, 1 an error, and 75 an error that another rank
-- caused, so that `luda run` can name that one.

local M = {}

local USAGE = [[
usage: luda                        interactive session (a script, when input is not a terminal)
       luda SCRIPT.lua ARG…        runs a script
       luda -e CODE                runs a line of code
       luda run -n N SCRIPT.lua …  runs a script on N ranks; luda run --help says more
       luda orchestrate           joins nodes of registered peers; luda orchestrate --help says more
       luda record ls|verify|diff|convert FILE…
       luda info                   version, devices, threads, libraries
]]

local function report(err)
  local trace = type(err) == "table" and err.traceback or nil
  if type(err) == "string" or not trace then
    trace = debug.traceback("", 2):gsub("^\n", "")
  end
  io.stderr:write("luda: ", tostring(err), "\n", trace, "\n")
  local code = type(err) == "table" and err.code
  return (code == "peer" or code == "cancelled") and require("luda.host").C.LUDA_EXIT_OTHER_RANK or 1
end

--- Runs a loaded chunk and says what went wrong.
local function run_chunk(chunk, problem, ...)
  if not chunk then
    io.stderr:write("luda: ", problem, "\n")
    return 1
  end
  local arguments, count = { ... }, select("#", ...)
  local status
  local ok = xpcall(function()
    chunk(unpack(arguments, 1, count))
  end, function(err)
    status = report(err)
  end)
  return ok and 0 or status
end

--- As in `luajit`: arg[0] is the script, arg[1] its first argument.
local function set_arg(list, first)
  local shifted = {}
  for i = 0, #list do
    shifted[i - first] = list[i]
  end
  arg = shifted -- luacheck: globals arg
  return shifted
end

local function run_script(list, first)
  local own = set_arg(list, first)
  return run_chunk(own[0] and loadfile(own[0]), ("cannot open %s"):format(tostring(own[0])), unpack(own))
end

local COMMANDS = {
  run = "luda.cli.run", orchestrate = "luda.cli.orchestrate", record = "luda.cli.record", info = "luda.cli.info",
}

local function run_command(list, program)
  local rest = {}
  for i = 2, #list do
    rest[i - 1] = list[i]
  end
  local status
  local ok = xpcall(function()
    require "luda" -- whole, before any of its parts
    status = require(COMMANDS[list[1]]).main(rest, program)
  end, function(err)
    status = report(err)
  end)
  return ok and (status or 0) or status
end

---@param program string path of the program
---@param list string[] arguments, from 1
---@return integer status
function M.main(program, list)
  local first = list[1]
  if os.getenv("LUDA_RANK") then
    io.stdout:setvbuf("line") -- what a rank said must not go with it when it is killed
  end
  if first == nil then
    local is_terminal = require("luda.cli.terminal").is_terminal(0)
    return is_terminal and require("luda.cli.repl").main() or run_chunk(loadfile(), "cannot read the input")
  elseif first == "-e" then
    set_arg(list, 2)
    return run_chunk(loadstring(list[2] or "", "=(command line)"))
  elseif first == "-h" or first == "--help" then
    io.write(USAGE)
    return 0
  elseif first == "-v" or first == "--version" then
    print("LUDA " .. require("luda").version)
    return 0
  elseif COMMANDS[first] then
    return run_command(list, program)
  elseif first:sub(1, 1) == "-" and first ~= "-" then
    io.stderr:write(("luda: unknown option %s\n"):format(first), USAGE)
    return 2
  end
  local chunk, problem = loadfile(first)
  if not chunk then
    io.stderr:write("luda: ", problem, "\n")
    return 1
  end
  return run_script(list, 1)
end

return M
