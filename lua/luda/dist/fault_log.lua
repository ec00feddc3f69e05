--- The failure log: when a call of all ranks fails, every rank writes down what it called last.
-- The folder is dist.init's log_dir, or LUDA_LOG_DIR; without one nothing is written.

local lib = require "luda.ffi"

local ffi, C = lib.ffi, lib.C

local M = { folder = os.getenv "LUDA_LOG_DIR" }

local LOGGED = { timeout = true, peer = true, mismatch = true, cancelled = true }

--- The rank that files are named after: that of the process or rank thread, also in calls of a part of the group.
local function own_rank(comm)
  local thread = debug.getregistry()["luda.dist.thread"]
  return M.rank or thread and thread.rank or comm.rank
end

local function shape_text(shape)
  return shape and "[" .. table.concat(shape, ", ") .. "]" or "?"
end

local function call_lines(comm, failed_at)
  local lines = { ("%6s  %-7s  %-14s  %-5s  %-18s  %12s  %10s  %10s  %s"):format("call", "state", "operation", "dtype", "shape",
    "bytes", "started", "ended", "at") }
  local function before(moment)
    return moment > 0 and ("%.6f"):format(moment - failed_at) or ""
  end
  for _, row in ipairs(comm:flight_record()) do
    lines[#lines + 1] = ("%6d  %-7s  %-14s  %-5s  %-18s  %12.0f  %10s  %10s  %s"):format(row.seq, row.state, row.op,
      row.dtype or "?", shape_text(row.shape), row.bytes, before(row.started), before(row.finished), row.site)
  end
  return lines
end

--- The failure in words, then the flight record.
local function text_of(comm, code, text, fields)
  local rows = comm:flight_record()
  local failed_at = rows[#rows] and rows[#rows].finished or os.time()
  failed_at = failed_at > 0 and failed_at or os.time()
  local lines = {
    os.date("!%Y-%m-%dT%H:%M:%SZ", failed_at) .. (" rank %d of %d (%s)"):format(comm.rank, comm.size, comm.transport),
    code .. ": " .. text,
    "blamed: " .. (#fields.culprits > 0 and "rank " .. table.concat(fields.culprits, ", rank ") or "nobody"),
  }
  for _, entry in ipairs(fields.detail or {}) do
    lines[#lines + 1] = ("rank %d asked for %s"):format(entry.rank, entry.asked)
  end
  lines[#lines + 1] = "the last calls of this rank; times are seconds since the failure:"
  for _, line in ipairs(call_lines(comm, failed_at)) do
    lines[#lines + 1] = line
  end
  return table.concat(lines, "\n") .. "\n"
end

--- The whole file, or the one of the last failure.
local function write(path, text)
  require("luda.folder").make(M.folder)
  local file, problem = io.open(path .. ".new", "w")
  if not file then
    error(problem, 0)
  end
  local fine
  fine, problem = file:write(text)
  local closed, reason = file:close()
  if fine and closed then
    fine, problem = os.rename(path .. ".new", path)
  end
  if not fine or not closed then
    os.remove(path .. ".new")
    error(problem or reason, 0)
  end
end

--- Writes the file of a failure, and returns what the error's message says of it.
---@param comm luda.Comm
---@param status any luda_status
---@param text string
---@param fields {culprits: integer[], detail: table?}
---@return string code
---@return string clause
function M.note(comm, status, text, fields)
  local code = ffi.string(C.luda_status_word(status))
  if not M.folder or M.folder == "" or not LOGGED[code] then
    return code, ""
  end
  local path = ("%s/rank-%d.calls.txt"):format(M.folder, own_rank(comm))
  local fine, problem = pcall(function()
    write(path, text_of(comm, code, text, fields))
  end)
  if fine then
    return code, "; this rank's last calls are in " .. path
  end
  return code, ("; %s could not be written (%s)"):format(path, type(problem) == "table" and problem.message or problem)
end

return M
