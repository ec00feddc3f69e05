/*
 * Every allocation of a training step fails once, and from there on: the step says so, leaves nothing behind, and the next one
 * works. Each try runs in a thread of its own, so that no cache has what the library asks for.
 */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
int main(void) /* their allocator is theirs */
{
    EXPECT(1);
    return summary("no_memory_test");
}
#else

/* --- An allocator that refuses --- */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

enum { NEVER = -1 };
static _Thread_local long countdown = NEVER; /* allocations until one is refused */
static _Thread_local int lasting;            /* and all after it */
static _Thread_local int refused;
static atomic_long blocks;

static int refuse(void)
{
    if (countdown == NEVER || (countdown > 0 && countdown--))
        return 0;
    if (!lasting)
        countdown = NEVER;
    return ++refused;
}

static void *counted(void *memory)
{
    blocks += memory != NULL;
    return memory;
}

void *malloc(size_t bytes)
{
    return refuse() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    return refuse() ? NULL : counted(__libc_calloc(count, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    if (refuse())
        return NULL;
    return memory ? __libc_realloc(memory, bytes) : counted(__libc_malloc(bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return refuse() ? NULL : counted(__libc_memalign(alignment, bytes));
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    return (*memory = aligned_alloc(alignment, bytes)) ? 0 : 12;
}

void free(void *memory)
{
    blocks -= memory != NULL;
    __libc_free(memory);
}

/* --- A step --- */

static const luda_device cpu = { LUDA_CPU, 0 };
static luda_tensor *x, *w;
static double expected[12], expected_w[16];

typedef enum variant { PLAIN, SECOND, REMADE, CHOSEN, VARIANTS } variant;

static luda_status identity_backward(luda_node *node, void *state, luda_tensor *const *g, const uint8_t *need, luda_tensor **dx)
{
    if (need[0] && g[0])
        return luda_apply(LUDA_OP_clone, &g[0], 1, NULL, &dx[0]);
    return LUDA_OK;
}

static int states; /* of custom nodes, that live */

static void release_state(void *state)
{
    states--;
}

static const luda_node_class identity = { .name = "identity", .backward = identity_backward, .release = release_state,
                                         .recorded = 1 };

/* Takes *value and puts the first result in its place; after a failure NULL. */
static luda_status then(luda_status before, luda_op op, luda_tensor **value, luda_tensor *other)
{
    luda_tensor *in[] = { *value, other }, *out[LUDA_MAX_OUTPUTS] = { NULL };
    if (before != LUDA_OK)
        return before;
    luda_status status = luda_apply(op, in, other ? 2 : 1, NULL, out);
    luda_tensor_release(*value);
    for (int o = 1; o < luda_op_get(op)->outputs; o++)
        luda_tensor_release(out[o]);
    *value = status == LUDA_OK ? out[0] : NULL;
    return status;
}

/* The same through a custom node. */
static luda_status through_node(luda_status before, luda_tensor **value)
{
    luda_tensor *fresh = NULL;
    luda_node *node;
    if (before != LUDA_OK)
        return before;
    luda_status status = luda_detach(*value, &fresh);
    if (status == LUDA_OK) {
        states++; /* the call takes it, whatever comes of it */
        status = luda_node_new(value, 1, &fresh, 1, &identity, &states, &node);
    }
    luda_tensor_release(*value);
    *value = fresh;
    return status == LUDA_OK ? luda_node_keep(node, fresh) : status;
}

static luda_status forward(luda_tensor **loss)
{
    luda_tensor *v = x;
    luda_tensor_retain(x);
    luda_status status = then(LUDA_OK, LUDA_OP_matmul, &v, w);
    status = then(status, LUDA_OP_layer_norm, &v, NULL);
    status = then(status, LUDA_OP_mul, &v, x);
    status = then(status, LUDA_OP_linear, &v, w);
    status = then(status, LUDA_OP_tanh, &v, NULL);
    status = then(status, LUDA_OP_exp, &v, NULL);
    status = through_node(status, &v);
    status = then(status, LUDA_OP_softmax, &v, NULL);
    status = then(status, LUDA_OP_matmul, &v, w);
    status = then(status, LUDA_OP_square, &v, NULL);
    status = then(status, LUDA_OP_sum, &v, NULL);
    *loss = v;
    return status;
}

static luda_status step(variant kind, luda_gradients **out)
{
    luda_backward_options options = { .create_graph = kind == SECOND, .ninputs = kind == CHOSEN ? 2 : 0,
                                      .inputs = (luda_tensor *[]){ x, w } };
    luda_tensor *loss = NULL;
    uint64_t before = luda_set_recompute(kind == REMADE ? luda_graph_mark(luda_context_current()) + 1 : 0);
    luda_status status = forward(&loss);
    luda_set_recompute(before);
    if (status == LUDA_OK)
        status = luda_backward(loss, NULL, &options, out);
    luda_tensor_release(loss);
    return status;
}

static void compare(luda_gradients *gradients, luda_tensor *leaf, const double *want, int count)
{
    double have[16] = { 0 };
    luda_tensor *gradient = luda_gradients_get(gradients, luda_tensor_id(leaf));
    EXPECT(gradient != NULL);
    if (!gradient)
        return;
    EXPECT_OK(luda_tensor_read(gradient, LUDA_F64, have, count));
    for (int i = 0; i < count; i++)
        EXPECT_NEAR(have[i], want[i], 1e-12);
}

/* --- Tries --- */

typedef struct try { variant kind; long allocation; int lasting, refused; int64_t limit; luda_status status; } try;

static void *run(void *argument)
{
    try *t = argument;
    luda_gradients *gradients = NULL;
    EXPECT(*luda_last_error() == 0);
    lasting = t->lasting;
    countdown = t->allocation;
    t->status = step(t->kind, &gradients);
    countdown = NEVER;
    t->refused = refused;
    if (t->status == LUDA_OK) {
        compare(gradients, x, expected, 12);
        compare(gradients, w, expected_w, 16);
    } else {
        EXPECT(gradients == NULL && *luda_last_error() != 0); /* also where a message finds no memory */
    }
    luda_gradients_release(gradients);
    return NULL;
}

static void run_alone(try *t)
{
    pthread_t thread;
    luda_memory_info before, after;
    EXPECT_OK(luda_memory(cpu, &before));
    luda_memory_trim(cpu);
    if (t->limit)
        EXPECT_OK(luda_set_memory_limit(cpu, before.live + t->limit));
    EXPECT(pthread_create(&thread, NULL, run, t) == 0);
    pthread_join(thread, NULL);
    EXPECT_OK(luda_set_memory_limit(cpu, 0));
    luda_memory_trim(cpu);
    EXPECT_OK(luda_memory(cpu, &after));
    EXPECT(after.live == before.live && after.tensors == before.tensors && states == 0);
}

/* Every allocation in turn, until a step meets none that is refused. */
static long sweep(variant kind, int lasting_refusal)
{
    try t = { .kind = kind, .lasting = lasting_refusal, .refused = 1 };
    for (; t.refused; t.allocation++) {
        run_alone(&t);
        EXPECT(t.status == LUDA_ENOMEM || (t.status == LUDA_OK && !(t.refused && t.lasting)));
        try next = { .kind = kind, .allocation = NEVER };
        run_alone(&next);
        EXPECT(next.status == LUDA_OK);
    }
    return t.allocation;
}

/* The same for the bytes of tensors. */
static int limits(variant kind)
{
    try t = { .kind = kind, .allocation = NEVER, .status = LUDA_ENOMEM };
    int failures = 0;
    for (t.limit = 64; t.status != LUDA_OK && t.limit < 1 << 20; t.limit += 64) {
        run_alone(&t);
        EXPECT(t.status == LUDA_ENOMEM || t.status == LUDA_OK);
        failures += t.status != LUDA_OK;
    }
    EXPECT(t.status == LUDA_OK);
    return failures;
}

static luda_tensor *leaf(int rows, int columns, double from)
{
    int64_t shape[] = { rows, columns };
    double values[16];
    luda_tensor *made = NULL;
    for (int i = 0; i < rows * columns; i++)
        values[i] = from + (i * 7 % 11) * 0.25 - i * 0.0625;
    EXPECT_OK(luda_tensor_new(LUDA_F64, cpu, 2, shape, &made));
    EXPECT_OK(luda_tensor_write(made, LUDA_F64, values, rows * columns));
    EXPECT_OK(luda_set_requires_grad(made, 1));
    return made;
}

int main(void)
{
    luda_gradients *gradients = NULL;
    luda_set_threads(1);
    x = leaf(3, 4, -1);
    w = leaf(4, 4, 0.5);
    EXPECT_OK(step(PLAIN, &gradients));
    EXPECT_OK(luda_tensor_read(luda_gradients_get(gradients, luda_tensor_id(x)), LUDA_F64, expected, 12));
    EXPECT_OK(luda_tensor_read(luda_gradients_get(gradients, luda_tensor_id(w)), LUDA_F64, expected_w, 16));
    luda_gradients_release(gradients);
    for (variant kind = PLAIN; kind < VARIANTS; kind++)
        for (int refusal = 0; refusal < 2; refusal++) {
            EXPECT(sweep(kind, refusal) > 40);
            long before = blocks;
            sweep(kind, refusal);
            EXPECT(blocks == before); /* nodes too */
        }
    for (variant kind = PLAIN; kind < VARIANTS; kind++)
        EXPECT(limits(kind) > 10);
    luda_tensor_release(x);
    luda_tensor_release(w);
    return summary("no_memory_test");
}
#endif
