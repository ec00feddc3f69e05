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
---@field timeout number seconds for registering and for every call
local Config = class("luda.dist.Config")

local STRATEGIES = {
  all_reduce = { "direct", "ring", "tree", "halving", "centralized" }, reduce = { "direct", "tree", "centralized" },
  broadcast = { "direct", "tree", "centralized" },
}
local NODE_FIELDS = { "data_service_port", "global_address", "node_address", "num_nodes" }
local KNOWN = { num_devices = 1, timeout = 300 }
for call in pairs(STRATEGIES) do
  KNOWN[call], KNOWN["global_" .. call] = "direct", "direct"
end
for _, name in ipairs(NODE_FIELDS) do
  KNOWN[name] = args.absent
end

function Config:init(options)
  for name, value in pairs(args.options("Config", options, KNOWN)) do
    self[name] = value
  end
end

--- Raises with the name of the kind of error that registered peers tell apart.
---@param kind string
---@param code string
function Config.raise(kind, code, text, ...)
  errors.raise_with(code, text:format(...), { detail = { kind = kind } })
end
local raise = Config.raise

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

local function check_nodes(self)
  local set, missing = {}, {}
  for _, name in ipairs(NODE_FIELDS) do
    table.insert(self[name] ~= nil and set or missing, name)
  end
  if #set > 0 and #missing > 0 then
    raise("invalid_config", "invalid", "register: %s set without %s; a group of several nodes needs all four",
      table.concat(set, ", "), table.concat(missing, ", "))
  end
end

--- Raises unless the fields go together; the algorithms by call.
---@return table<string, string>
function Config:check()
  local devices, timeout = self.num_devices, self.timeout
  if type(devices) ~= "number" or devices < 1 or devices > 1024 or devices ~= math.floor(devices) then
    raise("invalid_config", "invalid", "register: num_devices is %s; it can be 1 to 1024", args.describe(devices))
  elseif type(timeout) ~= "number" or timeout ~= timeout or timeout <= 0 then
    raise("invalid_config", "invalid", "register: timeout is %s; it must be a positive number of seconds", args.describe(timeout))
  end
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
