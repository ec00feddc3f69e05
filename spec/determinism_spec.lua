--- The same bits for any number of threads; the same values, within bounds, for any instruction set.

local luda = require "luda"

--- Names of operators, in the order of their results; inputs are drawn from one seed.
local function results()
  luda.manual_seed(42)
  local list = {}
  local function add(name, tensor)
    list[#list + 1] = { name = name, tensor = tensor:reshape(-1):totable() }
  end
  local big = luda.randn(1037, 311)
  add("sum", big:sum())
  add("sum over rows", big:sum(1))
  add("sum over columns", big:t():sum(1))
  add("mean of bf16", big:to("bf16"):mean(1):to("f32"))
  add("matmul", luda.randn(301, 127):matmul(luda.randn(127, 203)):narrow(1, 1, 20))
  add("batched matmul", luda.randn(3, 65, 33):matmul(luda.randn(33, 17)):narrow(2, 1, 5))
  add("bf16 matmul", luda.randn(301, 127):to("bf16"):matmul(luda.randn(127, 33):to("bf16")):to("f32"):narrow(1, 1, 20))
  add("softmax", luda.softmax(luda.randn(203, 77)):narrow(1, 1, 9))
  local x = luda.randn(517, 65):requires_grad_()
  local weight, bias = luda.randn(65):requires_grad_(), luda.randn(65):requires_grad_()
  local grads = (luda.layer_norm(x, weight, bias) * luda.randn(517, 65)):sum():backward()
  add("layer_norm backward, input", grads[x]:narrow(1, 1, 9))
  add("layer_norm backward, weight", grads[weight])
  add("layer_norm backward, bias", grads[bias])
  local table_of_rows = luda.randn(50, 31):requires_grad_()
  local picked = luda.index_select(table_of_rows, luda.randint(1, 51, { 2003 }), { dim = 1 })
  add("index_select backward", (picked * luda.randn(2003, 31)):sum():backward()[table_of_rows])
  local images, kernels = luda.randn(37, 8, 11, 9):requires_grad_(), luda.randn(16, 8, 3, 3):requires_grad_()
  local maps = luda.conv2d(images, kernels, { padding = 1 })
  grads = maps:backward { gradient = luda.randn(37, 16, 11, 9) }
  add("conv2d", maps:narrow(1, 30, 2))
  add("conv2d backward, images", grads[images]:narrow(1, 30, 2))
  add("conv2d backward, kernels", grads[kernels])
  return list
end

if ... == "print" then
  for _, entry in ipairs(results()) do
    local parts = {}
    for i, value in ipairs(entry.tensor) do
      parts[i] = ("%.17g"):format(value)
    end
    print(entry.name .. "\t" .. table.concat(parts, " "))
  end
  os.exit(0)
end

local function same_bits(a, b)
  for i, entry in ipairs(a) do
    for k, value in ipairs(entry.tensor) do
      if value ~= b[i].tensor[k] then
        return ("%s: element %d is %.17g, then %.17g"):format(entry.name, k, value, b[i].tensor[k])
      end
    end
  end
end

describe("results", function()
  it("have the same bits with 1, 2, 3 and 7 threads", function()
    local before = luda.threads()
    luda.set_threads(1)
    local alone = luda.scope(results)
    for _, threads in ipairs { 2, 3, 7 } do
      luda.set_threads(threads)
      for _ = 1, 3 do
        assert.is_nil(same_bits(alone, luda.scope(results)), threads .. " threads")
      end
    end
    luda.set_threads(before)
  end)

  --- What a process of its own prints under an instruction set.
  local function under(level)
    local pipe = assert(io.popen(("LUDA_SIMD=%s LUA_PATH='%s' luajit spec/determinism_spec.lua print"):format(level,
      package.path)))
    local list = {}
    for line in pipe:lines() do
      local name, numbers = line:match("^(.-)\t(.*)$")
      local values = {}
      for number in numbers:gmatch("%S+") do
        values[#values + 1] = tonumber(number)
      end
      list[#list + 1] = { name = name, tensor = values }
    end
    pipe:close()
    return list
  end

  -- Sums are arranged alike at every level; products and exponentials may be fused differently: some last places of float32,
  -- relative to the largest element; one last place of bf16 where the result was rounded to it.
  local BOUNDS = { ["bf16 matmul"] = 2 ^ -7, ["mean of bf16"] = 2 ^ -7 }

  it("agree at every instruction set", function()
    local reference = under("baseline")
    assert.equal(15, #reference)
    for _, level in ipairs { "v3", "v4" } do
      local other = under(level)
      for i, entry in ipairs(reference) do
        local largest, worst = 0, 0
        for k, value in ipairs(entry.tensor) do
          largest = math.max(largest, math.abs(value))
          worst = math.max(worst, math.abs(value - other[i].tensor[k]))
        end
        local bound = (BOUNDS[entry.name] or 2e-6) * largest
        assert.is_true(worst <= bound, ("%s under %s: %g apart, %g allowed"):format(entry.name, level, worst, bound))
      end
    end
  end)
end)
