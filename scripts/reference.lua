--- Writes the reference: a page for each family of operators, the support matrix, and the list of what is missing and why.
-- Usage, after the build: luajit scripts/reference.lua [FOLDER], which is build/reference where not given; or
-- luajit scripts/reference.lua --holes, which prints the list. LUDA_CUDA_PLUGIN names a plug-in for the column of CUDA.

package.path = "lua/?.lua;lua/?/init.lua;" .. package.path

local luda = require "luda"
local folders = require "luda.folder"
local examples = require "luda.reference.examples"
local holes = require "luda.reference.holes"
local reference = require "luda.reference"
local words = require "luda.reference.words"

local function write(path, lines)
  local file = assert(io.open(path, "wb"))
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
end

local function escaped(text)
  return (text:gsub("|", "\\|"))
end

-- Support is measured once: operator → device → dtype → "kernel", "converted" or nil.

local function measure(families)
  local found = {}
  for _, family in ipairs(families) do
    for _, entry in ipairs(family.entries) do
      found[entry.name] = {}
      for _, device in ipairs(examples.devices()) do
        local by_type = {}
        luda.scope(function()
          for _, dtype in ipairs(words.dtypes) do
            by_type[dtype] = examples.support(entry, dtype, device)
          end
        end)
        found[entry.name][device] = by_type
      end
    end
  end
  return found
end

--- "cpu, cuda (f32 f64)" from what was measured.
local function device_text(support)
  local parts = {}
  for _, device in ipairs(examples.devices()) do
    local names, missing = {}, false
    for _, dtype in ipairs(words.dtypes) do
      if support[device][dtype] then
        names[#names + 1] = dtype
      elseif support.cpu[dtype] then
        missing = true
      end
    end
    if #names > 0 then
      parts[#parts + 1] = device:match("^%a+") .. (missing and " (" .. table.concat(names, " ") .. ")" or "")
    end
  end
  return table.concat(parts, ", ")
end

local function entry_lines(entry, support)
  local lines = {
    ("## %s"):format(entry.name), "",
    ("`%s`"):format(entry.call), "",
    entry.doc, "",
    ("- devices: %s"):format(device_text(support)),
  }
  for _, fact in ipairs(reference.facts(entry)) do
    lines[#lines + 1] = ("- %s: %s"):format(fact[1], fact[2])
  end
  lines[#lines + 1] = ("\n```lua\n%s\n--> %s\n```\n"):format(entry.example, entry.gives)
  return table.concat(lines, "\n")
end

local function family_page(family, found)
  local lines = { "# " .. family.title, "", family.text, "" }
  for _, entry in ipairs(family.entries) do
    lines[#lines + 1] = entry_lines(entry, found[entry.name])
  end
  return lines
end

-- The matrix.

local marks = { kernel = "■", converted = "□" }

local function matrix_page(families, found)
  local lines = {
    "# What is supported", "",
    "■ a kernel (or, of a composition, all it is made of) takes this type; □ the numbers are converted first; empty: refused.",
    "Asked and measured by running every example of the reference with every type on the devices that the machine has.", "",
  }
  if #examples.devices() == 1 then
    lines[#lines + 1] = "There is no CUDA device here, so its tables are not known.\n"
  end
  for _, device in ipairs(examples.devices()) do
    lines[#lines + 1] = ("## %s\n"):format(device:match("^%a+"))
    lines[#lines + 1] = "| operator | " .. table.concat(words.dtypes, " | ") .. " | gradient |"
    lines[#lines + 1] = "|---" .. ("|:-:"):rep(#words.dtypes) .. "|---|"
    for _, family in ipairs(families) do
      for _, entry in ipairs(family.entries) do
        local cells = {}
        for i, dtype in ipairs(words.dtypes) do
          cells[i] = marks[found[entry.name][device][dtype]] or ""
        end
        lines[#lines + 1] = ("| %s | %s | %s |"):format(escaped(entry.name), table.concat(cells, " | "),
          entry.gradient:match("^%a+"))
      end
    end
    lines[#lines + 1] = ""
  end
  return lines
end

local function hole_lines()
  local lines = {}
  for i, hole in ipairs(holes.list) do
    lines[i] = ("%s: %s. %s"):format(hole.what, table.concat(hole.names, " "), hole.reason)
  end
  return lines
end

local function main(first)
  if first == "--holes" then
    print(table.concat(hole_lines(), "\n"))
    return
  end
  local folder = first or "build/reference"
  folders.make(folder)
  local families = reference.families()
  local found = measure(families)
  local index = {
    "# LUDA's operators", "",
    "A function of the module and a method of tensors share a name: `luda.exp(x)`, `x:exp()`. Options come by position or by",
    "name in a last table, `x:sum(2, true)` or `x:sum { dim = 2, keepdim = true }`. A name that ends in `_` writes into its",
    "first tensor; rows of the table take `out =` as well. `luda.help(\"sum\")` prints an entry.", "",
  }
  for _, family in ipairs(families) do
    write(("%s/%s.md"):format(folder, family.name), family_page(family, found))
    index[#index + 1] = ("- [%s](%s.md), %d: %s"):format(family.title, family.name, #family.entries, family.text)
  end
  write(folder .. "/support.md", matrix_page(families, found))
  index[#index + 1] = "- [What is supported](support.md): operators by type and device"
  index[#index + 1] = "\n## What is missing, and why\n"
  for _, line in ipairs(hole_lines()) do
    index[#index + 1] = "- " .. line
  end
  write(folder .. "/index.md", index)
  print(("reference: %d pages in %s"):format(#families + 2, folder))
end

main(...)
