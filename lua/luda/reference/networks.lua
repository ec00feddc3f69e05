--- Rows, attention, convolution and losses: examples, and what the operator table does not say.

return {
  title = "Rows, attention, convolution and losses",
  text = "What layers are made of; luda.nn has modules and more losses.",
  { "softmax", "luda.tensor({ 0, 0 }):softmax()", "{0.5, 0.5}" },
  { "log_softmax", "luda.tensor({ 0, 0 }):log_softmax()", "{-0.69315, -0.69315}" },
  { "layer_norm", "luda.tensor({ { 1, 3 } }):layer_norm()", "{{-0.99999, 0.99999}}" },
  { "rms_norm", "luda.tensor({ { 3, 4 } }):rms_norm()", "{{0.84853, 1.1314}}" },
  { "cross_entropy", 'luda.cross_entropy(luda.tensor({ { 0, 0 } }), luda.tensor({ 1 }, { dtype = "i64" }))', "0.69315" },
  { "scaled_dot_product_attention",
    [[luda.scaled_dot_product_attention(luda.tensor({ { 1, 0 } }), luda.tensor({ { 1, 0 }, { 1, 0 } }),
  luda.tensor({ { 2 }, { 4 } }))]], "{{3}}",
    call = "scaled_dot_product_attention(q, k, v, {is_causal=false, dropout_p=0, scale=0, generator=, "
      .. "attn_mask=, enable_gqa=false})" },
  { "conv2d", "luda.tensor({ { { { 1, 2 }, { 3, 4 } } } }):conv2d(luda.tensor({ { { { 1, 1 } } } }))", "{{{{3}, {7}}}}" },
  { "max_pool2d", "luda.tensor({ { { { 1, 2 }, { 3, 4 } } } }):max_pool2d(2)", "{{{{4}}}}" },
  { "avg_pool2d", "luda.tensor({ { { { 1, 2 }, { 3, 4 } } } }):avg_pool2d(2)", "{{{{2.5}}}}" },
}
