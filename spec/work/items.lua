--- The data sets of loader_spec, made in each state that asks: args.kind names one.

local luda = require "luda"

local kinds = {}

--- Item i is i times a factor, with a number drawn for it.
function kinds.noisy(args)
  return luda.data.dataset(args.n, function(i, epoch)
    return { x = args.weights and args.weights[i] or luda.full({ 2 }, i), i = i, epoch = epoch, noise = luda.rand(3) }
  end)
end

function kinds.plain(args)
  return luda.data.dataset(args.n, function(i)
    return i
  end)
end

--- Fails at one item.
function kinds.failing(args)
  return luda.data.dataset(args.n, function(i)
    return i == args.at and args.missing.field or i
  end)
end

function kinds.refusing(args)
  return luda.data.dataset(args.n, function(i)
    return i == args.at and luda.zeros(2, 3):reshape(7) or i
  end)
end

--- Large items, or slow ones, so that what is ahead shows.
function kinds.large(args)
  return luda.data.dataset(args.n, function(i)
    return luda.full({ args.numel }, i)
  end)
end

--- Every third item takes a while, the first among them.
function kinds.slow(args)
  return luda.data.dataset(args.n, function(i)
    local x = luda.ones(64, 64)
    for _ = 1, i % 3 == 1 and args.rounds or 0 do
      x = x:matmul(x) * (1 / 64)
    end
    return i * x[{ 1, 1 }]:item()
  end)
end

function kinds.broken()
  error("there is no such data")
end

function kinds.unsendable(args)
  return luda.data.dataset(args.n, function()
    return print
  end)
end

function kinds.nothing()
  return 5
end

return function(args)
  return kinds[args.kind](args)
end
