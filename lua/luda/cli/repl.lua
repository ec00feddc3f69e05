--- The interactive session: evaluates, prints values, keeps top-level locals, and reads on until a statement is whole.

local luda = require "luda"

local M = {}

local session = setmetatable({ luda = luda }, { __index = _G })

local function incomplete(problem)
  return problem:find("'<eof>'", 1, true) ~= nil
end

--- Top-level `local x = …` stays for the next line.
local function keep_locals(code)
  return (code:gsub("^%s*local%s+(function%s)", "%1"):gsub("^%s*local%s+([%w_,%s]-=)", "%1"))
end

--- An expression first, then a statement. Returns a chunk, or nil and what is wrong.
local function compile(code)
  -- Not a tail call: an error must find this line on the stack.
  local chunk = loadstring("return (function(...) return ... end)(" .. code:gsub("^=", "") .. "\n)", "=stdin")
  local problem
  if not chunk then
    chunk, problem = loadstring(keep_locals(code), "=stdin")
  end
  return chunk and setfenv(chunk, session), problem
end

local function show(ok, ...)
  if not ok then
    print(tostring((...)))
    return
  end
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    session._ = value
    print(tostring(value))
  end
end

local function read_statement()
  local code
  while true do
    io.write(code and ">> " or "> ")
    io.flush()
    local line = io.read("*l")
    if not line then
      return code
    end
    code = code and code .. "\n" .. line or line
    local chunk, problem = compile(code)
    if chunk or not incomplete(problem) then
      return code
    end
  end
end

function M.main()
  print(("LUDA %s on %s. Expressions print; Ctrl-D ends."):format(luda.version, jit.version))
  while true do
    local code = read_statement()
    if not code then
      print()
      return 0
    end
    local chunk, problem = compile(code)
    if chunk then
      show(pcall(chunk))
    else
      print(problem)
    end
  end
end

return M
