--- t[…] and t[…] = v: positions, ranges, masks and index tensors, all 1-based.

local args = require "luda.args"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local sugar = require "luda.sugar"
local positions = require "luda.ops.positions"

local methods, is_tensor = tensors.methods, tensors.is_tensor

--- A range {first, last, step}, {position} or {} of one dimension.
local function range(t, dim, spec)
  if #spec == 0 then
    return t
  end
  local size = methods.size(t, dim)
  local first = args.position("index", "a position", spec[1], size) + 1
  local last = args.position("index", "a position", spec[2] or spec[1], size) + 1
  local step = args.integer("index", "the step", spec[3] or 1)
  if step < 1 then
    errors.raise("invalid", "index: the step is %d; it must be positive", step)
  end
  if first < 1 or last > size then
    errors.raise("index", "index: {%d, %d} of dimension %d, which has %d positions (1-based)", first, last, dim, size)
  end
  return methods.narrow(t, dim, first, math.max(math.floor((last - first) / step) + 1, 0), step)
end

--- One position of one dimension.
local function pick(t, dim, position)
  local shape = t.shape
  local size = shape[dim]
  if not size then
    errors.raise("shape", "index: position %s of a 0-d tensor, which has none; item() is its value", tostring(position))
  end
  local place = args.position("index", "a position", position, size)
  if place < 0 or place >= size then
    errors.raise("index", "index: position %s of dimension %d, which has %d (1-based), of a tensor %s", tostring(position), dim,
      size, args.shape_text(shape))
  end
  return methods.select(t, dim, place + 1)
end

--- The tensor with the mask's dimensions, which must agree, flattened into one; the `view` form shares the storage.
local function flatten_under(mask, t, flatten)
  local over, shape = mask.shape, t.shape
  local sizes = { -1 }
  for i = 1, math.max(#over, #shape) do
    if i <= #over and over[i] ~= shape[i] then
      errors.raise("shape", "index: a mask %s over a tensor %s; its sizes must be those of the leading dimensions",
        args.shape_text(over), args.shape_text(shape))
    elseif i > #over then
      sizes[#sizes + 1] = shape[i]
    end
  end
  if mask.numel == 0 then
    sizes[1] = 0
  end
  return flatten(t, sizes)
end

local function check_index(index)
  local class = args.dtype_class(index.dtype)
  if class == "float" or index.dtype == "u8" then
    errors.raise("dtype", "index: an index tensor of type %s, shape %s; masks are bool, positions are integers, convert it "
      .. "with %s", index.dtype, args.shape_text(index.shape), class == "float" and ":to(\"i64\")" or ":to(\"bool\")")
  end
  return class == "bool"
end

local function take(t, dim, index)
  if not check_index(index) then
    return methods.index_select(t, dim, index)
  end
  if dim == 1 then
    return methods.index_select(flatten_under(index, t, methods.reshape), 1, positions.of_mask(index))
  end
  if index.ndim ~= 1 or index:size(1) ~= methods.size(t, dim) then
    errors.raise("shape", "index: a mask %s for dimension %d of %s", args.shape_text(index.shape), dim,
      args.shape_text(t.shape))
  end
  return methods.index_select(t, dim, positions.of_mask(index))
end

--- One entry a dimension: a position, a range, a mask or an index tensor.
local function slices(t, specs)
  local whole, dim = t, 1
  for i = 1, #specs do
    local spec = specs[i]
    if dim > t.ndim then
      errors.raise("index", "index: %d entries for a tensor %s", #specs, args.shape_text(whole.shape))
    end
    if is_tensor(spec) then
      t = take(t, dim, spec)
      dim = dim + (spec.dtype == "bool" and 1 or spec.ndim)
    elseif type(spec) == "table" then
      t = range(t, dim, spec)
      dim = dim + 1
    else
      t = pick(t, dim, spec)
    end
  end
  return t
end

function tensors.get_index(t, key)
  if type(key) == "number" or args.is_boxed(key) then
    return pick(t, 1, key)
  elseif is_tensor(key) then
    return take(t, 1, key)
  elseif type(key) == "table" then
    return slices(t, key)
  end
  return errors.raise("invalid", "index: cannot index a tensor with %s", args.describe(key))
end

--- Slices of the first dimension of a view, all at once; of equal positions the last wins.
local function assign_slices(flat, places, value)
  local count = places.numel
  if not is_tensor(value) then
    value = tensors.scalar("index", value, flat)
  elseif value.ndim == flat.ndim and methods.size(value, 1) ~= 1 and methods.size(value, 1) ~= count then
    errors.raise("shape", "index: %d slices given for %d positions", methods.size(value, 1), count)
  end
  local shape = flat.shape
  shape[1] = count
  if value.device ~= flat.device then
    value = methods.to(value, flat.device)
  end
  methods.index_copy_(flat, 1, places, methods.expand(value, shape))
end

--- Where index tensors stand among ranges: the positions that reading the numbers of all elements gives.
local function assign_places(t, key, value)
  local numbers = ops.functions.arange { shape = { t.numel }, dtype = "i64", device = t.device, low = 1, high = 1 }
  local places = tensors.get_index(methods.reshape(numbers, t.shape), key)
  value = is_tensor(value) and methods.to(value, t.device) or tensors.scalar("index", value, t)
  value = errors.speak_of("index", pcall(methods.expand, value, places.shape))
  return errors.speak_of("index", pcall(methods.put_, t, places, value))
end

function tensors.set_index(t, key, value)
  if is_tensor(key) then
    if not check_index(key) then
      return assign_slices(t, methods.flatten(key), value)
    end
    if is_tensor(value) and value.ndim > t.ndim - key.ndim then
      return assign_slices(flatten_under(key, t, methods.view), positions.of_mask(key), value)
    end
    for _ = key.ndim + 1, t.ndim do
      key = methods.unsqueeze(key, -1)
    end
    return ops.write("where", t, key, value, t)
  end
  if type(key) == "table" then
    for i = 1, #key do
      if is_tensor(key[i]) then
        return assign_places(t, key, value)
      end
    end
  end
  sugar.assign("index", tensors.get_index(t, key), value)
end
