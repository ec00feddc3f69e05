/* Events of a profile: when operators and the nodes of a walk began and ended. Kept by the context, off unless started. */
#include "core.h"

#include <stdlib.h>
#include <time.h>

struct luda__profile {
    luda_profile_event *events;
    int64_t count, capacity, lost;
};

int64_t luda_profile_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

luda_status luda_profile_start(luda_context *context)
{
    if (context->profile)
        return luda__fail(LUDA_EINVAL, "profile: one is running already");
    if (!(context->profile = calloc(1, sizeof *context->profile)))
        return luda__fail(LUDA_ENOMEM, "profile: no memory");
    return LUDA_OK;
}

void luda_profile_stop(luda_context *context)
{
    if (context->profile)
        free(context->profile->events);
    free(context->profile);
    context->profile = NULL;
}

void luda__profile_add(luda_context *context, const char *name, int kind, int64_t start)
{
    struct luda__profile *p = context->profile;
    if (p->count == p->capacity) {
        int64_t larger = p->capacity ? 2 * p->capacity : 1024;
        luda_profile_event *events = realloc(p->events, (size_t)larger * sizeof *events);
        if (!events) {
            p->lost++;
            return;
        }
        p->events = events;
        p->capacity = larger;
    }
    p->events[p->count++] = (luda_profile_event){ name, kind, start, luda_profile_now() - start };
}

int64_t luda_profile_count(const luda_context *context)
{
    return context->profile ? context->profile->count : 0;
}

int64_t luda_profile_lost(const luda_context *context)
{
    return context->profile ? context->profile->lost : 0;
}

int luda_profile_get(const luda_context *context, int64_t index, luda_profile_event *out)
{
    if (index < 0 || index >= luda_profile_count(context))
        return 0;
    *out = context->profile->events[index];
    return 1;
}
