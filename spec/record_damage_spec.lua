--- Records whose checksums are right and whose content lies: every one is refused with a luda.Error and leaves the live
-- objects as they were, or is a record that restores.

local luda = require "luda"
local helper = require "spec.helper"
local json = require "luda.json"

local nn, optim, record = luda.nn, luda.optim, luda.record

local dir

local read = helper.read

--- Everything that a record can hold, in the middle of a window.
local function new_run()
  luda.manual_seed(3)
  local run = { model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 2)) }
  run.optimizer = optim.AdamW(run.model, { amsgrad = true, groups = { { match = "bias$", weight_decay = 0 } } })
  run.scheduler = optim.lr.Warmup { steps = 2, after = optim.lr.Step { lr = 0.05, size = 2, gamma = 0.5 } }
  run.accumulator = optim.Accumulator(run.model)
  run.loader = luda.data.batches(luda.arange(40, { dtype = "i64" }) + 1, { batch = 4, length = 3, seed = 5 })
  run.ema = optim.EMA(run.model, 0.9)
  run.generators = { noise = luda.generator(7) }
  return run
end

local function train(run, count)
  for i = 1, count do
    luda.scope(function()
      local x = run.loader:next()
      run.accumulator:accumulate((run.model(x:to("f32") * 0.02) ^ 2):mean():backward())
      if i % 2 == 0 then
        run.optimizer:step(run.scheduler:step(), run.accumulator:grads { mean = true })
        run.ema:update()
      end
    end)
  end
end

-- A small generator of its own: the same mutations everywhere.
local seed = 1
local function random(n)
  seed = (seed * 16807) % 2147483647
  return seed % n + 1
end

local VALUES = {
  0, 1, -1, 0.5, 3, 2 ^ 31, -2 ^ 53, 1e300, "", "x", "$tensor", "nan", true, false, json.null, {}, { 1, 2 }, { a = 1 },
  { ["$tensor"] = "model.1.weight" }, { ["$tensor"] = "nothing" }, { ["$tensor"] = 3 }, { ["$tensor"] = {} },
}

local function keys_sorted(t)
  local keys = {}
  for key in pairs(t) do
    keys[#keys + 1] = key
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

--- All places in a value, in one order: pairs of table and key.
local function places_of(value, list)
  for _, key in ipairs(keys_sorted(value)) do
    list[#list + 1] = { value, key }
    if type(value[key]) == "table" and value[key] ~= json.null then
      places_of(value[key], list)
    end
  end
  return list
end

--- Changes one place of a metadata text; what it did.
local function mutate_text(text)
  local kind = random(8)
  if kind == 1 then -- bytes
    local place = random(#text)
    return text:sub(1, place - 1) .. ("{}[]\",:0e-x"):sub(random(11), -1):sub(1, 1) .. text:sub(place + random(2)), "a byte"
  elseif kind == 2 then -- depth
    local depth = ({ 10, 500, 2000, 5000 })[random(4)]
    local place = text:find(":", random(#text), true) or text:find(":", 1, true)
    return text:sub(1, place) .. ("["):rep(depth) .. ("]"):rep(depth) .. "," .. '"z":' .. text:sub(place + 1), "depth"
  end
  local data = json.decode(text)
  local places = places_of(data, {})
  if #places == 0 then
    return text, "nothing"
  end
  local where, key = unpack(places[random(#places)])
  local what = tostring(key)
  if kind == 3 then
    where[key] = nil
  elseif kind == 4 then -- moves to another name
    where[type(key) == "string" and key .. "x" or "k"], where[key] = where[key], nil
  elseif kind == 5 and type(where[key]) == "number" then
    where[key] = where[key] * ({ -1, 0, 1.5, 1e30, 2 })[random(5)] + random(2) - 1
  else
    where[key] = VALUES[random(#VALUES)]
  end
  local fine, result = pcall(json.encode, data)
  return fine and result or text, what
end

--- Changes one tensor: another type or shape, other values, or it is gone.
local function mutate_tensors(tensors)
  local names = keys_sorted(tensors)
  local name = names[random(#names)]
  local kind = random(5)
  if kind == 1 then
    tensors[name] = nil
  elseif kind == 2 then
    tensors[name] = luda.zeros(unpack(({ { 1 }, { 0 }, { 3, 4 }, {}, { 2, 2, 2 } })[random(5)]))
  elseif kind == 3 then
    tensors[name] = tensors[name]:to(({ "f64", "i64", "bool", "bf16", "u8" })[random(5)])
  elseif kind == 4 then
    tensors[name .. "~2"], tensors[name] = tensors[name], nil
  else
    tensors[name] = luda.full(tensors[name].shape, -1, { dtype = tensors[name].dtype })
  end
  return name
end

describe("a record that lies", function()
  before_each(function()
    dir = helper.new_folder("/dev/shm") -- thousands of files that need no disk
    helper.before()
  end)
  after_each(helper.after)

  it("is refused with an error of its own and changes nothing, 2,000 times", function()
    local run = new_run()
    train(run, 5)
    run.state = { list = { 1 }, best = 0.5, x = luda.tensor({ 1, 2 }) }
    local good = record.save(dir .. "/good", run)
    run.state = nil
    train(run, 2)
    local live = record.save(dir .. "/live", run)
    local before = read(live)
    local refused, restored, codes = 0, 0, {}
    for round = 1, 2000 do
      luda.scope(function()
        local tensors, metadata = luda.load(good)
        local keys = keys_sorted(metadata)
        local what
        if random(6) == 1 then
          what = mutate_tensors(tensors)
        else
          local key = keys[random(#keys)]
          metadata[key], what = mutate_text(metadata[key])
          what = key .. " " .. what
        end
        luda.save(dir .. "/bad.safetensors", tensors, metadata)
        local fine, err = pcall(function()
          record.load(dir .. "/bad"):restore(run)
        end)
        if fine then
          restored = restored + 1
          record.load(live):restore(run)
        else
          refused = refused + 1
          assert.is_true(getmetatable(err) == luda.Error, ("round %d, %s: %s"):format(round, what, tostring(err)))
          codes[err.code] = true
        end
        record.save(dir .. "/now", run)
        assert.is_true(read(dir .. "/now.safetensors") == before, ("round %d, %s: %s"):format(round, what, tostring(err)))
      end)
    end
    assert.is_true(refused > 1000 and restored > 100, refused .. " " .. restored)
    assert.same({ corrupt = true, invalid = true, mismatch = true }, codes)
    train(run, 3)
  end)

  it("does not trip the command, a manager or luda.load", function()
    local run = new_run()
    train(run, 2)
    local good = record.save(dir .. "/good", run)
    local manager = record.Manager { dir = dir, best = "min" }
    local main, write, say = require("luda.cli.record").main, io.stderr, print
    local statuses = {}
    for round = 1, 300 do
      local tensors, metadata = luda.load(good)
      local keys = keys_sorted(metadata)
      local key = keys[random(#keys)]
      local what
      metadata[key], what = mutate_text(metadata[key])
      luda.save(dir .. "/step-1.safetensors", tensors, metadata)
      io.stderr, _G.print = { write = function() end }, function() end -- luacheck: ignore
      local fine, problem = pcall(function()
        for _, words in ipairs { { "ls" }, { "verify" }, { "diff", good }, { "convert", dir .. "/out" } } do
          table.insert(words, 2, dir .. "/step-1.safetensors")
          local status = main(words)
          statuses[words[1] .. status] = true
        end
        manager:best()
        manager:newest()
      end)
      io.stderr, _G.print = write, say -- luacheck: ignore
      assert.is_true(fine, ("round %d, %s %s: %s"):format(round, key, what, tostring(problem)))
    end
    assert.same({
      ls0 = true, ls1 = true, verify0 = true, diff0 = true, diff1 = true, convert0 = true, convert1 = true,
    }, statuses)
    for _, text in ipairs { "3", "[3]", "{", "[\"x\", {}]", "null", "[[]]", "[\"absent\"]" } do
      local tensors = { x = luda.ones(1) }
      require("luda.files").write(dir .. "/typed", { { name = "x", tensor = tensors.x } }, { ["luda.json"] = text, x = "[" })
      local fine, err = pcall(luda.load, dir .. "/typed")
      assert.is_false(fine)
      assert.equal(luda.Error, getmetatable(err))
    end
  end)
end)
