/*
 * Rules that look at a whole parameter: Muon, LAMB and Adafactor. A stage makes directions, where memory may be short; then
 * states and values are updated by sums over lists.
 */
#include "optimizer.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

bool luda__optim_staged(const luda_optim *optim, const luda__optim_slot *slot)
{
    return optim->kind == LUDA_OPTIM_lamb || optim->kind == LUDA_OPTIM_adafactor ||
           (optim->kind == LUDA_OPTIM_muon && optim->groups[slot->group].use_muon != 0);
}

luda_status luda__optim_check_staged(int kind, const luda_optim_hyper *hyper, const luda_tensor *parameter, int index)
{
    char shape[128];
    if (kind == LUDA_OPTIM_muon && hyper->use_muon != 0 && (parameter->ndim != 2 || parameter->numel == 0))
        return luda__fail(LUDA_ESHAPE, "muon: the parameter at %d has shape %s, it must be a whole matrix", index,
                          luda__shape_text(parameter->ndim, parameter->shape, shape, sizeof shape));
    return LUDA_OK;
}

/* --- Operators without recording --- */

static luda_status compute2(luda_op op, luda_tensor *a, luda_tensor *b, luda_tensor **out)
{
    luda_tensor *in[] = { a, b };
    return luda__compute(op, in, b ? 2 : 1, NULL, out);
}

/* *a becomes op(*a, b). */
static luda_status replace(luda_op op, luda_tensor **a, luda_tensor *b)
{
    luda_tensor *result;
    LUDA_TRY(compute2(op, *a, b, &result));
    luda_tensor_release(*a);
    *a = result;
    return LUDA_OK;
}

/* *a becomes op(*a, number). */
static luda_status replace_number(luda_op op, luda_tensor **a, double number)
{
    luda_tensor *scalar;
    LUDA_TRY(luda_tensor_new((luda_dtype)(*a)->dtype, (*a)->storage->device, 0, NULL, &scalar));
    luda_status status = luda_tensor_write(scalar, LUDA_F64, &number, 1);
    if (status == LUDA_OK)
        status = replace(op, a, scalar);
    luda_tensor_release(scalar);
    return status;
}

static luda_status mean(luda_tensor *a, int dim, luda_tensor **out)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_reduce };
    attrs.reduce.dim.count = 1;
    attrs.reduce.dim.dim[0] = dim;
    attrs.reduce.keepdim = 1;
    return luda__compute(LUDA_OP_mean, &a, 1, &attrs, out);
}

/* target = beta target + alpha source, in place. */
static luda_status add(luda_tensor *target, luda_tensor *source, double alpha, double beta)
{
    luda_optim_sum item = luda__optim_sum_item(target, source, alpha, beta);
    return luda__optim_sum(&item, &target, 1);
}

static luda_status norm(luda_tensor *a, double *out)
{
    return luda__optim_norms(&a, 1, NULL, out);
}

/* A contiguous transpose. */
static luda_status transposed(luda_tensor *a, luda_tensor **out)
{
    luda_attrs attrs = { .family = LUDA_ATTRS_transpose };
    luda_tensor *view;
    attrs.transpose.dim0 = 0;
    attrs.transpose.dim1 = 1;
    LUDA_TRY(luda__compute(LUDA_OP_transpose, &a, 1, &attrs, &view));
    luda_status status = luda__optim_packed(view, out);
    luda_tensor_release(view);
    return status;
}

/* What the rule works on. */
static luda_tensor *value_of(const luda__optim_pass *s, int k)
{
    luda_tensor *master = s->slots[k]->state[MASTER];
    return master ? master : s->targets[k];
}

/* The entry's gradient as the update sees it, in the type it computes in. */
static luda_status scaled_gradient(luda__optim_pass *s, int k, double factor, luda_tensor **out)
{
    luda_tensor *p = s->slots[k]->parameter;
    LUDA_TRY(luda_tensor_new(luda__optim_compute(p), p->storage->device, p->ndim, p->shape, out));
    luda_optim_sum item = luda__optim_sum_item(*out, s->gradients[k], s->updates[k].factor * factor, 0);
    item.limit = s->updates[k].limit;
    return luda__optim_sum(&item, out, 1);
}

/* --- Muon --- */

enum { MOMENTUM_BUFFER = 2 }; /* ORDER optim */

/* The buffer becomes fresh g + kept buffer; the direction is by_gradient g + by_buffer times the buffer as it was. */
typedef struct momentum { double fresh, kept, by_gradient, by_buffer; } momentum;

static momentum momentum_of(const luda_optim_update *u)
{
    const luda_optim_hyper *h = u->hyper;
    bool ema = h->momentum_mode != 0, first = u->step == 1 && !ema;
    double plain = ema ? 1 - h->momentum : 1;
    momentum m = { first ? 1 : ema ? plain : 1 - h->dampening, first ? 0 : h->momentum, 0, 0 };
    m.by_gradient = h->nesterov != 0 ? plain + h->momentum * m.fresh : m.fresh;
    m.by_buffer = h->nesterov != 0 ? h->momentum * m.kept : m.kept;
    return m;
}

/* One step of the iteration: a X + b A X + c A A X with A = X X', into *x. */
static luda_status iterate(luda_tensor **x, const luda_optim_hyper *h)
{
    luda_tensor *turned = NULL, *a = NULL, *b = NULL, *next = NULL;
    luda_status status = transposed(*x, &turned);
    if (status == LUDA_OK)
        status = compute2(LUDA_OP_matmul, *x, turned, &a);
    if (status == LUDA_OK)
        status = compute2(LUDA_OP_matmul, a, a, &b);
    if (status == LUDA_OK)
        status = add(b, a, h->ns_coefficient2, h->ns_coefficient3);
    if (status == LUDA_OK)
        status = compute2(LUDA_OP_matmul, b, *x, &next);
    if (status == LUDA_OK)
        status = add(next, *x, h->ns_coefficient1, 1);
    if (status == LUDA_OK) {
        luda_tensor *old = *x;
        *x = next;
        next = old;
    }
    luda_tensor_release(turned);
    luda_tensor_release(a);
    luda_tensor_release(b);
    luda_tensor_release(next);
    return status;
}

/* *x becomes nearly orthogonal: its singular values go to about 1. */
static luda_status orthogonalize(luda_tensor **x, const luda_optim_hyper *h)
{
    double size;
    int exponent = 0;
    bool tall = (*x)->shape[0] > (*x)->shape[1];
    luda_tensor *turned;

    LUDA_TRY(norm(*x, &size));
    size = size > h->eps ? size : h->eps;
    if (h->stable_normalization != 0) { /* first by a power of two, so that the factors are never out of range */
        frexp(size, &exponent);
        LUDA_TRY(add(*x, *x, ldexp(1, -exponent), 0));
    }
    LUDA_TRY(add(*x, *x, ldexp(1, exponent) / size, 0));
    for (int end = 0; end < 2; end++) {
        for (int i = 0; end == 1 && i < (int)h->ns_steps; i++)
            LUDA_TRY(iterate(x, h));
        if (tall) {
            LUDA_TRY(transposed(*x, &turned));
            luda_tensor_release(*x);
            *x = turned;
        }
    }
    return LUDA_OK;
}

static double adjustment(const luda_optim_hyper *h, const luda_tensor *p)
{
    double rows = (double)p->shape[h->layout != 0], columns = (double)p->shape[h->layout == 0];
    return h->adjust_lr_fn != 0 ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1, rows / columns));
}

static luda_status stage_muon(luda__optim_pass *s, int k)
{
    const luda_optim_update *u = &s->updates[k];
    momentum m = momentum_of(u);
    s->rates[k] = u->lr * adjustment(u->hyper, s->slots[k]->parameter);
    if (!(s->rates[k] <= FLT_MAX) || !(u->lr * u->hyper->weight_decay <= FLT_MAX))
        return luda__fail(LUDA_EINVAL, "muon: the rate %g is too large for the shape or the decay of the parameter %llu", u->lr,
                          (unsigned long long)luda_tensor_id(s->slots[k]->parameter));
    LUDA_TRY(scaled_gradient(s, k, m.by_gradient, &s->directions[k]));
    LUDA_TRY(add(s->directions[k], s->slots[k]->state[MOMENTUM_BUFFER], m.by_buffer, 1));
    return orthogonalize(&s->directions[k], u->hyper);
}

/* --- Adafactor --- */

enum { ROW_VAR, COL_VAR, VARIANCE }; /* ORDER optim */

/* The rate of new squares; grows from 1 at the first step to almost nothing. */
static double share(const luda_optim_update *u)
{
    return pow((double)u->step, u->hyper->beta2_decay);
}

/* The means of squares over a dimension (0: the squares), mixed with the state so far: what the state will be. */
static luda_status mixed(luda__optim_pass *s, int k, luda_tensor *squares, int dim, int state)
{
    double part = share(&s->updates[k]);
    luda_tensor **fresh = &s->fresh[k][state == COL_VAR];
    if (dim == 0)
        *fresh = luda__retain(squares);
    else
        LUDA_TRY(mean(squares, dim, fresh));
    return add(*fresh, s->slots[k]->state[state], 1 - part, part);
}

/* The estimate of the second moment: rows times columns over the mean of rows. */
static luda_status estimate(luda__optim_pass *s, int k, luda_tensor *squares, double eps, luda_tensor **out)
{
    luda_tensor *middle = NULL;
    if (s->slots[k]->parameter->ndim < 2) {
        LUDA_TRY(mixed(s, k, squares, 0, VARIANCE));
        return compute2(LUDA_OP_clone, squares, NULL, out);
    }
    LUDA_TRY(mixed(s, k, squares, -1, ROW_VAR));
    LUDA_TRY(mixed(s, k, squares, -2, COL_VAR));
    LUDA_TRY(mean(s->fresh[k][ROW_VAR], -2, &middle));
    luda_status status = replace_number(LUDA_OP_clamp_min, &middle, eps);
    luda_tensor *rows = NULL;
    if (status == LUDA_OK)
        status = compute2(LUDA_OP_div, s->fresh[k][ROW_VAR], middle, &rows);
    if (status == LUDA_OK)
        status = compute2(LUDA_OP_mul, rows, s->fresh[k][COL_VAR], out);
    luda_tensor_release(middle);
    luda_tensor_release(rows);
    return status;
}

/* The gradient over the root of its second moment, with a size of at most d; the rate follows the size of the parameter. */
static luda_status stage_adafactor(luda__optim_pass *s, int k)
{
    const luda_optim_update *u = &s->updates[k];
    const luda_optim_hyper *h = u->hyper;
    luda_tensor *squares = NULL, *root = NULL, *value = value_of(s, k);
    double eps = h->eps1 != 0 ? h->eps1 : value->dtype == LUDA_F64 ? DBL_EPSILON : FLT_EPSILON;
    double count = sqrt((double)value->numel), size, length;

    LUDA_TRY(scaled_gradient(s, k, 1, &s->directions[k]));
    luda_status status = compute2(LUDA_OP_square, s->directions[k], NULL, &squares);
    if (status == LUDA_OK)
        status = estimate(s, k, squares, eps, &root);
    luda_tensor_release(squares);
    if (status == LUDA_OK)
        status = replace_number(LUDA_OP_clamp_min, &root, eps * eps);
    if (status == LUDA_OK)
        status = replace(LUDA_OP_rsqrt, &root, NULL);
    if (status == LUDA_OK)
        status = replace(LUDA_OP_mul, &s->directions[k], root);
    luda_tensor_release(root);
    if (status == LUDA_OK)
        status = norm(s->directions[k], &length);
    if (status == LUDA_OK)
        status = norm(value, &size);
    if (status == LUDA_OK)
        s->rates[k] = fmax(h->eps2, size / count) * fmin(u->lr, 1 / sqrt((double)u->step)) / fmax(1, length / (count * h->d));
    return status;
}

/* --- Lists of sums --- */

/* Sums and the tensors that say where each runs. */
typedef struct sums {
    luda_optim_sum *items;
    luda_tensor **tensors;
    int count;
} sums;

static luda_optim_sum *append(sums *list, luda_tensor *target, luda_tensor *source, double alpha, double beta)
{
    list->tensors[list->count] = target;
    list->items[list->count] = luda__optim_sum_item(target, source, alpha, beta);
    return &list->items[list->count++];
}

static luda_status run_sums(sums *list)
{
    int count = list->count;
    list->count = 0;
    return luda__optim_sum(list->items, list->tensors, count);
}

/* --- LAMB --- */

/* Adam's loop makes the directions out of nothing: 0 updated at the rate -1. */
static luda_status lamb_directions(luda_optim *optim, luda__optim_pass *s)
{
    luda_optim_update *updates = malloc(((size_t)s->staged + 1) * sizeof *updates);
    if (!updates)
        return luda__fail(LUDA_ENOMEM, "lamb: no memory for %d updates", s->staged);
    for (int k = 0; k < s->staged; k++) {
        luda_optim_update *u = &updates[k];
        *u = s->updates[k];
        u->value = luda__data(s->directions[k]);
        u->dtype = s->directions[k]->dtype;
        u->image = NULL;
        u->adam = (luda_optim_adam){ 0, 1, -1 / u->correction[0], 0, 1 / sqrt(u->correction[1]), u->hyper->eps };
    }
    luda_status status = luda__optim_update(optim->kind, updates, s->directions, s->staged);
    free(updates);
    return status;
}

/* Each parameter moves by the rate times its own size: the trust ratio, 1 where one of the norms is 0. */
static luda_status lamb_rates(luda__optim_pass *s, sums *list)
{
    double all;
    for (int k = 0; k < s->staged; k++)
        if (s->updates[k].hyper->weight_decay != 0)
            append(list, s->directions[k], value_of(s, k), s->updates[k].hyper->weight_decay, 1);
    LUDA_TRY(run_sums(list));
    for (int k = 0; k < s->staged; k++)
        list->tensors[k] = value_of(s, k);
    LUDA_TRY(luda__optim_norms(list->tensors, s->staged, s->norms, &all));
    LUDA_TRY(luda__optim_norms(s->directions, s->staged, s->rates, &all));
    for (int k = 0; k < s->staged; k++) {
        bool none = !(s->norms[k] > 0) || !(s->rates[k] > 0);
        s->rates[k] = s->updates[k].lr * (none ? 1 : s->norms[k] / s->rates[k]);
    }
    return LUDA_OK;
}

/* --- All --- */

luda_status luda__optim_stage(luda_optim *optim, luda__optim_pass *s)
{
    for (int k = 0; k < s->staged; k++) {
        luda_tensor *p = s->slots[k]->parameter;
        if (p->numel == 0)
            LUDA_TRY(luda_tensor_new(luda__optim_compute(p), p->storage->device, p->ndim, p->shape, &s->directions[k]));
        else if (optim->kind == LUDA_OPTIM_muon)
            LUDA_TRY(stage_muon(s, k));
        else if (optim->kind == LUDA_OPTIM_adafactor)
            LUDA_TRY(stage_adafactor(s, k));
        else
            LUDA_TRY(luda__zeros(luda__optim_compute(p), p->storage->device, p->ndim, p->shape, &s->directions[k]));
    }
    return LUDA_OK;
}

static void append_states(const luda_optim *optim, luda__optim_pass *s, int k, sums *list)
{
    luda__optim_slot *slot = s->slots[k];
    if (optim->kind == LUDA_OPTIM_muon) {
        momentum m = momentum_of(&s->updates[k]);
        append(list, slot->state[MOMENTUM_BUFFER], s->gradients[k], m.fresh * s->updates[k].factor, m.kept);
    }
    for (int i = 0; optim->kind == LUDA_OPTIM_adafactor && i < 2; i++)
        if (s->fresh[k][i])
            append(list, slot->state[slot->parameter->ndim < 2 ? VARIANCE : i], s->fresh[k][i], 1, 0);
}

/* What autocast or a half parameter sees of the values. */
static void append_image(luda__optim_pass *s, int k, sums *list)
{
    const luda_optim_update *u = &s->updates[k];
    if (!u->image)
        return;
    luda_optim_sum *item = append(list, value_of(s, k), value_of(s, k), 1, 0);
    item->target = u->image;
    item->target_dtype = u->image_dtype;
}

static luda_status land_all(luda_optim *optim, luda__optim_pass *s, sums *list)
{
    bool lamb = optim->kind == LUDA_OPTIM_lamb;
    if (lamb) {
        LUDA_TRY(lamb_directions(optim, s));
        LUDA_TRY(lamb_rates(s, list));
    }
    for (int k = 0; k < s->staged; k++) {
        const luda_optim_update *u = &s->updates[k];
        append_states(optim, s, k, list);
        append(list, value_of(s, k), s->directions[k], -s->rates[k], lamb ? 1 : 1 - u->lr * u->hyper->weight_decay);
    }
    LUDA_TRY(run_sums(list));
    for (int k = 0; k < s->staged; k++)
        append_image(s, k, list);
    return run_sums(list);
}

luda_status luda__optim_land(luda_optim *optim, luda__optim_pass *s)
{
    size_t room = 3 * (size_t)s->staged; /* a value and two states */
    sums list = { NULL, NULL, 0 };
    if (s->staged == 0)
        return LUDA_OK;
    list.items = malloc(room * (sizeof *list.items + sizeof *list.tensors));
    if (!list.items)
        return luda__fail(LUDA_ENOMEM, "%s: no memory for a list of %d parameters", optim->row->name, s->staged);
    list.tensors = (luda_tensor **)(void *)(list.items + room);
    luda_status status = land_all(optim, s, &list);
    free(list.items);
    return status;
}
