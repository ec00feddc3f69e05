--- What the gradients of a row are tried on: its sample, further samples for what the row's rule branches on, and samples made
-- from these with broadcast, 0-d and empty inputs.

local luda = require "luda"
local samples = require "spec.samples"

local M = {}

--- In the words of the sample column; '-' is an input that is absent.
M.more = {
  where = "any b2x3,.,3",
  narrow = "any 4x3 dim=-2 start=-3 length=1 step=2",
  select = "any 4x3 dim=-1 index=-2",
  transpose = "any 2x3x4 dim0=-2 dim1=0",
  permute = "any 2x3x4 dims=-1,0,1",
  expand = "any . shape=2x3; any 1x3 shape=2x-1",
  view = "any 2x6 shape=-1x3; any 1 shape=1x1",
  squeeze = "any 1x2x1x3 dim=0,-2; any 1x2x1",
  unsqueeze = "any 2x3 dim=-1; any . dim=0",
  narrow_backward = "any 2x3 dim=-1 start=2 size=8 step=2",
  cat = "any 2x3 dim=1; any 2x0,2x3 dim=-1",
  sum = "any 2x3x4 dim=-1 keepdim=1",
  mean = "any 2x3x4 dim=0,-1 keepdim=1",
  amax = "distinct 2x3x4 dim=0,-1 keepdim=1",
  amin = "distinct 2x3x4 dim=0,-1 keepdim=1",
  max = "distinct 2x3x4 dim=-1 keepdim=1; distinct 5 dim=0",
  min = "distinct 2x3x4 dim=-1 keepdim=1; distinct 5 dim=0",
  max_backward = "any 2x1x4,i2x1x4<3 dim=-2 keepdim=1 size=4",
  take_along = "any 2x3x4,i2x1x4<3 dim=-2 keepdim=1",
  matmul = "any 2x4x3,3x5; any 3x4,2x4x2; any 3,2x3x4; any 2x4x3,3",
  linear = "distinct 4x3,3x5,5 activation=1; any 3,3x2",
  cholesky = "any 3x3; any 2x3x3 upper=1",
  eigh = "any 3x3; any 2x3x3 upper=1",
  qr = "any 3x3",
  svd = "any 3x3",
  solve = "any 2x3x3,3x2",
  solve_triangular = "nonzero 3x3,3x2 transpose=1; nonzero 3x3,3x2 upper=1; any 3x3,3x1 transpose=1 unitriangular=1",
  det = "any 2x3x3",
  index_select = "any 4x3,i.<3 dim=1; any 4x3,i2x2<4 dim=0",
  index_select_backward = "any 2x2x3,i2x2<4 dim=0 size=5; any 3x2,i2<4 dim=-1 size=4",
  sort = "distinct 2x3x4 dim=0 descending=1",
  cummax = "distinct 2x5 dim=-1",
  cummin = "distinct 2x5 dim=-1",
  linear_scan = "any 4x2,4x2 dim=0 reverse=1",
  softmax_backward = "any 2x3x2,2x3x2 dim=0",
  layer_norm = "any 4x5; any 4x5,5; any 4x5,-,5; any 2x5,5,5 eps=0.5",
  rms_norm = "any 4x5,5 eps=0.5",
  cross_entropy = "positive 4x3,i4<3,3; positive 5x3,i5<3,3 reduction=1 ignore_index=2; positive 5x3,i5<3 ignore_index=3;"
    .. "positive 5x3,i5<3,3 label_smoothing=0.2 ignore_index=2; any 5x4,i5<4 reduction=2 label_smoothing=0.3;"
    .. "positive 4x3,i4<3,3 reduction=2 label_smoothing=0.3 ignore_index=1; any 4x3,i4<3 reduction=1",
  dropout = "any 2x5 p=0.25; any 2x3 p=0",
  scaled_dot_product_attention = "any 2x4x3,2x5x3,2x5x2 is_causal=1; any 1x5x2,1x3x2,1x3x2 is_causal=1 scale=0.7;"
    .. "any 2x3x2,2x4x2,2x4x2 dropout_p=0.3 scale=0.5; any 2x2x3x2,2x2x3x2,2x2x3x2",
  conv2d_input = "any 2x2x5x5,2x1x2x2 size=6,5 dilation=3,2 padding=1",
  conv2d_weight = "any 2x2x5x5,2x1x6x5 size=2,2 dilation=3,2 padding=1",
  max_pool2d_backward = "any 1x1x3x6,i1x1x3x6<20 kernel=2 stride=2,1 padding=1 dilation=2,1 ceil_mode=1 size=4,5",
  avg_pool2d = "any 1x2x3x4 kernel=2",
  avg_pool2d_backward = "any 1x1x2x3 kernel=2 size=4,6; any 2x1x3x3 kernel=3,2 stride=2 padding=1 ceil_mode=1 size=4,5",
}

--- Samples of rows that have no gradient.
M.untracked = {
  nonzero = "any 2x3x4", searchsorted = "any 2x3,2x5", layer_norm_backward = "any 4x6,4x6,4,4,6; any 2x3x5,2x3x5,2x3,2x3",
  rms_norm_backward = "any 4x6,4x6,4,6; any 3x5,3x5,3", cross_entropy_backward = "any .,4x3,i4<3,4; any .,4x3,i4<3,4,3",
  scaled_dot_product_attention_backward = "any 2x5x3,2x5x3,2x5x3,2x5x3,2x5x3,2x5 scale=0.5",
}

--- Inputs that the row's sentence says have no gradient.
M.without = { ["polygamma 1"] = true, ["relu_backward 2"] = true }

local function positive(x)
  return x:matmul(x:transpose(-2, -1)) + luda.eye(x:size(-1), { dtype = "f64" })
end

--- Rows that take some matrices only: what makes one of any.
M.prepare = { cholesky = positive, eigh = function(x) return x + x:transpose(-2, -1) end }

-- Attributes that no rule can depend on.
local FREE = { dtype = true, device = true, random = true, base = true }

--- Every value that a case gives an attribute, the default among them.
local function values_seen(row, field, cases)
  local seen, count = {}, 0
  for _, case in ipairs(cases) do
    local value = case.options[field.name]
    local text = type(value) == "table" and table.concat(value, " ") or tostring(value == nil and "default" or value)
    if field.kind == "flag" and value == nil then
      text = tostring(tonumber(row.defaults[row.family][field.name]) == 1)
    end
    count = count + (seen[text] and 0 or 1)
    seen[text] = true
  end
  return count
end

--- Names of attributes that the cases do not vary, as text; "" where there is none.
function M.missing(row, cases)
  local names = {}
  for _, field in ipairs(row.fields) do
    if not FREE[field.kind] and values_seen(row, field, cases) < 2 then
      names[#names + 1] = field.name
    end
  end
  return table.concat(names, ", ")
end

--- The words of a case: its domain, its inputs and its attributes.
local function split(text)
  local domain, inputs, rest = text:match("^(%S+)%s+(%S+)%s*(.*)$")
  local list = {}
  for input in inputs:gmatch("[^,]+") do
    local prefix, shape, limit = input:match("^([bi]?)([^<]*)(<?%d*)$")
    list[#list + 1] = { prefix = prefix, shape = shape, limit = limit }
  end
  return domain, list, rest
end

local function join(domain, list, shapes, rest)
  local words = {}
  for i, input in ipairs(list) do
    local shape = shapes[i] or input.shape
    words[i] = input.prefix .. shape .. (shape == "." and input.limit ~= "" and "<1" or input.limit)
  end
  return ("%s %s %s"):format(domain, table.concat(words, ","), rest)
end

--- For each size that a case's inputs have, the case with 0 in its place.
local function emptied(text)
  local domain, list, rest = split(text)
  local sizes, made = {}, {}
  for _, input in ipairs(list) do
    for size in input.shape:gmatch("%d+") do
      sizes[size] = true
    end
  end
  for size in pairs(sizes) do
    local shapes = {}
    local function shrink(found)
      return found == size and "0" or found
    end
    for i, input in ipairs(list) do
      shapes[i] = input.shape:gsub("%d+", shrink)
    end
    local options = rest:gsub("(s[hi][az]p?e=)(%S+)", function(name, value)
      return name .. value:gsub("%d+", shrink)
    end)
    made[#made + 1] = join(domain, list, shapes, options)
  end
  return made
end

--- The case with 0-d inputs and its dimensions at the first.
local function flat(text)
  local domain, list, rest = split(text)
  local shapes = {}
  for i in ipairs(list) do
    shapes[i] = "."
  end
  return join(domain, list, shapes, (rest:gsub("dims=%S+", "dims="):gsub("(dim%d?)=%S+", "%1=0")))
end

local function add(cases, row, text, kind)
  for _, case in ipairs(samples.cases(row, text)) do
    case.kind = kind
    cases[#cases + 1] = case
  end
end

--- The cases of a row: those given, and those made of them; `kind` of these says how, and that the row may refuse them.
function M.cases(row)
  local cases = {}
  add(cases, row, row.sample)
  if M.more[row.name] then
    add(cases, row, M.more[row.name])
  end
  local given = #cases
  local first = cases[1] and cases[1].text
  if first and row.shape == "broadcast" and row.inputs > 1 then
    local domain, list, rest = split(first)
    add(cases, row, join(domain, list, { "2x1x3", "4x1", "." }, rest))
    add(cases, row, join(domain, list, { ".", "2x3", "3" }, rest))
  end
  for i = 1, given do
    for _, text in ipairs(emptied(cases[i].text)) do
      add(cases, row, text, "empty")
    end
    add(cases, row, flat(cases[i].text), "0-d")
  end
  return cases, given
end

return M
