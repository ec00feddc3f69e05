--- Where faults go into gradient rules and into the backward kernels of rows, and which specs are likely to notice each.

local M = {}

local RULES = {
  "runtime/autodiff/rules.c", "runtime/autodiff/rules_fused.c", "runtime/autodiff/rules_image.c",
  "runtime/autodiff/rules_linalg.c", "runtime/autodiff/rules_math.c", "runtime/autodiff/rules_order.c",
}
local SEGMENT = "runtime/autodiff/segment.c"
local KERNELS = {
  "kernels/cpu/rows/loss.inc", "kernels/cpu/rows/norm.inc", "kernels/cpu/rows/softmax.inc",
  "kernels/cpu/attention/attention_backward.inc", "kernels/cpu/convolution/pooling_mean.inc",
}

M.files = { SEGMENT }
for _, list in ipairs { RULES, KERNELS } do
  for _, path in ipairs(list) do
    M.files[#M.files + 1] = path
  end
end

-- Faults of other kinds than a dropped word. Dropping a factor keeps the first operand: a comma operator would have the
-- compiler complain of the unused second.
local PROLOGUE = [[

static inline luda_tensor *luda__mutant_first(luda_tensor *a, luda_tensor *b)
{
    return b ? a : a;
}
#define luda__mutant_negated(a, number) luda__rule_number(w, LUDA_OP_mul, a, -(number))
#define luda__mutant_further_shift(a, number) luda__rule_number(w, LUDA_OP_add, a, (number) + 1)
#define luda__mutant_exchanged_where(mask, a, b) luda__rule3(w, LUDA_OP_where, mask, b, a)
]]

-- { pattern, replacement }, with %f[%w_] in front of words.
local FAULTS = {
  { "%f[%w_]neg%(", "(" }, { "%f[%w_]sub%(", "add(" }, { "%f[%w_]add%(", "sub(" },
  { "%f[%w_]mul%(", "luda__mutant_first(" }, { "%f[%w_]div%(", "luda__mutant_first(" },
  { "%f[%w_]joined%(w, ", "luda__mutant_first(" }, { "%f[%w_]scale%(", "luda__mutant_negated(" },
  { "%f[%w_]shift%(", "luda__mutant_further_shift(" }, { "%f[%w_]where%(", "luda__mutant_exchanged_where(" },
  { "%f[%w_]transposed%(", "(" }, { "%f[%w_]square%(", "(" }, { "%f[%w_]sign%(", "(" },
  { "%f[%w_]i == 0", "i != 0" }, { "1 %- i%]", "i]" }, { "x%[i%]", "x[1 - i]" }, { "%f[%w_]x%[0%]", "x[1]" },
  { "%f[%w_]x%[1%]", "x[0]" }, { "!a%->", "a->" }, { "!w%->attrs", "w->attrs" },
  { "LUDA_OP_eq%f[^%w_]", "LUDA_OP_ne" }, { "LUDA_OP_ne%f[^%w_]", "LUDA_OP_eq" }, { "LUDA_OP_le%f[^%w_]", "LUDA_OP_lt" },
  { "LUDA_OP_ge%f[^%w_]", "LUDA_OP_gt" }, { "compare%(gt,", "compare(ge," }, { "compare%(lt,", "compare(le," },
  { "%f[%w_]eq%(", "gt(" }, { "%d+%.%d+", "(%0 * 1.01)" }, { "%f[%w_]a%->start", "0" }, { "%f[%w_]a%->step", "1" },
  { "%f[%w_]a%->index", "0" }, { "%f[%w_]a%->label_smoothing", "0" }, { "= LUDA_DFT_REAL", "= LUDA_DFT_HERMITIAN" },
}

local SEGMENT_FAULTS = {
  { "order > mark", "order >= mark" }, { "order > walk%->since", "order >= walk->since" },
  { "order <= walk%->since", "order < walk->since" }, { "parent_output == ", "parent_output != " },
}

local KERNEL_FAULTS = {
  { " %- ", " + " }, { " %+ ", " - " }, { " %* ", " + " }, { " / ", " * " }, { "%+= ", "-= " }, { "%-= ", "+= " },
}

--- The text with blanks for comments and preprocessor lines, of the same length.
local function code_of(text)
  local function blank(found)
    return (found:gsub("[^\n]", " "))
  end
  return (("\n" .. text:gsub("/%*.-%*/", blank)):gsub("\n#[^\n]*", blank):sub(2))
end

--- What no rule depends on: numbers take only the type of their example, and fields say what is known of a tensor.
local function matters(code, from, to)
  local before, after = code:sub(math.max(1, from - 40), from - 1), code:sub(to + 1, to + 2)
  return not before:find("number_like%($") and after ~= "->"
end

local function line_of(text, position)
  return select(2, text:sub(1, position):gsub("\n", "")) + 1
end

--- The function that a position lies in: a rule's word, or a name.
local function owner_of(code, position)
  local found
  for line in code:sub(1, position):gmatch("[^\n]+") do
    if line:find("^[%a]") and not line:find(";%s*$") then
      found = line:match("^RULE1?%(([%w_]+)%)") or line:match("FN%(([%w_]+)%)%(") or line:match("KERNEL%(([%w_]+)%)%(")
        or line:match("^[^(]-([%w_]+)%(") or found
    end
  end
  return found
end

local function find(path, text, faults, sites, wanted)
  local code = code_of(text)
  for _, fault in ipairs(faults) do
    local from, to = code:find(fault[1])
    while from do
      local new = code:sub(from, to):gsub(fault[1], fault[2])
      local shown = new:gsub("luda__mutant_", "")
      local start = code:sub(1, from):match(".*\n()") or 1
      local site = { path = path, from = from, to = to, new = new, line = line_of(code, from), owner = owner_of(code, from),
        text = code:sub(start):match("^[^\n]*"), what = ("%s becomes %s"):format(code:sub(from, to), shown) }
      if wanted(site, code) then
        sites[#sites + 1] = site
      end
      from, to = code:find(fault[1], to + 1)
    end
  end
end

--- Whether a line of a kernel computes a gradient, and does not only find its place.
local function computes(line, owner)
  if not (owner and (owner:find("backward", 1, true) or owner == "slope_query")) then
    return false
  end
  for _, place in ipairs { "for (", "stride", "int64_t", "partial", "first", "buffer", "size_t" } do
    if line:find(place, 1, true) then
      return false
    end
  end
  for _, word in ipairs { "hit", "level", "along", "across", "share", "factor" } do
    if line:find("%f[%w]" .. word) then
      return true
    end
  end
  return line:find("%[[jc]%]") ~= nil
end

function M.sites(path, text, sites)
  if path == SEGMENT then
    find(path, text, SEGMENT_FAULTS, sites, function() return true end)
  elseif path:find("%.inc$") then
    find(path, text, KERNEL_FAULTS, sites, function(site) return computes(site.text, site.owner) end)
  else
    find(path, text, FAULTS, sites, function(site, code) return matters(code, site.from, site.to) end)
  end
end

function M.prepare(text)
  return (text:gsub('(#include "rule.h"\n)', "%1" .. PROLOGUE, 1))
end

M.build = "ninja -C %s libluda.so libluda_host.so"

--- Names of the rows with a rule of that name, or with a composition of it, from the table.
local function rows_of(rule)
  local names = {}
  local file = assert(io.open("kernels/ops.def"))
  for line in file:lines() do
    local name = line:match("^LUDA_%w+%s*%(([%w_]+),")
    local gradient = line:match(', ([%w_]+), [%u_]+, "[^"]*", "[^"]*"%)%s*$')
    if name and (gradient == rule or line:find("unfused=" .. rule .. ";", 1, true)) then
      names[#names + 1] = name
    end
  end
  file:close()
  return names
end

local LIKELY = { "elementwise_gradients_spec", "row_gradients_spec" }
local ALL = {
  "second_order_spec", "ties_spec", "gradient_edges_spec", "autograd_spec", "linalg_gradients_spec", "checkpoint_spec",
  "attention_spec", "attention_edges_spec", "elementwise_gradients_spec", "row_gradients_spec", "kept_spec", "pointwise_spec",
  "linalg_spec", "conv_spec", "autocast_spec", "layouts_spec",
}

--- The name of the first spec that fails; `run_spec(name, filters)` says whether it passes.
function M.killer(run_spec, site)
  local filters = {}
  for _, name in ipairs(site and site.owner and rows_of(site.owner) or {}) do
    filters[#filters + 1] = ("--filter='^%s '"):format(name)
  end
  if #filters > 0 then
    for _, name in ipairs(LIKELY) do
      if not run_spec(name, table.concat(filters, " ")) then
        return name
      end
    end
  end
  for _, name in ipairs(ALL) do
    if not run_spec(name, "") then
      return name
    end
  end
end

return M
