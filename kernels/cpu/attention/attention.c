/*
 * attention: softmax(q k^T scale) v over tiles of keys, with a running maximum and sum per query (Milakov and
 * Gimelshein 2018; Rabe and Staats 2021; Dao et al. 2022), so that the weights of all keys never exist at once. A query
 * that sees no key gives 0.
 */
#include "attention.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cpu/random/words.h"

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/attention/attention.inc"
#include "kernels/cpu/each.h"
