--- Matrices: examples, and what the operator table does not say.

return {
  title = "Matrices",
  text = "Products with numpy's rules, triangles and diagonals.",
  { "matmul", "luda.tensor({ { 1, 2 }, { 3, 4 } }):matmul(luda.tensor({ 1, 1 }))", "{3, 7}" },
  { "linear", "luda.linear(luda.tensor({ { 1, 2 } }), luda.tensor({ { 1 }, { 1 } }), luda.tensor({ 10 }))", "{{13}}" },
  { "tril", "luda.tensor({ { 1, 2 }, { 3, 4 } }):tril()", "{{1, 0}, {3, 4}}",
    call = "tril(t, diagonal=0)", types = "ANY", gradient = "yes", shape = "same" },
  { "triu", "luda.tensor({ { 1, 2 }, { 3, 4 } }):triu()", "{{1, 2}, {0, 4}}",
    call = "triu(t, diagonal=0)", types = "ANY", gradient = "yes", shape = "same" },
  { "diag", "luda.tensor({ 1, 2 }):diag()", "{{1, 0}, {0, 2}}",
    call = "diag(t, offset=0)", types = "ANY", gradient = "yes",
    shape = "a matrix's diagonal, or the matrix of a diagonal" },
  { "trace", "luda.tensor({ { 1, 2 }, { 3, 4 } }):trace()", "5",
    call = "trace(t)", types = "SUM", gradient = "yes", shape = "one number, of no dimension" },
}
