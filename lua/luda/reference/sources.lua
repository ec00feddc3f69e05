--- What the sources of the compositions say: the comment over each function, and what it raises.

local M = { docs = {}, raises = {} }

local folder = debug.getinfo(1, "S").source:match("^@(.*)reference/sources%.lua$") or "./"
local FILES = { -- those of luda.nn give names that begin with "nn."
  "create", "draw", "sugar", "values", "scope", "bytes", "ops/pointwise", "ops/activations", "ops/shapes", "ops/pieces",
  "ops/positions", "ops/placing", "ops/reductions", "ops/sorting", "ops/distinct", "ops/series", "ops/names", "ops/draws",
  "ops/einsum", "ops/linalg", "ops/products", "ops/spectral", "nn/losses", "nn/distances", "nn/layers", "nn/normalization",
  "nn/images", "nn/interpolation", "nn/tokens", "nn/volumes", "nn/ctc", "nn/vocabulary",
}

--- The names that a line of code defines.
local function defined(line)
  local names = {}
  for _, pattern in ipairs { '^%s*%a[%w_%.]*%("([%w_]+)"', "^%s*function %a[%w_%.]*%.([%w_]+)%(" } do
    names[#names + 1] = line:match(pattern)
  end
  local list = line:match("^%s*for .- in i?pairs%s*%(?%s*({.*)")
  for name in (list or ""):gmatch('"([%w_]+)"') do
    names[#names + 1] = name
  end
  for name in (list or ""):gmatch("([%w_]+) = ") do
    names[#names + 1] = name
  end
  return names
end

--- A comment belongs to what the next line defines, or to the names that it begins with, as in "tan, sin: …".
local function note(comment, line, prefix)
  local names, text = comment:match("^([%w_]+[%w_, ]*): (.*)$")
  if names and not names:find("[^,] ") then
    for name in names:gmatch("[%w_]+") do
      M.docs[name] = M.docs[name] or text
    end
  end
  for _, name in ipairs(defined(line)) do
    name = prefix .. name
    M.docs[name] = M.docs[name] or comment
  end
end

local function note_raises(text, prefix)
  for code, message in text:gmatch('errors%.raise%("(%l+)",%s*"(.-[^\\])"') do
    local name, rest = message:match("^([%w_]+): (.*)$")
    if name then
      name = prefix .. name
      local list = M.raises[name] or {}
      list[#list + 1] = ("%s: %s"):format(code, rest:gsub("%%%.?%d*%a", "…"):gsub('\\"', '"'))
      M.raises[name] = list
    end
  end
end

--- Other names of functions, in a list of pairs.
local function note_others(text)
  for list in text:gmatch("for name, other in pairs (%b{})") do
    for name, other in list:gmatch('([%w_]+) = "([%w_]+)"') do
      M.docs[name] = M.docs[name] or ("Another name of %s."):format(other)
    end
  end
end

for _, name in ipairs(FILES) do
  local file = assert(io.open(folder .. name .. ".lua", "rb"))
  local text = file:read("*a")
  file:close()
  local prefix, comment = name:find("^nn/") and "nn." or "", nil
  note_raises(text, prefix)
  note_others(text)
  for line in text:gmatch("[^\n]+") do
    local start, more = line:match("^%s*%-%-%- ?(.*)$"), line:match("^%s*%-%- (.*)$")
    if start and start:sub(1, 1) ~= "@" then
      if comment then
        note(comment, "", prefix) -- one of several comments over a loop, each with its names
      end
      comment = start
    elseif comment and more then
      comment = comment .. " " .. more
    elseif comment and not line:find("^%s*%-%-") then
      note(comment, line, prefix)
      comment = nil
    end
  end
end

return M
