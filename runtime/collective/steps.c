/* The step machine: runs a list of steps over a transport's messages and the board's mail. */
#include "steps.h"

#include <stdlib.h>
#include <string.h>

static luda_slot_name slot(const luda_steps *s, uint32_t step)
{
    return (luda_slot_name){ .sequence = s->run->wait.sequence, .step = step, .kind = LUDA_SLOT_STEP };
}

void luda__give(luda_steps *s, int to, uint32_t step, const void *data, int64_t bytes)
{
    const luda_transport *transport = &s->run->comm->transport;
    luda_status status;
    if (s->status != LUDA_OK || bytes == 0)
        return;
    luda__mail_sending(s->run->comm->board, s->rank);
    status = transport->send(transport->state, to, slot(s, step), data, (size_t)bytes);
    if (status != LUDA_OK)
        s->status = luda__run_fail(s->run, status);
}

void luda__expect(luda_steps *s, int from, uint32_t step, void *memory, int64_t bytes)
{
    luda_status status;
    if (s->status != LUDA_OK || bytes == 0)
        return;
    status = luda__mail_post(s->run->comm->board, s->rank, from, slot(s, step), memory, (size_t)bytes);
    if (status != LUDA_OK)
        s->status = luda__run_fail(s->run, status);
}

bool luda__arrived(luda_steps *s, uint32_t step)
{
    luda_comm_fault fault;
    if (s->status == LUDA_OK && luda__mail_await(&s->run->wait, step, &fault) != LUDA_OK)
        s->status = luda__run_fault(s->run, &fault);
    return s->status == LUDA_OK;
}

void *luda__steps_scratch(luda_steps *s, int64_t bytes)
{
    void *memory;
    if (s->status != LUDA_OK)
        return NULL;
    memory = malloc((size_t)(bytes ? bytes : 1));
    if (!memory) {
        s->status = luda__run_fail(s->run, luda__fail(LUDA_ENOMEM, "%s: no memory for %lld bytes of messages",
                                                      s->run->wait.name, (long long)bytes));
        return NULL;
    }
    s->scratch[s->scratches++] = memory;
    return memory;
}

void *luda__steps_table(luda_steps *s, int64_t bytes)
{
    return luda__steps_scratch(s, bytes);
}

void luda__steps_copy(luda_steps *s, void *to, const void *from, int64_t bytes)
{
    if (s->status == LUDA_OK && bytes > 0 && to != from)
        memcpy(to, from, (size_t)bytes);
}

void luda__steps_refuse(luda_steps *s, int from, int64_t length)
{
    s->status = luda__run_fail(
        s->run, luda__fail(LUDA_ESHAPE, "%s: rank %d sends %lld along the dimension, received of rank %d says %lld",
                           s->run->wait.name, from, (long long)length, s->rank, (long long)s->what->received[from]));
}

static luda_steps begin(luda_collective_run *run)
{
    const luda_collective *what = &run->what;
    luda_steps s = { .run = run,
                     .what = what,
                     .rank = what->rank,
                     .size = what->size,
                     .operation = what->agreed.operation,
                     .dtype = (luda_dtype)what->agreed.dtype,
                     .reduction = (luda_reduction)what->agreed.reduction };
    s.width = what->agreed.dtype < 0 ? 0 : luda_dtype_size(s.dtype);
    s.numel = what->outer * what->count * what->inner;
    return s;
}

/* Nothing is on its way any more when this returns. */
static luda_status end(luda_steps *s)
{
    luda_collective_run *run = s->run;
    luda_comm_fault fault;
    if (s->status == LUDA_OK && luda__mail_flush(&run->wait, &fault) != LUDA_OK)
        s->status = luda__run_fault(run, &fault);
    if (s->status != LUDA_OK) {
        /* Scratch memory may be on its way in or out. */
        if (run->comm->transport.withdraw)
            run->comm->transport.withdraw(run->comm->transport.state);
        luda__mail_withdraw(run->comm->board, s->rank, run->wait.sequence);
    }
    for (int i = 0; i < s->scratches; i++)
        free(s->scratch[i]);
    return s->status;
}

luda_status luda__run_steps(luda_collective_run *run)
{
    luda_steps s = begin(run);
    /* Of an uneven exchange a rank that brings nothing may get something. */
    if (s.width > 0 && (s.numel > 0 || run->what.received))
        luda__steps_run(&s);
    return end(&s);
}

luda_status luda__run_counts(luda_collective_run *run)
{
    luda_steps s = begin(run);
    int64_t *received = run->lengths + s.size;
    luda_status status;
    luda__steps_counts(&s, received);
    status = end(&s);
    if (status == LUDA_OK)
        run->what.received = received;
    return status;
}
