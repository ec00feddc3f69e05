/* Gradients by parameter id, ascending, so that ranks walk them in the same order. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

typedef struct row {
    uint64_t id;
    luda_tensor *gradient;
} row;

struct luda_gradients {
    luda_object base;
    row *rows;
    int count, capacity;
};

static void gradients_destroy(void *object)
{
    luda_gradients *gradients = object;
    for (int i = 0; i < gradients->count; i++)
        luda_tensor_release(gradients->rows[i].gradient);
    free(gradients->rows);
    free(gradients);
}

static const luda_class gradients_class = { "gradients", gradients_destroy };

luda_status luda_gradients_new(luda_gradients **out)
{
    luda_gradients *gradients = calloc(1, sizeof *gradients);
    if (!gradients)
        return luda__fail(LUDA_ENOMEM, "gradients: no memory");
    luda__object_init(gradients, &gradients_class);
    *out = gradients;
    return LUDA_OK;
}

void luda_gradients_retain(luda_gradients *gradients)
{
    luda__retain(gradients);
}

void luda_gradients_release(luda_gradients *gradients)
{
    luda__release(gradients);
}

int luda_gradients_count(const luda_gradients *gradients)
{
    return gradients->count;
}

uint64_t luda_gradients_id(const luda_gradients *gradients, int index)
{
    return index >= 0 && index < gradients->count ? gradients->rows[index].id : 0;
}

/* The first row whose id is not smaller. */
static int find(const luda_gradients *gradients, uint64_t id)
{
    int low = 0, high = gradients->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (gradients->rows[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

luda_tensor *luda_gradients_get(const luda_gradients *gradients, uint64_t id)
{
    int at = find(gradients, id);
    return at < gradients->count && gradients->rows[at].id == id ? gradients->rows[at].gradient : NULL;
}

static void remove_row(luda_gradients *gradients, int at)
{
    luda_tensor_release(gradients->rows[at].gradient);
    memmove(&gradients->rows[at], &gradients->rows[at + 1], (size_t)(gradients->count - at - 1) * sizeof(row));
    gradients->count--;
}

luda_status luda_gradients_set(luda_gradients *gradients, uint64_t id, luda_tensor *gradient)
{
    int at = find(gradients, id);
    bool present = at < gradients->count && gradients->rows[at].id == id;
    if (!gradient) {
        if (present)
            remove_row(gradients, at);
        return LUDA_OK;
    }
    if (present) {
        luda__retain(gradient);
        luda_tensor_release(gradients->rows[at].gradient);
        gradients->rows[at].gradient = gradient;
        return LUDA_OK;
    }
    if (gradients->count == gradients->capacity) {
        int capacity = gradients->capacity ? 2 * gradients->capacity : 16;
        row *rows = realloc(gradients->rows, (size_t)capacity * sizeof *rows);
        if (!rows)
            return luda__fail(LUDA_ENOMEM, "gradients: no memory for another gradient");
        gradients->rows = rows;
        gradients->capacity = capacity;
    }
    memmove(&gradients->rows[at + 1], &gradients->rows[at], (size_t)(gradients->count - at) * sizeof(row));
    gradients->rows[at] = (row){ id, luda__retain(gradient) };
    gradients->count++;
    return LUDA_OK;
}
