--- Messages between processes: plain data as JSON, over connections with numbers.

local lib = require "luda.ffi"
local class = require "luda.class"
local host = require "luda.host"
local json = require "luda.json"

local ffi, C = lib.ffi, lib.C

---@class luda.dist.Post
---@field address? string where it listens
local Post = class("luda.dist.Post")

--- Takes over a reference, or makes a post.
---@param pointer? any luda_post*
function Post:init(pointer)
  if not pointer then
    local out = ffi.new("luda_post *[1]")
    lib.check(host.C.luda_post_new(out))
    pointer = out[0]
  end
  self.pointer = ffi.gc(pointer, host.C.luda_post_release)
  self.from, self.text, self.size = ffi.new("int[1]"), ffi.new("const char *[1]"), ffi.new("size_t[1]")
end

--- 32 hexadecimal digits that nobody can guess.
function Post.random_session()
  local file = assert(io.open("/dev/urandom", "rb"))
  local bytes = file:read(16)
  file:close()
  return (bytes:gsub(".", function(byte)
    return ("%02x"):format(byte:byte())
  end))
end

--- Lets others in from now on.
---@param address string host:port
function Post:listen(address)
  lib.check(host.C.luda_post_listen(self.pointer, address))
  self.address = ffi.string(host.C.luda_post_address(self.pointer))
end

--- The number of a new connection; nil and why where nobody answers.
---@return integer?
---@return string?
function Post:connect(address, timeout)
  local status = host.C.luda_post_connect(self.pointer, address, timeout, self.from)
  if status == C.LUDA_EIO then
    return nil, ffi.string(C.luda_last_error())
  end
  lib.check(status)
  host.C.luda_post_keep(self.pointer, self.from[0])
  return self.from[0]
end

--- False when the connection has ended.
---@param value any plain data
function Post:send(to, value)
  local text = json.encode(value)
  local status = host.C.luda_post_send(self.pointer, to, text, #text)
  if status ~= 0 and status ~= C.LUDA_EPEER then
    lib.check(status)
  end
  return status == 0
end

--- The next message's connection and text; the text is nil when the connection has ended. Nothing after so many seconds.
---@param timeout number
---@return integer?
---@return string?
function Post:receive(timeout)
  local status = host.C.luda_post_receive(self.pointer, timeout, self.from, self.text, self.size)
  if status == C.LUDA_ETIMEOUT then
    return nil
  end
  lib.check(status)
  return self.from[0], self.text[0] ~= nil and ffi.string(self.text[0], self.size[0]) or nil
end

--- The connection may stay as long as it likes.
function Post:keep(who)
  host.C.luda_post_keep(self.pointer, who)
end

--- Ends a connection after what was sent.
function Post:drop(who)
  host.C.luda_post_drop(self.pointer, who)
end

--- From any thread: receive and connect raise "cancelled", now and later.
function Post:stop()
  host.C.luda_post_stop(self.pointer)
end

function Post:close()
  if self.pointer then
    host.C.luda_post_release(ffi.gc(self.pointer, nil))
    self.pointer = nil
  end
end

return Post
