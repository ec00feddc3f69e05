/*
 * Inside of the core floor: objects, storages, tensors, devices, dispatch. Higher floors include this header; nothing
 * here knows of graphs (a tensor's node is an opaque object to this floor), optimizers or ranks.
 */
#ifndef LUDA_CORE_H
#define LUDA_CORE_H

#include "../../kernels/kernels.h"
#include "../luda.h"

#include <stdatomic.h>
#include <stdbool.h>

/* --- Failing --- */

/* Writes the calling thread's message and returns the code, so that a failing branch is one statement. */
luda_status luda__fail(luda_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Takes over a message that came from elsewhere (a thread, a rank). */
luda_status luda__fail_text(luda_status status, const char *text);

#define LUDA_TRY(call)                                                                                                 \
    do {                                                                                                               \
        luda_status try_status = (call);                                                                               \
        if (try_status != LUDA_OK)                                                                                     \
            return try_status;                                                                                         \
    } while (0)

#define LUDA_TRY_OR(status, call, label)                                                                               \
    do {                                                                                                               \
        (status) = (call);                                                                                             \
        if ((status) != LUDA_OK)                                                                                       \
            goto label;                                                                                                \
    } while (0)

/* --- Objects: counted, with a class; what a handle can name --- */

typedef struct luda_class {
    const char *name;
    void (*destroy)(void *object); /* the last reference went */
} luda_class;

typedef struct luda_object {
    const luda_class *class;
    atomic_int references;
} luda_object;

static inline void luda__object_init(void *object, const luda_class *class)
{
    luda_object *base = object;
    base->class = class;
    atomic_init(&base->references, 1);
}

static inline void *luda__retain(void *object)
{
    if (object)
        atomic_fetch_add_explicit(&((luda_object *)object)->references, 1, memory_order_relaxed);
    return object;
}

static inline void luda__release(void *object)
{
    luda_object *base = object;
    if (!base)
        return;
    /* Nobody can add to a reference that is the only one, so that it needs no locked instruction to go. */
    if (atomic_load_explicit(&base->references, memory_order_acquire) == 1 ||
        atomic_fetch_sub_explicit(&base->references, 1, memory_order_acq_rel) == 1)
        base->class->destroy(object);
}

/* --- Devices --- */

/*
 * What a device can do. The CPU's is built in; libluda_cuda fills one. Asynchronous devices run everything on the current
 * stream of the calling thread; `synchronize` reports (as a status and message) what went wrong since the last time.
 * ORDER device: LUDA_DEVICE_ABI changes with this struct.
 */
#define LUDA_DEVICE_ABI 1
typedef struct luda_device_ops {
    uint32_t abi;
    const char *name; /* "cpu", "cuda" */
    int (*count)(void);
    /* Raw memory, 64-byte aligned at least; NULL when there is none left. The caching allocator sits above. */
    void *(*allocate)(int index, size_t bytes);
    void (*free)(int index, void *memory, size_t bytes);
    /* Copies between any two places of which at least one is on this device; ordered with the stream. */
    luda_status (*copy)(luda_device to, void *target, luda_device from, const void *source, size_t bytes, char *message);
    luda_status (*fill)(int index, void *target, int byte, size_t bytes, char *message);
    luda_status (*synchronize)(int index, char *message);
    /* Streams and events; all four NULL on a device that runs in order (the CPU). */
    void *(*stream_new)(int index);
    void (*stream_release)(int index, void *stream);
    void (*stream_use)(int index, void *stream); /* for the calling thread; NULL: the default stream */
    void *(*stream_current)(int index);
    void *(*event_record)(int index);                    /* on the current stream */
    luda_status (*event_wait)(int index, void *event, char *message); /* the current stream waits */
    int (*event_done)(int index, void *event);
    void (*event_release)(int index, void *event);
    /* Total and free bytes, 0 where unknown. */
    void (*memory)(int index, int64_t *total, int64_t *available);
    const luda_kernel_table *(*kernels)(int index);
    /* Multi-tensor updates (kernels/optim.h); NULL: the device has none. */
    const struct luda_optim_kernels *(*optim)(int index);
} luda_device_ops;

/* NULL and an error where the device does not exist (CUDA is opened on the first ask). */
const luda_device_ops *luda__device(luda_device device);
extern const luda_device_ops luda__cpu_device;
/* The one symbol of a plug-in: returns its table, or NULL with the reason in message. */
typedef const luda_device_ops *(*luda_plugin_open)(uint32_t abi, char *message, size_t size);

/* --- Storages --- */

typedef struct luda_storage {
    luda_object base;
    luda_device device;
    atomic_uint version; /* in-place changes */
    size_t bytes;
    void *data;
    /* How the memory goes back: NULL means the caching allocator. */
    void (*free)(void *owner, void *data, size_t bytes);
    void *owner;
    /* The context whose counters carry these bytes, or NULL. */
    struct luda_context *context;
    /* The place in a program that made it (sites.c), where somebody asked. */
    struct luda__site *site;
    /* Images (below). */
    bool has_parameter, image_used;
    int8_t image_dtype;
    uint32_t image_version; /* of this storage, when the image was right */
    struct luda_storage *image;
} luda_storage;

luda_status luda__storage_new(luda_device device, size_t bytes, luda_storage **out);
/* Memory that somebody else owns; free may be NULL. */
luda_status luda__storage_wrap(luda_device device, void *data, size_t bytes, void (*free)(void *, void *, size_t), void *owner,
                               luda_storage **out);

/* The caching allocator: power-of-two-and-a-half size classes per device, locked, with small per-thread caches. */
void *luda__allocate(luda_device device, size_t bytes);
void luda__deallocate(luda_device device, void *memory, size_t bytes);
void luda__count_tensor(luda_device device, int change);

/* Size classes: four an octave above 64 bytes, from 1 MiB on 32. */
enum { LUDA__SMALLEST_SHIFT = 6, LUDA__FINE_SHIFT = 20, LUDA__COARSE_CLASSES = 4 * (LUDA__FINE_SHIFT - LUDA__SMALLEST_SHIFT) };

static inline int luda__size_class(size_t bytes)
{
    if (bytes <= (size_t)1 << LUDA__SMALLEST_SHIFT)
        return 0;
    int top = 63 - __builtin_clzll(bytes - 1); /* 2^top < bytes <= 2^(top+1) */
    if (top >= LUDA__FINE_SHIFT)
        return LUDA__COARSE_CLASSES + 32 * (top - LUDA__FINE_SHIFT) + ((int)((bytes - 1) >> (top - 5)) & 31) + 1;
    int quarter = (int)((bytes - 1) >> (top - 2)) & 3;
    return 4 * (top - LUDA__SMALLEST_SHIFT) + quarter + 1;
}

static inline size_t luda__class_bytes(int class)
{
    if (class == 0)
        return (size_t)1 << LUDA__SMALLEST_SHIFT;
    if (class <= LUDA__COARSE_CLASSES) {
        int top = (class - 1) / 4 + LUDA__SMALLEST_SHIFT;
        return ((size_t)1 << top) + ((size_t)((class - 1) % 4 + 1) << (top - 2));
    }
    int index = class - 1 - LUDA__COARSE_CLASSES, top = index / 32 + LUDA__FINE_SHIFT;
    return ((size_t)1 << top) + ((size_t)(index % 32 + 1) << (top - 5));
}

/* Memory of tensors, storages and nodes themselves, kept by the thread for the next one. Where their size is known, so is the class. */
void *luda__object_take(int class, size_t class_bytes);
void luda__object_give(int class, size_t class_bytes, void *memory);

static inline void *luda__object_new(size_t bytes)
{
    int class = luda__size_class(bytes);
    return luda__object_take(class, luda__class_bytes(class));
}

static inline void luda__object_free(void *memory, size_t bytes)
{
    int class = luda__size_class(bytes);
    luda__object_give(class, luda__class_bytes(class), memory);
}

/* A storage's free function for memory that nobody gives back. */
void luda__leave_alone(void *owner, void *data, size_t bytes);
/* The name of the site; NULL where nobody asked for one. */
const char *luda__site_name(const luda_storage *storage);
/* A storage with a site goes. */
void luda__site_leave(luda_storage *storage);

/* --- Tensors --- */

struct luda_tensor {
    luda_object base;
    luda_storage *storage;
    int64_t offset; /* of the first element, in elements */
    int64_t numel;
    int8_t dtype, ndim;
    bool contiguous;
    bool requires_grad; /* a leaf */
    uint64_t id; /* 0: not asked for yet */
    int64_t shape[LUDA_MAX_DIMS];
    int64_t stride[LUDA_MAX_DIMS];
    /* Autodiff: the node that made it (a reference), which of its outputs, and the storage version it was recorded at. */
    luda_object *node;
    int32_t node_output;
    uint32_t node_version;
};

extern const luda_class luda__tensor_class;

extern const uint8_t luda__dtype_bytes[LUDA_DTYPE_COUNT];

static inline void *luda__data(const luda_tensor *t)
{
    return (char *)t->storage->data + t->offset * luda__dtype_bytes[t->dtype];
}
static inline bool luda__equal_shapes(const luda_tensor *a, const luda_tensor *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return true;
}
static inline bool luda__same_device(luda_device a, luda_device b)
{
    return a.type == b.type && a.index == b.index;
}

/* An untracked tensor over the same storage. strides NULL: contiguous. */
luda_status luda__tensor_over(luda_storage *storage, luda_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                              int64_t offset, luda_tensor **out);
luda_status luda__tensor_alias(const luda_tensor *tensor, luda_tensor **out);
luda_status luda__tensor_like(const luda_tensor *tensor, luda_tensor **out); /* uninitialised, contiguous */
/* The same for a contiguous tensor, with another dtype; nothing is checked. */
luda_status luda__tensor_shaped(const luda_tensor *like, luda_dtype dtype, luda_tensor **out);
luda_status luda__zeros(luda_dtype dtype, luda_device device, int ndim, const int64_t *shape, luda_tensor **out);
/* Of a tensor of the shape, which is checked. */
luda_status luda__count_bytes(int ndim, const int64_t *shape, luda_dtype dtype, size_t *bytes);
/* Every in-place change goes through here. */
void luda__bump(luda_tensor *tensor);
/* True if two elements of the tensor share memory (stride 0, or overlapping strides). */
bool luda__overlaps_itself(const luda_tensor *tensor);
/* "[2, 3]" into buffer, which is returned. */
const char *luda__shape_text(int ndim, const int64_t *shape, char *buffer, size_t size);
void luda__operand(const luda_tensor *tensor, luda_operand *out);

/* --- Images (image.c): a parameter's storage rounded to a half type, kept for autocast --- */

/*
 * Element i of the image is element i of the storage, so every view of a parameter has its place in the image too. An
 * image is right for one version of the storage; an optimizer renews it while it updates the parameter.
 */
void luda__image_allow(const luda_tensor *parameter); /* from now on its storage may have one */
bool luda__image_possible(const luda_tensor *tensor, luda_dtype dtype);
/* The image as the tensor lies in its storage, made where there is no right one. Untracked. */
luda_status luda__image_view(const luda_tensor *tensor, luda_dtype dtype, luda_tensor **out);
/* Where an update must write the image of a whole parameter, or NULL: one that nobody used since the last update goes. */
void *luda__image_renewable(const luda_tensor *parameter, luda_dtype *dtype);
/* The parameter was changed and bumped, and its image written with it. */
void luda__image_renewed(const luda_tensor *parameter);
void luda__image_drop(luda_storage *storage);

/* --- Dispatch --- */

/* What shape and type rules decide about one output. */
typedef struct luda_plan_output {
    luda_dtype dtype;
    int ndim;
    int64_t shape[LUDA_MAX_DIMS];
} luda_plan_output;

typedef struct luda_plan {
    luda_op op;
    const luda_op_info *info;
    luda_tensor *const *in;
    int nin;
    luda_attrs attrs; /* defaults filled, random drawn */
    luda_device device;
    luda_dtype cast[LUDA_MAX_INPUTS]; /* what each input must become; for VARIADIC cast[0] stands for all */
    luda_plan_output out[LUDA_MAX_OUTPUTS];
    /* Views: strides and offset of the one output, which shares the first input's storage. */
    bool is_view;
    int64_t stride[LUDA_MAX_DIMS];
    int64_t offset;
} luda_plan;

/* Checks everything that can be checked before memory is touched. */
luda_status luda__plan(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_plan *plan);
/* The same under autocast to a half type; LUDA__NO_AUTOCAST: without. */
luda_status luda__plan_autocast(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, int autocast,
                                luda_plan *plan);
/* Runs a plan whose inputs have the planned dtypes. `into` (or NULL) receives the first output. */
luda_status luda__run(luda_plan *plan, luda_tensor *const *in, luda_tensor *into, luda_tensor **out);
/* plan + casts + run without recording. */
luda_status luda__compute(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor **out);
luda_dtype luda__planned_cast(const luda_plan *plan, int input);
/* Copies values (any strides, dtypes, devices); shapes must be equal. Does not bump the version. */
luda_status luda__copy(const luda_tensor *source, luda_tensor *target);
/* A new contiguous tensor of the same values. */
luda_status luda__move(const luda_tensor *source, luda_dtype dtype, luda_device device, luda_tensor **out);

/* --- Contexts --- */

enum { LUDA__NO_AUTOCAST = -1 };

struct luda_generator {
    luda_object base;
    uint64_t seed, counter;
};

typedef struct luda_slot {
    luda_object *object;
    uint32_t generation, prev, next;
    uint16_t depth;
} luda_slot;

/* A closed context stays as a small tombstone, so that storages may point to it without a reference. */
struct luda_context {
    luda_object base;
    luda_signals signals;
    luda_generator *generator;
    int grad_enabled;
    int autocast; /* a half type, or LUDA__NO_AUTOCAST */
    int anomaly;  /* values are looked at */
    uint64_t recompute; /* 0: off, else 1 + the order after which nodes may be made again in backward */
    struct luda__profile *profile; /* NULL: off */
    uint64_t anomaly_node;
    /* Bytes of storages made under this context: what the thread counted that uses it (a locked instruction is dear), and others. */
    int64_t own_bytes;
    atomic_llong foreign_bytes;
    uint64_t last_leaf, last_other; /* ids given out */
    uint64_t order;                 /* creation order of nodes */
    /* handles */
    luda_slot *slots;
    uint32_t free_slot;
    uint32_t *heads; /* per depth: first slot of the scope's list */
    int heads_capacity;
    double rearm_handles; /* raise bit 1 when so many handles are alive */
    bool closed;
    /* tags of dead Lua nodes */
    atomic_flag tags_lock;
    int64_t *dead_tags;
    int dead_count, dead_capacity;
};

/* An event that ends now (profile.c); the context has a profile. */
void luda__profile_add(luda_context *context, const char *name, int kind, int64_t start);

/* Bits of luda_signals.attend. */
enum { LUDA__NO_SCOPE = 1, LUDA__COLLECT = 2, LUDA__REGISTER_IN_SCOPE = 4, LUDA__NOTE_SITE = 8, LUDA__TRACK_SITE = 16 };

luda_context *luda__context(void); /* the thread's current one */
/* Adds to the bytes that a context answers for, and returns them; also from a thread that uses another context. */
int64_t luda__context_count(luda_context *context, int64_t bytes);
int64_t luda__context_bytes(const luda_context *context);
luda_status luda__handles_open(luda_context *context);
/* Releases all handles; later calls on them are errors. */
void luda__context_close(luda_context *context);
void luda__dead_tag(luda_context *context, int64_t tag);

#endif
