--- Loops over the elements of tensors in plain Lua, each of which scalar.c has too.

local max, exp = math.max, math.exp

-- Name, and a function of two pointers to floats and a count; ORDER loops, scripts/bench/scalar.c.
return {
  { "y = 2.5 x + 0.5 y", function(x, y, count)
    for i = 0, count - 1 do
      y[i] = 2.5 * x[i] + 0.5 * y[i]
    end
  end },
  { "sum of squares", function(x, y, count)
    local sum = 0
    for i = 0, count - 1 do
      sum = sum + x[i] * x[i]
    end
    y[0] = sum
  end },
  { "relu", function(x, y, count)
    for i = 0, count - 1 do
      y[i] = max(x[i], 0)
    end
  end },
  { "exp", function(x, y, count)
    for i = 0, count - 1 do
      y[i] = exp(x[i])
    end
  end },
}
