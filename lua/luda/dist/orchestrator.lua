--- The orchestrator: where the nodes of a group of registered peers find each other. No tensor passes it.

local lib = require "luda.ffi"
local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"
local host = require "luda.host"
local Post = require "luda.dist.post"
local buffer = require "string.buffer"

local ffi = lib.ffi

local M = {}

---@class luda.Orchestrator
---@field address string host:port
local Orchestrator = class("luda.Orchestrator")

local BOOTSTRAP = [[
return function(_, payload)
  return require("luda.dist.orchestrator").serve(payload)
end
]]

--- The options, checked, and a post that listens.
local function open(options)
  options = args.options("orchestrator", options, { bind = "127.0.0.1:0", num_nodes = args.absent })
  if type(options.bind) ~= "string" then
    errors.raise("invalid", "orchestrator: bind must be \"host:port\", not %s", args.describe(options.bind))
  end
  local nodes = options.num_nodes and args.integer("orchestrator", "num_nodes", options.num_nodes)
  if nodes and (nodes < 1 or nodes > 1024) then
    errors.raise("invalid", "orchestrator: num_nodes is %d; 1 to 1024 are possible", nodes)
  end
  local post = Post()
  post:listen(options.bind)
  return post, nodes
end

--- What the orchestrator's thread runs.
function M.serve(payload)
  local job = buffer.decode(payload)
  local post = Post(ffi.cast("luda_post *", ffi.cast("uintptr_t", job.post)))
  local roster = require("luda.dist.roster")(post, job.nodes)
  pcall(roster.serve, roster, function() -- until close stops the post, which raises
    return false
  end)
  post:close()
  return ""
end

function Orchestrator:init(options)
  local post, nodes = open(options)
  self.address = post.address
  local job = buffer.encode { post = tonumber(ffi.cast("uintptr_t", post.pointer)), nodes = nodes }
  local payloads, sizes = ffi.new("const char *[1]", { job }), ffi.new("size_t[1]", #job)
  local out = ffi.new("luda_rank_threads *[1]")
  host.C.luda_post_retain(post.pointer)
  lib.check(host.C.luda_rank_threads_start(1, package.path, BOOTSTRAP, payloads, sizes, out))
  self.stop = function(thread)
    post:stop()
    host.C.luda_rank_threads_release(thread)
    post:close()
  end
  self.thread = ffi.gc(out[0], self.stop)
end

--- Stops serving; nodes that are registered go on with each other. Twice is harmless.
function Orchestrator:close()
  if self.thread then
    self.stop(ffi.gc(self.thread, nil))
    self.thread = nil
  end
end

--- Serves on a thread of its own until closed. num_nodes: what every group must have; without it the first node decides.
---@param options? {bind: string?, num_nodes: integer?}
---@return luda.Orchestrator
function M.orchestrator(options)
  return Orchestrator(options)
end

--- Serves in this thread until a signal asks to stop; `announce` gets the address.
function M.run(options, announce)
  local post, nodes = open(options)
  lib.check(host.C.luda_stop_watch())
  announce(post.address)
  require("luda.dist.roster")(post, nodes):serve(function()
    return host.C.luda_stop_requested() ~= 0
  end)
  post:close()
end

return M
