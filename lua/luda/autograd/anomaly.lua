--- Finding the first NaN or infinity: where a result, or a gradient on its way back, stops being finite.

local lib = require "luda.ffi"
local args = require "luda.args"
local errors = require "luda.error"
local memory = require "luda.memory"
local scope = require "luda.scope"

local C, context = lib.C, lib.context

local M = {}

local sites -- order of a node → "file:line", while somebody looks

--- Called for each new handle while somebody looks: remembers which line recorded it.
function memory.note_site(tensor)
  local order = tonumber(C.luda_graph_order(memory.pointer(tensor)))
  if sites and order > 0 then
    sites[order] = errors.where()
  end
end

--- Adds to a failure of a walk which line recorded the node that it speaks of.
---@param problem any
function M.explain(problem)
  local site = sites and sites[tonumber(C.luda_anomaly_node(context))]
  if site and getmetatable(problem) == errors.Error and problem.message:find("in backward the gradient", 1, true)
    and not problem.message:find("; recorded at ", 1, true) then -- a walk inside a walk has said it
    problem.message = problem.message .. "; recorded at " .. site
  end
  return problem
end

local function restore(before)
  C.luda_context_use(context)
  C.luda_set_anomaly(before.on)
  sites = before.sites
end

--- Calls fn(…) and raises `graph` at the first operator whose result is not finite while its inputs are, or at the first
-- gradient that is not finite while those that came in are, with values, shapes and the line that made it. Slow; values
-- that are infinite from the beginning (masks) are no failure. A backward outside the function is not looked at.
---@generic T
---@param fn fun(...): T
---@return T
function M.detect_anomaly(fn, ...)
  args.callable("detect_anomaly", fn)
  C.luda_context_use(context)
  local before = { on = C.luda_set_anomaly(1), sites = sites }
  sites = sites or {}
  return scope.sealed(restore, before, fn, ...)
end

return M
