--- Saving and loading: against plain writes and reads of as many bytes in the same folder, and against PyTorch.

local luda = require "luda"
local files = require "files"

local M = {}

local TENSORS = 50

local function tensors_of(bytes)
  local named = {}
  for i = 1, TENSORS do
    named["layer." .. i] = luda.randn(math.floor(bytes / 4 / TENSORS))
  end
  return named
end

local function rows(bench, folder)
  local bytes = bench.options.quick and 6.4e7 or 5e8
  local case, ours, raw = ("%g MB"):format(bytes / 1e6), folder .. "/ours.safetensors", folder .. "/raw"
  local named, buffer, second = tensors_of(bytes), files.buffer(bytes), files.buffer(bytes)
  local function row(what, kind, sample, run, peer)
    bench:measure {
      section = "records", case = what .. ", " .. case, unit = "GB/s", bytes = bytes, outside = "run()", once = true,
      bounds = kind and { { kind = kind, sample = sample } } or {},
      make = function()
        run()
        return { run = run }
      end,
      peer = peer and { case = peer, parameters = bytes / 4, tensors = TENSORS, path = folder .. "/peer.pt" } or nil,
    }
  end
  local function load()
    luda.scope(function()
      luda.load(ours)
    end)
  end
  files.write(raw, buffer, bytes)
  row("save", "write, flush", function()
    files.write(raw, buffer, bytes) -- pages that a virtual machine must ask for first are not this one's matter
    return files.write(raw, buffer, bytes)
  end, function()
    luda.save(ours, named)
  end, "torch_save")
  row("load, cold", "read", function()
    files.drop(raw)
    local took = files.read(raw, buffer, bytes)
    files.drop(ours) -- for the load that follows
    return took
  end, load)
  row("load, warm", "read", function()
    return files.read(raw, buffer, bytes)
  end, load, "torch_load")
  row("stall of async", "copy", function() -- one thread's copy into memory that is there
    luda.record.wait()
    return files.copy(second, buffer, bytes)
  end, function()
    luda.record.save(ours, { state = named }, { async = true })
  end)
  luda.record.wait()
end

function M.records(bench)
  if bench.options.device ~= "cpu" then
    return bench:skip("records", "all", "they are of the processor")
  end
  local folder = (bench.options.json:match("^(.*)/") or ".") .. "/bench-records"
  require("luda.folder").make(folder)
  bench:try("records", "all", rows, bench, folder)
  for _, name in ipairs { "ours.safetensors", "raw", "peer.pt" } do
    os.remove(folder .. "/" .. name)
  end
  os.remove(folder)
end

return M
