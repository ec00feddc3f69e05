/*
 * Dispatch: plan (types, shapes, random numbers), then run (memory, operands, kernel). No switch over operators: a pair
 * is supported when the device's table has an entry.
 */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

static atomic_llong runs[LUDA_OP_COUNT];

int64_t luda_op_runs(luda_op op)
{
    return (unsigned)op < LUDA_OP_COUNT ? atomic_load_explicit(&runs[op], memory_order_relaxed) : 0;
}

/* Load and store instead of a locked addition: a lost count under a race is cheaper than 5 ns a call. */
static void count_run(luda_op op)
{
    atomic_store_explicit(&runs[op], atomic_load_explicit(&runs[op], memory_order_relaxed) + 1, memory_order_relaxed);
}

/* --- Plan --- */

static luda_status check_inputs(const luda_plan *plan)
{
    const luda_op_info *info = plan->info;
    bool variadic = info->inputs == LUDA_VARIADIC;
    int least = variadic ? 1 : info->inputs - info->optional;
    if (plan->nin < least || (!variadic && plan->nin > info->inputs))
        return luda__fail(LUDA_EINVAL, "%s: %d tensors were given, %d are needed", info->name, plan->nin, least);
    for (int i = 0; i < (variadic ? plan->nin : least); i++)
        if (!plan->in[i])
            return luda__fail(LUDA_EINVAL, "%s: input %d is missing", info->name, i + 1);
    return LUDA_OK;
}

static const luda_field_info *field_of_kind(luda_attrs_family family, const char *kind)
{
    const luda_field_info *field;
    for (int i = 0; (field = luda_attrs_field(family, i)); i++)
        if (strcmp(field->kind, kind) == 0)
            return field;
    return NULL;
}

static luda_status plan_device(luda_plan *plan)
{
    const luda_tensor *first = NULL;
    for (int i = 0; i < plan->nin; i++) {
        const luda_tensor *t = plan->in[i];
        if (!t)
            continue;
        if (!first)
            first = t;
        else if (!luda__same_device(t->storage->device, first->storage->device))
            return luda__fail(LUDA_EDEVICE, "%s: tensors lie on different devices; move one with :to", plan->info->name);
    }
    plan->device = first ? first->storage->device : (luda_device){ LUDA_CPU, 0 };
    const luda_field_info *field = field_of_kind(plan->info->attrs, "device");
    if (field) {
        luda_device *wanted = (luda_device *)((char *)&plan->attrs + field->offset);
        if (wanted->type == LUDA_SAME_DEVICE)
            *wanted = plan->device;
        if (!luda__device(*wanted))
            return LUDA_EDEVICE;
        if (!first)
            plan->device = *wanted;
    }
    return LUDA_OK;
}

/* A draw that was not made yet takes its counters from the generator now, so that a replay can name them. */
static void draw(luda_plan *plan)
{
    if (!luda__facts(plan->op)->random)
        return;
    const luda_field_info *field = field_of_kind(plan->info->attrs, "random");
    luda_random *random = (luda_random *)((char *)&plan->attrs + field->offset);
    if (random->counter != 0)
        return;
    luda_generator *generator = random->generator ? (luda_generator *)random->generator : luda__context()->generator;
    int64_t numbers = 1;
    for (int d = 0; d < plan->out[0].ndim; d++)
        numbers *= plan->out[0].shape[d];
    if (plan->info->attrs == LUDA_ATTRS_attention) { /* one number for each weight: [..., T, S] */
        const luda_tensor *k = plan->in[1], *v = plan->in[2];
        numbers = v->shape[v->ndim - 1] ? numbers / v->shape[v->ndim - 1] * k->shape[k->ndim - 2] : 0;
    }
    random->seed = generator->seed;
    random->counter = generator->counter;
    generator->counter += (uint64_t)luda__random_blocks(plan->op, numbers);
}

/* Under autocast type rules see copies of the inputs that have the type which the row's fact asks for. */
static luda_status plan_types(luda_plan *plan, int autocast)
{
    luda_tensor changed[LUDA_MAX_INPUTS], *seen[LUDA_MAX_INPUTS], *const *in = plan->in;
    luda__autocast kind = autocast == LUDA__NO_AUTOCAST ? LUDA__AUTOCAST_NONE : luda__facts(plan->op)->autocast;
    if (kind == LUDA__AUTOCAST_NONE || plan->nin > LUDA_MAX_INPUTS)
        return luda__plan_types(plan);
    for (int i = 0; i < plan->nin; i++) {
        seen[i] = in[i];
        if (!in[i] || luda__class_of((luda_dtype)in[i]->dtype) != LUDA__FLOAT || in[i]->dtype == LUDA_F64)
            continue;
        changed[i] = *in[i];
        changed[i].dtype = (int8_t)(kind == LUDA__AUTOCAST_LOW ? autocast : LUDA_F32);
        seen[i] = &changed[i];
    }
    plan->in = seen;
    luda_status status = luda__plan_types(plan);
    plan->in = in;
    return status;
}

luda_status luda__plan_autocast(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, int autocast,
                                luda_plan *plan)
{
    if ((unsigned)op >= LUDA_OP_COUNT)
        return luda__fail(LUDA_EINVAL, "apply: there is no operator %d", (int)op);
    plan->op = op;
    plan->info = luda_op_get(op);
    plan->in = in;
    plan->nin = nin;
    plan->is_view = false;
    if (attrs && attrs->family != plan->info->attrs)
        return luda__fail(LUDA_EINVAL, "%s: attributes of another family were given", plan->info->name);
    if (attrs)
        plan->attrs = *attrs;
    else
        luda_attrs_default(op, &plan->attrs);
    LUDA_TRY(check_inputs(plan));
    LUDA_TRY(plan_device(plan));
    LUDA_TRY(plan_types(plan, autocast));
    LUDA_TRY(luda__plan_shapes(plan));
    draw(plan);
    return LUDA_OK;
}

luda_status luda__plan(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_plan *plan)
{
    return luda__plan_autocast(op, in, nin, attrs, LUDA__NO_AUTOCAST, plan);
}

luda_dtype luda__planned_cast(const luda_plan *plan, int input)
{
    return plan->cast[plan->info->inputs == LUDA_VARIADIC ? 0 : input];
}

/* --- Operands --- */

/* Stretches an operand to a shape by strides of 0. */
static void broadcast_operand(luda_operand *operand, int ndim, const int64_t *shape)
{
    int lead = ndim - operand->ndim;
    int64_t stride[LUDA_MAX_DIMS];
    operand->numel = 1;
    for (int d = 0; d < ndim; d++) {
        bool real = d >= lead && operand->shape[d - lead] == shape[d];
        stride[d] = real ? operand->stride[d - lead] : 0;
        operand->numel *= shape[d];
    }
    memcpy(operand->stride, stride, (size_t)ndim * sizeof *stride);
    memcpy(operand->shape, shape, (size_t)ndim * sizeof *shape);
    operand->ndim = ndim;
}

/* Gives a 1-D operand of matmul its second dimension: [k] is [1, k] on the left and [k, 1] on the right. */
static void add_matrix_dimension(luda_operand *operand, bool left)
{
    if (operand->ndim != 1)
        return;
    operand->ndim = 2;
    if (left) {
        operand->shape[1] = operand->shape[0];
        operand->stride[1] = operand->stride[0];
    }
    operand->shape[left ? 0 : 1] = 1;
    operand->stride[left ? 0 : 1] = left ? operand->shape[1] * operand->stride[1] : 1;
}

static void matmul_operands(luda_operand *in, luda_operand *out)
{
    bool row = in[0].ndim == 1, column = in[1].ndim == 1;
    add_matrix_dimension(&in[0], true);
    add_matrix_dimension(&in[1], false);
    if (row || column) { /* the result is contiguous and was made for this call */
        int64_t m = in[0].shape[in[0].ndim - 2], n = in[1].shape[in[1].ndim - 1];
        int batch = out->ndim - !row - !column;
        out->shape[batch] = m;
        out->shape[batch + 1] = n;
        out->stride[batch] = n;
        out->stride[batch + 1] = 1;
        out->ndim = batch + 2;
        for (int64_t d = batch - 1, step = m * n; d >= 0; step *= out->shape[d--])
            out->stride[d] = step;
    }
    for (int i = 0; i < 2; i++) {
        int64_t shape[LUDA_MAX_DIMS];
        int ndim = out->ndim;
        memcpy(shape, out->shape, (size_t)ndim * sizeof *shape);
        shape[ndim - 2] = in[i].shape[in[i].ndim - 2];
        shape[ndim - 1] = in[i].shape[in[i].ndim - 1];
        int64_t rows = in[i].stride[in[i].ndim - 2], columns = in[i].stride[in[i].ndim - 1];
        broadcast_operand(&in[i], ndim, shape);
        in[i].stride[ndim - 2] = rows;
        in[i].stride[ndim - 1] = columns;
    }
}

static bool broadcasts(const luda_plan *plan)
{
    return strcmp(plan->info->shape, "broadcast") == 0;
}

static void make_operands(const luda_plan *plan, luda_tensor *const *in, luda_tensor *const *out, luda_operand *ins,
                          luda_operand *outs)
{
    for (int o = 0; o < plan->info->outputs; o++)
        luda__operand(out[o], &outs[o]);
    for (int i = 0; i < plan->nin; i++) {
        if (!in[i]) {
            ins[i] = (luda_operand){ .data = NULL, .numel = -1 };
            continue;
        }
        luda__operand(in[i], &ins[i]);
        if (plan->nin > 1 && broadcasts(plan))
            broadcast_operand(&ins[i], outs[0].ndim, outs[0].shape);
    }
    for (int i = plan->nin; i < plan->info->inputs; i++)
        ins[i] = (luda_operand){ .data = NULL, .numel = -1 };
    if (plan->op == LUDA_OP_matmul)
        matmul_operands(ins, outs);
}

/* --- Run --- */

static luda_dtype kernel_dtype(const luda_plan *plan, const luda_operand *ins, const luda_operand *outs)
{
    if (plan->nin == 0)
        return (luda_dtype)outs[0].dtype;
    bool mask_first = plan->nin > 1 && plan->op == LUDA_OP_where;
    return (luda_dtype)ins[mask_first ? 1 : 0].dtype;
}

static luda_status run_kernel(const luda_plan *plan, luda_tensor *const *in, luda_tensor *const *out, bool accumulate)
{
    const luda_device_ops *device = luda__device(plan->device);
    luda_operand few[LUDA_MAX_INPUTS], outs[LUDA_MAX_OUTPUTS], *ins = few;
    char message[512] = "";
    int count = plan->nin > plan->info->inputs ? plan->nin : plan->info->inputs;
    if (count > LUDA_MAX_INPUTS && !(ins = malloc((size_t)count * sizeof *ins)))
        return luda__fail(LUDA_ENOMEM, "%s: no memory for %d operands", plan->info->name, count);
    make_operands(plan, in, out, ins, outs);
    luda_dtype dtype = kernel_dtype(plan, ins, outs);
    luda_kernel kernel = device->kernels(plan->device.index)->kernels[plan->op][dtype];
    luda_status status;
    if (!kernel) {
        bool elsewhere = luda__cpu_kernels()->kernels[plan->op][dtype]; /* never true on the CPU */
        status = luda__fail(LUDA_ENOTSUP, "%s: not supported for %s on %s%s", plan->info->name, luda_dtype_name(dtype), device->name,
                            elsewhere ? "; it runs on the processor, move the tensors with :to(\"cpu\")" : "");
    } else {
        luda_call call = { ins, outs, count, plan->info->outputs, plan->op, &plan->attrs, accumulate, NULL, message };
        if (device->stream_current)
            call.stream = device->stream_current(plan->device.index);
        count_run(plan->op);
        status = kernel(&call);
        if (status != LUDA_OK)
            luda__fail_text(status, message);
    }
    if (ins != few)
        free(ins);
    return status;
}

static luda_status new_outputs(const luda_plan *plan, luda_tensor **out)
{
    for (int o = 0; o < plan->info->outputs; o++) {
        const luda_plan_output *planned = &plan->out[o];
        luda_status status = luda_tensor_new(planned->dtype, plan->device, planned->ndim, planned->shape, &out[o]);
        if (status != LUDA_OK) {
            while (o-- > 0)
                luda_tensor_release(out[o]);
            return status;
        }
    }
    return LUDA_OK;
}

static luda_status run_fresh(luda_plan *plan, luda_tensor *const *in, luda_tensor **out)
{
    luda_tensor *made[LUDA_MAX_OUTPUTS];
    if (plan->is_view)
        return luda__tensor_over(in[0]->storage, plan->out[0].dtype, plan->out[0].ndim, plan->out[0].shape, plan->stride,
                                 plan->offset, out);
    if (plan->info->attrs == LUDA_ATTRS_cast && !luda__same_device(plan->attrs.cast.device, plan->device))
        return luda__move(in[0], plan->out[0].dtype, plan->attrs.cast.device, out);
    LUDA_TRY(new_outputs(plan, made));
    luda_status status = run_kernel(plan, in, made, false);
    for (int o = 0; o < plan->info->outputs; o++)
        if (status == LUDA_OK)
            out[o] = made[o];
        else
            luda_tensor_release(made[o]);
    return status;
}

/* True if a kernel may write `into` while it reads `in`: elsewhere, or the very same elements one by one. */
static bool may_write(const luda_plan *plan, const luda_tensor *in, const luda_tensor *into)
{
    if (!in || in->storage != into->storage)
        return true;
    return broadcasts(plan) && in->offset == into->offset && in->dtype == into->dtype && in->ndim == into->ndim &&
           memcmp(in->shape, into->shape, (size_t)into->ndim * sizeof *into->shape) == 0 &&
           memcmp(in->stride, into->stride, (size_t)into->ndim * sizeof *into->stride) == 0;
}

static luda_status check_into(const luda_plan *plan, const luda_tensor *into)
{
    const luda_plan_output *planned = &plan->out[0];
    char wanted[160], given[160];
    if (planned->ndim != into->ndim || memcmp(planned->shape, into->shape, (size_t)into->ndim * sizeof *into->shape) != 0)
        return luda__fail(LUDA_ESHAPE, "%s: the result has shape %s, the tensor to write has %s and cannot grow", plan->info->name,
                          luda__shape_text(planned->ndim, planned->shape, wanted, sizeof wanted),
                          luda__shape_text(into->ndim, into->shape, given, sizeof given));
    if (luda__class_of(planned->dtype) > luda__class_of((luda_dtype)into->dtype))
        return luda__fail(LUDA_EDTYPE, "%s: a result of %s cannot be written into %s, shape %s; convert it with :to(\"%s\") first",
                          plan->info->name, luda_dtype_name(planned->dtype), luda_dtype_name((luda_dtype)into->dtype),
                          luda__shape_text(into->ndim, into->shape, given, sizeof given), luda_dtype_name((luda_dtype)into->dtype));
    if (luda__overlaps_itself(into))
        return luda__fail(LUDA_EINVAL, "%s: elements of the tensor to write share memory (expanded?); clone it first",
                          plan->info->name);
    return LUDA_OK;
}

static luda_status run_into(luda_plan *plan, luda_tensor *const *in, luda_tensor *into)
{
    LUDA_TRY(check_into(plan, into));
    bool direct = (into->contiguous || broadcasts(plan)) && plan->out[0].dtype == (luda_dtype)into->dtype && plan->info->outputs == 1 &&
                  !plan->is_view && luda__same_device(plan->device, into->storage->device) &&
                  plan->info->attrs != LUDA_ATTRS_cast;
    for (int i = 0; direct && i < plan->nin; i++)
        direct = may_write(plan, in[i], into);
    if (direct) {
        LUDA_TRY(run_kernel(plan, in, &into, false));
    } else {
        luda_tensor *made[LUDA_MAX_OUTPUTS];
        LUDA_TRY(run_fresh(plan, in, made));
        luda_status status = luda__copy(made[0], into);
        for (int o = 0; o < plan->info->outputs; o++)
            luda_tensor_release(made[o]);
        LUDA_TRY(status);
    }
    luda__bump(into);
    return LUDA_OK;
}

luda_status luda__run(luda_plan *plan, luda_tensor *const *in, luda_tensor *into, luda_tensor **out)
{
    if (!into)
        return run_fresh(plan, in, out);
    LUDA_TRY(run_into(plan, in, into));
    out[0] = luda__retain(into);
    return LUDA_OK;
}

/* All elements as one dimension; a single one, also a stretched one, is repeated. */
static void flat_operand(const luda_tensor *t, int64_t numel, luda_operand *o)
{
    o->data = luda__data(t);
    o->dtype = t->dtype;
    o->ndim = 1;
    o->numel = o->shape[0] = numel;
    o->stride[0] = t->contiguous && t->numel == numel;
}

luda_status luda__run_map(luda_op op, luda_tensor *const *in, int nin, const luda_tensor *like, luda_dtype result,
                          luda_tensor *into, luda_tensor **out)
{
    luda_operand ins[LUDA_MAX_INPUTS], outs[1];
    char message[256];
    luda_kernel kernel = luda__cpu_kernels()->kernels[op][like->dtype];
    if (!kernel)
        return luda__fail(LUDA_ENOTSUP, "%s: not supported for %s on cpu", luda_op_get(op)->name, luda_dtype_name((luda_dtype)like->dtype));
    luda_tensor *made = luda__retain(into);
    if (!into)
        LUDA_TRY(luda__tensor_shaped(like, result, &made));
    for (int i = 0; i < nin; i++)
        flat_operand(in[i], like->numel, &ins[i]);
    flat_operand(made, like->numel, &outs[0]);
    luda_call call = { ins, outs, nin, 1, op, NULL, 0, NULL, message };
    count_run(op);
    luda_status status = kernel(&call);
    if (status != LUDA_OK) {
        luda_tensor_release(made);
        return luda__fail_text(status, message);
    }
    if (into)
        luda__bump(into);
    *out = made;
    return LUDA_OK;
}

luda_status luda__accumulate(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor *into)
{
    luda_plan plan;
    LUDA_TRY(luda__plan(op, in, nin, attrs, &plan));
    LUDA_TRY(check_into(&plan, into));
    LUDA_TRY(run_kernel(&plan, in, &into, true));
    luda__bump(into);
    return LUDA_OK;
}

luda_status luda__compute(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor **out)
{
    luda_plan plan;
    luda_tensor *cast[LUDA_MAX_INPUTS] = { NULL };
    luda_status status = luda__plan(op, in, nin, attrs, &plan);
    if (status != LUDA_OK)
        return status;
    if (plan.info->inputs == LUDA_VARIADIC) /* higher floors call those through luda_apply */
        return luda__run(&plan, in, NULL, out);
    for (int i = 0; i < nin && status == LUDA_OK; i++) {
        luda_dtype dtype = luda__planned_cast(&plan, i);
        if (in[i] && (luda_dtype)in[i]->dtype != dtype)
            status = luda__move(in[i], dtype, plan.device, &cast[i]);
        else
            cast[i] = luda__retain(in[i]);
    }
    if (status == LUDA_OK)
        status = luda__run(&plan, cast, NULL, out);
    for (int i = 0; i < nin; i++)
        luda_tensor_release(cast[i]);
    return status;
}

int luda_op_supported(luda_op op, luda_dtype dtype, luda_device device)
{
    if ((unsigned)op >= LUDA_OP_COUNT || (unsigned)dtype >= LUDA_DTYPE_COUNT)
        return 0;
    const luda_device_ops *ops = luda__device(device);
    return ops && (luda__facts(op)->is_view || ops->kernels(device.index)->kernels[op][dtype]);
}
