--- The limits themselves, and what starting a program costs.

local harness = require "harness"
local limits = require "limits"

local M = {}

function M.limits(bench)
  local threads, seconds = bench.options.threads, bench.options.seconds
  local sizes = bench.options.quick and { 4, 64 } or { 4, 16, 64, 256 }
  for _, kind in ipairs { "read", "in place", "copy", "streaming copy" } do
    for _, mebibytes in ipairs(sizes) do
      bench:try("limits", kind, bench.sampled, bench, "limits", ("%s, %d MiB"):format(kind, mebibytes), "GB/s", function()
        return limits.bandwidth(kind, mebibytes * 2 ^ 20, threads, seconds) / 1e9
      end)
    end
  end
  limits.C.luda_limits_release()
  for _, dtype in ipairs { "f32", "bf16" } do
    if limits.peak(dtype, 1, 1e-3) then
      for _, count in ipairs(threads > 1 and { 1, threads } or { 1 }) do
        bench:sampled("limits", dtype .. " multiply-add", "GFLOP/s", function()
          return limits.peak(dtype, count, seconds) / 1e9
        end, { threads = count, dtype = dtype })
      end
    else
      bench:skip("limits", dtype .. " multiply-add", "this processor has no " .. dtype .. " instruction")
    end
  end
  for _, name in ipairs { "exp", "tanh", "gelu_tanh" } do
    bench:sampled("limits", name .. " in the first-level cache", "ns", function()
      return 1e9 / limits.C.luda_limits_loop(limits.loops[name], threads, seconds)
    end)
  end
  for huge = 0, 1 do
    bench:sampled("limits", "first touch of 4 KiB" .. (huge == 1 and ", huge pages" or ""), "ns", function()
      return 1e9 * limits.C.luda_limits_fault(huge)
    end, { threads = 1 })
  end
end

-- Starting.

local PEAK = [[ for line in io.lines("/proc/self/status") do
  local kib = line:match("^VmHWM:%s*(%d+)"); if kib then print(kib / 1024) end end]]
local FIRST = [[local luda = require "luda"; print((luda.ones(2, 2) * 2):sum():item())]]
local TORCH_PEAK = "; print([int(l.split()[1]) / 1024 for l in open('/proc/self/status') if l.startswith('VmHWM')][0])"
local TORCH_FIRST = "import torch; print((torch.ones(2, 2) * 2).sum().item())"

--- The last number that a command prints.
local function number_of(command)
  local words = {}
  for i, word in ipairs(command) do
    words[i] = "'" .. word:gsub("'", "'\\''") .. "'"
  end
  local pipe = assert(io.popen(table.concat(words, " ")))
  local text = pipe:read("*a")
  pipe:close()
  return assert(tonumber(text:match("(%S+)%s*$")), "no number was printed")
end

--- The program that runs this script, and the option that makes it run code.
local function own_command(code)
  return { arg[-1] or "luda", "-e", code }
end

local function stripped_size(bench)
  local stripped = os.tmpname()
  local status = os.execute(("strip -o '%s' '%slibluda.so' 2>/dev/null"):format(stripped, limits.folder))
  local file = status == 0 and assert(io.open(stripped, "rb"))
  if file then
    bench:add { section = "start", case = "libluda.so, stripped", dtype = "", threads = 1, unit = "MB",
      value = file:seek("end") / 1e6, samples = 1, spread = 0 }
    file:close()
  else
    bench:skip("start", "libluda.so, stripped", "strip is missing")
  end
  os.remove(stripped)
end

local function start_rows(bench)
  local command, python = own_command(FIRST), bench.peer and bench.peer.python
  local own, other, count = {}, {}, bench.options.quick and 5 or 15
  limits.spawn(command)
  for i = 1, count do
    own[i] = limits.spawn(command)
    if python and (i - 1) % math.ceil(count / 3) == 0 then
      other[#other + 1] = limits.spawn { python, "-c", TORCH_FIRST }
    end
  end
  local row = { section = "start", dtype = "f32", threads = bench.options.threads }
  local function add(case, unit, value, samples, spread, peer)
    local result = { case = case, unit = unit, value = value, samples = samples, spread = spread }
    for name, field in pairs(row) do
      result[name] = field
    end
    if peer then
      result.peer = { name = bench.peer.name, version = bench.peer.version, value = peer }
      result.peer_ratio = peer / value
    end
    bench:add(result)
  end
  add("start and one operator", "ms", harness.median(own) * 1e3, #own, harness.spread(own),
    python and harness.median(other) * 1e3)
  add("peak resident memory", "MB", number_of(own_command(FIRST .. PEAK)), 1, 0,
    python and number_of { python, "-c", TORCH_FIRST .. TORCH_PEAK })
end

function M.start(bench)
  bench:try("start", "start and one operator", start_rows, bench)
  bench:try("start", "libluda.so, stripped", stripped_size, bench)
end

return M
