--- The table on the screen and the file of numbers.

local luda = require "luda"
local lib = require "luda.ffi"
local luda_json = require "luda.json"

local M = {}

-- Columns: heading, width (negative: to the left), text of a row.
local function number(value)
  if not value then
    return ""
  end
  return (value >= 1e5 and "%.0f" or value >= 100 and "%.1f" or "%.3g"):format(value)
end

local function share(value)
  return value and ("%.2f"):format(value) or ""
end

local COLUMNS = {
  { "section", -11, function(row) return row.section end },
  { "case", -42, function(row) return row.case end },
  { "type", -4, function(row) return row.dtype end },
  { "thr", 3, function(row) return tostring(row.threads) end },
  { "value", 9, function(row) return number(row.value) end },
  { "unit", -7, function(row) return row.unit end },
  { "limit", 9, function(row) return number(row.limit) end },
  { "limit of", -11, function(row) return row.limit_kind or "" end },
  { "ratio", 5, function(row) return share(row.ratio) end },
  { "bytes", 5, function(_, bytes_ratio) return share(bytes_ratio) end },
  { "peer", 6, function(row) return share(row.peer_ratio) end },
  { "spread", 6, function(row) return share(row.spread) end },
  { "others", 6, function(row) return share(row.foreign_cpu) end },
}

local NOTES = [[
ratio: time of the limit over ours, 1 is the limit. bytes: the same against memory alone, where arithmetic is the limit.
peer: the peer's time (or memory) over ours, above 1 we are ahead. spread: of our samples. others: CPU of other processes.
]]

local function line(text_of)
  local cells = {}
  for i, column in ipairs(COLUMNS) do
    cells[i] = ("%" .. column[2] .. "s"):format(text_of(column))
  end
  return (table.concat(cells, " "):gsub("%s+$", ""))
end

--- Prints what the columns mean and their headings.
function M.heading()
  io.write(NOTES, line(function(column)
    return column[1]
  end), "\n")
end

--- Prints a row as soon as it is there.
---@param row table
---@param bytes_ratio? number
function M.row(row, bytes_ratio)
  io.write(line(function(column)
    return column[3](row, bytes_ratio)
  end), "\n")
  io.flush()
end

--- Prints why a case has no row.
function M.note(section, case, word, text)
  io.write(("%-11s %s: %s: %s\n"):format(section, case, word, (tostring(text):match("[^\n]*"))))
  io.flush()
end

-- The file.

local function processor()
  local model, cores = "unknown", 0
  for text in io.lines("/proc/cpuinfo") do
    model = text:match("^model name%s*:%s*(.*)") or model
    cores = cores + (text:match("^processor%s") and 1 or 0)
  end
  return model, cores
end

--- What the numbers were measured on.
---@param threads integer
---@return {cpu: string, simd: string, cores: integer, threads: integer}
function M.machine(threads)
  local cpu, cores = processor()
  return { cpu = cpu, simd = lib.ffi.string(lib.C.luda_simd()), cores = cores, threads = threads }
end

---@param path string
---@param machine table
---@param rows table[]
function M.write(path, machine, rows)
  local file = assert(io.open(path, "w"))
  file:write(luda_json.encode({ version = luda.version, machine = machine, rows = rows }, 1), "\n")
  file:close()
end

return M
