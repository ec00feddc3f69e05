--- Muon, which updates whole matrices, and MuonAdamW, which leaves the other parameters to AdamW. Both are the rule `muon`: a
-- group with use_muon = false is AdamW.

local lib = require "luda.ffi"
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

--- The names of parameters that are left to AdamW.
local function rest_of(op, list, matrices)
  local rest = {}
  for _, entry in ipairs(list) do
    local chosen
    if matrices == nil then
      chosen = is_matrix(entry.tensor)
    else
      chosen = options.belongs(op, matrices, entry.name)
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
  local place_of_scale
  for i, name in ipairs(Muon.row.options) do
    place_of_scale = name == "lr_scale" and i - 1 or place_of_scale
  end
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
    self.adamw_scale = #rest > 0 and given.lr_ratio or nil
  end

  --- As Optimizer.step; AdamW's rate is lr_ratio times lr, or adamw_lr.
  ---@param lr number
  ---@param grads luda.Gradients
  ---@param options_of_step? {only: string?, adamw_lr: number?}
  ---@return luda.OptimizerReport
  function MuonAdamW:step(lr, grads, options_of_step)
    local given = args.options("step", options_of_step, { only = args.absent, adamw_lr = args.absent })
    local scale = self.given.groups[1] and self.given.groups[1].options.lr_scale
    if given.adamw_lr then
      if args.number("step", "the rate", lr) <= 0 then
        errors.raise("invalid", "step: with adamw_lr the rate must be positive, it is %g", lr)
      end
      scale = args.number("step", "adamw_lr", given.adamw_lr) / lr
    end
    if self.adamw_scale and scale ~= self.adamw_scale then
      lib.check(lib.C.luda_optim_set_option(self.pointer, 1, place_of_scale, scale))
      self.adamw_scale = scale
    end
    return Muon.step(self, lr, grads, { only = given.only })
  end

  return MuonAdamW
end

return M
