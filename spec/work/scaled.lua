--- What rank threads of optim_passes_spec run: cycles of a scaler over reduced gradients; those of one rank overflow at times.

local luda = require "luda"
local optim = luda.optim

return function(comm, job)
  local net = luda.nn.Linear(2, 1):to_dtype("f16")
  luda.no_grad(function()
    net.weight:fill_(0.5)
    net.bias:fill_(0)
  end)
  local parallel = luda.dist.DataParallel(comm, net)
  local opt, sums = optim.AdamW(net, { fp32_master = true, max_grad_norm = 1 }), optim.Accumulator(net)
  local scaler = optim.GradScaler { init_scale = 256, growth_interval = 2 }
  local seen = {}
  for step = 1, job.steps do
    luda.scope(function()
      local bad = job.bad[step] == comm.rank and 60000 or 1 -- times the scale, more than an f16 can hold
      local x = luda.full({ comm.rank + 1, 2 }, 0.25):to("f16")
      local _, weight = sums:run(x, { size = 1, dtype = "f32", scaler = scaler }, function(v)
        return (net(v):to("f32") * bad):sum()
      end)
      local grads = parallel:reduce(sums:grads(), weight, { fp32 = true })
      local report = scaler:step(opt, 0.1, grads)
      seen[step] = { skipped = report.skipped, scale = scaler:update() }
    end)
  end
  return luda.scope(function()
    return { seen = seen, weight = net.weight:totable(), master = opt:state().master.weight:totable() }
  end)
end
