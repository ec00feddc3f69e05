--- The gradients of a row, of first and second order, against central differences over cases, layouts, results and inputs.

local assert = require "luassert"
local luda = require "luda"
local gradient_cases = require "spec.gradient_cases"
local samples = require "spec.samples"

local M = {}

--- A set of the words of a text.
local function set(text)
  local words = {}
  for word in text:gmatch("%S+") do
    words[word] = true
  end
  return words
end

--- Rows that are of no 0-d tensor; empty ones they take all.
local more_than_0d = set [[
  narrow narrow_backward select cat dft cross_entropy matmul linear cholesky qr svd eigh solve solve_triangular slogdet det
  index_select layer_norm rms_norm scaled_dot_product_attention conv2d conv2d_input conv2d_weight max_pool2d
  max_pool2d_backward avg_pool2d avg_pool2d_backward
]]

function M.has_rule(row)
  return row.gradient ~= "zero" and row.gradient ~= "none"
end

--- Calls a row by its own words for options.
function M.call(row, case, list)
  if row.name == "eigh" then
    return list[1]:eigh(case.options.upper and "U" or "L")
  end
  return samples.call(row, case, list)
end

local function call(row, case, list)
  local prepare = gradient_cases.prepare[row.name]
  return M.call(row, case, prepare and { prepare(list[1]) } or list)
end

local function is_float(t)
  return t.dtype == "f64"
end

--- Leaves and constants of a case: `chosen` is the only input that requires a gradient, nil all of them.
local function inputs_of(case, layout, chosen)
  local list = samples.tensors(case, "f64")
  for i, t in ipairs(list) do
    t = layout(t)
    list[i] = is_float(t) and (not chosen or chosen == i) and t:detach():requires_grad_() or t
  end
  return list
end

local function same(t)
  return t
end

--- The first slice of the leading dimension for all of them.
local function repeated(t)
  return t.ndim > 0 and t:size(1) > 0 and t:narrow(1, 1, 1):expand(t.shape) or t
end

local function turned(t)
  local order = {}
  for d = 1, t.ndim do
    order[d] = t.ndim + 1 - d
  end
  return t.ndim > 1 and t:permute(order) or t
end

--- The result `only` (nil: all) of a case as a function of its inputs, each seen through `view`.
local function function_of(row, case, view, only)
  return function(...)
    local results = { call(row, case, { ... }) }
    for o, t in ipairs(results) do
      results[o] = t.requires_grad and view(t) or t
    end
    if only then
      return results[only]
    end
    return unpack(results, 1, row.outputs)
  end
end

local function check(fn, list, second)
  luda.autograd.gradcheck(fn, list, { second = second, eps = 1e-5, atol = 2e-6 })
end

--- Every leaf's gradient exists, where the row gives it one, and has its shape.
local function check_shapes(row, case)
  local list, roots, leaves = inputs_of(case, same), {}, {}
  for _, t in ipairs { call(row, case, list) } do
    roots[#roots + 1] = t.requires_grad and t:sum() or nil
  end
  for i, t in ipairs(list) do
    if t.requires_grad and not gradient_cases.without[row.name .. " " .. i] then
      leaves[#leaves + 1] = t
    end
  end
  assert(#roots > 0, "no result is tracked")
  for i, gradient in ipairs(luda.autograd.grad(roots, leaves)) do
    assert.same(leaves[i].shape, gradient.shape)
    assert.equal("f64", gradient.dtype)
  end
end

--- Used twice, so that the second gradient is added to what a first use gave.
local function twice(row, case)
  return function(...)
    local list = { ... }
    for i, t in ipairs(list) do
      list[i] = t.requires_grad and t * 0.9375 or t
    end
    local first, second = function_of(row, case, same)(unpack(list)), function_of(row, case, turned)(unpack(list))
    return first, second
  end
end

local function tracked_results(row, case)
  return luda.scope(function()
    local list = {}
    for o, t in ipairs { call(row, case, inputs_of(case, same)) } do
      list[#list + 1] = t.requires_grad and o or nil
    end
    return list
  end)
end

local function check_case(row, case)
  local spreads = row.name ~= "view" and row.types ~= "MATRIX" and not case.text:find("^distinct")
  check(function_of(row, case, same), inputs_of(case, same), true)
  check_shapes(row, case)
  if case.kind then
    return
  end
  check(function_of(row, case, turned), inputs_of(case, row.name == "view" and same or samples.strided), true)
  check(twice(row, case), inputs_of(case, same), false)
  check(function_of(row, case, luda.sum), inputs_of(case, spreads and repeated or same), false)
  local results = tracked_results(row, case)
  for _, o in ipairs(#results > 1 and results or {}) do
    check(function_of(row, case, same, o), inputs_of(case, same), true)
  end
  local list = samples.tensors(case, "f64")
  for i, t in ipairs(list) do
    if #list > 1 and is_float(t) then
      check(function_of(row, case, turned), inputs_of(case, same, i), true)
    end
  end
end

--- Whether the row takes the inputs of a made case.
local function admits(row, case)
  return luda.scope(function()
    local fine, problem = pcall(function() call(row, case, inputs_of(case, same)) end)
    assert(fine or getmetatable(problem) == luda.Error, problem)
    return fine
  end)
end

local function check_row(row)
  local cases, given = gradient_cases.cases(row)
  local admitted = { empty = false, ["0-d"] = false }
  assert(given > 0, "the row has a rule and no sample")
  assert.equal("", gradient_cases.missing(row, cases), "attributes that no sample varies")
  for _, case in ipairs(cases) do
    if not case.kind or admits(row, case) then
      if case.kind then
        admitted[case.kind] = true
      end
      local fine, problem = pcall(luda.scope, check_case, row, case)
      assert(fine, ("%s (%s): %s"):format(case.text, case.kind or "given", tostring(problem)))
    end
  end
  assert.is_true(admitted.empty, "no empty case is taken")
  assert.equal(not more_than_0d[row.name], admitted["0-d"], "the 0-d cases")
end

--- Numbers a little beside those of a case give the same result.
local function check_flat(row, case)
  local function at(change)
    local list = samples.tensors(case, "f64")
    for i, t in ipairs(list) do
      list[i] = is_float(t) and t + change or t
    end
    return samples.call(row, case, list)
  end
  assert.is_true(at(1e-6):equal(at(-1e-6)))
end

--- What must hold of a row, and a function that sees to it; nil for rows without inputs.
function M.test(row)
  if M.has_rule(row) then
    return "has the gradients of differences, twice", check_row
  end
  local text = gradient_cases.untracked[row.name] or row.sample
  local case = samples.cases(row, text)[1]
  if row.gradient == "none" then
    return "refuses tracked tensors", function()
      assert.raises("graph", row.name .. ": it has no gradient", samples.call, row, case,
        samples.tensors(case, "f32", true))
    end
  elseif row.inputs > 0 then
    return "gives untracked results, which are flat", function()
      for _, t in ipairs { samples.call(row, case, samples.tensors(case, "f32", true)) } do
        assert.is_false(t.requires_grad)
      end
      if row.name ~= "detach" then
        check_flat(row, case)
      end
    end
  end
end

return M
