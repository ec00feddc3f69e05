--- The command `luda record`, run as a user runs it: what it prints, what it leaves, its exit status.

local luda = require "luda"
local folder = require "luda.folder"
local helper = require "spec.helper"

local nn, optim, record = luda.nn, luda.optim, luda.record
local program = (os.getenv("LUDA_BUILD") or "build") .. "/luda"

local dir

--- Runs `luda record WORDS` in the folder of the test; what it printed on either output, and its status.
local function run(words)
  local pipe = io.popen(("exec 2>&1; P=$(realpath '%s'); cd '%s'; $P record %s; echo =$?"):format(program, dir, words))
  local text = pipe:read("*a")
  pipe:close()
  local said, status = text:match("^(.-)=(%d+)\n$")
  return said, tonumber(status)
end

local function read(name)
  local file = assert(io.open(dir .. "/" .. name, "rb"))
  local bytes = file:read "*a"
  file:close()
  return bytes
end

local Net = nn.module("Net")

function Net:init()
  self.first = nn.Linear(3, 3)
  self.second = nn.Linear(3, 3)
  self.second.weight = self.first.weight
  self.norm = nn.BatchNorm1d(3)
end

function Net:forward(x)
  return self.second(self.norm(self.first(x)))
end

--- A trained model, its optimizer, and the record run.safetensors of both.
local function prepare()
  luda.manual_seed(4)
  local model = Net()
  local opt = optim.AdamW(model)
  luda.scope(function()
    opt:step(0.1, (model(luda.randn(5, 3)) ^ 2):sum():backward())
  end)
  record.save(dir .. "/run", { model = model, optimizer = opt, state = { step = 7, x = luda.tensor({ 1, 2 }) } })
  return model, opt
end

describe("luda record", function()
  before_each(function()
    dir = helper.new_folder()
    helper.before()
  end)
  after_each(helper.after)

  it("tells good from bad by its status", function()
    prepare()
    local said, status = run "ls run.safetensors"
    assert.equal(0, status)
    assert.matches("training record: model, optimizer, state\n", said)
    assert.matches("f32   %[3, 3%] +model.first.weight\n", said)
    assert.same({ "run.safetensors: good\n", 0 }, { run "verify run.safetensors" })
    os.execute(("cp '%s/run.safetensors' '%s/bad.safetensors'"):format(dir, dir))
    local file = assert(io.open(dir .. "/bad.safetensors", "r+b"))
    file:seek("end", -1)
    file:write("\255")
    file:close()
    said, status = run "verify bad.safetensors run.safetensors"
    assert.equal(1, status)
    assert.matches("^bad.safetensors: tensor 'state.x': the checksum does not match\nrun.safetensors: good\n$", said)
    said, status = run "diff run.safetensors run.safetensors"
    assert.same({ "identical\n", 0 }, { said, status })
    for words, problem in pairs {
      ["ls none"] = "cannot open none: No such file", ["verify none"] = "cannot open none: No such file",
      ["diff run.safetensors bad.safetensors"] = "tensor 'state.x': the checksum does not match",
      ["convert bad.safetensors out"] = "tensor 'state.x': the checksum does not match",
      ["convert none out"] = "cannot open none: No such file", ["convert run.safetensors none/out"] = "none/out: No such file",
      ["convert none.npz out"] = "cannot open none.npz",
    } do
      said, status = run(words)
      assert.equal(1, status, words)
      assert.is_truthy(said:find(problem, 1, true), words .. ": " .. said)
    end
    for _, words in ipairs { "", "list", "ls", "diff run.safetensors", "convert run.safetensors", "convert a b --typ f32",
      "convert a b --weights --parts model", "convert a b --dtype" } do
      said, status = run(words)
      assert.equal(2, status, words)
      assert.is_true(#said > 0)
    end
    assert.same({ "bad.safetensors", "run.safetensors" }, folder.list(dir))
  end)

  it("converts a record to some of its parts, the bytes of a save of those", function()
    local model = prepare()
    record.save(dir .. "/expected", { model = model, state = { step = 7, x = luda.tensor({ 1, 2 }) } })
    assert.same({ "small.safetensors: 9 tensors\n", 0 }, { run "convert run.safetensors small.safetensors --parts model,state" })
    assert.is_true(read("expected.safetensors") == read("small.safetensors"))
    run "convert run.safetensors same.safetensors"
    assert.is_true(read("run.safetensors") == read("same.safetensors"))
    local said, status = run "convert run.safetensors none --parts model,loader"
    assert.equal(1, status)
    assert.matches("run.safetensors has no part 'loader'; it has model, optimizer, state", said)
  end)

  it("converts to weights alone, which a model takes", function()
    local model = prepare()
    assert.same({ "w.safetensors: 8 tensors\n", 0 }, { run "convert run.safetensors w.safetensors --weights" })
    luda.save(dir .. "/expected", model:state())
    assert.is_true(read("expected") == read("w.safetensors"))
    local other = Net()
    other:load_state((luda.load(dir .. "/w.safetensors")))
    assert.same(model.first.weight:totable(), other.second.weight:totable())
    assert.same(model.norm.running_var:totable(), other.norm.running_var:totable())
    local said, status = run "convert w.safetensors none --weights"
    assert.equal(1, status)
    assert.matches("w.safetensors has no part 'model'; it is no training record", said)
  end)

  it("converts element types where no state is left behind", function()
    local model = prepare()
    local said, status = run "convert run.safetensors none --dtype bf16"
    assert.equal(1, status)
    assert.matches("the part 'optimizer' of run.safetensors belongs to parameters of the old type", said)
    said, status = run "convert run.safetensors none --weights --dtype i32"
    assert.equal(1, status)
    assert.matches("a floating type, not 'i32'", said)
    assert.same({ "half.safetensors: 9 tensors\n", 0 },
      { run "convert run.safetensors half.safetensors --parts model,state --dtype=bf16" })
    local half = Net():to_dtype("bf16")
    local state = record.load(dir .. "/half"):restore { model = half }
    assert.same(model.first.weight:to("bf16"):totable(), half.first.weight:totable())
    assert.same({ 7, "f32" }, { state.step, state.x.dtype })
    record.save(dir .. "/expected", { model = half, state = state })
    assert.is_true(read("expected.safetensors") == read("half.safetensors"))
  end)

  it("converts to and from NumPy's archives", function()
    local model = prepare()
    assert.same({ "w.npz: 8 tensors\n", 0 }, { run "convert run.safetensors w.npz --weights --dtype bf16" })
    local arrays = luda.npy.load(dir .. "/w.npz")
    assert.equal("f32", arrays["first.weight"].dtype)
    assert.same(model.first.weight:to("bf16"):totable(), arrays["first.weight"]:totable())
    assert.equal("i64", arrays["norm.num_batches_tracked"].dtype)
    assert.same({ "back.safetensors: 8 tensors\n", 0 }, { run "convert w.npz back.safetensors" })
    local back = luda.load(dir .. "/back.safetensors")
    for name, tensor in pairs(arrays) do
      assert.same(tensor:totable(), back[name]:totable())
    end
  end)
end)
