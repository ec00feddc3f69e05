--- What the words of the operator table's columns mean, for readers: `types` and `shape`.

local M = {}

local all = { "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool" }
local floats = { "f64", "f32", "f16", "bf16" }
local whole = { "i64", "i32", "i16", "i8", "u8" }
local numbers = { unpack(all, 1, 9) }
local bits = { "i64", "i32", "i16", "i8", "u8", "bool" }

--- By rule: what is accepted, which of these have kernels of their own (all of them where not said), what comes out.
local function rule(takes, accepts, gives, kernels)
  return { takes = takes, accepts = accepts, gives = gives, kernels = kernels or accepts }
end

local fused = rule("floating types", floats, "the first input's type")
M.dtypes = all
M.types = {
  ANY = rule("all types", all, "the common type"),
  VIEW = rule("all types", all, "the same type"),
  NUM = rule("all types but bool", numbers, "the common type"),
  FLOAT = rule("all types", all, "the common type where it is floating, else f32", floats),
  FLOAT_ONLY = rule("floating types", floats, "the common type"),
  FLOAT_NUM = rule("all types but bool", numbers, "the common type"),
  BITS = rule("integers and bool", bits, "the common type"),
  INTEGER = rule("integers", whole, "the common type"),
  COMPARE = rule("all types", all, "bool"),
  SELECT = rule("a mask of bool, then all types", all, "the common type of the two tensors"),
  SUM = rule("all types", all, "the same type where it is floating, else i64"),
  EXTREMUM = rule("all types", all, "values of the same type, positions i64"),
  TAKE = rule("all types; positions are integers", all, "the first input's type"),
  PUT = rule("all types; positions are integers", all, "the first input's type"),
  POSITIONS = rule("all types", all, "i64"),
  SEARCH = rule("all types", all, "i64"),
  MATRIX = rule("f32 and f64", { "f64", "f32" }, "the common type"),
  CREATE = rule("none", all, "the type asked for"),
  CREATE_FLOAT = rule("none", floats, "the floating type asked for"),
  CAST = rule("all types", all, "the type asked for"),
  -- Of compositions only.
  NUMBERED = rule("all types", all, "the same type; of booleans i64, as the numbers are"),
  NUMBER_TO_FLOAT = rule("all types but bool", numbers, "the common type where it is floating, else f32"),
  SIGNED_TO_FLOAT = rule("types with negative numbers", { "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8" },
    "the common type where it is floating, else f32"),
  INTEGER_TO_I64 = rule("integers", whole, "i64"),
  MATRIX_TO_I64 = rule("f32 and f64", { "f64", "f32" }, "i64"),
  FLOAT_TO_F32 = rule("floating types", floats, "f64 of f64, else f32"),
  FLOAT_TO_I64 = rule("floating types", floats, "i64"),
  NORM = fused, NORM_BACKWARD = fused, RMS_NORM = fused, RMS_NORM_BACKWARD = fused, CONV = fused, LINEAR = fused,
  LOSS = fused, LOSS_BACKWARD = fused, ATTENTION = fused, ATTENTION_BACKWARD = fused,
}

--- By rule: the shape of the result, and what is a `shape` error where something can be.
M.shapes = {
  broadcast = { "inputs broadcast: sizes are equal or 1, aligned at the last dimension", "sizes that do not broadcast" },
  same = { "that of the input" },
  create = { "the sizes given" },
  narrow = { "the input's, with length positions in dimension dim", "positions beyond the dimension" },
  select = { "the input's without dimension dim" },
  transpose = { "two dimensions exchanged" },
  permute = { "the dimensions in the order given", "a list that is not each dimension once" },
  expand = { "the sizes given, -1 keeps one", "a size that is neither 1 nor equal" },
  view = { "the sizes given, of which one may be -1", "another number of elements, or strides that allow no view" },
  squeeze = { "without dimensions of size 1" },
  unsqueeze = { "with a dimension of size 1 at dim" },
  narrow_backward = { "the input's, with size in dimension dim", "elements that do not fit" },
  cat = { "the sizes added up along dim", "other sizes that differ" },
  reduce = { "without the reduced dimensions; keepdim leaves them with size 1" },
  reduce_extreme = { "without the reduced dimensions; keepdim leaves them with size 1", "an empty dimension" },
  loss = { "one number, or the input's shape with reduction none", "inputs of different shapes" },
  extremum = { "without dimension dim; keepdim leaves it with size 1", "an empty dimension" },
  take_along = { "without dimension dim, one position for each slice", "positions of another shape" },
  extremum_backward = { "with dimension dim of size", "positions of another shape than the gradient" },
  matmul = { "[…, n, k] by […, k, m] gives […, n, m]; vectors lose their dimension; batches broadcast",
    "inner sizes that differ" },
  linear = { "[…, in] by [in, out] gives […, out]", "sizes that do not fit the weight" },
  square = { "square matrices, a batch of any dimensions", "a matrix that is not square" },
  factors = { "[m, k], k numbers in between where there are three, and [k, n], of [m, n]; k is the smaller", "no matrix" },
  eigh = { "n numbers, and [n, n], of [n, n]", "a matrix that is not square" },
  det = { "one number for each matrix", "a matrix that is not square" },
  solve = { "[n, n] and [n, k] give [n, k]; batches broadcast", "sizes that do not fit" },
  dft = { "complex numbers are pairs in the last dimension; that of dim stays, or becomes size" },
  index_select = { "the positions' shape in place of dimension dim", "a 0-d input" },
  index_select_backward = { "size in place of the positions' dimensions", "a gradient without the positions' dimensions" },
  gather = { "that of the positions", "positions larger than the input in other dimensions" },
  scatter = { "that of the first input", "a source smaller than the positions" },
  nonzero = { "[elements, dimensions], and how many rows count" },
  paired = { "that of the input, twice" },
  search = { "that of the values", "rows that do not fit the values" },
  norm = { "that of the input", "a weight or bias without the last dimension's size" },
  norm_backward = { "those of input, weight and bias", "a gradient of another shape than the input" },
  rms_norm = { "that of the input", "a weight without the last dimension's size" },
  rms_norm_backward = { "those of input and weight", "a gradient of another shape than the input" },
  cross_entropy = { "0-d, or [N] with reduction none, of logits [N, C] and labels [N]", "other shapes" },
  cross_entropy_backward = { "that of the logits", "other shapes" },
  attention = { "queries […, T, D], keys […, S, D], values […, S, E] give […, T, E]", "sizes that do not fit" },
  attention_backward = { "those of queries, keys and values", "sizes that do not fit" },
  conv = { "[N, C, H, W] and [O, C / groups, KH, KW] give [N, O, …, …]", "channels or windows that do not fit" },
  conv_input = { "[N, C, size]", "sizes that the forward pass does not give" },
  conv_weight = { "[O, C / groups, size]", "sizes that the forward pass does not give" },
  max_pool = { "[N, C, …, …], one element a window", "a window larger than the padded image" },
  max_pool_backward = { "[N, C, size]", "sizes that the forward pass does not give" },
  avg_pool = { "[N, C, …, …], one element a window", "a window larger than the padded image" },
  avg_pool_backward = { "[N, C, size]", "sizes that the forward pass does not give" },
}

return M
