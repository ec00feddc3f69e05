/* See reduce.h. Nothing here depends on the instruction set. */
#include "reduce.h"

/* FEW, SHORT: elements of a line, apart or side by side, that are not worth a loop of their own. */
enum { GRAIN = 32768, MOST_SLABS = 64, COLUMN_GRAIN = 1024, COLUMN_PIECE = 4 * GRAIN, FEW = 32, SHORT = 4 };

static int is_reduced(const luda_dims *dims, int d)
{
    for (int i = 0; i < dims->count; i++)
        if (dims->dim[i] == d)
            return 1;
    return dims->count == 0;
}

static int64_t distance(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

static void cut(reduction *r)
{
    int64_t kept = r->kept.numel, reduced = r->reduced.numel;
    r->kept_step = kept;
    r->reduced_step = larger(reduced, 1);
    if (kept > 0 && reduced > 0 && kept <= INT64_MAX / larger(reduced, 1) && kept * reduced > GRAIN) {
        r->kept_step = larger(GRAIN / reduced, 1);
        if (r->columns)
            r->kept_step = larger(r->kept_step, COLUMN_GRAIN);
        r->kept_step = smaller(r->kept_step, kept);
        int64_t slabs = ceil_div(kept, r->kept_step);
        if (slabs < MOST_SLABS && r->kept_step * reduced > GRAIN) {
            int64_t least = r->columns ? COLUMN_PIECE : GRAIN;
            int64_t pieces = smaller(ceil_div(MOST_SLABS, slabs), r->kept_step * reduced / least);
            r->reduced_step = ceil_div(reduced, larger(pieces, 1));
        }
    }
    r->kept_slabs = kept > 0 ? ceil_div(kept, r->kept_step) : 0;
    r->reduced_slabs = larger(ceil_div(reduced, r->reduced_step), 1);
}

void luda__plan_reduction(const luda_operand *in, const luda_operand *out, const luda_dims *dims, reduction *r)
{
    int at = 0;
    int keepdim = out->ndim == in->ndim;
    *r = (reduction){
        .kept = { .numel = 1 }, .reduced = { .numel = 1 }, .input = in->data, .output = out->data, .divisor = 1
    };
    for (int d = 0; d < in->ndim; d++) {
        int reduced = is_reduced(dims, d);
        int64_t stride[2] = { reduced ? 0 : out->stride[keepdim ? d : at], in->stride[d] };
        luda__space_add(reduced ? &r->reduced : &r->kept, 2, in->shape[d], stride);
        at += !reduced;
    }
    if (r->kept.ndim > 0 && r->reduced.ndim > 0) {
        int64_t kept = distance(r->kept.stride[1][r->kept.ndim - 1]);
        int64_t reduced = distance(r->reduced.stride[1][r->reduced.ndim - 1]);
        int64_t few = reduced == 1 ? SHORT : FEW;
        r->columns = (kept < reduced || r->reduced.numel <= few) && r->kept.shape[r->kept.ndim - 1] >= 4;
    }
    cut(r);
}
