--- Listens as an orchestrator does, and answers the second message with arg[1].

local luda = require "luda"
local Post = require "luda.dist.post"

assert(luda)
local post = Post()
post:listen("127.0.0.1:0")
io.write(post.address, "\n")
io.flush()
local line, text = post:receive(20)
while line and text do
  if text:find("register", 1, true) then
    post:send(line, require("luda.json").decode(arg[1]))
  end
  line, text = post:receive(20)
end
