--- Loaded before every spec file, in the base environment, so that the module exists once: assertions and the leak check.

local assert = require "luassert"
local say = require "say"
local luda = require "luda"
local lib = require "luda.ffi"
local folder = require "luda.folder"
local json = require "luda.json"
local memory = require "luda.memory"
local tags = require "luda.autograd.tags"

local helper = {}

local function flatten(value, list)
  if type(value) ~= "table" then
    list[#list + 1] = type(value) == "boolean" and (value and 1 or 0) or tonumber(value)
    return list
  end
  for _, entry in ipairs(value) do
    flatten(entry, list)
  end
  return list
end

local function shape_text(value)
  if luda.is_tensor(value) then
    return "[" .. table.concat(value.shape, ", ") .. "]"
  end
  local shape = {}
  while type(value) == "table" do
    shape[#shape + 1] = #value
    value = value[1]
  end
  return "[" .. table.concat(shape, ", ") .. "]"
end

local function numbers(value)
  return flatten(luda.is_tensor(value) and value:totable() or value, {})
end

--- assert.tensor_near(expected, actual, rtol, atol): tensors or nested lists, of one shape; NaN equals NaN.
local function tensor_near(state, arguments)
  local expected, actual, rtol, atol = arguments[1], arguments[2], arguments[3] or 1e-5, arguments[4] or 1e-6
  local want_shape, have_shape = shape_text(expected), shape_text(actual)
  if want_shape ~= have_shape then
    state.failure_message = ("expected shape %s, got %s"):format(want_shape, have_shape)
    return false
  end
  local want, have = numbers(expected), numbers(actual)
  local worst, place = 0, nil
  for i = 1, #want do
    local difference = math.abs(want[i] - have[i])
    local same = want[i] == have[i] or (want[i] ~= want[i] and have[i] ~= have[i])
    local excess = difference - (atol + rtol * math.abs(want[i]))
    local bad = not same and (excess > 0 or excess ~= excess)
    if bad and not (place and worst >= excess) then
      worst, place = excess, i
    end
  end
  if place then
    state.failure_message = ("element %d (row-major, of %d, shape %s): expected %.17g, got %.17g"):format(
      place, #want, want_shape, want[place], have[place])
  end
  return place == nil
end

say:set("assertion.tensor_near", "tensors differ")
assert:register("assertion", "tensor_near", tensor_near, "assertion.tensor_near", "assertion.tensor_near")

--- assert.raises(code, pattern, fn, …): a luda.Error of that code whose text matches; returns it.
local function raises(state, arguments)
  local code, pattern, fn = arguments[1], arguments[2], arguments[3]
  local ok, err = pcall(fn, unpack(arguments, 4, arguments.n))
  if ok then
    state.failure_message = ("expected an error '%s', none was raised"):format(code)
    return false
  end
  local text = tostring(err)
  if getmetatable(err) ~= luda.Error or err.code ~= code or not text:find(pattern) then
    state.failure_message = ("expected an error '%s' like '%s', got '%s': %s"):format(code, pattern,
      type(err) == "table" and tostring(err.code) or type(err), text)
    return false
  end
  return true, { err }
end

say:set("assertion.raises", "wrong error")
assert:register("assertion", "raises", raises, "assertion.raises", "assertion.raises")

function helper.read(path)
  local file = assert(io.open(path, "rb"))
  local bytes = file:read("*a")
  file:close()
  return bytes
end

function helper.write(path, bytes)
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
end

--- Gradients for parameters, {p, values, p2, values2, …}; values may be a tensor. In the parameter's type, or in `dtype`.
function helper.gradients(list, dtype)
  local grads = luda.autograd.Gradients()
  for i = 1, #list, 2 do
    local g = list[i + 1]
    grads:register(list[i], luda.is_tensor(g) and g or luda.tensor(g, { dtype = dtype or list[i].dtype }))
  end
  return grads
end

local folders = {}

--- A folder of the test that runs, below `parent` where that exists: helper.after removes it.
function helper.new_folder(parent)
  local dir = os.tmpname()
  os.remove(dir)
  local place = parent and io.open(parent)
  if place then
    place:close()
    dir = dir:gsub("^.*/", parent .. "/")
  end
  folder.make(dir)
  folders[#folders + 1] = dir
  return dir
end

--- What a script of LUDA prints in a process of its own, whose C stack has so many KiB.
function helper.on_small_stack(kib, text)
  local path = helper.new_folder() .. "/script.lua"
  helper.write(path, 'package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path\nlocal luda = require "luda"\n' .. text)
  local pipe = assert(io.popen(("ulimit -s %d; luajit %s 2>&1"):format(kib, path)))
  local output = pipe:read("*a")
  pipe:close()
  return output
end

--- Fixtures that PyTorch computed: spec/golden/NAME.json.
function helper.golden(name)
  return json.decode(helper.read(("spec/golden/%s.json"):format(name)))
end

--- The eighths between -1.375 and 1.375 that the scripts of the fixtures fill inputs with; every floating type holds them.
function helper.eighths(shape, seed, dtype)
  local count, list = 1, {}
  for _, size in ipairs(shape) do
    count = count * size
  end
  for k = 0, count - 1 do
    list[k + 1] = ((k * 7 + seed * 5) % 23 - 11) / 8
  end
  return luda.tensor(list, { dtype = dtype }):reshape(shape)
end

--- Handles that live, after everything unreachable was given back. Compiled traces keep constants alive, hence the flush.
function helper.live()
  jit.flush()
  local has_tags = next(lib.tags.handlers) ~= nil
  memory.collect_all()
  if has_tags then
    tags.drain() -- what dead nodes held in Lua goes with them
    memory.collect_all()
  end
  return lib.signals.handles
end

--- Native bytes that live.
function helper.live_bytes()
  helper.live()
  return luda.memory("cpu").live
end

--- Runs fn(…) and fails when live tensors, or the bytes of their storages, have grown; names the lines that made what stays.
-- What fn returns does not count: it is dropped. Give `fn` a first run before where that fills a cache for good.
function helper.no_leak(fn, ...)
  local bytes = helper.live_bytes()
  local tensors, made = luda.memory("cpu").tensors, {}
  for _, entry in ipairs(luda.memory { sites = true }) do
    made[entry.site] = entry.tensors
  end
  luda.memory { track = true }
  local fine, problem = pcall(function(...)
    fn(...)
  end, ...)
  luda.memory { track = false }
  if not fine then
    error(problem, 0)
  end
  local more_bytes = helper.live_bytes() - bytes
  local more = luda.memory("cpu").tensors - tensors
  if more <= 0 and more_bytes <= 0 then
    return
  end
  local lines = {}
  for _, entry in ipairs(luda.memory { sites = true }) do
    local here = entry.tensors - (made[entry.site] or 0)
    if here > 0 then
      lines[#lines + 1] = ("%s (%d)"):format(entry.site, here)
    end
  end
  error(("%d tensors and %d bytes remain; made at %s"):format(more, more_bytes, table.concat(lines, ", ")), 2)
end

local base = {}

--- For before_each and after_each: what a test makes does not outlive it. Where nothing was made since the last test, what
-- lived after it lives still.
function helper.before()
  if base.handles ~= lib.signals.handles or base.tags ~= tags.count() then
    base.handles, base.tags = helper.live(), tags.count()
  end
  base.depth = lib.signals.depth
end

function helper.after()
  for i = #folders, 1, -1 do
    os.execute("rm -r '" .. folders[i] .. "'")
    folders[i] = nil
  end
  assert.equal(base.depth, lib.signals.depth, "a scope stayed open")
  assert.equal(base.handles, helper.live(), "live tensors remain")
  assert.equal(base.tags, tags.count(), "tags of Lua nodes remain")
end

package.loaded["spec.helper"] = helper
return helper
