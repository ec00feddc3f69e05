--- What record_async_spec runs: a process that saves in the background and leaves in some way, or on a disk that refuses.

local luda = require "luda"

local what, path = arg[1], arg[2]
luda.manual_seed(7)
local weight = luda.randn(6000000)
local parts = { state = { weight = weight, list = { 1 / 3, "x" } } }

local function try(fn, ...)
  local ok, err = pcall(fn, ...)
  print(ok and "fine" or tostring(err.code) .. ": " .. err.message)
end

if what == "sync" then
  luda.record.save(path, parts)
elseif what == "full" then -- the first save succeeds, the next ones meet the limit
  local small = { state = { step = 1 } }
  try(luda.record.save, path, small)
  try(luda.record.save, path, parts)
  try(luda.record.save, path, parts, { async = true })
  try(luda.record.wait)
  try(luda.record.wait)
  try(luda.record.save, path, parts, { async = true })
  try(luda.record.save, path, small)
  print(luda.record.load(path):restore({}).step)
  try(luda.record.save, path .. "-2", small)
  print(weight[6000000]:item() == luda.manual_seed(7) or weight:isfinite():all():item())
else
  luda.record.save(path, parts, { async = true })
  weight:fill_(0)
  if what == "exit" then
    os.exit(3)
  elseif what == "error" then
    error("the end")
  end
end
