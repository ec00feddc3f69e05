/*
 * The gradient of attention. With P the weights (made again from the stored log-sum-exp), M the dropout mask, G the
 * gradient: dV = (P M)^T G, dS = P (M (G V^T) - rowsum(G out)), dQ = scale dS K, dK = scale dS^T Q. Many batch elements
 * are one slab each; few are swept twice, by slabs of queries for dQ and by blocks of keys for dK and dV.
 */
#include "attention.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cpu/random/words.h"

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/attention/attention_backward.inc"
#include "kernels/cpu/each.h"
