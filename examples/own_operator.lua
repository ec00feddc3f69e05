--- Calls an operator that was written in C, with its backward, from a library of one's own: examples/own_operator.c.
--
--   ninja -C build own_operator && build/luda examples/own_operator.lua

local luda = require "luda"
local ffi = require "ffi"

ffi.cdef [[
luda_status own_swish(luda_tensor *x, double beta, luda_tensor **out);
]]
local library = ffi.load(arg[1] or "build/examples/libown_operator.so")
local swish = luda.autograd.native(library.own_swish, { name = "swish" })

local x = luda.tensor({ -2, -0.5, 0, 0.5, 2 }):requires_grad_()
local y = swish(x, 1.5)
local grads = y:sum():backward()
print("values   ", y:detach())
print("gradient ", grads[x])

-- The same from operators of LUDA's own.
local z = x * (x * 1.5):sigmoid()
local difference = (z:sum():backward()[x] - grads[x]):abs():max():item()
assert(difference < 1e-6, difference)
print("as written with operators")
