--- Muon, which updates whole matrices, and MuonAdamW, which leaves the other parameters to AdamW. Both are the rule `muon`: a
-- group with use_muon = false is AdamW.

local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local manifest = require "luda.manifest"
local options = require "luda.optim.options"

local M = {}

local function is_matrix(tensor)
  return tensor.ndim == 2 and tensor.numel > 0
end

local function refuse(op, entry)
  errors.raise("shape", "%s: '%s' has shape %s; Muon updates whole matrices, optim.MuonAdamW leaves other parameters to AdamW",
    op, entry.name, args.shape_text(entry.tensor.shape))
end

local function check_parameters(self, op)
  local given = self.given
  for _, entry in ipairs(self.list) do
    local group = given.groups[given.members[entry.name]] or given
    if group.options.use_muon ~= 0 and not is_matrix(entry.tensor) then
      refuse(op, entry)
    end
  end
end

--- Whether a pattern, or a list of names, chooses a parameter.
local function chooses(op, matrices, name)
  if type(matrices) == "string" then
    return options.matches(op, matrices, name)
  end
  for _, other in ipairs(matrices) do
    if other == name then
      return true
    end
  end
  return false
end

--- The names of parameters that are left to AdamW.
local function rest_of(op, list, matrices)
  local rest = {}
  for _, entry in ipairs(list) do
    local chosen
    if matrices == nil then
      chosen = is_matrix(entry.tensor)
    else
      chosen = chooses(op, matrices, entry.name)
      if chosen and not is_matrix(entry.tensor) then
        refuse(op, entry)
      end
    end
    if not chosen then
      rest[#rest + 1] = entry.name
    end
  end
  if #rest == #list then
    errors.raise("invalid", "%s: no parameter is a matrix for Muon; they are %s", op, options.names_text(list))
  end
  return rest
end

--- Completes the class of the row `muon`, and makes MuonAdamW from it.
---@param Muon table
---@return table MuonAdamW
function M.finish(Muon)
  Muon.check_parameters = check_parameters
  local MuonAdamW = class("MuonAdamW", Muon)
  MuonAdamW.__tostring = Muon.__tostring

  --- An optimizer of a module's parameters: of matrices by Muon, of all others by AdamW at `lr_ratio` times the rate.
  ---@param source any
  ---@param given? {matrices: string|string[]|nil, muon: table?, adamw: table?, lr_ratio: number?}
  function MuonAdamW:init(source, given)
    local op, absent = "optim.MuonAdamW", args.absent
    given = args.options(op, given, {
      matrices = absent, muon = absent, adamw = absent, lr_ratio = 0.015, clip = absent, max_grad_norm = absent,
      fp32_master = false, gradient_scale = 1,
    })
    local rest = rest_of(op, (manifest.parameters(op, source)), given.matrices)
    local all = {}
    for name, value in pairs(args.options(op .. ".muon", given.muon, given.muon or {})) do
      all[name] = value
    end
    for _, name in ipairs { "clip", "max_grad_norm", "fp32_master", "gradient_scale" } do
      all[name] = given[name]
    end
    if #rest > 0 then
      local adamw = args.options(op .. ".adamw", given.adamw, {
        beta1 = absent, beta2 = absent, betas = absent, eps = 1e-8, weight_decay = 1e-2,
      })
      adamw.match, adamw.use_muon, adamw.lr_scale = rest, false, args.number(op, "lr_ratio", given.lr_ratio)
      all.groups = { adamw, unpack(all.groups or {}) }
    end
    Muon.init(self, source, all)
  end

  return MuonAdamW
end

return M
