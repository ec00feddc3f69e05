--- Fashion-MNIST: a perceptron with one hidden layer learns to tell ten kinds of clothing apart, in seconds; a small
-- convolutional network does it better, in minutes.
--
--   luda examples/fashion_mnist.lua [--model mlp|cnn] [--epochs 8] [--batch 128] [--data FOLDER]

local luda = require "luda"
local nn, optim, data = luda.nn, luda.optim, luda.data

local options = require("luda.options").parse({ ... }, {
  { "model", "mlp", "mlp or cnn" },
  { "epochs", 8, "passes over the training images" },
  { "batch", 128, "images of a step" },
  { "width", 256, "width of the hidden layer of mlp" },
  { "rate", 4e-3, "highest learning rate" },
  { "limit", 0, "use only so many images (0: all)" },
  { "seed", 1, "of weights and order" },
  { "data", "/usr/share/datasets/fashion-mnist", "folder of the IDX files" },
})
if not options then
  return
end

--- Images [N, 784] as stored (u8) and labels [N] from 1.
local function load(kind)
  local parts = {}
  for i, name in ipairs { "images-idx3", "labels-idx1" } do
    local path = ("%s/%s-%s-ubyte.gz"):format(options.data, kind, name)
    local found, tensor = pcall(data.idx, path)
    if not found and tensor.code == "io" then
      error(("there is no %s: install Debian's package dataset-fashion-mnist, or name a folder with --data"):format(path), 0)
    end
    parts[i] = found and tensor or error(tensor, 0)
  end
  local count = parts[1]:size(1)
  if options.limit > 0 then
    count = math.min(count, options.limit)
  end
  local images = parts[1]:narrow(1, 1, count):reshape(count, -1)
  return images, parts[2]:narrow(1, 1, count):to("i64") + 1
end

local train_images, train_labels = load("train")
local test_images, test_labels = load("t10k")

luda.manual_seed(options.seed)
local models = {
  mlp = function()
    return nn.Sequential(nn.Linear(784, options.width), nn.ReLU(), nn.Linear(options.width, 10))
  end,
  cnn = function()
    return nn.Sequential(
      function(x) return x:reshape(-1, 1, 28, 28) end,
      nn.Conv2d(1, 16, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(16, 32, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2),
      nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
  end,
}
local model = (models[options.model] or error("--model is mlp or cnn", 0))()
print(model)

local count, batch = train_images:size(1), math.min(options.batch, train_images:size(1))
local steps = options.epochs * math.floor(count / batch)
local optimizer = optim.AdamW(model, { weight_decay = 1e-2 })
local schedule = optim.lr.OneCycle { max = options.rate, steps = steps }

--- Pixels with mean 0 and deviation 1, about.
local function pixels(images)
  return images:to("f32") * (1 / 90) - 0.81
end

local function step(order, first)
  local chosen = order:narrow(1, first, batch)
  local logits = model(pixels(train_images:index_select(1, chosen)))
  local loss = nn.cross_entropy(logits, train_labels:index_select(1, chosen))
  local rate = schedule:step()
  optimizer:step(rate, loss:backward())
  return loss:item(), rate
end

--- The fraction of test images whose likeliest class is the right one.
local function accuracy()
  local total, right = test_images:size(1), 0
  for first = 1, total, 1000 do
    local length = math.min(1000, total - first + 1)
    right = right + luda.scope(luda.no_grad, function()
      local logits = model(pixels(test_images:narrow(1, first, length)))
      return logits:argmax(2):eq(test_labels:narrow(1, first, length)):sum():item()
    end)
  end
  return right / total
end

local bar = require "luda.progress" { total = steps, unit = "images" }
local done = 0
for epoch = 1, options.epochs do
  local order = luda.randperm(count)
  local sum = 0
  for first = 1, count - batch + 1, batch do
    local loss, rate = luda.scope(step, order, first)
    done, sum = done + 1, sum + loss
    bar:update(done, { loss = loss, rate = rate, count = batch })
  end
  bar:note(("epoch %d: training loss %.4f, test accuracy %.2f %%"):format(epoch, sum / math.floor(count / batch),
    100 * accuracy()))
end
bar:finish()
print(("test accuracy %.2f %%"):format(100 * accuracy()))
