--- What a group of registered peers agrees on.

local args = require "luda.args"
local class = require "luda.class"
local errors = require "luda.error"

---@class luda.dist.Config
---@field num_devices integer peers of this process
---@field num_nodes? integer this and the next three: all or none
---@field global_address? string of the orchestrator
---@field node_address? string of this node, with the data port
---@field data_service_port? integer
---@field secret_file? string what the nodes share; without it they connect over loopback addresses only
---@field encrypt boolean what nodes exchange, with a secret
---@field timeout number seconds for registering and for every call
---@field connect_attempts integer how often the orchestrator is called, with pauses from retry_delay on, doubled up to 5 s
---@field connect_timeout number seconds for each
---@field retry_delay number
---@field request_timeout number seconds for the orchestrator's answer, and for the nodes to connect to each other
local Config = class("luda.dist.Config")

local STRATEGIES = {
  all_reduce = { "direct", "ring", "tree", "halving", "centralized" }, reduce = { "direct", "tree", "centralized" },
  broadcast = { "direct", "tree", "centralized" },
}
local NODE_FIELDS = { "data_service_port", "global_address", "node_address", "num_nodes" }
local KNOWN = { num_devices = 1, secret_file = args.absent, encrypt = false }
--- What the environment may set where the configuration does not: LUDA_COLLECTIVE_TIMEOUT and so on.
local LIMITS = {
  timeout = { 300, 0.001, 86400, "LUDA_COLLECTIVE_TIMEOUT" }, connect_timeout = { 5, 0.001, 86400, "LUDA_CONNECT_TIMEOUT" },
  retry_delay = { 0.1, 0.001, 86400, "LUDA_RETRY_DELAY" }, request_timeout = { 30, 0.001, 86400, "LUDA_REQUEST_TIMEOUT" },
  connect_attempts = { 5, 1, 64, "LUDA_CONNECT_ATTEMPTS" },
}
for call in pairs(STRATEGIES) do
  KNOWN[call], KNOWN["global_" .. call] = "direct", "direct"
end
for _, name in ipairs(NODE_FIELDS) do
  KNOWN[name] = args.absent
end
for name in pairs(LIMITS) do
  KNOWN[name] = args.absent
end

function Config:init(options)
  for name, value in pairs(args.options("Config", options, KNOWN)) do
    self[name] = value
  end
  for name, limit in pairs(LIMITS) do
    local set = os.getenv(limit[4])
    if self[name] == nil then
      self[name] = set and (tonumber(set) or set) or limit[1]
    end
  end
end

--- Raises with the name of the kind of error that registered peers tell apart.
---@param kind string
---@param code string
function Config.raise(kind, code, text, ...)
  errors.raise_with(code, text:format(...), { detail = { kind = kind } })
end
local raise = Config.raise

--- The same for an error between nodes: detail.kind is "global", detail.inner says which it is.
function Config.raise_global(inner, code, op, text, ...)
  errors.raise_with(code, ("%s: Global(%s): %s"):format(op, inner, text:format(...)), {
    detail = { kind = "global", inner = inner } })
end

--- The algorithm of a strategy, as calls take it: "tree(3)" is a tree whose nodes have three children.
local function algorithm(name, strategy)
  local base, arity = tostring(strategy):match("^(tree)%((%-?%d+)%)$")
  if base and tonumber(arity) < 1 then
    raise("invalid_tree_arity", "invalid", "register: %s is %s; a tree has an arity of at least 1", name, strategy)
  end
  base = base or strategy
  local known = STRATEGIES[name:gsub("^global_", "")]
  for _, each in ipairs(known) do
    if base == each then
      return strategy
    end
  end
  raise("invalid_config", "invalid", "register: %s is %s; it can be %s, and tree(k)", name, args.describe(strategy),
    table.concat(known, ", "))
end

local function check_limits(self)
  for name, limit in pairs(LIMITS) do
    local value = self[name]
    if type(value) ~= "number" or not (value >= limit[2] and value <= limit[3]) or
      (name == "connect_attempts" and value ~= math.floor(value)) then
      raise("invalid_config", "invalid", "register: %s is %s; it can be %g to %g (also from %s)", name, args.describe(value),
        limit[2], limit[3], limit[4])
    end
  end
end

local function check_nodes(self)
  local set, missing = {}, {}
  for _, name in ipairs(NODE_FIELDS) do
    table.insert(self[name] ~= nil and set or missing, name)
  end
  if #set > 0 and #missing > 0 then
    raise("invalid_config", "invalid", "register: %s set without %s; a group of several nodes needs all four",
      table.concat(set, ", "), table.concat(missing, ", "))
  elseif #set == 0 then
    return
  end
  local nodes, port = self.num_nodes, self.data_service_port
  if type(nodes) ~= "number" or nodes > 1024 or nodes ~= math.floor(nodes) then
    raise("invalid_config", "invalid", "register: num_nodes is %s; it can be 1 to 1024", args.describe(nodes))
  elseif type(port) ~= "number" or port < 1 or port > 65535 or port ~= math.floor(port) then
    raise("invalid_config", "invalid", "register: data_service_port is %s; it can be 1 to 65535", args.describe(port))
  elseif type(self.node_address) ~= "string" or not self.node_address:find(":" .. port .. "$") then
    raise("invalid_config", "invalid", "register: node_address is %s; it must be host:%d, with the data port",
      args.describe(self.node_address), port)
  elseif self.secret_file ~= nil and type(self.secret_file) ~= "string" then
    raise("invalid_config", "invalid", "register: secret_file is %s; it must be the path of a file",
      args.describe(self.secret_file))
  elseif type(self.global_address) ~= "string" then
    raise("invalid_config", "invalid", "register: global_address is %s; it must be the orchestrator's host:port",
      args.describe(self.global_address))
  end
end

--- Raises unless the fields go together; the algorithms by call.
---@return table<string, string>
function Config:check()
  local devices = self.num_devices
  if type(devices) ~= "number" or devices < 1 or devices > 1024 or devices ~= math.floor(devices) then
    raise("invalid_config", "invalid", "register: num_devices is %s; it can be 1 to 1024", args.describe(devices))
  end
  check_limits(self)
  check_nodes(self)
  local algorithms = {}
  for call in pairs(STRATEGIES) do
    algorithms[call] = algorithm(call, self[call])
    algorithms["global_" .. call] = algorithm("global_" .. call, self["global_" .. call])
  end
  return algorithms
end

--- The same text for equal configurations.
function Config:__tostring()
  local parts = {}
  for name in pairs(KNOWN) do
    if self[name] ~= nil then
      parts[#parts + 1] = ("%s=%s"):format(name, tostring(self[name]))
    end
  end
  table.sort(parts)
  return table.concat(parts, " ")
end

return Config
