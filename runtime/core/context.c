/* Contexts and generators: the state that belongs to one Lua state or to plain C. */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>

/* --- Generators --- */

static void generator_destroy(void *object)
{
    free(object);
}

static const luda_class generator_class = { "generator", generator_destroy };

luda_status luda_generator_new(uint64_t seed, luda_generator **out)
{
    luda_generator *generator = malloc(sizeof *generator);
    if (!generator)
        return luda__fail(LUDA_ENOMEM, "generator: no memory");
    luda__object_init(generator, &generator_class);
    generator->seed = seed;
    generator->counter = 1;
    *out = generator;
    return LUDA_OK;
}

void luda_generator_retain(luda_generator *generator)
{
    luda__retain(generator);
}

void luda_generator_release(luda_generator *generator)
{
    luda__release(generator);
}

void luda_generator_get(const luda_generator *generator, uint64_t state[2])
{
    state[0] = generator->seed;
    state[1] = generator->counter;
}

luda_status luda_generator_set(luda_generator *generator, const uint64_t state[2])
{
    if (state[1] == 0)
        return luda__fail(LUDA_EINVAL, "set_state: a generator's counter starts at 1, 0 was given");
    generator->seed = state[0];
    generator->counter = state[1];
    return LUDA_OK;
}

/* --- Contexts --- */

static _Thread_local luda_context *current;
static luda_context *process_default;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static const double FIRST_LIMIT = 256.0 * 1024 * 1024;

static void context_destroy(void *object)
{
    luda_context *context = object;
    luda__context_close(context);
    luda_profile_stop(context);
    luda__release(context->generator);
    context->generator = NULL;
    free(context->dead_tags);
    context->dead_tags = NULL;
    context->dead_count = context->dead_capacity = 0;
    /* The tombstone stays: storages that outlive the context still count down its bytes. */
}

static const luda_class context_class = { "context", context_destroy };

luda_status luda_context_new(luda_context **out)
{
    luda_context *context = calloc(1, sizeof *context);
    if (!context)
        return luda__fail(LUDA_ENOMEM, "context: no memory");
    luda__object_init(context, &context_class);
    luda_status status = luda_generator_new(0, &context->generator);
    if (status == LUDA_OK)
        status = luda__handles_open(context);
    if (status != LUDA_OK) {
        luda__release(context->generator);
        free(context);
        return status;
    }
    context->grad_enabled = 1;
    context->autocast = LUDA__NO_AUTOCAST;
    context->signals.limit_bytes = FIRST_LIMIT;
    context->signals.attend = LUDA__NO_SCOPE;
    *out = context;
    return LUDA_OK;
}

static void make_default(void)
{
    luda_context_new(&process_default);
}

luda_context *luda__context(void)
{
    if (current)
        return current;
    pthread_once(&default_once, make_default);
    return process_default;
}

int64_t luda__context_count(luda_context *context, int64_t bytes)
{
    if (context == current) /* the default context may serve several threads at once */
        context->own_bytes += bytes;
    else
        atomic_fetch_add_explicit(&context->foreign_bytes, (long long)bytes, memory_order_relaxed);
    return luda__context_bytes(context);
}

int64_t luda__context_bytes(const luda_context *context)
{
    return context->own_bytes + atomic_load_explicit(&context->foreign_bytes, memory_order_relaxed);
}

void luda_context_retain(luda_context *context)
{
    luda__retain(context);
}

void luda_context_release(luda_context *context)
{
    if (context == current)
        current = NULL;
    luda__release(context);
}

luda_context *luda_context_use(luda_context *context)
{
    luda_context *before = luda__context();
    current = context;
    return before;
}

luda_context *luda_context_current(void)
{
    return luda__context();
}

int luda_set_grad_enabled(int enabled)
{
    luda_context *context = luda__context();
    int before = context->grad_enabled;
    context->grad_enabled = enabled != 0;
    return before;
}

int luda_grad_enabled(void)
{
    return luda__context()->grad_enabled;
}

int luda_set_autocast(int dtype)
{
    luda_context *context = luda__context();
    int before = context->autocast;
    context->autocast = dtype == LUDA_BF16 || dtype == LUDA_F16 ? dtype : LUDA__NO_AUTOCAST;
    return before;
}

int luda_autocast(void)
{
    return luda__context()->autocast;
}

luda_generator *luda_context_generator(luda_context *context)
{
    return context->generator;
}

void luda_manual_seed(uint64_t seed)
{
    luda_generator *generator = luda__context()->generator;
    generator->seed = seed;
    generator->counter = 1;
}

/* --- Tags of dead Lua nodes: C never calls Lua, so Lua fetches them --- */

void luda__dead_tag(luda_context *context, int64_t tag)
{
    while (atomic_flag_test_and_set_explicit(&context->tags_lock, memory_order_acquire))
        ;
    if (context->dead_count == context->dead_capacity) {
        int capacity = context->dead_capacity ? 2 * context->dead_capacity : 64;
        int64_t *tags = realloc(context->dead_tags, (size_t)capacity * sizeof *tags);
        if (tags) {
            context->dead_tags = tags;
            context->dead_capacity = capacity;
        }
    }
    if (context->dead_count < context->dead_capacity) /* else Lua keeps a small table too long */
        context->dead_tags[context->dead_count++] = tag;
    atomic_flag_clear_explicit(&context->tags_lock, memory_order_release);
}

int luda_context_dead_tags(luda_context *context, int64_t *tags, int capacity)
{
    while (atomic_flag_test_and_set_explicit(&context->tags_lock, memory_order_acquire))
        ;
    int count = context->dead_count < capacity ? context->dead_count : capacity;
    for (int i = 0; i < count; i++)
        tags[i] = context->dead_tags[--context->dead_count];
    atomic_flag_clear_explicit(&context->tags_lock, memory_order_release);
    return count;
}
