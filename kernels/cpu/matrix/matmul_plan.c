/* See matmul.h. Nothing here depends on the instruction set. */
#include "matmul.h"

enum { WANTED_TILES = 8, MOST_M = 1024, LEAST_M = 192, LEAST_N = 96, SLAB_WORK = 1 << 18 };

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

/*
 * Wide tiles, so that rows of A serve many columns; narrower ones only where there would be too few tiles for workers of
 * unlike speed, and low ones last, because B is packed for all rows of a tile.
 */
static void cut_tiles(products *p)
{
    int64_t wanted = larger(WANTED_TILES / larger(p->batch.numel, 1), 1);
    int64_t most_m = larger(p->m / LEAST_M, 1), strips = larger(ceil_div(p->n, STRIP), 1);
    if (strips * most_m < wanted)
        strips = larger(strips, smaller(ceil_div(wanted, most_m), p->n / LEAST_N));
    p->tile_n = larger(ceil_div(ceil_div(p->n, strips), 48) * 48, 48);
    p->tiles_n = ceil_div(p->n, p->tile_n);
    int64_t rows = smaller(ceil_div(wanted, larger(p->tiles_n, 1)), most_m);
    rows = larger(rows, ceil_div(p->m, MOST_M));
    p->tile_m = larger(ceil_div(ceil_div(p->m, larger(rows, 1)), 8) * 8, 8);
    p->tiles_m = ceil_div(p->m, p->tile_m);
}

void luda__plan_products(const luda_operand *out, const luda_operand *a, const luda_operand *b, products *p)
{
    *p = (products){ .out = last_two(out), .a = last_two(a), .b = last_two(b), .batch = { .numel = 1 } };
    p->m = out->shape[out->ndim - 2];
    p->n = out->shape[out->ndim - 1];
    p->k = a->shape[a->ndim - 1];
    for (int d = 0; d < out->ndim - 2; d++) {
        int64_t stride[3] = { out->stride[d], a->stride[d], b->stride[d] };
        luda__space_add(&p->batch, 3, out->shape[d], stride);
    }
    fold_batch(p);
    cut_tiles(p);
    p->tiles = p->batch.numel * p->tiles_m * p->tiles_n;
    double work = (double)smaller(p->m, p->tile_m) * (double)smaller(p->n, p->tile_n) * (double)larger(p->k, 1);
    p->per_slab = work >= SLAB_WORK ? 1 : (int64_t)(SLAB_WORK / larger((int64_t)work, 1));
}
