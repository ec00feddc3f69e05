/*
 * Uneven pieces. A list of one length a rank is checked where it was given and compared by its digest; all_to_all's lists
 * differ by rank, so ranks compare only how they learn each other's.
 */
#include "collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t luda__sizes_sum(const int64_t *sizes, int count)
{
    int64_t sum = 0;
    for (int q = 0; q < count; q++)
        sum += sizes[q];
    return sum;
}

/* "{3, 0, 5}", as far as there is room. */
static void sizes_text(const int64_t *sizes, int count, char *buffer, size_t room)
{
    size_t used = (size_t)snprintf(buffer, room, "{");
    for (int q = 0; q < count && used + 24 < room; q++)
        used += (size_t)snprintf(buffer + used, room - used, "%s%lld", q ? ", " : "", (long long)sizes[q]);
    snprintf(buffer + used, room - used, used + 24 < room ? "}" : ", ...}");
}

static int64_t digest(const int64_t *sizes, int count)
{
    uint64_t hash = 0x243F6A8885A308D3u;
    for (int q = 0; q < count; q++) {
        hash = (hash ^ (uint64_t)sizes[q]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return (int64_t)(hash >> 1 | 1);
}

static luda_status check_list(const char *name, const char *what, const int64_t *sizes, int count, int size)
{
    int64_t left = INT64_MAX;
    if (count != size)
        return luda__fail(LUDA_EINVAL, "%s: %s has %d entries for %d ranks; one a rank is needed", name, what, count, size);
    for (int q = 0; q < size; q++) {
        if (sizes[q] < 0 || sizes[q] > left)
            return luda__fail(LUDA_EINVAL, "%s: %s gives rank %d a length of %lld", name, what, q, (long long)sizes[q]);
        left -= sizes[q];
    }
    return LUDA_OK;
}

static luda_status check_length(luda_collective_run *run, const int64_t *sizes, int64_t length)
{
    int rank = run->comm->rank, size = run->comm->size;
    bool joins = run->asked.operation == LUDA_CALL_ALL_GATHER || run->asked.operation == LUDA_CALL_GATHER;
    int64_t right = joins ? sizes[rank] : luda__sizes_sum(sizes, size);
    char text[128];
    if (length < 0 || length == right)
        return LUDA_OK;
    sizes_text(sizes, size, text, sizeof text);
    return joins ? luda__fail(LUDA_ESHAPE, "%s: rank %d brings %lld along the dimension, sizes %s say %lld",
                              run->wait.name, rank, (long long)length, text, (long long)right)
                 : luda__fail(LUDA_ESHAPE, "%s: sizes %s sum to %lld, and the tensor of rank %d has %lld along the dimension",
                              run->wait.name, text, (long long)right, rank, (long long)length);
}

luda_status luda__check_sizes(luda_collective_run *run, const luda_comm_options *options, int64_t length)
{
    int size = run->comm->size;
    size_t bytes = (size_t)size * sizeof *run->lengths;
    bool exchanges = run->asked.operation == LUDA_CALL_ALL_TO_ALL;
    run->asked.sizes = -1; /* unknown, should the list be wrong */
    LUDA_TRY(check_list(run->wait.name, "sizes", options->sizes, options->pieces, size));
    if (options->received && !exchanges)
        return luda__fail(LUDA_EINVAL, "%s: takes no received; it belongs to all_to_all", run->wait.name);
    if (options->received)
        LUDA_TRY(check_list(run->wait.name, "received", options->received, options->pieces, size));
    LUDA_TRY(check_length(run, options->sizes, length));
    run->lengths = malloc(2 * bytes);
    if (!run->lengths)
        return luda__fail(LUDA_ENOMEM, "%s: no memory for sizes of %d ranks", run->wait.name, size);
    memcpy(run->lengths, options->sizes, bytes);
    run->what.sizes = run->lengths;
    if (exchanges && options->received) {
        memcpy(run->lengths + size, options->received, bytes);
        run->what.received = run->lengths + size;
    }
    sizes_text(options->sizes, size, run->asked.note, sizeof run->asked.note);
    run->asked.sizes = !exchanges ? digest(options->sizes, size) : options->received ? LUDA_SIZES_GIVEN : LUDA_SIZES_ASKED;
    return LUDA_OK;
}
