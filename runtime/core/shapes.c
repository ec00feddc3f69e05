/* Shape rules of operators that compute: one function per word of the shape column. Views are in views.c. */
#include "shapes.h"

#include <string.h>

/* --- Helpers --- */

luda_status luda__set_shape(luda_plan *plan, int output, int ndim, const int64_t *shape)
{
    if (ndim > LUDA_MAX_DIMS)
        return luda__fail(LUDA_ESHAPE, "%s: the result has %d dimensions, %d are possible", plan->info->name, ndim, LUDA_MAX_DIMS);
    plan->out[output].ndim = ndim;
    for (int d = 0; d < ndim; d++)
        plan->out[output].shape[d] = shape[d];
    return LUDA_OK;
}

luda_status luda__normalize_dim(const luda_plan *plan, int32_t *dim, int ndim)
{
    int limit = ndim > 0 ? ndim : 1; /* a 0-d tensor has dimension 0 and -1, as in PyTorch */
    char text[160];
    if (*dim < -limit || *dim >= limit)
        return luda__fail(LUDA_EINDEX, "%s: a dimension is out of range for shape %s, which has %d", plan->info->name,
                          luda__shape_text(ndim, plan->in[0]->shape, text, sizeof text), ndim);
    if (*dim < 0)
        *dim += limit;
    return LUDA_OK;
}

luda_status luda__shapes_differ(const luda_plan *plan, const luda_tensor *a, const luda_tensor *b, const char *hint)
{
    char first[160], second[160];
    return luda__fail(LUDA_ESHAPE, "%s: shapes %s and %s do not fit; %s", plan->info->name,
                      luda__shape_text(a->ndim, a->shape, first, sizeof first),
                      luda__shape_text(b->ndim, b->shape, second, sizeof second), hint);
}

static bool same_shape(const luda_tensor *a, const luda_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

bool luda__widen(const int64_t *a, int a_ndim, int *ndim, int64_t *shape)
{
    if (a_ndim > *ndim) {
        memmove(shape + (a_ndim - *ndim), shape, (size_t)*ndim * sizeof *shape);
        for (int d = 0; d < a_ndim - *ndim; d++)
            shape[d] = 1;
        *ndim = a_ndim;
    }
    for (int d = 0; d < a_ndim; d++) {
        int64_t *size = &shape[*ndim - a_ndim + d];
        if (*size == 1)
            *size = a[d];
        else if (a[d] != 1 && a[d] != *size)
            return false;
    }
    return true;
}

luda_status luda__same_shape(luda_plan *plan, int output, int input)
{
    return luda__set_shape(plan, output, plan->in[input]->ndim, plan->in[input]->shape);
}

/* --- Elementwise, creation --- */

static luda_status shape_broadcast(luda_plan *plan)
{
    int ndim = 0;
    int64_t shape[LUDA_MAX_DIMS];
    for (int i = 0; i < plan->nin; i++)
        if (!luda__widen(plan->in[i]->shape, plan->in[i]->ndim, &ndim, shape))
            return luda__shapes_differ(plan, plan->in[0], plan->in[i], "sizes must be equal or 1, aligned at the last dimension");
    return luda__set_shape(plan, 0, ndim, shape);
}

static luda_status shape_same(luda_plan *plan)
{
    const luda_field_info *field = luda_attrs_field(plan->info->attrs, 0);
    if (field && strcmp(field->kind, "dim") == 0)
        LUDA_TRY(luda__normalize_dim(plan, (int32_t *)((char *)&plan->attrs + field->offset), plan->in[0]->ndim));
    for (int i = 1; i < plan->nin; i++)
        if (!same_shape(plan->in[0], plan->in[i]))
            return luda__shapes_differ(plan, plan->in[0], plan->in[i], "they must be equal");
    if (plan->op == LUDA_OP_dropout && !(plan->attrs.dropout.p >= 0 && plan->attrs.dropout.p <= 1))
        return luda__fail(LUDA_EINVAL, "dropout: probability %g is outside 0 .. 1", plan->attrs.dropout.p);
    return luda__same_shape(plan, 0, 0);
}

static luda_status shape_create(luda_plan *plan)
{
    /* shape is the first field of both creating families */
    const luda_shape *shape = &plan->attrs.create.shape;
    if (shape->ndim < 0 || shape->ndim > LUDA_MAX_DIMS)
        return luda__fail(LUDA_ESHAPE, "%s: %d dimensions, 0 to %d are possible", plan->info->name, shape->ndim, LUDA_MAX_DIMS);
    for (int d = 0; d < shape->ndim; d++)
        if (shape->size[d] < 0)
            return luda__fail(LUDA_ESHAPE, "%s: a size of %lld is negative", plan->info->name, (long long)shape->size[d]);
    if (plan->op == LUDA_OP_randint && plan->attrs.random.low >= plan->attrs.random.high)
        return luda__fail(LUDA_EINVAL, "randint: low %lld must be less than high %lld", (long long)plan->attrs.random.low,
                          (long long)plan->attrs.random.high);
    if (plan->op == LUDA_OP_randperm && shape->ndim != 1)
        return luda__fail(LUDA_ESHAPE, "randperm: one dimension is needed, %d were given", shape->ndim);
    return luda__set_shape(plan, 0, shape->ndim, shape->size);
}

static luda_status shape_cat(luda_plan *plan)
{
    const luda_tensor *first = plan->in[0];
    if (first->ndim == 0)
        return luda__fail(LUDA_ESHAPE, "cat: a 0-d tensor cannot be joined; stack it, or unsqueeze it first");
    LUDA_TRY(luda__normalize_dim(plan, &plan->attrs.cat.dim, first->ndim));
    int64_t shape[LUDA_MAX_DIMS];
    memcpy(shape, first->shape, sizeof shape);
    for (int i = 1; i < plan->nin; i++) {
        const luda_tensor *other = plan->in[i];
        for (int d = 0; d < first->ndim; d++)
            if (other->ndim != first->ndim || (d != plan->attrs.cat.dim && other->shape[d] != first->shape[d]))
                return luda__shapes_differ(plan, first, other, "all but the joined dimension must be equal");
        shape[plan->attrs.cat.dim] += other->shape[plan->attrs.cat.dim];
    }
    return luda__set_shape(plan, 0, first->ndim, shape);
}

static luda_status shape_narrow_backward(luda_plan *plan)
{
    struct luda_narrow_backward_attrs *a = &plan->attrs.narrow_backward;
    int64_t shape[LUDA_MAX_DIMS];
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, plan->in[0]->ndim));
    if (plan->in[0]->ndim == 0)
        return luda__fail(LUDA_ESHAPE, "narrow_backward: a 0-d tensor has no dimension to place");
    memcpy(shape, plan->in[0]->shape, sizeof shape);
    int64_t length = shape[a->dim];
    if (a->step < 1 || a->start < 0 || (length > 0 && a->start + (length - 1) * a->step >= a->size))
        return luda__fail(LUDA_ESHAPE, "narrow_backward: %lld elements from %lld do not fit into %lld", (long long)length,
                          (long long)a->start, (long long)a->size);
    shape[a->dim] = a->size;
    return luda__set_shape(plan, 0, plan->in[0]->ndim, shape);
}

/* --- Reductions --- */

static luda_status shape_reduce(luda_plan *plan)
{
    struct luda_reduce_attrs *a = &plan->attrs.reduce;
    const luda_tensor *x = plan->in[0];
    bool reduced[LUDA_MAX_DIMS] = { false };
    if (a->dim.count < 0 || a->dim.count > LUDA_MAX_DIMS)
        return luda__fail(LUDA_EINVAL, "%s: %d dimensions were given", plan->info->name, a->dim.count);
    for (int i = 0; i < a->dim.count; i++) {
        LUDA_TRY(luda__normalize_dim(plan, &a->dim.dim[i], x->ndim));
        if (x->ndim > 0 && reduced[a->dim.dim[i]])
            return luda__fail(LUDA_EINVAL, "%s: a dimension was given twice", plan->info->name);
        reduced[a->dim.dim[i]] = true;
    }
    if (x->ndim == 0)
        a->dim.count = 0;
    int ndim = 0;
    int64_t shape[LUDA_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        if (a->dim.count > 0 && !reduced[d])
            shape[ndim++] = x->shape[d];
        else if ((plan->op == LUDA_OP_amax || plan->op == LUDA_OP_amin) && x->shape[d] == 0)
            return luda__fail(LUDA_ESHAPE, "%s: an empty dimension has no largest or smallest element", plan->info->name);
        else if (a->keepdim)
            shape[ndim++] = 1;
    }
    return luda__set_shape(plan, 0, ndim, shape);
}

static luda_status without_dim(luda_plan *plan, int output, int32_t dim, bool keepdim)
{
    const luda_tensor *x = plan->in[0];
    int ndim = 0;
    int64_t shape[LUDA_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        if (d != dim)
            shape[ndim++] = x->shape[d];
        else if (keepdim)
            shape[ndim++] = 1;
    return luda__set_shape(plan, output, ndim, shape);
}

static luda_status shape_extremum(luda_plan *plan)
{
    struct luda_extremum_attrs *a = &plan->attrs.extremum;
    const luda_tensor *x = plan->in[0];
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, x->ndim));
    if (x->ndim > 0 && x->shape[a->dim] == 0)
        return luda__fail(LUDA_ESHAPE, "%s: an empty dimension has no largest or smallest element", plan->info->name);
    LUDA_TRY(without_dim(plan, 0, a->dim, a->keepdim));
    return without_dim(plan, 1, a->dim, a->keepdim);
}

static luda_status positions_fit(luda_plan *plan, const luda_plan_output *expected)
{
    const luda_tensor *positions = plan->in[1];
    if (positions->ndim != expected->ndim || memcmp(positions->shape, expected->shape, (size_t)expected->ndim * 8) != 0)
        return luda__shapes_differ(plan, plan->in[0], positions, "there must be one position for each slice");
    return LUDA_OK;
}

static luda_status shape_take_along(luda_plan *plan)
{
    struct luda_extremum_attrs *a = &plan->attrs.extremum;
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, plan->in[0]->ndim));
    LUDA_TRY(without_dim(plan, 0, a->dim, a->keepdim));
    return positions_fit(plan, &plan->out[0]);
}

static luda_status shape_extremum_backward(luda_plan *plan)
{
    struct luda_extremum_backward_attrs *a = &plan->attrs.extremum_backward;
    const luda_tensor *g = plan->in[0];
    int ndim = a->keepdim || (g->ndim == 0 && a->size < 0) ? g->ndim : g->ndim + 1;
    int64_t shape[LUDA_MAX_DIMS];
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, ndim));
    if (!same_shape(g, plan->in[1]))
        return luda__shapes_differ(plan, g, plan->in[1], "there must be one position for each gradient");
    if (a->size < 0) /* the input of the forward was 0-d */
        return luda__set_shape(plan, 0, 0, g->shape);
    if (a->keepdim && (ndim == 0 || g->shape[a->dim] != 1))
        return luda__fail(LUDA_ESHAPE, "%s: with keepdim the gradient has size 1 along dimension %d", plan->info->name, a->dim + 1);
    for (int d = 0; d < ndim; d++)
        shape[d] = d == a->dim ? a->size : g->shape[d > a->dim && !a->keepdim ? d - 1 : d];
    return luda__set_shape(plan, 0, ndim, shape);
}

/* --- Products and index data --- */

static luda_status shape_matmul(luda_plan *plan)
{
    const luda_tensor *a = plan->in[0], *b = plan->in[1];
    if (a->ndim == 0 || b->ndim == 0)
        return luda__shapes_differ(plan, a, b, "a matrix product needs at least one dimension; multiply with * instead");
    int64_t inner_a = a->shape[a->ndim - 1], inner_b = b->shape[b->ndim > 1 ? b->ndim - 2 : 0];
    if (inner_a != inner_b) {
        char hint[96];
        bool transposed = b->ndim > 1 && b->shape[b->ndim - 1] == inner_a;
        bool other = a->ndim > 1 && a->shape[a->ndim - 2] == inner_b;
        snprintf(hint, sizeof hint, "inner sizes %lld and %lld differ%s", (long long)inner_a, (long long)inner_b,
                 transposed ? "; did you mean b:t()?" : other ? "; did you mean a:t()?" : "");
        return luda__shapes_differ(plan, a, b, hint);
    }
    int ndim = 0;
    int64_t shape[LUDA_MAX_DIMS + 2];
    if (a->ndim > 2 && !luda__widen(a->shape, a->ndim - 2, &ndim, shape))
        return LUDA_EINTERNAL;
    if (b->ndim > 2 && !luda__widen(b->shape, b->ndim - 2, &ndim, shape))
        return luda__shapes_differ(plan, a, b, "the batch sizes must be equal or 1");
    if (a->ndim > 1)
        shape[ndim++] = a->shape[a->ndim - 2];
    if (b->ndim > 1)
        shape[ndim++] = b->shape[b->ndim - 1];
    return luda__set_shape(plan, 0, ndim, shape);
}

static luda_status shape_index_select(luda_plan *plan)
{
    struct luda_index_select_attrs *a = &plan->attrs.index_select;
    const luda_tensor *x = plan->in[0], *index = plan->in[1];
    if (x->ndim == 0)
        return luda__fail(LUDA_ESHAPE, "index_select: a 0-d tensor has no dimension to select from");
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, x->ndim));
    if (x->ndim - 1 + index->ndim > LUDA_MAX_DIMS)
        return luda__shapes_differ(plan, x, index, "the result would have more than 8 dimensions");
    int ndim = 0;
    int64_t shape[2 * LUDA_MAX_DIMS];
    for (int d = 0; d < a->dim; d++)
        shape[ndim++] = x->shape[d];
    for (int d = 0; d < index->ndim; d++)
        shape[ndim++] = index->shape[d];
    for (int d = a->dim + 1; d < x->ndim; d++)
        shape[ndim++] = x->shape[d];
    return luda__set_shape(plan, 0, ndim, shape);
}

static luda_status shape_index_select_backward(luda_plan *plan)
{
    struct luda_index_select_backward_attrs *a = &plan->attrs.index_select_backward;
    const luda_tensor *g = plan->in[0], *index = plan->in[1];
    int ndim = g->ndim - index->ndim + 1;
    if (ndim < 1)
        return luda__shapes_differ(plan, g, index, "the gradient must hold the positions' dimensions");
    LUDA_TRY(luda__normalize_dim(plan, &a->dim, ndim));
    int64_t shape[LUDA_MAX_DIMS];
    for (int d = 0; d < ndim; d++)
        shape[d] = d < a->dim ? g->shape[d] : d == a->dim ? a->size : g->shape[d + index->ndim - 1];
    for (int d = 0; d < index->ndim; d++)
        if (g->shape[a->dim + d] != index->shape[d])
            return luda__shapes_differ(plan, g, index, "the gradient must hold the positions' dimensions");
    return luda__set_shape(plan, 0, ndim, shape);
}

/* --- Row-wise and fused --- */

static luda_status is_row(luda_plan *plan, const luda_tensor *x, int input)
{
    const luda_tensor *affine = input < plan->nin ? plan->in[input] : NULL;
    if (affine && (affine->ndim != 1 || affine->shape[0] != x->shape[x->ndim - 1]))
        return luda__shapes_differ(plan, x, affine, "weight and bias have the size of the last dimension");
    return LUDA_OK;
}

static luda_status shape_linear(luda_plan *plan)
{
    const luda_tensor *x = plan->in[0], *weight = plan->in[1], *bias = plan->nin > 2 ? plan->in[2] : NULL;
    int activation = plan->attrs.linear.activation;
    int64_t shape[LUDA_MAX_DIMS];
    if (x->ndim == 0 || weight->ndim != 2 || x->shape[x->ndim - 1] != weight->shape[0])
        return luda__shapes_differ(plan, x, weight, "the weight is [in, out] and the input's last dimension has size in");
    if (bias && (bias->ndim != 1 || bias->shape[0] != weight->shape[1]))
        return luda__shapes_differ(plan, weight, bias, "the bias has one element for each column of the weight");
    if (activation < LUDA_ACTIVATION_NONE || activation > LUDA_ACTIVATION_GELU_TANH)
        return luda__fail(LUDA_EINVAL, "linear: there is no activation %d", activation);
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[x->ndim - 1] = weight->shape[1];
    LUDA_TRY(luda__set_shape(plan, 0, x->ndim, shape));
    if (activation != LUDA_ACTIVATION_NONE) /* what its gradient needs */
        return luda__set_shape(plan, 1, x->ndim, shape);
    return luda__set_shape(plan, 1, 1, (int64_t[]){ 0 });
}

/* x, then vectors for its rows; out, then one number a row. */
static luda_status norm_shapes(luda_plan *plan, int vectors)
{
    const luda_tensor *x = plan->in[0];
    if (x->ndim == 0 || x->shape[x->ndim - 1] == 0)
        return luda__fail(LUDA_ESHAPE, "%s: rows of at least one element are needed", plan->info->name);
    for (int i = 1; i <= vectors; i++) {
        LUDA_TRY(is_row(plan, x, i));
        LUDA_TRY(luda__set_shape(plan, i, x->ndim - 1, x->shape));
    }
    return luda__same_shape(plan, 0, 0);
}

static luda_status shape_norm(luda_plan *plan)
{
    return norm_shapes(plan, 2);
}

static luda_status shape_rms_norm(luda_plan *plan)
{
    return norm_shapes(plan, 1);
}

/* The gradient, x, and the weight as input `weight`; the gradients of x and of vectors of a row's size. */
static luda_status norm_backward_shapes(luda_plan *plan, int weight, int vectors)
{
    const luda_tensor *x = plan->in[1];
    if (!same_shape(plan->in[0], x) || x->ndim == 0)
        return luda__shapes_differ(plan, plan->in[0], x, "the gradient has the input's shape");
    LUDA_TRY(is_row(plan, x, weight));
    for (int i = 1; i <= vectors; i++)
        LUDA_TRY(luda__set_shape(plan, i, 1, &x->shape[x->ndim - 1]));
    return luda__same_shape(plan, 0, 1);
}

static luda_status shape_norm_backward(luda_plan *plan)
{
    return norm_backward_shapes(plan, 4, 2);
}

static luda_status shape_rms_norm_backward(luda_plan *plan)
{
    return norm_backward_shapes(plan, 3, 1);
}

static luda_status loss_operands(luda_plan *plan, const luda_tensor *logits, const luda_tensor *labels, int weight)
{
    if (logits->ndim != 2 || labels->ndim != 1 || labels->shape[0] != logits->shape[0])
        return luda__shapes_differ(plan, logits, labels, "logits are [N, C] and labels [N]; flatten leading dimensions first");
    const luda_tensor *weights = weight < plan->nin ? plan->in[weight] : NULL;
    if (weights && (weights->ndim != 1 || weights->shape[0] != logits->shape[1]))
        return luda__shapes_differ(plan, logits, weights, "there must be one weight for each class");
    const struct luda_cross_entropy_attrs *a = &plan->attrs.cross_entropy;
    if (a->reduction < LUDA_REDUCTION_MEAN || a->reduction > LUDA_REDUCTION_NONE)
        return luda__fail(LUDA_EINVAL, "%s: there is no reduction %d", plan->info->name, a->reduction);
    if (!(a->label_smoothing >= 0 && a->label_smoothing <= 1))
        return luda__fail(LUDA_EINVAL, "%s: label_smoothing %g is outside 0 .. 1", plan->info->name, a->label_smoothing);
    return LUDA_OK;
}

static luda_status shape_cross_entropy(luda_plan *plan)
{
    const luda_tensor *labels = plan->in[1];
    LUDA_TRY(loss_operands(plan, plan->in[0], labels, 2));
    bool none = plan->attrs.cross_entropy.reduction == LUDA_REDUCTION_NONE;
    LUDA_TRY(luda__set_shape(plan, 0, none ? 1 : 0, labels->shape));
    return luda__set_shape(plan, 1, 1, labels->shape);
}

static luda_status shape_cross_entropy_backward(luda_plan *plan)
{
    LUDA_TRY(loss_operands(plan, plan->in[1], plan->in[2], 4));
    return luda__same_shape(plan, 0, 1);
}

static luda_status attention_operands(luda_plan *plan, const luda_tensor *q, const luda_tensor *k, const luda_tensor *v)
{
    int n = q->ndim;
    bool fit = n >= 2 && k->ndim == n && v->ndim == n;
    for (int d = 0; fit && d < n - 2; d++)
        fit = k->shape[d] == q->shape[d] && v->shape[d] == q->shape[d];
    if (!fit || q->shape[n - 1] != k->shape[n - 1])
        return luda__shapes_differ(plan, q, k, "queries are [..., T, D], keys [..., S, D]");
    if (k->shape[n - 2] != v->shape[n - 2])
        return luda__shapes_differ(plan, k, v, "there must be one value for each key");
    const struct luda_attention_attrs *a = &plan->attrs.attention;
    if (!(a->dropout_p >= 0 && a->dropout_p < 1))
        return luda__fail(LUDA_EINVAL, "%s: dropout_p %g is outside 0 .. 1", plan->info->name, a->dropout_p);
    return LUDA_OK;
}

static luda_status shape_attention(luda_plan *plan)
{
    const luda_tensor *q = plan->in[0], *v = plan->in[2];
    LUDA_TRY(attention_operands(plan, q, plan->in[1], v));
    LUDA_TRY(luda__same_shape(plan, 0, 0));
    plan->out[0].shape[q->ndim - 1] = v->shape[q->ndim - 1];
    return luda__set_shape(plan, 1, q->ndim - 1, q->shape);
}

static luda_status shape_attention_backward(luda_plan *plan)
{
    LUDA_TRY(attention_operands(plan, plan->in[1], plan->in[2], plan->in[3]));
    LUDA_TRY(luda__same_shape(plan, 0, 1));
    LUDA_TRY(luda__same_shape(plan, 1, 2));
    return luda__same_shape(plan, 2, 3);
}

/* --- The table --- */

static luda_status (*const rules[])(luda_plan *) = {
#define shape_narrow luda__shape_narrow
#define shape_select luda__shape_select
#define shape_transpose luda__shape_transpose
#define shape_permute luda__shape_permute
#define shape_expand luda__shape_expand
#define shape_view luda__shape_view
#define shape_squeeze luda__shape_squeeze
#define shape_unsqueeze luda__shape_unsqueeze
#define shape_gather luda__shape_gather
#define shape_scatter luda__shape_scatter
#define shape_nonzero luda__shape_nonzero
#define shape_paired luda__shape_paired
#define shape_search luda__shape_search
#define shape_dft luda__shape_dft
#define shape_conv luda__shape_conv
#define shape_conv_input luda__shape_conv_input
#define shape_conv_weight luda__shape_conv_weight
#define shape_max_pool luda__shape_max_pool
#define shape_max_pool_backward luda__shape_max_pool_backward
#define shape_avg_pool luda__shape_avg_pool
#define shape_avg_pool_backward luda__shape_avg_pool_backward
#define shape_square luda__shape_square
#define shape_factors luda__shape_factors
#define shape_eigh luda__shape_eigh
#define shape_solve luda__shape_solve
#define shape_det luda__shape_det
#define LUDA_OP(name, nin, nout, types, family, shape, ...) shape_##shape,
#include "../../kernels/ops.def"
};

luda_status luda__plan_shapes(luda_plan *plan)
{
    if (luda__facts(plan->op)->is_view) {
        plan->is_view = true;
        plan->offset = plan->in[0]->offset;
        memcpy(plan->stride, plan->in[0]->stride, sizeof plan->stride);
    }
    return rules[plan->op](plan);
}
