--- Calls that go on while the caller does something else.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local memory = require "luda.memory"
local ask = require "luda.dist.ask"

local ffi, C, context = lib.ffi, lib.C, lib.context

---@class luda.Work
local Work = class("luda.Work")

local FOREVER = 1e9 -- every call has a deadline of its own
local NOTHING = {}

function Work:init(comm, pointer, in_place)
  self.comm, self.pointer, self.in_place = comm, ffi.gc(pointer, C.luda_work_release), in_place
end

--- Whether the call has ended, well or not.
---@return boolean
function Work:done()
  return C.luda_work_done(self.pointer) ~= 0
end

--- What the call would have returned, in the scope of whoever waits; its failure is raised as by the call, with the ranks to
--- blame. After `timeout` seconds `timeout` is raised, and the call goes on: wait again. The result of a tracked tensor is
--- tied to it by the first wait, so that waits must come in the same order on all ranks.
---@param timeout? number seconds; none: as long as the call may take
---@return luda.Tensor?
function Work:wait(timeout)
  local out = ffi.new("luda_tensor *[1]")
  timeout = timeout and args.number("wait", "the timeout", timeout) or FOREVER
  C.luda_context_use(context)
  local status = C.luda_work_wait(self.pointer, timeout, out)
  if status ~= 0 then
    ask.fail(self.comm, status, self.pointer)
  end
  return self.in_place or (out[0] ~= nil and memory.adopt(out[0]) or nil)
end

function Work:__tostring()
  return ("luda.Work(%s)"):format(self:done() and "done" or "running")
end

local M = { Work = Work }

--- Starts a call with the options that ask.call_options has set.
---@param comm luda.Comm
---@param call integer
---@param tensor? any luda_tensor*
---@param more? {reduction: integer?, root: integer?, in_place: luda.Tensor?}
---@return luda.Work
function M.start(comm, call, tensor, options, more)
  local out = ffi.new("luda_work *[1]")
  more = more or NOTHING
  ask.check(comm, C.luda_comm_start(comm.pointer, call, tensor, more.reduction or 0, more.root or 0, more.in_place and 1 or 0,
    options, out))
  return Work(comm, out[0], more.in_place)
end

return M
