--- Muon for the matrices of a small network, AdamW for the rest: learns the two arms of a spiral.
--
--   luda examples/muon.lua                    against plain AdamW, each with its own rate
--   luda examples/muon.lua --steps 50 --width 32

local luda = require "luda"
local nn, optim = luda.nn, luda.optim

local options = require("luda.options").parse({ ... }, {
  { "steps", 300, "updates" },
  { "width", 64, "units of a hidden layer" },
  { "points", 512, "of each arm" },
  { "rate", 0.05, "of Muon; AdamW gets 0.15 times that for the parameters that are no matrices" },
  { "adamw-rate", 0.01, "of AdamW alone" },
  { "seed", 1, "of points and weights" },
})
if not options then
  return
end

--- Points of two spirals that wind around each other, and which arm each is of.
local function spirals(count)
  local turn = luda.rand(count):sqrt() * (2.5 * math.pi)
  local arm = luda.stack({ turn:cos() * turn, turn:sin() * turn }, 2) / 10
  local points = luda.cat({ arm, -arm }, 1) + luda.randn(2 * count, 2) * 0.02
  return points, luda.cat({ luda.full({ count }, 1), luda.full({ count }, 2) }, 1):to("i64")
end

luda.manual_seed(options.seed)
local points, arms = spirals(options.points)

local function train(name, make)
  luda.manual_seed(options.seed)
  local width = options.width
  local model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
  local optimizer, rate = make(model)
  -- the rate falls to zero: near the end small steps settle what large ones have found
  local schedule = optim.lr.Cosine { lr = rate, steps = options.steps, restart = false }
  for step = 1, options.steps do
    luda.scope(function()
      local loss = nn.cross_entropy(model(points), arms)
      optimizer:step(schedule:step(), loss:backward())
      if step % math.max(1, math.floor(options.steps / 5)) == 0 then
        print(("%-10s step %4d, loss %.4f"):format(name, step, loss:item()))
      end
    end)
  end
  local right = luda.no_grad(function()
    return model(points):argmax(2):eq(arms):to("f32"):mean():item()
  end)
  print(("%-10s %.1f %% of the points on the right arm"):format(name, 100 * right))
end

train("AdamW", function(model)
  return optim.AdamW(model), options.adamw_rate
end)
train("MuonAdamW", function(model)
  -- nn.Linear keeps its weight as [in, out], so the shape of the map is the other way round
  return optim.MuonAdamW(model, { muon = { layout = "input_output" }, lr_ratio = 0.15 }), options.rate
end)
