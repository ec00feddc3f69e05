--- Tensors that the graph keeps are not to be changed in place before backward; all others may be. From the column that says
-- what a row keeps.

local luda = require "luda"
local lib = require "luda.ffi"
local ops = require "luda.ops"
local helper = require "spec.helper"
local gradient_cases = require "spec.gradient_cases"
local checks = require "spec.gradient_checks"
local samples = require "spec.samples"

local ffi, C = lib.ffi, lib.C

--- For each word of the column: whether input i is kept where `tracked` says which inputs need gradients, and result o.
local function all() return true end
local function none() return false end
local function first(i) return i == 1 end
local function second(i) return i == 2 end
local function two(i) return i < 3 end
local function other(i, tracked) return i < 3 and tracked[3 - i] end

local words = {
  NONE = { none, none }, SHAPE = { none, none }, IN = { all, none }, FIRST = { first, none }, SECOND = { second, none },
  OTHER = { other, none }, OUT = { none, all }, PLACES = { none, second }, BOTH = { all, all }, FIRST_OUT = { first, all },
  SECOND_OUT = { second, all }, HIDDEN = { all, none }, TWO_HIDDEN = { two, none }, OTHER_HIDDEN = { other, none },
}

-- Ways to change floating tensors, of values that stay in the domains of all rows.
local ways = {
  function(t) t:mul_(0.75) end,
  function(t) t:detach():mul_(0.75) end,
  function(t) t:detach():unsqueeze(1):transpose(1, -1):mul_(0.75) end,
  function(t) luda.mul(t:clone(), 0.75, { out = t }) end,
  function(t) t[{}] = t:clone() * 0.75 end,
  function(t) t:copy_(t:clone() * 0.75) end,
  function(t) t:narrow(-1, 1, 1):mul_(0.75) end,
}
local turn = 0

local function change(t)
  luda.no_grad(function()
    turn = turn + 1
    if t.dtype ~= "f64" then
      t:copy_(t:clone())
    else
      ways[1 + turn % (#ways - ((t.ndim == 0 or t.numel == 0) and 1 or 0))](t)
    end
  end)
end

local function weight(t)
  return luda.randn(t.shape, { dtype = "f64", generator = luda.generator(t.numel) })
end

--- Runs a case on tensors that are no leaves; `chosen` is the only one that is tracked, nil all of them.
local function run(row, case, chosen)
  local leaves, inputs, tracked = samples.tensors(case, "f64", true), {}, {}
  for i, t in ipairs(leaves) do
    tracked[i] = t.requires_grad and (not chosen or chosen == i)
    inputs[i] = tracked[i] and t * 1 or t:detach():clone()
  end
  local prepare = gradient_cases.prepare[row.name]
  if prepare then
    inputs[1] = prepare(inputs[1])
  end
  local results, loss = { checks.call(row, case, inputs) }, nil
  for _, t in ipairs(results) do
    loss = t.requires_grad and (t * weight(t)):sum() + (loss or 0) or loss
  end
  return { leaves = leaves, inputs = inputs, tracked = tracked, results = results, loss = loss }
end

local function gradients(made)
  local list = {}
  for i, leaf in ipairs(made.leaves) do
    list[#list + 1] = made.tracked[i] and leaf or nil
  end
  return luda.autograd.grad(made.loss, list, { allow_unused = true })
end

local function text_of(row, case, what, i, t)
  return ("%s (%s): %s %d of shape [%s]"):format(row.name, case.text, what, i, table.concat(t.shape, ", "))
end

--- What the error must say: operator, tensor, shape, type.
local function matches(problem, row, what, place, t)
  local shape = "[" .. table.concat(t.shape, ", ") .. "]"
  local text = tostring(problem)
  local number = text:match(what .. " (%d) of shape")
  return getmetatable(problem) == luda.Error and problem.op == row.name and (number == nil or tonumber(number) == place)
    and text:find(("%s: its %s"):format(row.name, what), 1, true) and text:find("of shape " .. shape, 1, true)
    and text:find("in " .. t.dtype, 1, true) and text:find("changed in place", 1, true)
end

--- The numbers of the inputs that are present, and which of these the operator sees as they are, not as a cast copy.
local function present(row, case)
  local places, seen = {}, {}
  for i, input in ipairs(case.inputs) do
    if input.kind ~= "absent" then
      places[#places + 1] = i
      seen[#places] = input.kind == "value" or row.types ~= "FLOAT"
    end
  end
  return places, seen
end

local function check(row, case, chosen, what, i, is_kept)
  luda.scope(function()
    local want = gradients(run(row, case, chosen))
    local made = run(row, case, chosen)
    local t = (what == "input" and made.inputs or made.results)[i]
    change(t)
    local fine, result = pcall(gradients, made)
    local subject = text_of(row, case, what, i, t)
    if is_kept then
      assert(not fine, subject .. " was changed unnoticed")
      assert(matches(result, row, what, what == "input" and present(row, case)[i] or i, t), subject .. ": " .. tostring(result))
    else
      assert(fine, subject .. " is not needed: " .. tostring(result))
      for k, gradient in ipairs(want) do
        assert.is_true(gradient == result[k] or gradient:equal(result[k]), subject)
      end
    end
  end)
end

local function check_case(row, case, chosen)
  local word = words[ffi.string(C.luda_op_get(row.op).keeps)]
  local made = luda.scope(function()
    local found = run(row, case, chosen)
    return { tracked = found.tracked, inputs = #found.inputs, results = #found.results, loss = found.loss ~= nil }
  end)
  local places, seen = present(row, case)
  for i = 1, made.loss and made.inputs or 0 do
    check(row, case, chosen, "input", i, seen[i] and word[1](places[i], made.tracked))
  end
  for o = 1, made.loss and made.results or 0 do
    check(row, case, chosen, "result", o, word[2](o))
  end
end

for _, row in ipairs(ops.rows) do
  local cases, given = gradient_cases.cases(row)
  if row.gradient ~= "zero" and row.gradient ~= "none" and row.types ~= "VIEW" then
    describe(row.name, function()
      before_each(helper.before)
      after_each(helper.after)

      it("keeps what its row says", function()
        for k = 1, given do
          check_case(row, cases[k])
          local places = present(row, cases[k])
          for i, place in ipairs(#places > 1 and places or {}) do
            if cases[k].inputs[place].kind == "value" then
              check_case(row, cases[k], i)
            end
          end
        end
      end)
    end)
  end
end

describe("a kept tensor", function()
  before_each(helper.before)
  after_each(helper.after)

  --- exp keeps its result: `fn` changes it, or what shares its memory.
  local function refused(fn, pattern)
    luda.scope(function()
      local y = luda.tensor({ { 0.5, -1 }, { 1, 2 } }):requires_grad_():exp()
      local loss = y:sum()
      luda.no_grad(fn, y)
      local problem = assert.raises("graph", "exp: its result of shape %[2, 2%] in f32.*changed in place", loss.backward, loss)
      assert.equal("exp", problem.op)
      assert.is_truthy(problem.message:find(pattern or "", 1, true))
    end)
  end

  it("may not be changed by any operator in place", function()
    local tried = 0
    for _, row in ipairs(ops.rows) do
      if row.facts.inplace and row.inputs < 3 and row.types ~= "INTEGER" and row.types ~= "BITS" and row.types ~= "COMPARE" then
        tried = tried + 1
        refused(function(y)
          ops.functions[row.name .. "_"](y, row.inputs == 2 and y:clone() or nil)
        end)
      end
    end
    assert.is_true(tried > 40)
  end)

  it("may not be filled, drawn, written at positions or copied over", function()
    local generator = luda.generator(3)
    local rows = luda.tensor({ 2 }, { dtype = "i64" })
    for _, fn in ipairs {
      function(y) y:zero_() end, function(y) y:fill_(3) end, function(y) y:normal_ { generator = generator } end,
      function(y) y:uniform_ { generator = generator } end, function(y) y:copy_(luda.ones(2)) end,
      function(y) y[1][2] = 7 end, function(y) y[{ {}, 2 }] = luda.ones(2) end, function(y) y:index_fill_(1, rows, 4) end,
      function(y) y:masked_fill_(y:gt(1), 0) end, function(y) y:index_add_(1, rows, luda.ones(1, 2)) end,
      function(y) y:scatter_(1, luda.ones(1, 2, { dtype = "i64" }), luda.ones(1, 2)) end, function(y) y:cumsum_(1) end,
      function(y) luda.matmul(y:clone(), y:clone(), { out = y }) end, function(y) y:tril_() end,
    } do
      refused(fn)
    end
  end)

  it("may not be changed through another view, nor through its base", function()
    refused(function(y) y:view(4):select(1, 3):fill_(0) end)
    refused(function(y) y:transpose(1, 2):narrow(1, 2, 1):add_(1) end)
    luda.scope(function()
      local base = luda.ones(3, 2) * luda.ones(1):requires_grad_()
      local part, line = base:narrow(1, 1, 2), base:select(1, 2)
      local loss = part:square():sum()
      luda.no_grad(function() line:mul_(2) end)
      assert.raises("graph", "square: its input of shape %[2, 2%] in f32", loss.backward, loss)
    end)
  end)

  it("is named with the line that made it, where lines are known", function()
    luda.memory { track = true }
    local fine, problem = pcall(refused, function(y) y:add_(1) end, "made at spec/kept_spec.lua:")
    luda.memory { track = false }
    assert(fine, problem)
  end)

  it("may not be a parameter that an optimizer moved; what needs none of its values may", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "AdaGrad", "RMSProp", "Adan" } do
      luda.scope(function()
        local w, b = luda.randn(3, 2):requires_grad_(), luda.randn(2):requires_grad_()
        local optimizer = luda.optim[name]({ w, b })
        local x = luda.randn(4, 3):requires_grad_()
        local product, sum = x:matmul(w):square():sum(), (x:narrow(2, 1, 2) + b):sum()
        local early = (x:matmul(w) + b):sum():backward()
        optimizer:step(0.1, early)
        assert.raises("graph", "matmul: its input 2 of shape %[3, 2%] in f32", product.backward, product)
        assert.same({ 4, 4 }, sum:backward()[b]:totable())
      end)
    end
  end)

  it("may not be a parameter that an average stands in for", function()
    local w = luda.ones(2):requires_grad_()
    local average = luda.optim.EMA({ w }, 0.5)
    local loss = (w * luda.ones(2):requires_grad_()):sum()
    average:with(function()
      assert.raises("graph", "mul: its input 1 of shape %[2%] in f32", loss.backward, loss)
    end)
  end)
end)
