/* Sums of gradients over several backward passes, added in place. */
#include "optimizer.h"

#include <stdlib.h>
#include <string.h>

struct luda_accumulator {
    int count;
    luda_tensor **parameters;
    luda_tensor **sums; /* contiguous and the accumulator's own; NULL: no gradient so far */
    int64_t additions;
    double weight;
};

/* One addition: entry k adds sources[k] to targets[k], which becomes sum positions[k]. */
typedef struct addition {
    int count;
    int *positions;
    luda_tensor **targets, **sources;
    luda_optim_sum *items;
    void *memory;
} addition;

luda_status luda_accumulator_new(luda_tensor *const *parameters, int count, luda_accumulator **out)
{
    luda_accumulator *a;

    if (count < 0 || (count > 0 && !parameters))
        return luda__fail(LUDA_EINVAL, "accumulator: a list of parameters is needed");
    LUDA_TRY(luda__optim_check_parameters("accumulator", parameters, count));
    a = calloc(1, sizeof *a);
    if (a)
        a->parameters = calloc((size_t)count * 2 + 1, sizeof *a->parameters);
    if (!a || !a->parameters) {
        free(a);
        return luda__fail(LUDA_ENOMEM, "accumulator: no memory for %d parameters", count);
    }
    a->count = count;
    a->sums = a->parameters + count;
    for (int i = 0; i < count; i++)
        a->parameters[i] = luda__retain(parameters[i]);
    *out = a;
    return LUDA_OK;
}

void luda_accumulator_release(luda_accumulator *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->count; i++) {
        luda_tensor_release(a->parameters[i]);
        luda_tensor_release(a->sums[i]);
    }
    free(a->parameters);
    free(a);
}

/* --- Adding --- */

static luda_status addition_new(int count, addition *out)
{
    size_t n = (size_t)count + 1;
    char *memory = calloc(n, sizeof(luda_optim_sum) + 2 * sizeof(luda_tensor *) + sizeof(int));
    if (!memory)
        return luda__fail(LUDA_ENOMEM, "accumulate: no memory for %d gradients", count);
    *out = (addition){ .memory = memory, .items = (luda_optim_sum *)(void *)memory };
    out->targets = (luda_tensor **)(void *)(out->items + n);
    out->sources = out->targets + n;
    out->positions = (int *)(void *)(out->sources + n);
    return LUDA_OK;
}

static void addition_release(addition *d)
{
    for (int k = 0; k < d->count; k++) {
        luda_tensor_release(d->targets[k]);
        luda_tensor_release(d->sources[k]);
    }
    free(d->memory);
}

static luda_status add_entry(const luda_accumulator *a, int position, luda_tensor *gradient, double weight, int dtype,
                             addition *d)
{
    luda_tensor *sum = a->sums[position];
    luda_device device = gradient->storage->device;
    luda_tensor **target = &d->targets[d->count];
    int wanted = dtype >= 0 ? dtype : sum ? sum->dtype : gradient->dtype;

    LUDA_TRY(luda__optim_check_gradient("accumulate", a->parameters[position], gradient));
    d->positions[d->count] = position;
    LUDA_TRY(luda__optim_packed(gradient, &d->sources[d->count]));
    d->count++;
    if (!sum)
        LUDA_TRY(luda_tensor_new((luda_dtype)wanted, device, gradient->ndim, gradient->shape, target));
    else if (sum->dtype != wanted)
        LUDA_TRY(luda__move(sum, (luda_dtype)wanted, device, target));
    else
        *target = luda__retain(sum);
    d->items[d->count - 1] = luda__optim_sum_item(*target, d->sources[d->count - 1], weight, sum ? 1 : 0);
    return LUDA_OK;
}

static luda_status add_all(luda_accumulator *a, luda_gradients *gradients, double weight, int dtype, addition *d)
{
    for (int i = 0; i < a->count; i++) {
        luda_tensor *gradient = luda_gradients_get(gradients, luda_tensor_id(a->parameters[i]));
        if (gradient)
            LUDA_TRY(add_entry(a, i, gradient, weight, dtype, d));
    }
    LUDA_TRY(luda__optim_sum(d->items, d->targets, d->count));
    for (int k = 0; k < d->count; k++) {
        luda_tensor **sum = &a->sums[d->positions[k]];
        if (*sum != d->targets[k]) {
            luda_tensor_release(*sum);
            *sum = luda__retain(d->targets[k]);
        }
    }
    return LUDA_OK;
}

luda_status luda_accumulator_add(luda_accumulator *a, luda_gradients *gradients, double weight, int dtype)
{
    addition d;
    luda_status status = LUDA_OK;

    if (!(isfinite(weight) && weight >= 0))
        return luda__fail(LUDA_EINVAL, "accumulate: the weight is %g, it must be finite and not negative", weight);
    if (dtype != -1 && !luda__is_float(dtype))
        return luda__fail(LUDA_EDTYPE, "accumulate: sums must have a floating type");
    if (weight != 0) {
        LUDA_TRY(addition_new(a->count, &d));
        status = add_all(a, gradients, weight, dtype, &d);
        addition_release(&d);
    }
    if (status != LUDA_OK)
        return status;
    a->additions++;
    a->weight += weight;
    return LUDA_OK;
}

/* --- Taking --- */

static void clear(luda_accumulator *a)
{
    for (int i = 0; i < a->count; i++) {
        luda_tensor_release(a->sums[i]);
        a->sums[i] = NULL;
    }
    a->additions = 0;
    a->weight = 0;
}

static luda_status divide(luda_accumulator *a)
{
    addition d;
    LUDA_TRY(addition_new(a->count, &d));
    for (int i = 0; i < a->count; i++) {
        if (a->sums[i]) {
            d.targets[d.count] = luda__retain(a->sums[i]);
            d.items[d.count++] = luda__optim_sum_item(a->sums[i], a->sums[i], 1 / a->weight, 0);
        }
    }
    luda_status status = luda__optim_sum(d.items, d.targets, d.count);
    addition_release(&d);
    return status;
}

luda_status luda_accumulator_take(luda_accumulator *a, int mean, luda_gradients **out)
{
    luda_gradients *gradients;
    luda_status status = LUDA_OK;

    if (mean && !(a->weight > 0))
        return luda__fail(LUDA_EINVAL, "accumulator: the weights of %lld additions sum to 0, there is no mean",
                          (long long)a->additions);
    LUDA_TRY(luda_gradients_new(&gradients));
    for (int i = 0; i < a->count && status == LUDA_OK; i++)
        if (a->sums[i])
            status = luda_gradients_set(gradients, luda_tensor_id(a->parameters[i]), a->sums[i]);
    if (status == LUDA_OK && mean)
        status = divide(a);
    if (status != LUDA_OK) {
        luda_gradients_release(gradients);
        return status;
    }
    clear(a);
    *out = gradients;
    return LUDA_OK;
}

/* --- Records --- */

int64_t luda_accumulator_count(const luda_accumulator *a)
{
    return a->additions;
}

double luda_accumulator_weight(const luda_accumulator *a)
{
    return a->weight;
}

luda_tensor *luda_accumulator_sum(const luda_accumulator *a, int parameter)
{
    return parameter >= 0 && parameter < a->count ? a->sums[parameter] : NULL;
}

static luda_status copy_sums(const luda_accumulator *a, luda_tensor *const *sums, luda_tensor **copies)
{
    for (int i = 0; i < a->count; i++) {
        luda_tensor *p = a->parameters[i];
        if (!sums[i])
            continue;
        if (!luda__optim_same_shape(sums[i], p) || !luda__is_float(sums[i]->dtype))
            return luda__fail(LUDA_EMISMATCH,
                              "accumulator: the sum for the parameter at %d has another shape or no floating type", i);
        LUDA_TRY(luda__move(sums[i], (luda_dtype)sums[i]->dtype, p->storage->device, &copies[i]));
    }
    return LUDA_OK;
}

luda_status luda_accumulator_set(luda_accumulator *a, luda_tensor *const *sums, int64_t count, double weight)
{
    luda_tensor **copies;
    luda_status status;

    if (count < 0 || !(isfinite(weight) && weight >= 0))
        return luda__fail(LUDA_EINVAL, "accumulator: a count of %lld and a weight of %g", (long long)count, weight);
    copies = calloc((size_t)a->count + 1, sizeof *copies);
    if (!copies)
        return luda__fail(LUDA_ENOMEM, "accumulator: no memory for %d sums", a->count);
    status = copy_sums(a, sums, copies);
    if (status == LUDA_OK) {
        clear(a);
        memcpy(a->sums, copies, (size_t)a->count * sizeof *copies);
        a->additions = count;
        a->weight = weight;
    }
    for (int i = 0; i < a->count && status != LUDA_OK; i++)
        luda_tensor_release(copies[i]);
    free(copies);
    return status;
}
