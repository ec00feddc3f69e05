--- Optimizers, learning rates, accumulation. A rule is a row of kernels/optim.def; its class is made here from the row.

local class = require "luda.class"
local options = require "luda.optim.options"
local Optimizer = require "luda.optim.optimizer"
local muon = require "luda.optim.muon"

-- How the rules are spelled that are not simply capitalised.
local spelled = {
  sgd = "SGD", adamw = "AdamW", adagrad = "AdaGrad", rmsprop = "RMSProp", nadam = "NAdam", radam = "RAdam",
  adadelta = "AdaDelta", lamb = "LAMB",
}

---@class luda.optim
local M = {
  lr = require "luda.optim.lr",
  Accumulator = require "luda.optim.accumulator",
  EMA = require "luda.optim.ema",
  GradScaler = require "luda.optim.scaler",
  LBFGS = require "luda.optim.lbfgs",
}

for _, row in ipairs(options.rows()) do
  local name = spelled[row.name] or row.name:sub(1, 1):upper() .. row.name:sub(2)
  local made = class(name, Optimizer)
  made.row, made.__tostring = row, Optimizer.__tostring
  M[name] = made
end
M.MuonAdamW = muon.finish(M.Muon)

--- Options with which optimizers start as those of the described system do, by class.
---@return table<string, table>
function M.ruda_defaults()
  return {
    SGD = { momentum = 0, weight_decay = 0, nesterov = false },
    Adam = { beta1 = 0.9, beta2 = 0.999, eps = 1e-5, weight_decay = 0, amsgrad = false },
    AdamW = { beta1 = 0.9, beta2 = 0.999, eps = 1e-5, weight_decay = 1e-4, cautious = false, amsgrad = false },
    AdaGrad = { lr_decay = 0, eps = 1e-5, weight_decay = 0 },
    RMSProp = { alpha = 0.99, momentum = 0.9, eps = 1e-5, centered = false, weight_decay = 0 },
    Adan = { beta1 = 0.98, beta2 = 0.92, beta3 = 0.99, eps = 1e-8, weight_decay = 0, no_prox = false },
    Muon = { momentum = 0.95, dampening = 0, nesterov = true, eps = 1e-7, ns_steps = 5, weight_decay = 0 },
    MuonAdamW = { lr_ratio = 0.015, adamw = { beta1 = 0.9, beta2 = 0.999, eps = 1e-5, weight_decay = 1e-4 } },
    LBFGS = { max_iter = 20, max_eval = 25, history_size = 100, tolerance_grad = 1e-7, tolerance_change = 1e-9 },
  }
end

return M
