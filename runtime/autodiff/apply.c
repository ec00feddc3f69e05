/* Operators as users call them: plan, tracked casts, run, record. */
#include "graph.h"
#include "../core/shapes.h"

#include <stdlib.h>
#include <string.h>

/* --- What may be recorded --- */

luda_status luda__fresh_enough(const luda_tensor *tensor, const char *op)
{
    if (!luda__tracked(tensor) || tensor->requires_grad || tensor->node_version == luda_tensor_version(tensor))
        return LUDA_OK;
    return luda__fail(LUDA_EGRAPH,
                      "%s: an input made by %s was changed in place after it was recorded, through another view of its storage; "
                      "make the view again after the change",
                      op, luda__node_name((const luda_node *)tensor->node));
}

/* Writing a tracked value where other tensors look would cut their gradient silently. */
static luda_status check_recorded_into(const luda_plan *plan, const luda_tensor *into)
{
    const char *op = plan->info->name;
    if (into->requires_grad)
        return luda__fail(LUDA_EGRAPH, "%s: a leaf that requires a gradient cannot be changed in place; use luda.no_grad", op);
    int references = atomic_load_explicit(&into->storage->base.references, memory_order_relaxed);
    if (references > 1)
        return luda__fail(LUDA_EGRAPH,
                          "%s: a tracked value cannot be written in place into storage that other tensors or the graph share; "
                          "use the form without the underscore, where or cat, or luda.no_grad",
                          op);
    return LUDA_OK;
}

static luda_status wants_recording(const luda_plan *plan, const luda_tensor *into, bool *record)
{
    bool tracked = luda__tracked(into);
    *record = false;
    if (!luda_grad_enabled())
        return LUDA_OK;
    for (int i = 0; i < plan->nin; i++)
        tracked |= luda__tracked(plan->in[i]);
    if (!tracked)
        return LUDA_OK;
    if (into)
        LUDA_TRY(check_recorded_into(plan, into));
    luda_gradient_kind kind = luda__gradient_kind(plan->op);
    if (kind == LUDA__GRADIENT_NONE)
        return luda__fail(LUDA_EGRAPH, "%s: it has no gradient, but an input requires one; detach the input or use luda.no_grad",
                          plan->info->name);
    for (int i = 0; i < plan->nin; i++)
        LUDA_TRY(luda__fresh_enough(plan->in[i], plan->info->name));
    *record = kind == LUDA__GRADIENT_RULE;
    return LUDA_OK;
}

/* --- Recording --- */

static bool keeps_input(luda_keeps keeps, luda_tensor *const *in, int nin, int input)
{
    if (input >= 8 || !(keeps >> input & 1))
        return false;
    if (!(keeps & LUDA__KEEPS_CROSSWISE))
        return true;
    for (int i = 0; i < nin; i++)
        if (i != input && (keeps >> i & 1) && luda__tracked(in[i]))
            return true;
    return false;
}

/* From which output on results are kept, and *last behind the last. */
static int kept_outputs(luda_keeps keeps, const luda_op_info *info, int *last)
{
    *last = keeps & LUDA__KEEPS_PLACES ? 2 : info->outputs;
    if (keeps & LUDA__KEEPS_OUT)
        return 0;
    return keeps & LUDA__KEEPS_HIDDEN_OUT ? info->outputs - info->hidden : keeps & LUDA__KEEPS_PLACES ? 1 : *last;
}

/* Before the kernel: versions are taken now, so that a change by the operator itself is noticed in backward. */
static luda_status begin_recording(const luda_plan *plan, luda_tensor *const *in, const luda_tensor *into, luda_node **out)
{
    luda_keeps keeps = luda__keeps(plan->op);
    luda_node *node;
    bool keep_outputs = (keeps & (LUDA__KEEPS_OUT | LUDA__KEEPS_HIDDEN_OUT | LUDA__KEEPS_PLACES)) != 0;
    const luda_attrs *attrs = plan->info->attrs != LUDA_ATTRS_none ? &plan->attrs : NULL;
    LUDA_TRY(luda__node_make(in, plan->nin, plan->info->outputs, keep_outputs, attrs, &node));
    node->op = (int32_t)plan->op;
    for (int i = 0; i < plan->nin; i++) {
        if (!in[i] || !keeps_input(keeps, in, plan->nin, i))
            continue;
        luda_kept *kept = &node->in[i].kept;
        node->in[i].remade = in[i] != into && luda__is_remade(in[i]);
        if (node->in[i].remade)
            continue;
        kept->version = luda_tensor_version(in[i]);
        if (in[i] != into) {
            kept->tensor = luda__retain(in[i]);
        } else if (luda__tensor_alias(in[i], &kept->tensor) != LUDA_OK) { /* it will belong to this node */
            luda__release(node);
            return LUDA_ENOMEM;
        }
    }
    *out = node;
    return LUDA_OK;
}

/* `in` NULL: the results are not made again. */
static luda_status end_recording(luda_node *node, luda_tensor *const *in, luda_tensor *const *out)
{
    const luda_op_info *info = luda_op_get((luda_op)node->op);
    int last, first = kept_outputs(luda__keeps((luda_op)node->op), info, &last);
    for (int o = first; o < last; o++) {
        LUDA_TRY(luda__tensor_alias(out[o], &node->out[o].tensor));
        node->out[o].version = luda_tensor_version(out[o]);
    }
    for (int o = 0; o < node->nout; o++)
        if (luda__class_of((luda_dtype)out[o]->dtype) == LUDA__FLOAT)
            luda__node_bind(node, out[o], o);
    if (in && node->context->recompute)
        luda__consider_remaking(node, in, out);
    return LUDA_OK;
}

static void drop(luda_tensor **made)
{
    luda_tensor_release(*made);
    *made = NULL;
}

/* Takes the node, and what running the operator gave. */
static luda_status record_run(luda_node *node, luda_status status, luda_tensor *const *in, luda_tensor **out)
{
    if (status == LUDA_OK) {
        status = end_recording(node, in, out);
        for (int o = 0; status != LUDA_OK && o < node->nout; o++)
            drop(&out[o]);
    }
    luda__release(node);
    return status;
}

static luda_status run_recorded(luda_plan *plan, luda_tensor *const *in, luda_tensor *into, luda_tensor **out)
{
    luda_node *node;
    LUDA_TRY(begin_recording(plan, in, into, &node));
    return record_run(node, luda__run(plan, in, into, out), into ? NULL : in, out);
}

static luda_status run_plan(luda_plan *plan, luda_tensor *const *in, bool record, luda_tensor *into, luda_tensor **out)
{
    if (record)
        return run_recorded(plan, in, into, out);
    LUDA_TRY(luda__run(plan, in, into, out));
    if (into && into->node && !into->requires_grad && luda_grad_enabled()) {
        luda__release(into->node); /* overwritten by values that need no gradient */
        into->node = NULL;
    } else if (into && into->node) {
        into->node_version = luda_tensor_version(into);
    }
    return LUDA_OK;
}

/* --- Applying --- */

/*
 * A cast of a parameter, or of a view of one, that reads the image its storage keeps. Each use is a node of its own, so that
 * the gradients of all uses are added in the parameter's type.
 */
static luda_status cast_by_image(luda_plan *plan, luda_tensor *tensor, luda_tensor **out)
{
    luda_node *node = NULL;
    bool record;
    LUDA_TRY(wants_recording(plan, NULL, &record));
    if (record)
        LUDA_TRY(begin_recording(plan, &tensor, NULL, &node));
    luda_status status = luda__image_view(tensor, plan->out[0].dtype, out);
    if (status == LUDA_OK && record)
        status = end_recording(node, NULL, out);
    luda__release(node);
    return status;
}

static luda_status cast_input(luda_tensor *tensor, luda_dtype dtype, bool autocast, luda_tensor **out)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_cast, .cast = { (int32_t)dtype, { LUDA_SAME_DEVICE, 0 } } };
    luda_plan plan;
    if (!autocast || !luda__image_possible(tensor, dtype))
        return luda_apply(LUDA_OP_to, &tensor, 1, &attrs, out);
    LUDA_TRY(luda__plan(LUDA_OP_to, &tensor, 1, &attrs, &plan));
    return cast_by_image(&plan, tensor, out);
}

static bool needs_casts(const luda_plan *plan)
{
    if (plan->info->attrs == LUDA_ATTRS_cast)
        return false;
    for (int i = 0; i < plan->nin; i++)
        if (plan->in[i] && (luda_dtype)plan->in[i]->dtype != luda__planned_cast(plan, i))
            return true;
    return false;
}

static luda_status apply_with_casts(luda_plan *plan, bool record, bool autocast, luda_tensor *into, luda_tensor **out)
{
    luda_tensor *few[LUDA_MAX_INPUTS], **cast = few;
    luda_status status = LUDA_OK;
    int made = 0;
    if (plan->nin > LUDA_MAX_INPUTS && !(cast = malloc((size_t)plan->nin * sizeof *cast)))
        return luda__fail(LUDA_ENOMEM, "%s: no memory for %d inputs", plan->info->name, plan->nin);
    for (; made < plan->nin && status == LUDA_OK; made++) {
        luda_tensor *tensor = plan->in[made];
        cast[made] = NULL;
        if (tensor && (luda_dtype)tensor->dtype != luda__planned_cast(plan, made))
            status = cast_input(tensor, luda__planned_cast(plan, made), autocast, &cast[made]);
        else
            cast[made] = luda__retain(tensor);
    }
    if (status == LUDA_OK)
        status = run_plan(plan, cast, record, into, out);
    for (int i = 0; i < made; i++)
        luda_tensor_release(cast[i]);
    if (cast != few)
        free(cast);
    return status;
}

static bool is_plain(const luda_tensor *t, const luda_tensor *like)
{
    return t->contiguous && t->dtype == like->dtype && t->storage->device.type == LUDA_CPU && luda__equal_shapes(t, like);
}

/* One element beside a tensor: a plain number as the front ends make it, or a number stretched to the shape, as a sum's gradient is. */
static bool is_single(const luda_tensor *t, const luda_tensor *like)
{
    if (t->dtype != like->dtype || t->storage->device.type != LUDA_CPU)
        return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->stride[d] != 0)
            return false;
    return t->ndim == 0 || luda__equal_shapes(t, like);
}

static luda_status record_map(luda_op op, luda_tensor *const *in, int nin, const luda_tensor *like, luda_dtype result,
                              luda_tensor **out)
{
    luda_plan plan; /* as far as recording reads it */
    luda_node *node;
    bool record;
    plan.op = op;
    plan.info = luda_op_get(op);
    plan.in = in;
    plan.nin = nin;
    LUDA_TRY(wants_recording(&plan, NULL, &record));
    if (!record)
        return luda__run_map(op, in, nin, like, result, NULL, out);
    LUDA_TRY(begin_recording(&plan, in, NULL, &node));
    return record_run(node, luda__run_map(op, in, nin, like, result, NULL, out), in, out);
}

/*
 * The common case without a plan: an elementwise row over contiguous CPU tensors of one type and shape, or one such tensor
 * and a number. The result is what the long way gives. 0: not this case.
 */
static int apply_map(const luda_context *context, luda_op op, luda_tensor *const *in, int nin, luda_tensor *into, luda_status *status,
                     luda_tensor **out)
{
    const luda__op_facts *facts = luda__facts(op);
    bool recording = context->grad_enabled, tracked = false;
    if (facts->map_inputs != nin)
        return 0;
    const luda_tensor *like = in[0];
    for (int i = 1; i < nin; i++)
        if (like && in[i] && (in[i]->ndim > like->ndim || (in[i]->ndim == like->ndim && !like->contiguous)))
            like = in[i];
    if (!like || !like->contiguous || facts->map_result[like->dtype] < 0)
        return 0;
    for (int i = 0; i < nin; i++) {
        if (!in[i] || !(is_plain(in[i], like) || is_single(in[i], like)))
            return 0;
        if (into && in[i]->storage == into->storage && (in[i]->offset != into->offset || in[i]->ndim != like->ndim || !in[i]->contiguous))
            return 0;
        tracked |= recording && in[i]->node;
    }
    luda_dtype result = (luda_dtype)facts->map_result[like->dtype];
    if (into && (tracked || (recording && into->node) || (luda_dtype)into->dtype != result || into->ndim != like->ndim || !into->contiguous ||
                 into->storage->device.type != LUDA_CPU || !luda__equal_shapes(into, like)))
        return 0;
    *status = tracked ? record_map(op, in, nin, like, result, out) : luda__run_map(op, in, nin, like, result, into, out);
    return 1;
}

static luda_status apply_in(luda_context *context, luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs,
                            luda_tensor *into, luda_tensor **out)
{
    luda_plan plan;
    bool record;
    int autocast = into ? LUDA__NO_AUTOCAST : context->autocast;
    luda_status status;
    if (!attrs && !context->anomaly && autocast == LUDA__NO_AUTOCAST && (unsigned)op < LUDA_OP_COUNT && nin > 0 &&
        apply_map(context, op, in, nin, into, &status, out))
        return status;
    LUDA_TRY(luda__plan_autocast(op, in, nin, attrs, autocast, &plan));
    LUDA_TRY(wants_recording(&plan, into, &record));
    if (needs_casts(&plan))
        status = apply_with_casts(&plan, record, autocast != LUDA__NO_AUTOCAST, into, out);
    else
        status = run_plan(&plan, in, record, into, out);
    if (status != LUDA_OK || !context->anomaly || plan.is_view)
        return status;
    context->anomaly = 0; /* the check is made of operators itself */
    status = luda__check_results(op, in, nin, into, out);
    context->anomaly = 1;
    for (int o = 0; status != LUDA_OK && o < plan.info->outputs; o++)
        drop(&out[o]);
    return status;
}

static luda_status apply(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor *into, luda_tensor **out)
{
    luda_context *context = luda__context();
    if (!context->profile)
        return apply_in(context, op, in, nin, attrs, into, out);
    int64_t start = luda_profile_now();
    luda_status status = apply_in(context, op, in, nin, attrs, into, out);
    if (status == LUDA_OK)
        luda__profile_add(context, luda_op_get(op)->name, LUDA_PROFILE_OPERATOR, start);
    return status;
}

luda_status luda_apply(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor **out)
{
    return apply(op, in, nin, attrs, NULL, out);
}

luda_status luda_apply_into(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor *into)
{
    luda_tensor *out[LUDA_MAX_OUTPUTS];
    if ((unsigned)op < LUDA_OP_COUNT && luda_op_get(op)->outputs != 1)
        return luda__fail(LUDA_ENOTSUP, "%s: it has several results and no in-place form", luda_op_get(op)->name);
    LUDA_TRY(apply(op, in, nin, attrs, into, out));
    luda_tensor_release(out[0]);
    return LUDA_OK;
}

/* --- Layout --- */

luda_status luda_contiguous(luda_tensor *tensor, luda_tensor **out)
{
    if (!tensor->contiguous)
        return luda_apply(LUDA_OP_clone, &tensor, 1, NULL, out);
    *out = luda__retain(tensor);
    return LUDA_OK;
}

luda_status luda_reshape(luda_tensor *tensor, int ndim, const int64_t *shape, luda_tensor **out)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_reshape };
    luda_shape *wanted = &attrs.reshape.shape;
    char from[160], to[160];
    int64_t stride[LUDA_MAX_DIMS];
    if (ndim < 0 || ndim > LUDA_MAX_DIMS)
        return luda__fail(LUDA_ESHAPE, "reshape: %d dimensions, 0 to %d are possible", ndim, LUDA_MAX_DIMS);
    wanted->ndim = ndim;
    for (int d = 0; d < ndim; d++)
        wanted->size[d] = shape[d];
    if (!luda__infer_shape(tensor->numel, wanted))
        return luda__fail(LUDA_ESHAPE, "reshape: %lld elements of shape %s cannot become %s", (long long)tensor->numel,
                          luda__shape_text(tensor->ndim, tensor->shape, from, sizeof from), luda__shape_text(ndim, shape, to, sizeof to));
    if (luda__view_strides(tensor, ndim, wanted->size, stride))
        return luda_apply(LUDA_OP_view, &tensor, 1, &attrs, out);
    luda_tensor *copy;
    LUDA_TRY(luda_apply(LUDA_OP_clone, &tensor, 1, NULL, &copy));
    luda_status status = luda_apply(LUDA_OP_view, &copy, 1, &attrs, out);
    luda_tensor_release(copy);
    return status;
}

/* --- The typed functions, one per row --- */

#define INPUTS_0 NULL
#define INPUTS_1 (luda_tensor *[]){ x }
#define INPUTS_2 (luda_tensor *[]){ x, y }
#define INPUTS_3 (luda_tensor *[]){ x, y, z }
#define INPUTS_4 (luda_tensor *[]){ x, y, z, u }
#define INPUTS_5 (luda_tensor *[]){ x, y, z, u, v }
#define INPUTS_6 (luda_tensor *[]){ x, y, z, u, v, w }
#define INPUTS_VARIADIC x
#define COUNT_VARIADIC count
#define COUNT_0 0
#define COUNT_1 1
#define COUNT_2 2
#define COUNT_3 3
#define COUNT_4 4
#define COUNT_5 5
#define COUNT_6 6

/* `size` bytes of the attributes of the operator's family; NULL: the defaults. One copy of this, not one for each row. */
static __attribute__((noinline)) luda_status apply_with(luda_op op, luda_tensor *const *in, int nin, const void *attrs, size_t size, luda_tensor **out)
{
    luda_attrs all = { .family = luda_op_get(op)->attrs };
    if (attrs)
        memcpy(all.bytes, attrs, size);
    return luda_apply(op, in, nin, attrs ? &all : NULL, out);
}

#define LUDA_PLAIN(name, nin, ...)                                                                                     \
    luda_status luda_##name(LUDA__IN_##nin luda_tensor **out)                                                          \
    {                                                                                                                  \
        return luda_apply(LUDA_OP_##name, INPUTS_##nin, COUNT_##nin, NULL, out);                                       \
    }
#define LUDA_OP(name, nin, nout, types, family, ...)                                                                   \
    luda_status luda_##name(LUDA__IN_##nin const struct luda_##family##_attrs *attrs, luda_tensor **out)               \
    {                                                                                                                  \
        return apply_with(LUDA_OP_##name, INPUTS_##nin, COUNT_##nin, attrs, sizeof *attrs, out);                       \
    }
#include "../../kernels/ops.def"
