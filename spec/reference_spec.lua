--- The reference: every operator has its entry, the examples give what stands beside them, and what it says of types and
-- gradients is what happens.

local luda = require "luda"
local helper = require "spec.helper"
local examples = require "luda.reference.examples"
local holes = require "luda.reference.holes"
local reference = require "luda.reference"
local words = require "luda.reference.words"

local entries = {}
for _, family in ipairs(reference.families()) do
  for _, entry in ipairs(family.entries) do
    entries[#entries + 1] = entry
  end
end

describe("the reference", function()
  before_each(helper.before)
  after_each(helper.after)

  it("has every public operator once", function()
    local missing, seen = reference.public(), {}
    for _, entry in ipairs(entries) do
      assert.is_nil(seen[entry.name], entry.name .. " has two entries")
      assert.is_true(missing[entry.name], entry.name .. " is no operator")
      seen[entry.name] = true
    end
    local names = {}
    for name in pairs(missing) do
      if not seen[name] and not seen[name:gsub("_$", "")] then
        names[#names + 1] = name
      end
    end
    table.sort(names)
    assert.same({}, names, "operators without an entry in lua/luda/reference")
  end)

  it("says of each what it does", function()
    for _, entry in ipairs(entries) do
      assert.truthy(entry.doc, entry.name .. " has no sentence: a comment over its definition is one")
      assert.truthy(entry.call:find("^" .. entry.name .. "%("), entry.call)
      assert.truthy(words.types[entry.types], entry.name)
      assert.truthy(entry.shape and entry.shape:find(" ") or entry.shape:find("%["), entry.name .. ": " .. tostring(entry.shape))
    end
  end)

  it("has words for every rule of the table", function()
    for _, row in ipairs(require("luda.ops").rows) do
      assert.truthy(words.types[row.types], row.types)
      assert.truthy(words.shapes[row.shape], row.shape)
    end
  end)

  for _, family in ipairs(reference.families()) do
    it("has examples that give what stands beside them: " .. family.name, function()
      for _, entry in ipairs(family.entries) do
        assert.equal(entry.gives, (examples.run(entry.example)), entry.example)
      end
    end)
  end

  local function is_float(dtype)
    return dtype:find("^b?f") ~= nil
  end

  --- By the words of a rule: the type of the first result.
  local results = {
    ["the common type"] = function(dtype) return dtype end,
    ["i64"] = function() return "i64" end,
    ["bool"] = function() return "bool" end,
    ["the same type where it is floating, else i64"] = function(dtype) return is_float(dtype) and dtype or "i64" end,
    ["the common type where it is floating, else f32"] = function(dtype) return is_float(dtype) and dtype or "f32" end,
  }
  results["the same type; of booleans i64, as the numbers are"] = function(dtype) return dtype == "bool" and "i64" or dtype end
  results["f64 of f64, else f32"] = function(dtype) return dtype == "f64" and dtype or "f32" end
  results["the same type"] = results["the common type"]
  results["the first input's type"] = results["the common type"]
  results["values of the same type, positions i64"] = results["the common type"]

  it("states the types that are taken and given, on every device", function()
    for _, entry in ipairs(entries) do
      local declared = {}
      for _, dtype in ipairs(entry.accepts) do
        declared[dtype] = true
      end
      for _, device in ipairs(examples.varies(entry) and examples.devices() or {}) do
        for _, dtype in ipairs(words.dtypes) do
          local fine, result = examples.try(entry, dtype, device)
          local what = ("%s of %s on %s: %s"):format(entry.name, dtype, device, tostring(result))
          local left_out = device ~= "cpu" and not fine and result.code == "unsupported" -- with a reason, below
          assert.equal(declared[dtype] or false, fine or left_out, what)
          assert.is_true(fine or left_out or result.code == "dtype" or dtype == "u8", what) -- which cannot hold a negative number
          if fine and luda.is_tensor(result) and results[entry.returns] then
            assert.equal(results[entry.returns](dtype), result.dtype, what)
          end
        end
      end
    end
  end)

  it("states the gradient", function()
    for _, entry in ipairs(entries) do
      if examples.varies(entry) and words.types[entry.types].accepts[1] == "f64" then
        assert.equal(entry.gradient:match("^%a+"), examples.gradient(entry), entry.name)
      end
    end
  end)

  it("is written as pages", function()
    local folder = os.tmpname()
    os.remove(folder)
    finally(function() os.execute("rm -r " .. folder) end)
    local pipe = assert(io.popen("luajit scripts/reference.lua " .. folder .. " 2>&1"))
    local said = pipe:read("*a")
    pipe:close()
    assert.truthy(said:find("^reference: %d+ pages"), said)
    local pages = {}
    for _, family in ipairs(reference.families()) do
      pages[#pages + 1] = assert(io.open(("%s/%s.md"):format(folder, family.name))):read("*a")
    end
    local all = table.concat(pages)
    for _, entry in ipairs(entries) do
      assert.truthy(all:find("\n## " .. entry.name .. "\n", 1, true), entry.name)
    end
  end)
end)

it("is what luda.help prints", function()
  local said, print_before = {}, print
  finally(function() _G.print = print_before end)
  _G.print = function(text) said[#said + 1] = text end
  luda.help("softmax")
  luda.help()
  assert.truthy(said[1]:find("^softmax%(x, dim=%-1%)\n  exp%(x%) over its sum along a dimension%.\n"), said[1])
  assert.truthy(said[1]:find("luda.tensor({ 0, 0 }):softmax()\n  {0.5, 0.5}", 1, true), said[1])
  assert.truthy(said[2]:find("Activations: relu relu6", 1, true))
  assert.raises("invalid", "no operator the string 'sofmax'", luda.help, "sofmax")
end)

it("what is missing has a reason, and every reason a hole", function()
  local found, explained, kinds = holes.find(examples.devices()), holes.explained(), {}
  for _, device in ipairs(examples.devices()) do
    kinds["on " .. device:match("^%a+")] = true
  end
  for hole in pairs(found) do
    assert.truthy(explained[hole], hole .. ": has no reason in lua/luda/reference/holes.lua")
  end
  for hole, reason in pairs(explained) do
    local kind = hole:match("^[^:]+")
    if kind == "operators" or kinds[kind] then -- a device that is not here cannot be asked
      assert.is_true(found[hole], hole .. ": is there now; the reason goes")
    end
    assert.truthy(reason:find("%.$"), hole)
  end
  assert.is_true(#holes.list <= 20)
end)
