--- Random numbers of distributions: examples, and what the operator table does not say.

return {
  title = "Random numbers of distributions",
  text = "Element i of a draw is a function of the generator's seed, its counter and i: the same on every "
    .. "device and for any number of threads.",
  { "uniform_", "luda.tensor({ 0, 0, 0 }):uniform_(2, 3, { generator = luda.generator(1) })", "{2.672, 2.8741, 2.4756}",
    call = "uniform_(t, from=0, to=1, {generator=})", types = "FLOAT_ONLY", gradient = "zero", shape = "same" },
  { "normal_", "luda.tensor({ 0, 0, 0 }):normal_(10, 2, { generator = luda.generator(1) })", "{11.254, 8.732, 8.6435}",
    call = "normal_(t, mean=0, std=1, {generator=})", types = "FLOAT_ONLY", gradient = "zero", shape = "same" },
  { "exponential_", "luda.tensor({ 0, 0 }):exponential_(2, { generator = luda.generator(1) })", "{0.55737, 1.0362}",
    call = "exponential_(t, lambd=1, {generator=})", types = "FLOAT_ONLY", gradient = "zero", shape = "same" },
  { "gumbel_", "luda.tensor({ 0, 0 }):gumbel_({ generator = luda.generator(1) })", "{-0.10862, -0.72869}",
    call = "gumbel_(t, loc=0, scale=1, {generator=})", types = "FLOAT_ONLY", gradient = "zero", shape = "same" },
  { "trunc_normal_", "luda.tensor({ 0, 0, 0 }):trunc_normal_(0, 1, -1, 1, { generator = luda.generator(1) })",
    "{0.69159, 0.27039, 0.096837}",
    call = "trunc_normal_(t, mean=0, std=1, a=-2, b=2, {generator=})", types = "FLOAT_ONLY", gradient = "zero",
    shape = "same" },
  { "bernoulli", "luda.tensor({ 0, 1, 1 }):bernoulli()", "{0, 1, 1}",
    call = "bernoulli(t, {p=, generator=})", types = "FLOAT_ONLY", gradient = "zero", shape = "same" },
  { "bernoulli_", "luda.tensor({ 0, 0, 0, 0 }):bernoulli_(0.5, { generator = luda.generator(1) })", "{0, 0, 1, 0}",
    call = "bernoulli_(t, p=0.5, {generator=})", types = "ANY", gradient = "zero", shape = "same" },
  { "multinomial", "luda.tensor({ 0, 3, 0 }):multinomial(1)", "{2} i64",
    call = "multinomial(weights, count, {replacement=false, generator=, base=1})", types = "FLOAT_TO_I64",
    gradient = "zero", shape = "the weights' shape with the last dimension of count" },
  { "poisson", "luda.tensor({ 0, 4, 100 }):poisson({ generator = luda.generator(1) })", "{0, 5, 105}",
    call = "poisson(rates, {generator=})", types = "FLOAT_ONLY", gradient = "zero", shape = "same" },
  { "dropout", "luda.tensor({ 1, 1, 1, 1 }):dropout(0.5, { generator = luda.generator(1) })", "{2, 2, 0, 2}" },
}
