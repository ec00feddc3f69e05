--- The container of gradients: clipping in place, what it refuses to write into, moving and choosing; sums of halves.

local luda = require "luda"
local lib = require "luda.ffi"
local helper = require "spec.helper"

local autograd, optim = luda.autograd, luda.optim
local ffi, C = lib.ffi, lib.C
local inf, nan = math.huge, 0 / 0

local function leaf(shape, dtype)
  return luda.zeros(shape, { dtype = dtype or "f32" }):requires_grad_()
end

--- A container of gradients for leaves of their shapes, and the leaves.
local function container(list, dtype)
  local grads, leaves = autograd.Gradients(), {}
  for i, values in ipairs(list) do
    local gradient = luda.is_tensor(values) and values or luda.tensor(values, { dtype = dtype or "f32" })
    leaves[i] = leaf(gradient.shape, gradient.dtype)
    grads:register(leaves[i], gradient)
  end
  return grads, leaves
end

--- How often memory for tensors was asked for, since the beginning.
local function allocations()
  local info = ffi.new("luda_memory_info[1]")
  lib.check(C.luda_memory(ffi.new("luda_device", C.LUDA_CPU, 0), info))
  return tonumber(info[0].allocations), tonumber(info[0].tensors)
end

describe("clipping", function()
  before_each(helper.before)
  after_each(helper.after)

  it("is in place, and takes no memory, however many gradients there are and however large", function()
    for _, count in ipairs { 1, 7, 300 } do
      for _, size in ipairs { 1, 1000, count == 300 and 4099 or 100003 } do
        luda.scope(function()
          local parameters, loss = {}, 0
          for i = 1, count do
            parameters[i] = luda.full({ size }, i % 2 == 0 and 2 or -3):requires_grad_()
            loss = loss + (parameters[i] * parameters[i]):sum()
          end
          local grads = loss:backward() -- 4 and -6
          local place, version = grads[parameters[1]]:data(), nil
          for _, clip in ipairs { "clip_value_", "clip_norm_", "each", "norm" } do
            local before, tensors = allocations()
            if clip == "each" then
              grads:clip_norm_(0.25, { each = true })
            elseif clip == "norm" then
              version = grads:norm()
            else
              grads[clip](grads, clip == "clip_value_" and 5 or 1)
            end
            local after, left = allocations()
            assert.same({ before, tensors }, { after, left }, ("%s of %d gradients of %d"):format(clip, count, size))
          end
          assert.equal(place, grads[parameters[1]]:data())
          -- values 4 and -5, scaled to the common norm 1, then each to at most 0.25
          local evens = math.floor(count / 2)
          local common = math.sqrt(size * (16 * evens + 25 * (count - evens)))
          local odd, even = 5 * math.sqrt(size) / common, 4 * math.sqrt(size) / common
          local norm = math.sqrt((count - evens) * math.min(odd, 0.25) ^ 2 + evens * math.min(even, 0.25) ^ 2)
          assert.near(norm, version, 1e-5 * norm)
          assert.near(-math.min(odd, 0.25) / math.sqrt(size), grads[parameters[1]][1]:item(), 1e-6)
        end)
      end
    end
  end)

  it("counts as a change of the gradient", function()
    local grads, leaves = container { { 3, 4 } }
    local w = luda.ones(2):requires_grad_()
    local kept = w * grads[leaves[1]]
    grads:clip_norm_(1)
    assert.raises("graph", "changed in place", function() kept:sum():backward() end)
  end)

  it("leaves alone what others see: the graph, other entries, parts of one storage", function()
    local x = luda.tensor({ 3, -4 }):requires_grad_()
    local grads = (x * x * x):sum():backward { create_graph = true }
    local recorded = grads[x] -- 3 x x
    grads:clip_norm_(1)
    assert.same({ 27, 48 }, recorded:detach():totable())
    assert.same({ 18, -24 }, recorded:sum():backward()[x]:totable())
    assert.tensor_near({ 27 / math.sqrt(27 ^ 2 + 48 ^ 2), 48 / math.sqrt(27 ^ 2 + 48 ^ 2) }, grads[x])
  end)

  it("leaves alone other entries, and what shares a storage", function()
    local shared = luda.tensor { 3, 4 }
    local twice, leaves = container { shared, shared, shared }
    assert.near(math.sqrt(75), twice:clip_norm_(1), 1e-6)
    for i = 1, 3 do
      assert.tensor_near({ 3 / math.sqrt(75), 4 / math.sqrt(75) }, twice[leaves[i]])
    end

    local whole = luda.tensor { { 6, 8 }, { -6, 0.5 } }
    local parts, owners = container { whole:narrow(1, 1, 1), whole:t(), whole }
    parts:clip_value_(1)
    assert.same({ { 1, 1 } }, parts[owners[1]]:totable())
    assert.same({ { 1, -1 }, { 1, 0.5 } }, parts[owners[2]]:totable())
    assert.same({ { 1, 1 }, { -1, 0.5 } }, parts[owners[3]]:totable())
    assert.same({ { 6, 8 }, { -6, 0.5 } }, whole:totable())
  end)

  it("of each by itself leaves small, infinite and undefined ones as they are", function()
    local grads, p = container { { 3, 4 }, { 0.25, -0.5 }, { inf, 1 }, { nan, 1 }, { 0, 0 }, {} }
    local norm = grads:clip_norm_(1, { each = true })
    assert.is_true(norm ~= norm)
    assert.tensor_near({ 0.6, 0.8 }, grads[p[1]], 1e-6, 0)
    assert.tensor_near({ 0.25, -0.5 }, grads[p[2]], 0, 0)
    assert.tensor_near({ inf, 1 }, grads[p[3]], 0, 0)
    assert.tensor_near({ nan, 1 }, grads[p[4]], 0, 0)
    assert.tensor_near({ 0, 0 }, grads[p[5]], 0, 0)
    assert.raises("invalid", "must be positive", grads.clip_norm_, grads, 0, { each = true })
    assert.raises("invalid", "unknown option 'all'", grads.clip_norm_, grads, 1, { all = true })
  end)

  it("measures norms far beyond what the type holds", function()
    local half = luda.full({ 10000 }, -60000, { dtype = "f16" })
    local grads, p = container { half:clone(), { 3e30, 4e30 }, luda.tensor({ 1e200, 2e200 }, { dtype = "f64" }) }
    assert.near(math.sqrt(5) * 1e200, grads:norm(), 1e188)
    assert.near(6e6, container { half }:norm(), 1)
    grads:take(p[3])
    assert.near(5e30, grads:clip_norm_(1e30), 1e24)
    assert.tensor_near({ 6e29, 8e29 }, grads[p[2]], 1e-6, 0)
    assert.near(-12000, grads[p[1]][77]:item(), 8)
    local wide = container { half, luda.tensor({ 1e200, 2e200 }, { dtype = "f64" }) }
    wide:clip_norm_(600, { each = true }) -- whatever else there is
    assert.near(math.sqrt(2) * 600, wide:norm(), 0.5)
    wide = container { luda.full({ 10000 }, -60000, { dtype = "f16" }) }
    assert.near(6e6, wide:clip_norm_(600, { each = true }), 1)
    assert.near(600, wide:norm(), 0.5)
  end)
end)

describe("a container", function()
  before_each(helper.before)
  after_each(helper.after)

  it("gives what it holds by tensor or id, in ascending order, once", function()
    local grads, p = container { { 1 }, { 2, 3 }, { { 4 } } }
    assert.equal(3, grads:len())
    local seen = {}
    for id, gradient in grads:pairs() do
      seen[#seen + 1] = { id, gradient.numel }
    end
    assert.same({ { p[1].id, 1 }, { p[2].id, 2 }, { p[3].id, 1 } }, seen)
    assert.same({ 2, 3 }, grads:get(p[2].id):totable())
    assert.same({ 2, 3 }, grads:take(p[2].id):totable())
    assert.is_nil(grads:take(p[2]))
    assert.is_nil(grads:get(p[2]))
    assert.equal(2, grads:len())
    assert.equal(grads, grads:register(p[2].id, luda.tensor { 9 }):register(p[1], luda.tensor { 8 }))
    assert.same({ 9 }, grads[p[2]]:totable())
    assert.same({ 8 }, grads[p[1]]:totable())
    assert.equal(3, grads:len())
    assert.raises("invalid", "the id", grads.get, grads, "name")
  end)

  it("chooses those of a module, each once where parameters are tied", function()
    local tied = leaf { 2 }
    local module = { parameters = function() return { tied, tied } end }
    local grads, p = container { { 1 }, { 2 } }
    grads:register(tied, luda.tensor { 5, 6 })
    local chosen = grads:of(module)
    assert.equal(1, chosen:len())
    assert.same({ 5, 6 }, chosen[tied]:totable())
    assert.is_nil(chosen[p[1]])
    assert.equal(3, grads:len())
  end)

  it("moves to a device, and says what it cannot", function()
    local grads, p = container { { 1, -2 } }
    local moved = grads:to("cpu")
    assert.same({ 1, -2 }, moved[p[1]]:totable())
    assert.equal("cpu", moved[p[1]].device)
    assert.raises("device", "", grads.to, grads, "cuda:77")
  end)
end)

describe("an accumulator", function()
  before_each(helper.before)
  after_each(helper.after)

  -- f16 has no 2049, bf16 no 257: sums in these types stall there.
  for dtype, stall in pairs { f16 = 2048, bf16 = 256 } do
    it(("adds 3000 small %s gradients in f32"):format(dtype), function()
      local p = leaf({ 2 }, dtype)
      local wide, narrow = optim.Accumulator { p }, optim.Accumulator { p }
      local grads = autograd.Gradients():register(p, luda.tensor({ 1, -0.5 }, { dtype = dtype }))
      for _ = 1, 3000 do
        wide:accumulate(grads, { dtype = "f32" })
        narrow:accumulate(grads)
      end
      assert.same({ 3000, -1500 }, wide:grads()[p]:totable())
      assert.same({ stall, -stall / 2 }, narrow:grads()[p]:totable())
    end)
  end

  it("weighs, and divides by the sum of the weights", function()
    local p = leaf({ 1 }, "f16")
    local sum = optim.Accumulator { p }
    for _ = 1, 1000 do
      sum:accumulate(autograd.Gradients():register(p, luda.tensor({ 2 }, { dtype = "f16" })), { dtype = "f32", weight = 3 })
      sum:accumulate(autograd.Gradients():register(p, luda.tensor({ -1 }, { dtype = "f16" })), { dtype = "f32", weight = 0.5 })
    end
    local mean = sum:grads { mean = true } -- (3 2 - 0.5) / 3.5
    assert.equal("f32", mean[p].dtype)
    assert.near(5.5 / 3.5, mean[p]:item(), 1e-6)
  end)
end)
