--- Recurrent layers and single cells: LSTM, GRU and plain ones. Layers loop over time; what the inputs give to the gates is
-- one product for all steps.

local args = require "luda.args"
local create = require "luda.create"
local errors = require "luda.error"
local tensors = require "luda.tensor"
local ops = require "luda.ops"
local initial = require "luda.nn.initial"
local positive = require("luda.nn.layers").positive
local modules = require "luda.nn.module"
require "luda.sugar"

local methods, is_tensor, functions = tensors.methods, tensors.is_tensor, ops.functions

local M = {}

-- Cells: (what the inputs give, h, what else goes on, weight [H, gates * H], bias) to h and what else goes on.

--- Part `index` of [B, gates * H].
local function gate(gates, index, width, count)
  return methods.narrow(gates, 2, (index - 1) * width + 1, (count or 1) * width)
end

--- Gates in the order input, forget, cell, output (Hochreiter and Schmidhuber 1997, Gers et al. 2000).
local function lstm_cell(inputs, h, c, weight, bias, width)
  local gates = inputs + functions.linear(h, weight, bias)
  local open = methods.sigmoid(gate(gates, 1, width, 2))
  c = gate(open, 2, width) * c + gate(open, 1, width) * methods.tanh(gate(gates, 3, width))
  return methods.sigmoid(gate(gates, 4, width)) * methods.tanh(c), c
end

--- Gates in the order reset, update, new (Cho et al. 2014); the reset gate acts on the product with h.
local function gru_cell(inputs, h, _, weight, bias, width)
  local hidden = functions.linear(h, weight, bias)
  local open = methods.sigmoid(gate(inputs, 1, width, 2) + gate(hidden, 1, width, 2))
  local new = methods.tanh(gate(inputs, 3, width) + gate(open, 1, width) * gate(hidden, 3, width))
  return new + gate(open, 2, width) * (h - new)
end

local function tanh_cell(inputs, h, _, weight, bias)
  return methods.tanh(inputs + functions.linear(h, weight, bias))
end

local function relu_cell(inputs, h, _, weight, bias)
  return methods.relu(inputs + functions.linear(h, weight, bias))
end

--- One direction of one layer over x [T, B, inputs]: the results [T, B, H] and the last states.
local function run(self, cell, suffix, x, h, c, backward)
  local weight_ih, weight_hh = self["weight_ih_" .. suffix], self["weight_hh_" .. suffix]
  local bias_ih, bias_hh = self["bias_ih_" .. suffix], self["bias_hh_" .. suffix]
  local inputs = methods.unbind(functions.linear(x, methods.t(weight_ih), bias_ih), 1)
  local turned, steps = methods.t(weight_hh), {}
  local first, last, step = 1, #inputs, 1
  if backward then
    first, last, step = last, first, -1
  end
  for i = first, last, step do
    h, c = cell(inputs[i], h, c, turned, bias_hh, self.width)
    steps[i] = methods.unsqueeze(h, 1)
  end
  return functions.cat(steps, 1), h, c
end

--- The first states, checked, or zeros; and whether any were given.
local function first_states(self, name, given, batch, x)
  local shape = { self.num_layers * self.directions, batch, self.width }
  if given == nil then
    return create.zeros(shape, { dtype = x.dtype, device = x.device })
  elseif not is_tensor(given) then
    errors.raise("invalid", "%s: a first state must be a tensor, not %s", name, args.describe(given))
  elseif args.shape_text(given.shape) ~= args.shape_text(shape) then
    errors.raise("shape", "%s: a first state has shape %s; %s is needed (layers * directions, batch, width)", name,
      args.shape_text(given.shape), args.shape_text(shape))
  end
  return given
end

--- All layers. Returns [T, B, directions * H] and lists of last states.
local function run_layers(self, cell, x, h0, c0)
  local last_h, last_c = {}, {}
  for layer = 0, self.num_layers - 1 do
    local results = {}
    for direction = 1, self.directions do
      local place = layer * self.directions + direction
      local c = c0 and methods.select(c0, 1, place)
      local y, h
      y, h, c = run(self, cell, "l" .. layer .. (direction == 2 and "_reverse" or ""), x, methods.select(h0, 1, place), c,
        direction == 2)
      results[direction], last_h[place], last_c[place] = y, h, c
    end
    x = self.directions == 2 and functions.cat(results, 3) or results[1]
    if self.training and self.dropout > 0 and layer < self.num_layers - 1 then
      x = functions.dropout(x, self.noise)
    end
  end
  return x, last_h, last_c
end

---@class luda.RecurrentOptions
---@field num_layers? integer default 1
---@field bias? boolean default true
---@field batch_first? boolean the input is [B, T, inputs] instead of [T, B, inputs]
---@field dropout? number between layers, in training
---@field bidirectional? boolean a second pass from the end, joined to the first
---@field generator? luda.Generator for dropout

--- Makes a class of layers. Parameters have PyTorch's names and shapes, weight_ih_l0 [gates * H, inputs], and start uniform
-- within 1 / sqrt(H).
local function recurrent(name, gates, cell, has_cell_state)
  local Layer = modules.module(name)

  function Layer:init(inputs, width, given)
    local options = args.options(name, given, {
      num_layers = 1, bias = true, batch_first = false, dropout = 0, bidirectional = false, generator = args.absent,
    })
    self.inputs, self.width = positive(name, "the number of inputs", inputs), positive(name, "the width", width)
    self.num_layers = positive(name, "num_layers", options.num_layers)
    self.batch_first, self.directions = options.batch_first, options.bidirectional and 2 or 1
    self.dropout = args.number(name, "dropout", options.dropout)
    if self.dropout < 0 or self.dropout >= 1 then
      errors.raise("invalid", "%s: dropout is %g; it must be at least 0 and below 1", name, self.dropout)
    end
    self.noise = { p = self.dropout, generator = options.generator }
    local bound = math.sqrt(1 / width)
    for layer = 0, self.num_layers - 1 do
      for direction = 1, self.directions do
        local suffix = "l" .. layer .. (direction == 2 and "_reverse" or "")
        self["weight_ih_" .. suffix] = initial.uniform({ gates * width, layer == 0 and inputs or width * self.directions },
          bound)
        self["weight_hh_" .. suffix] = initial.uniform({ gates * width, width }, bound)
        if options.bias then
          self["bias_ih_" .. suffix] = initial.uniform({ gates * width }, bound)
          self["bias_hh_" .. suffix] = initial.uniform({ gates * width }, bound)
        end
      end
    end
  end

  function Layer:forward(x, h, c)
    local first, second = self.batch_first and "B" or "T", self.batch_first and "T" or "B"
    if not is_tensor(x) then
      errors.raise("invalid", "%s: expected a tensor, got %s", name, args.describe(x))
    elseif x.ndim ~= 3 or methods.size(x, 3) ~= self.inputs then
      errors.raise("shape", "%s: the input has shape %s; [%s, %s, %d] is needed", name, args.shape_text(x.shape), first,
        second, self.inputs)
    end
    if self.batch_first then
      x = methods.transpose(x, 1, 2)
    end
    if methods.size(x, 1) == 0 then
      errors.raise("shape", "%s: the input has no time step", name)
    end
    h = first_states(self, name, h, methods.size(x, 2), x)
    c = has_cell_state and first_states(self, name, c, methods.size(x, 2), x) or nil
    local y, last_h, last_c = run_layers(self, cell, x, h, c)
    if self.batch_first then
      y = methods.transpose(y, 1, 2)
    end
    if has_cell_state then
      return y, functions.stack(last_h, 1), functions.stack(last_c, 1)
    end
    return y, functions.stack(last_h, 1)
  end

  return Layer
end

--- layer(x, h, c) gives the results [T, B, directions * H] and the last h and c, [layers * directions, B, H]; h and c are
-- zeros unless given.
---@class luda.nn.LSTM: luda.nn.Module
---@overload fun(inputs: integer, width: integer, options: luda.RecurrentOptions?): luda.nn.LSTM
M.LSTM = recurrent("LSTM", 4, lstm_cell, true)

--- layer(x, h) gives the results [T, B, directions * H] and the last h, [layers * directions, B, H].
---@class luda.nn.GRU: luda.nn.Module
---@overload fun(inputs: integer, width: integer, options: luda.RecurrentOptions?): luda.nn.GRU
M.GRU = recurrent("GRU", 3, gru_cell, false)

--- Makes a class of one cell, for one step of a loop of the user's. Parameters have PyTorch's names and shapes, weight_ih
-- [gates * H, inputs], and start uniform within 1 / sqrt(H).
local function single(name, gates, cells, has_cell_state)
  local Cell = modules.module(name)

  function Cell:init(inputs, width, given)
    local known = { bias = true, nonlinearity = cells.tanh and "tanh" or nil }
    local options = args.options(name, given, known)
    self.inputs, self.width = positive(name, "the number of inputs", inputs), positive(name, "the width", width)
    self.nonlinearity = options.nonlinearity
    if not cells[options.nonlinearity or 1] then
      errors.raise("invalid", "%s: nonlinearity is tanh or relu, not %s", name, args.describe(options.nonlinearity))
    end
    local bound = math.sqrt(1 / width)
    self.weight_ih = initial.uniform({ gates * width, inputs }, bound)
    self.weight_hh = initial.uniform({ gates * width, width }, bound)
    if options.bias then
      self.bias_ih = initial.uniform({ gates * width }, bound)
      self.bias_hh = initial.uniform({ gates * width }, bound)
    end
  end

  --- A state [B, H], or zeros.
  local function state(self, given, batch, x)
    local shape = { batch, self.width }
    if given == nil then
      return create.zeros(shape, { dtype = x.dtype, device = x.device })
    elseif not is_tensor(given) or args.shape_text(given.shape) ~= args.shape_text(shape) then
      errors.raise("shape", "%s: a state %s; %s is needed (batch, width)", name,
        is_tensor(given) and args.shape_text(given.shape) or args.describe(given), args.shape_text(shape))
    end
    return given
  end

  function Cell:forward(x, h, c)
    if not is_tensor(x) then
      errors.raise("invalid", "%s: expected a tensor, got %s", name, args.describe(x))
    elseif x.ndim ~= 2 or methods.size(x, 2) ~= self.inputs then
      errors.raise("shape", "%s: the input has shape %s; [B, %d] is needed", name, args.shape_text(x.shape), self.inputs)
    end
    local batch = methods.size(x, 1)
    local inputs = functions.linear(x, methods.t(self.weight_ih), self.bias_ih)
    h, c = state(self, h, batch, x), has_cell_state and state(self, c, batch, x) or nil
    return cells[self.nonlinearity or 1](inputs, h, c, methods.t(self.weight_hh), self.bias_hh, self.width)
  end

  return Cell
end

--- cell(x, h, c) gives the next h and c, [B, H]; both are zeros unless given.
---@class luda.nn.LSTMCell: luda.nn.Module
---@overload fun(inputs: integer, width: integer, options: {bias: boolean}?): luda.nn.LSTMCell
M.LSTMCell = single("LSTMCell", 4, { lstm_cell }, true)

--- cell(x, h) gives the next h.
---@class luda.nn.GRUCell: luda.nn.Module
---@overload fun(inputs: integer, width: integer, options: {bias: boolean}?): luda.nn.GRUCell
M.GRUCell = single("GRUCell", 3, { gru_cell }, false)

--- cell(x, h) gives the next h, tanh or relu of the sum of both products.
---@class luda.nn.RNNCell: luda.nn.Module
---@overload fun(inputs: integer, width: integer, options: {bias: boolean, nonlinearity: "tanh"|"relu"}?): luda.nn.RNNCell
M.RNNCell = single("RNNCell", 1, { tanh = tanh_cell, relu = relu_cell }, false)

return M
