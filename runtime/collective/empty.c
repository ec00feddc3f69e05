/*
 * Tensors in memory that ranks have in common: one area a call, with a place for every rank. Rank threads share all memory
 * as it is, and ranks without a lane have none in common; there these are ordinary tensors.
 */
#include "lane.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct area {
    uint64_t lane, number; /* whose; which of its calls made it */
    char *memory;
    size_t bytes;
} area;

/* Where a tensor lies, for other ranks: 2^PLACE_BITS * the area's number + bytes from its start. */
enum { PLACE_BITS = 40 };

static void free_area(void *owner, void *data, size_t bytes)
{
    area *a = owner;
    munmap(a->memory, a->bytes);
    free(a);
}

static const area *area_of(const luda_lane *lane, const luda_tensor *tensor)
{
    const area *a = tensor && tensor->storage->free == free_area ? tensor->storage->owner : NULL;
    return a && a->lane == lane->number ? a : NULL;
}

uint64_t luda__area_place(const luda_lane *lane, const luda_tensor *tensor)
{
    const area *a = area_of(lane, tensor);
    return a ? (a->number << PLACE_BITS) + (uint64_t)((char *)luda__data(tensor) - a->memory) : 0;
}

void *luda__area_memory(const luda_lane *lane, const luda_tensor *mine, uint64_t place, int64_t bytes)
{
    const area *a = area_of(lane, mine);
    uint64_t offset = place & (((uint64_t)1 << PLACE_BITS) - 1);
    if (!a || place >> PLACE_BITS != a->number || offset > a->bytes || (uint64_t)bytes > a->bytes - offset)
        return NULL;
    return a->memory + offset;
}

static luda_status in_common(luda_collective_run *run, luda_tensor **out)
{
    const luda_announcement *asked = &run->what.agreed;
    luda_lane *lane = run->wait.board->lane;
    luda_comm_fault fault;
    luda_storage *storage;
    luda_status status;
    void *memory;
    size_t bytes;
    area *a;
    LUDA_TRY(luda__count_bytes(asked->ndim, asked->shape, (luda_dtype)asked->dtype, &bytes));
    size_t each = (bytes + 4095) / 4096 * 4096 + 4096; /* the first page has the token */
    if (luda__lane_map(&run->wait, each * (size_t)run->comm->size, run->wait.sequence, &memory, &fault) != LUDA_OK)
        return luda__run_fault(run, &fault);
    if (!memory)
        return luda_tensor_new((luda_dtype)asked->dtype, (luda_device){ LUDA_CPU, 0 }, asked->ndim, asked->shape, out);
    a = malloc(sizeof *a);
    if (!a) {
        munmap(memory, each * (size_t)run->comm->size);
        return luda__fail(LUDA_ENOMEM, "empty: no memory");
    }
    *a = (area){ lane->number, run->wait.sequence, memory, each * (size_t)run->comm->size };
    status = luda__storage_wrap((luda_device){ LUDA_CPU, 0 }, a->memory + (size_t)run->comm->rank * each + 4096, bytes,
                                free_area, a, &storage);
    if (status != LUDA_OK) {
        free_area(a, NULL, 0);
        return status;
    }
    status = luda__tensor_over(storage, (luda_dtype)asked->dtype, asked->ndim, asked->shape, NULL, 0, out);
    luda__release(storage);
    return status;
}

static luda_status check(int ndim, const int64_t *shape, luda_dtype dtype)
{
    size_t bytes;
    if ((int)dtype < 0 || dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "empty: no element type number %d", (int)dtype);
    if (ndim < 0 || ndim > LUDA_MAX_DIMS)
        return luda__fail(LUDA_ESHAPE, "empty: %d dimensions; up to %d are possible", ndim, LUDA_MAX_DIMS);
    return luda__count_bytes(ndim, shape, dtype, &bytes);
}

luda_status luda_comm_empty(luda_comm *comm, luda_dtype dtype, int ndim, const int64_t *shape,
                            const luda_comm_options *given, luda_tensor **out)
{
    luda_comm_options options;
    luda_collective_run run;
    luda_status status;
    LUDA_TRY(luda__options(given, &options));
    LUDA_TRY(luda__run_begin(&run, comm, LUDA_CALL_EMPTY, &options));
    if (run.local == LUDA_OK)
        luda__run_refuse(&run, check(ndim, shape, dtype));
    if (run.local == LUDA_OK) {
        run.asked.dtype = (int32_t)dtype;
        run.asked.ndim = ndim;
        memcpy(run.asked.shape, shape, (size_t)ndim * sizeof *shape);
    }
    status = luda__comm_claim(comm, run.wait.name);
    if (status == LUDA_OK) {
        status = luda__run_agree(&run);
        if (status == LUDA_OK && comm->board->lane && comm->board->lane->processes)
            status = in_common(&run, out);
        else if (status == LUDA_OK)
            status = luda_tensor_new(dtype, (luda_device){ LUDA_CPU, 0 }, ndim, shape, out);
        status = luda__run_settle(&run, status);
        luda__comm_yield(comm);
    }
    luda__run_end(&run);
    return status;
}
