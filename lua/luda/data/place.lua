--- A place in the epochs of a loader, as its state has it.

local args = require "luda.args"
local errors = require "luda.error"

local M = {}

local function whole(value, low)
  return type(value) == "number" and value == math.floor(value) and value >= low
end

--- Adds what is wrong with the place in `state` for a loader of `samples` in an epoch.
---@param found string[]
---@param state table
---@param samples integer
function M.check(found, state, samples)
  if not whole(state.epoch, 1) or not whole(state.sample, 0) or not whole(state.seed, -0x1p53) then
    found[#found + 1] = ("loader: sample %s of epoch %s with seed %s"):format(tostring(state.sample), tostring(state.epoch),
      tostring(state.seed))
  elseif state.sample > samples then
    found[#found + 1] = ("loader: sample %d of an epoch of %d"):format(state.sample, samples)
  end
end

--- What check_state says of something that state() never returned.
function M.no_state(value)
  return { ("loader: expected what state() returned, got %s"):format(args.describe(value)) }
end

--- Raises what a loader finds wrong with a state.
function M.refuse(loader, state)
  local found = loader:check_state(state)
  if #found > 0 then
    errors.raise_with("mismatch", "load_state: " .. table.concat(found, "; "), { detail = found })
  end
end

return M
