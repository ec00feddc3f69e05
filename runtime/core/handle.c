/*
 * Handles: numbers by which a language binding names tensors. handle = generation * 2^24 + slot, a positive double below
 * 2^51. Freeing a slot raises its generation; a slot that has used them all is retired, so that no handle ever names
 * another tensor. A scope owns a list of slots; outside scopes the front end's weak registry decides.
 */
#include "core.h"

#include <stdlib.h>

enum { SLOT_BITS = 24, NONE = 0 }; /* slot 0 is never given out */
static const uint32_t SLOT_MASK = (1u << SLOT_BITS) - 1, GENERATION_MAX = (1u << 27) - 1;
static const double PAST_LAST_HANDLE = 0x1p51;
static const double FIRST_REARM = 2048;

/* --- Slots --- */

luda_status luda__handles_open(luda_context *c)
{
    c->heads_capacity = 16;
    c->heads = calloc((size_t)c->heads_capacity, sizeof *c->heads);
    c->slots = calloc(1, sizeof *c->slots);
    if (!c->heads || !c->slots) {
        free(c->heads);
        free(c->slots);
        return luda__fail(LUDA_ENOMEM, "context: no memory for handles");
    }
    c->signals.slots = 1;
    c->rearm_handles = FIRST_REARM;
    return LUDA_OK;
}

static bool grow(luda_context *c)
{
    int32_t old = c->signals.slots, new = old < 512 ? 1024 : 2 * old;
    if ((uint32_t)new > SLOT_MASK)
        new = (int32_t)SLOT_MASK;
    if (new <= old)
        return false;
    luda_slot *slots = realloc(c->slots, (size_t)new * sizeof *slots);
    if (!slots)
        return false;
    c->slots = slots;
    for (int32_t s = new - 1; s >= old; s--) {
        c->slots[s] = (luda_slot){ .generation = 1, .next = c->free_slot };
        c->free_slot = (uint32_t)s;
    }
    c->signals.slots = new;
    return true;
}

static luda_slot *find(luda_context *c, double handle)
{
    if (!(handle > 0 && handle < PAST_LAST_HANDLE))
        return NULL;
    uint64_t bits = (uint64_t)handle;
    uint32_t s = (uint32_t)bits & SLOT_MASK;
    if ((double)bits != handle || s >= (uint32_t)c->signals.slots)
        return NULL;
    luda_slot *slot = &c->slots[s];
    return slot->generation == bits >> SLOT_BITS && slot->object ? slot : NULL;
}

static void unlink_slot(luda_context *c, uint32_t s)
{
    luda_slot *slot = &c->slots[s];
    if (slot->depth == 0)
        return;
    if (slot->prev)
        c->slots[slot->prev].next = slot->next;
    else
        c->heads[slot->depth] = slot->next;
    if (slot->next)
        c->slots[slot->next].prev = slot->prev;
}

static void link_slot(luda_context *c, uint32_t s, int depth)
{
    luda_slot *slot = &c->slots[s];
    slot->depth = (uint16_t)depth;
    slot->prev = NONE;
    slot->next = NONE;
    if (depth == 0)
        return;
    slot->next = c->heads[depth];
    if (slot->next)
        c->slots[slot->next].prev = s;
    c->heads[depth] = s;
}

/* The slot is out of its list already. */
static void drop(luda_context *c, uint32_t s)
{
    luda_slot *slot = &c->slots[s];
    luda_object *object = slot->object;
    slot->object = NULL;
    c->signals.handles -= 1;
    if (++slot->generation <= GENERATION_MAX) {
        slot->next = c->free_slot;
        c->free_slot = s;
    }
    luda__release(object);
}

/* --- Handles --- */

double luda_handle_new(luda_context *c, luda_tensor *tensor)
{
    if (c->closed || (c->free_slot == NONE && !grow(c))) {
        luda_tensor_release(tensor);
        c->signals.status = luda__fail(c->closed ? LUDA_ECLOSED : LUDA_ENOMEM,
                                       c->closed ? "handle: the context is closed" : "handle: no memory for another handle");
        return 0;
    }
    uint32_t s = c->free_slot;
    luda_slot *slot = &c->slots[s];
    c->free_slot = slot->next;
    slot->object = &tensor->base;
    link_slot(c, s, c->signals.depth);
    c->signals.handles += 1;
    if (c->signals.handles > c->rearm_handles && c->signals.depth == 0)
        c->signals.attend |= LUDA__COLLECT;
    return (double)(((uint64_t)slot->generation << SLOT_BITS) | s);
}

luda_tensor *luda_handle_tensor(luda_context *c, double handle)
{
    luda_slot *slot = find(c, handle);
    if (slot)
        return (luda_tensor *)slot->object;
    c->signals.status = luda__fail(LUDA_ECLOSED, "tensor: it was released, or its scope has ended; return it from the scope or :keep() it");
    return NULL;
}

int luda_handle_alive(luda_context *c, double handle)
{
    return find(c, handle) != NULL;
}

void luda_handle_release(luda_context *c, double handle)
{
    luda_slot *slot = find(c, handle);
    if (!slot)
        return;
    uint32_t s = (uint32_t)(slot - c->slots);
    unlink_slot(c, s);
    drop(c, s);
}

int luda_handle_move(luda_context *c, double handle, int depth)
{
    luda_slot *slot = find(c, handle);
    if (!slot || depth < 0 || slot->depth <= depth)
        return 0;
    uint32_t s = (uint32_t)(slot - c->slots);
    unlink_slot(c, s);
    link_slot(c, s, depth);
    return 1;
}

void luda_handle_sweep(luda_context *c, const double *handles, int count)
{
    for (int i = 0; i < count; i++)
        luda_handle_release(c, handles[i]);
}

luda_signals *luda_context_signals(luda_context *c)
{
    return &c->signals;
}

/* --- Scopes --- */

int luda_scope_enter(luda_context *c)
{
    int depth = c->signals.depth + 1;
    if (depth >= c->heads_capacity) {
        int capacity = 2 * c->heads_capacity;
        uint32_t *heads = depth < UINT16_MAX ? realloc(c->heads, (size_t)capacity * sizeof *heads) : NULL;
        if (!heads) {
            c->signals.status = luda__fail(LUDA_ENOMEM, "scope: %d scopes are open, no memory for another", depth - 1);
            return 0;
        }
        c->heads = heads;
        c->heads_capacity = capacity;
    }
    c->heads[depth] = NONE;
    c->signals.depth = depth;
    c->signals.attend &= ~LUDA__NO_SCOPE;
    return depth;
}

int luda_scope_leave(luda_context *c, int depth)
{
    if (depth < 1 || depth > c->signals.depth) {
        c->signals.status = luda__fail(LUDA_EINVAL, "scope: it has already ended");
        return c->signals.status;
    }
    for (; c->signals.depth >= depth; c->signals.depth--)
        while (c->heads[c->signals.depth]) {
            uint32_t s = c->heads[c->signals.depth];
            unlink_slot(c, s);
            drop(c, s);
        }
    c->signals.attend &= ~LUDA__REGISTER_IN_SCOPE;
    if (c->signals.depth == 0)
        c->signals.attend |= LUDA__NO_SCOPE;
    c->signals.live_bytes = (double)luda__context_bytes(c);
    return LUDA_OK;
}

void luda_context_rearm(luda_context *c, double bytes, double handles)
{
    c->signals.live_bytes = (double)luda__context_bytes(c);
    if (bytes >= 0)
        c->signals.limit_bytes = c->signals.live_bytes + bytes;
    c->rearm_handles = c->signals.handles + handles;
    c->signals.attend &= ~LUDA__COLLECT; /* a scope that outgrew the limit goes on registering */
}

void luda__context_close(luda_context *c)
{
    c->closed = true;
    for (int32_t s = 1; s < c->signals.slots; s++)
        if (c->slots[s].object)
            drop(c, (uint32_t)s);
    free(c->slots);
    free(c->heads);
    c->slots = NULL;
    c->heads = NULL;
    c->signals.slots = 0;
    c->signals.depth = 0;
    c->free_slot = NONE;
}
