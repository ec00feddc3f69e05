/* See matmul.h. Nothing here depends on the instruction set. */
#include "matmul.h"

enum { TILE_M = 128, LARGE_TILE_M = 256, TILE_N = 256, WANTED_TILES = 16, SLAB_WORK = 1 << 18 };

static matrix last_two(const luda_operand *o)
{
    return (matrix){ o->data, o->stride[o->ndim - 2], o->stride[o->ndim - 1] };
}

/* A batch against one matrix is one product with more rows, where the rows are evenly spaced. */
static void fold_batch(products *p)
{
    const space *batch = &p->batch;
    if (batch->ndim != 1 || batch->stride[2][0] != 0)
        return;
    if (p->m != 1 && (batch->stride[0][0] != p->m * p->out.row || batch->stride[1][0] != p->m * p->a.row))
        return;
    if (p->m == 1) {
        p->out.row = batch->stride[0][0];
        p->a.row = batch->stride[1][0];
    }
    p->m *= batch->numel;
    p->batch = (space){ .numel = 1 };
}

void luda__plan_products(const luda_call *call, int64_t most_n, products *p)
{
    const luda_operand *out = &call->out[0], *a = &call->in[0], *b = &call->in[1];
    *p = (products){ .out = last_two(out), .a = last_two(a), .b = last_two(b), .batch = { .numel = 1 } };
    p->m = out->shape[out->ndim - 2];
    p->n = out->shape[out->ndim - 1];
    p->k = a->shape[a->ndim - 1];
    for (int d = 0; d < out->ndim - 2; d++) {
        int64_t stride[3] = { out->stride[d], a->stride[d], b->stride[d] };
        luda__space_add(&p->batch, 3, out->shape[d], stride);
    }
    fold_batch(p);
    p->tile_m = p->m >= 2 * LARGE_TILE_M ? LARGE_TILE_M : TILE_M;
    p->tiles_m = ceil_div(p->m, p->tile_m);
    int64_t columns = larger(WANTED_TILES / larger(p->batch.numel * p->tiles_m, 1), 1);
    p->tile_n = larger(ceil_div(ceil_div(p->n, columns), 64) * 64, TILE_N);
    p->tile_n = smaller(p->tile_n, most_n);
    p->tiles_n = ceil_div(p->n, p->tile_n);
    p->tiles = p->batch.numel * p->tiles_m * p->tiles_n;
    double work = (double)smaller(p->m, p->tile_m) * (double)smaller(p->n, p->tile_n) * (double)larger(p->k, 1);
    p->per_slab = work >= SLAB_WORK ? 1 : (int64_t)(SLAB_WORK / larger((int64_t)work, 1));
}
