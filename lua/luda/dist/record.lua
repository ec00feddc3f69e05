--- Training records of several ranks: each writes its own, then rank 0 says that the set is complete.
--
--   DIR/step-N/rank-R.safetensors     written by rank R
--   DIR/step-N/complete.json          written last: world size and a checksum a rank

local lib = require "luda.ffi"
local errors = require "luda.error"
local folders = require "luda.folder"
local json = require "luda.json"
local record = require "luda.record"

local ffi, C = lib.ffi, lib.C

local M = {}

local function folder(dir, step)
  return ("%s/step-%d"):format(dir, step)
end

local function rank_path(dir, step, rank)
  return ("%s/rank-%d.safetensors"):format(folder(dir, step), rank)
end

--- The checksum of a file's header, which holds those of its tensors; nil where it does not open.
local function checksum(path)
  local out = ffi.new("luda_file *[1]")
  if C.luda_file_open(path, out) ~= 0 then
    return nil
  end
  local sum = tonumber(C.luda_file_checksum(out[0]))
  C.luda_file_close(out[0])
  return sum
end

local function rank_numbers(texts)
  local numbers = {}
  for i, text in ipairs(texts) do
    numbers[i] = tonumber(text)
  end
  return numbers
end

--- Saves this rank's parts; returns when the set is complete on all ranks. A failure on one rank is raised on all.
---@param dir string
---@param step integer
---@param comm luda.Comm
---@param parts table
function M.save(dir, step, comm, parts)
  local path = rank_path(dir, step, comm.rank)
  local ok, problem = pcall(function()
    folders.make(folder(dir, step))
    record.save(path, parts)
  end)
  local sums = comm:exchange(ok and tostring(checksum(path)) or "failed: " .. tostring(problem))
  for rank, text in ipairs(sums) do
    if not tonumber(text) then
      errors.raise_with("io", ("record: rank %d could not save: %s"):format(rank - 1, text), { rank = comm.rank,
        culprits = { rank - 1 } })
    end
  end
  if comm.rank == 0 then
    local text = json.encode { world = comm.size, step = step, checksums = rank_numbers(sums) } .. "\n"
    lib.check(C.luda_file_write(folder(dir, step) .. "/complete.json", text, #text))
  end
  comm:barrier()
  return path
end

local function read_all(path)
  local file = io.open(path, "rb")
  local text = file and file:read("*a")
  if file then
    file:close()
  end
  return text
end

--- Steps of complete sets, as this rank sees them: step → the text of its complete.json.
local function complete_sets(dir)
  local sets = {}
  for _, name in ipairs(folders.list(dir)) do
    local step = tonumber(name:match("^step%-(%d+)$"))
    local text = step and read_all(folder(dir, step) .. "/complete.json")
    local ok, content = pcall(json.decode, text or "")
    if ok and type(content) == "table" and type(content.checksums) == "table" then
      sets[step] = content
    end
  end
  return sets
end

--- The steps that this rank could restore, newest first, with the reasons against the others.
local function usable(dir, comm)
  local steps, problems = {}, {}
  for step, content in pairs(complete_sets(dir)) do
    local path = rank_path(dir, step, comm.rank)
    if content.world ~= comm.size then
      problems[#problems + 1] = ("%s was written by %s ranks, %d are here"):format(folder(dir, step),
        tostring(content.world), comm.size)
    elseif checksum(path) ~= content.checksums[comm.rank + 1] then
      problems[#problems + 1] = ("%s is missing or damaged"):format(path)
    else
      steps[#steps + 1] = step
    end
  end
  table.sort(steps, function(a, b)
    return a > b
  end)
  return steps, problems
end

--- Restores the newest complete set that all ranks see: state, report, step; nil when there is none at all. Where sets exist
--- but none is whole on every rank, all ranks raise.
---@param dir string
---@param comm luda.Comm
---@param parts table
function M.restore(dir, comm, parts)
  local steps, problems = usable(dir, comm)
  local all = comm:exchange(table.concat(steps, " ") .. ";" .. table.concat(problems, "; "))
  local count, complaints = {}, {}
  for rank, text in ipairs(all) do
    local numbers, problem = text:match("^([^;]*);(.*)$")
    for number in numbers:gmatch("%d+") do
      count[tonumber(number)] = (count[tonumber(number)] or 0) + 1
    end
    if problem ~= "" then
      complaints[#complaints + 1] = ("rank %d: %s"):format(rank - 1, problem)
    end
  end
  local newest
  for step, ranks in pairs(count) do
    if ranks == comm.size and (not newest or step > newest) then
      newest = step
    end
  end
  if newest then
    local state, report = record.load(rank_path(dir, newest, comm.rank)):restore(parts)
    for _, complaint in ipairs(complaints) do
      table.insert(report.warnings, complaint)
    end
    return state, report, newest
  elseif #complaints > 0 or next(count) then
    errors.raise_with("corrupt", "record: no complete set can be restored by all ranks; " .. table.concat(complaints, "; "),
      { rank = comm.rank })
  end
end

return M
