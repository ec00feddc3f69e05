--- einsum: sums of products by subscripts. Operands are contracted pairwise from left to right, each time by one matmul.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local values = require "luda.values"
local arguments = require "luda.ops.arguments"

local functions, methods = ops.functions, tensors.methods

-- A term is a tensor with one label for each dimension, all different: a letter, or "1", "2", … for the dimensions under
-- an ellipsis, counted from the last, as those broadcast.

--- Letters and "..." of one operand, as a list.
local function subscripts_of(text, equation)
  local list, position, dots = {}, 1, 0
  while position <= #text do
    local letter = text:match("^%a", position)
    if not letter and text:sub(position, position + 2) == "..." and dots == 0 then
      letter, dots = "...", 1
    elseif not letter then
      errors.raise("invalid", "einsum: '%s' in '%s'; subscripts are letters, and ... at most once for each operand",
        text:sub(position, position), equation)
    end
    list[#list + 1], position = letter, position + #letter
  end
  return list, dots == 1
end

--- Letters as labels, "..." as numbers counted down: the dimensions that it stands for.
local function spell_out(list, hidden)
  local labels = {}
  for _, letter in ipairs(list) do
    if letter == "..." then
      for k = hidden, 1, -1 do
        labels[#labels + 1] = tostring(k)
      end
    else
      labels[#labels + 1] = letter
    end
  end
  return labels
end

--- One label a dimension of operand i.
local function labels_of(t, list, dotted, i, text)
  local under = t.ndim - #list + (dotted and 1 or 0)
  if under < 0 or (under > 0 and not dotted) then
    errors.raise("shape", "einsum: operand %d has shape %s, its subscripts '%s' name %d dimensions%s", i,
      args.shape_text(t.shape), text, dotted and #list - 1 or #list, under > 0 and "; ... stands for all others" or "")
  end
  return spell_out(list, under)
end

--- Repeated labels as the diagonal of their dimensions.
local function diagonals(t, labels, i)
  local place, first = 1, {}
  while place <= #labels do
    local label = labels[place]
    local other = first[label]
    if other then
      if methods.size(t, other) ~= methods.size(t, place) then
        errors.raise("shape", "einsum: subscript '%s' of operand %d, shape %s, names sizes %d and %d", label, i,
          args.shape_text(t.shape), methods.size(t, other), methods.size(t, place))
      end
      t = methods.diagonal(t, 0, other, place)
      table.remove(labels, place)
      table.remove(labels, other)
      labels[#labels + 1] = label
      place, first = 1, {}
    else
      first[label], place = place, place + 1
    end
  end
  return t
end

--- The size of each label; terms lose dimensions of size 1 that others have larger.
local function common_sizes(terms)
  local sizes, from = {}, {}
  for i, term in ipairs(terms) do
    for place, label in ipairs(term.labels) do
      local size, known = methods.size(term.t, place), sizes[label]
      if known and known ~= 1 and size ~= 1 and size ~= known then
        errors.raise("shape", "einsum: subscript '%s' is %d in operand %d and %d in operand %d, of shape %s",
          label:match("%d") and "..." or label, known, from[label], size, i, args.shape_text(term.t.shape))
      elseif not known or known == 1 then
        sizes[label], from[label] = size, i
      end
    end
  end
  for _, term in ipairs(terms) do
    for place = #term.labels, 1, -1 do
      if methods.size(term.t, place) ~= sizes[term.labels[place]] then
        term.t = methods.squeeze(term.t, place)
        table.remove(term.labels, place)
      end
    end
  end
  return sizes
end

--- Labels of the result: those named, or the ellipsis and then the letters that occur once, in alphabetical order.
local function result_labels(text, equation, terms)
  local counts, most = {}, 0
  for _, term in ipairs(terms) do
    for _, label in ipairs(term.named) do
      counts[label] = (counts[label] or 0) + 1
    end
    for _, label in ipairs(term.labels) do
      most = math.max(most, tonumber(label) or 0)
    end
  end
  local list = text and subscripts_of(text, equation)
  if not list then
    list = {}
    for letter, count in pairs(counts) do
      if count == 1 and letter ~= "..." then
        list[#list + 1] = letter
      end
    end
    table.sort(list)
    table.insert(list, 1, "...")
  end
  local seen = {}
  for _, letter in ipairs(list) do
    if seen[letter] then
      errors.raise("invalid", "einsum: subscript '%s' is twice in the result of '%s'", letter, equation)
    elseif letter ~= "..." and not counts[letter] then
      errors.raise("invalid", "einsum: subscript '%s' of the result is in no operand of '%s'", letter, equation)
    end
    seen[letter] = true
  end
  return spell_out(list, most)
end

--- The term without the labels that nothing else needs.
local function summed(term, needed)
  local dims, labels = {}, {}
  for place, label in ipairs(term.labels) do
    if needed[label] then
      labels[#labels + 1] = label
    else
      dims[#dims + 1] = place
    end
  end
  return #dims == 0 and term or { t = methods.sum(term.t, { dim = dims }), labels = labels }
end

--- The dimensions in groups of labels, each group as one dimension.
local function grouped(term, sizes, ...)
  local places, order, shape = arguments.places(term.labels), {}, {}
  for g, group in ipairs { ... } do
    shape[g] = 1
    for _, label in ipairs(group) do
      order[#order + 1], shape[g] = places[label], shape[g] * sizes[label]
    end
  end
  local t = #order > 1 and methods.permute(term.t, order) or term.t
  return methods.reshape(t, shape)
end

--- One term of two; `needed` are the labels of the result and of what follows.
local function contract(a, b, needed, sizes)
  local in_a, in_b = arguments.places(a.labels), arguments.places(b.labels)
  local for_a, for_b = setmetatable({}, { __index = needed }), setmetatable({}, { __index = needed })
  for label in pairs(in_a) do
    for_b[label] = true
  end
  for label in pairs(in_b) do
    for_a[label] = true
  end
  a, b = summed(a, for_a), summed(b, for_b)
  local batch, inner, rows, columns, labels, shape = {}, {}, {}, {}, {}, {}
  for _, label in ipairs(a.labels) do
    local group = not in_b[label] and rows or needed[label] and batch or inner
    group[#group + 1] = label
  end
  for _, label in ipairs(b.labels) do
    if not in_a[label] then
      columns[#columns + 1] = label
    end
  end
  local t
  if #inner == 0 then
    t = methods.unsqueeze(grouped(a, sizes, batch, rows), 3) * methods.unsqueeze(grouped(b, sizes, batch, columns), 2)
  else
    t = functions.matmul(grouped(a, sizes, batch, rows, inner), grouped(b, sizes, batch, inner, columns))
  end
  for _, group in ipairs { batch, rows, columns } do
    for _, label in ipairs(group) do
      labels[#labels + 1], shape[#shape + 1] = label, sizes[label]
    end
  end
  return { t = methods.reshape(t, shape), labels = labels }
end

--- The terms of an equation and its result's text, or nil where there is no arrow.
local function parse(equation, list)
  if type(equation) ~= "string" then
    errors.raise("invalid", "einsum: the equation is a string such as \"ij,jk->ik\", not %s", args.describe(equation))
  end
  local inputs, result = equation:gsub("%s", ""), nil
  if inputs:find("->", 1, true) then
    inputs, result = inputs:match("^(.-)%->(.*)$")
  end
  local terms = {}
  for text in (inputs .. ","):gmatch("([^,]*),") do
    local t = list[#terms + 1]
    if t then
      local named, dotted = subscripts_of(text, equation)
      local labels = labels_of(values.need_tensor("einsum", t), named, dotted, #terms + 1, text)
      t = diagonals(t, labels, #terms + 1)
      terms[#terms + 1] = { t = t, labels = labels, named = named }
    else
      terms[#terms + 1] = false
    end
  end
  if #terms ~= #list then
    errors.raise("invalid", "einsum: '%s' has subscripts for %d operands, %d were given", equation, #terms, #list)
  end
  return terms, result
end

--- einsum("ij,jk->ik", a, b), or with the operands in a list. A subscript that is repeated in an operand takes the
-- diagonal, one that is not in the result is summed over; without an arrow the result has those that occur once.
---@param equation string
---@param first luda.Tensor|luda.Tensor[]
---@param ... luda.Tensor
---@return luda.Tensor
ops.functions.einsum = function(equation, first, ...)
  local list = type(first) == "table" and first or { first, ... }
  local terms, text = parse(equation, list)
  local result = result_labels(text, equation, terms)
  local sizes = common_sizes(terms)
  local wanted, term = arguments.places(result), terms[1]
  for i = 2, #terms do
    local needed = setmetatable({}, { __index = wanted })
    for k = i + 1, #terms do
      for _, label in ipairs(terms[k].labels) do
        needed[label] = true
      end
    end
    term = contract(term, terms[i], needed, sizes)
  end
  term = summed(term, wanted)
  local places, order = arguments.places(term.labels), {}
  for i, label in ipairs(result) do
    order[i] = places[label]
  end
  return #order > 1 and methods.permute(term.t, order) or term.t
end
