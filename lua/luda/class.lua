--- Classes: a table that is its objects' metatable and method table; calling it makes an object and runs `init`.

local function construct(class, ...)
  local object = setmetatable({}, class)
  object:init(...)
  return object
end

local function describe(class)
  return "class " .. class.class_name
end

--- Makes a class. An object's metamethods are those of its own class only; everything else is inherited.
---@param name string
---@param parent? table
---@return table
local function class(name, parent)
  local made = { class_name = name }
  made.__index = made
  return setmetatable(made, { __index = parent, __call = construct, __tostring = describe })
end

return class
