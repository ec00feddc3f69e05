/*
 * cross_entropy of logits [N, C] and labels [N], and its gradient.
 *
 * With s the smoothing and v the class weights, row i costs (1 - s) v[y] (l - x[y]) + s / C sum_c v[c] (l - x[c]),
 * where l is the row's log-sum-exp. A mean divides by the sum of v[y] over the counted rows; over none it is 0.
 */
#include "kernels/cpu/index/positions.h"
#include "rows.h"
#include "kernels/cpu/scalar.h"

#include <float.h>

typedef struct loss {
    rows r;                          /* forward: x; backward: dx, x */
    const luda_operand *labels, *lse;
    const struct luda_cross_entropy_attrs *attrs;
    const double *weight;            /* per class, or NULL */
    double weight_sum;
    double *row_loss, *row_weight;   /* [N] */
    const luda_operand *gradient;    /* backward */
    double factor;                   /* of the gradient, where it is one number */
} loss;

static int64_t label_of(const loss *l, int64_t row)
{
    return ((const int64_t *)l->labels->data)[row * l->labels->stride[0]];
}

static double label_weight(const loss *l, int64_t row)
{
    int64_t label = label_of(l, row);
    if (label == l->attrs->ignore_index)
        return 0;
    return l->weight ? l->weight[label - l->attrs->base] : 1;
}

/* Halved until 8 remain. */
static double sum_tree(const double *x, int64_t n)
{
    if (n > 8)
        return sum_tree(x, n / 2) + sum_tree(x + n / 2, n - n / 2);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

#define EACH_CLASSES CLASS_FLOAT
#define EACH "kernels/cpu/rows/loss.inc"
#include "kernels/cpu/each.h"
