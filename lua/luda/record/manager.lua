--- A folder of records: saves every so many steps, keeps the newest few, finds the newest that is whole.

local args = require "luda.args"
local background = require "luda.record.background"
local class = require "luda.class"
local errors = require "luda.error"
local examine = require "luda.examine"
local files = require "luda.files"
local folder = require "luda.folder"

---@class luda.RecordManager
---@field dir string
---@field keep integer
---@field every integer
---@field mode? "min"|"max"
---@field async boolean
local Manager = class("luda.record.Manager")

local function positive(name, value)
  if args.integer("Manager", name, value) < 1 then
    errors.raise("invalid", "Manager: %s is %d, it must be at least 1", name, value)
  end
  return value
end

--- best = "min" or "max" also keeps the record with the lowest or highest metric; async = true saves in the background.
---@param given {dir: string, keep: integer?, every: integer?, best: string?, async: boolean?}
function Manager:init(given)
  local options = args.options("Manager", given,
    { dir = args.absent, keep = 3, every = 100, best = args.absent, async = false })
  if type(options.dir) ~= "string" or options.dir == "" then
    errors.raise("invalid", "Manager: dir must name a folder, it is %s", args.describe(options.dir))
  end
  if options.best and options.best ~= "min" and options.best ~= "max" then
    errors.raise("invalid", "Manager: best is 'min' or 'max', not %s", args.describe(options.best))
  end
  self.dir = options.dir:gsub("(.)/+$", "%1")
  self.keep, self.every = positive("keep", options.keep), positive("every", options.every)
  self.mode, self.async = options.best, options.async
end

function Manager:__tostring()
  return ("luda.record.Manager(%s)"):format(self.dir)
end

function Manager:path_of(step)
  return ("%s/step-%d.safetensors"):format(self.dir, step)
end

--- Steps that have a file, ascending.
---@return integer[]
function Manager:steps()
  local steps = {}
  for _, name in ipairs(folder.list(self.dir)) do
    local step = name:match("^step%-(%d+)%.safetensors$")
    if step then
      steps[#steps + 1] = tonumber(step)
    end
  end
  table.sort(steps)
  return steps
end

local function metric_of(path)
  local ok, _, metadata = pcall(files.list, path)
  if not ok or not metadata["luda.record"] then
    return nil
  end
  local fine, header = pcall(examine.decode, path, "luda.record", metadata["luda.record"])
  return fine and type(header.metric) == "number" and header.metric or nil
end

--- The step with the best metric, or nil when none has one.
local function best_step(self, steps)
  local found, best
  for _, step in ipairs(self.mode and steps or {}) do
    local metric = metric_of(self:path_of(step))
    if metric and metric == metric
      and (best == nil or (self.mode == "min" and metric < best) or (self.mode == "max" and metric > best)) then
      found, best = step, metric
    end
  end
  return found
end

--- Removes all but the newest few, the best, and the one just written.
local function prune(self, written)
  local steps = self:steps()
  local best = best_step(self, steps)
  for i = 1, #steps - self.keep do
    if steps[i] ~= written and steps[i] ~= best then
      os.remove(self:path_of(steps[i]))
    end
  end
end

--- Ends the save in the background, if this manager began one.
local function finish(self, wait)
  local step = self.unfinished
  self.unfinished = nil
  wait()
  if step then
    prune(self, step)
  end
end

--- Saves if the step is due, or with now = true; returns the path, or false. Older records go when the new one is complete:
-- with async = true that is at the next save, or wait().
---@param step integer
---@param parts table
---@param given? {metric: number?, now: boolean?}
---@return string|false
function Manager:save(step, parts, given)
  local options = args.options("save", given, { metric = args.absent, now = false })
  if args.integer("save", "the step", step) < 0 then
    errors.raise("invalid", "save: the step is %d", step)
  end
  if options.metric ~= nil then
    args.number("save", "the metric", options.metric)
  end
  if not options.now and step % self.every ~= 0 then
    return false
  end
  finish(self, background.wait_before_saving)
  folder.make(self.dir)
  local path = self:path_of(step)
  require("luda.record").write(path, parts, { step = step, metric = options.metric }, self.async)
  if self.async then
    self.unfinished = step
  else
    prune(self, step)
  end
  return path
end

--- The path of the newest record that is whole, or nil.
---@return string?
function Manager:newest()
  local steps = self:steps()
  for i = #steps, 1, -1 do
    if #files.verify(self:path_of(steps[i])) == 0 then
      return self:path_of(steps[i])
    end
  end
end

--- The path of the record with the best metric, or nil.
---@return string?
function Manager:best()
  local step = best_step(self, self:steps())
  return step and self:path_of(step)
end

--- Until every save is on the disk and the older records are gone; raises what kept one from there, once.
function Manager:wait()
  finish(self, background.wait)
end

return Manager
