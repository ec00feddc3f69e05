/*
 * LUDA: tensors, automatic differentiation, optimizers, collectives and training records.
 *
 * Conventions. Functions return luda_status (0 or negative; the sentence is luda_last_error()) or a borrowed value.
 * Outputs are written only on success. `new`, `retain` and `release` pair; every other returned pointer is lent.
 * The receiver comes first, outputs last. Positions, ranks and devices count from 0. Nothing here exits, aborts or
 * prints. One tensor is used by one thread at a time; different tensors may be used from different threads.
 */
#ifndef LUDA_H
#define LUDA_H

#ifndef LUDA_CDEF
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#ifndef LUDA_API
#define LUDA_API __attribute__((visibility("default")))
#endif
#endif

#ifndef LUDA_CDEF
#define LUDA_VERSION_MAJOR 0
#define LUDA_VERSION_MINOR 1
#define LUDA_VERSION_PATCH 0
#endif

/* Version of the library in the process: major * 10000 + minor * 100 + patch. */
LUDA_API int luda_version(void);

/* --- Status --- */

typedef enum luda_status {
#define LUDA_STATUS(name, number, word, sentence) LUDA_##name = number,
#include "status.def"
} luda_status;

/* The last failure of the calling thread: "op: what is wrong, with the numbers; hint". Success does not clear it. */
LUDA_API const char *luda_last_error(void);
/* The word of a status in Lua ("shape"). */
LUDA_API const char *luda_status_word(luda_status status);

/* --- Element types, devices, attributes --- */

typedef enum luda_dtype {
#define LUDA_DTYPE(suffix, NAME, stored, compute, class, file_name) LUDA_##NAME,
#include "../kernels/dtypes.def"
    LUDA_DTYPE_COUNT
} luda_dtype;

LUDA_API const char *luda_dtype_name(luda_dtype dtype); /* "f32" */
LUDA_API int luda_dtype_size(luda_dtype dtype);         /* bytes of one element */
LUDA_API int luda_dtype_from_name(const char *name);    /* -1 for an unknown name */

enum { LUDA_MAX_DIMS = 8, LUDA_MAX_INPUTS = 8, LUDA_MAX_OUTPUTS = 4 };
/* Device types. In attributes LUDA_SAME_DEVICE means that of the input (or the CPU where there is none). */
enum { LUDA_CPU = 0, LUDA_CUDA = 1, LUDA_SAME_DEVICE = -1 };

typedef struct luda_device { int32_t type, index; } luda_device;

typedef struct luda_tensor luda_tensor;
typedef struct luda_generator luda_generator;
typedef struct luda_context luda_context;

/* Attribute fields (kernels/attrs.def says what each kind means). */
typedef int32_t luda_flag, luda_choice, luda_dim, luda_base;
typedef int64_t luda_integer, luda_position;
typedef double luda_number;
typedef struct luda_dims { int32_t count; int32_t dim[8]; } luda_dims;
typedef struct luda_shape { int32_t ndim; int64_t size[8]; } luda_shape;
/*
 * Where random numbers come from. counter 0: draw from `generator` (NULL: the context's default). Any other counter:
 * repeat the draw of that seed and counter; generators count from 1.
 */
typedef struct luda_random { union { const luda_generator *generator; uint64_t seed; }; uint64_t counter; } luda_random;

#define luda__kind_flag luda_flag
#define luda__kind_choice luda_choice
#define luda__kind_dim luda_dim
#define luda__kind_dims luda_dims
#define luda__kind_base luda_base
#define luda__kind_integer luda_integer
#define luda__kind_position luda_position
#define luda__kind_number luda_number
#define luda__kind_shape luda_shape
#define luda__kind_random luda_random
#define luda__kind_dtype int32_t
#define luda__kind_device luda_device

#define LUDA_FIELD(kind, name) luda__kind_##kind name;
#define LUDA_ATTRS(family, fields) struct luda_##family##_attrs { fields };
#include "../kernels/attrs.def"

typedef enum luda_attrs_family {
    LUDA_ATTRS_none,
#define LUDA_ATTRS(family, fields) LUDA_ATTRS_##family,
#include "../kernels/attrs.def"
    LUDA_ATTRS_COUNT
} luda_attrs_family;

/* The attributes of one call: at most 128 bytes. */
typedef struct luda_attrs {
    int32_t family;
    union {
        char bytes[120];
#define LUDA_ATTRS(family, fields) struct luda_##family##_attrs family;
#include "../kernels/attrs.def"
    };
} luda_attrs;

/* reduction of cross_entropy */
enum { LUDA_REDUCTION_MEAN = 0, LUDA_REDUCTION_SUM = 1, LUDA_REDUCTION_NONE = 2 };

/* --- Operators: kernels/ops.def, asked at run time --- */

typedef enum luda_op {
#define LUDA_OP(name, ...) LUDA_OP_##name,
#include "../kernels/ops.def"
    LUDA_OP_COUNT
} luda_op;

enum { LUDA_VARIADIC = -1 };

typedef struct luda_op_info {
    const char *name, *types, *family, *shape, *gradient, *keeps, *sample, *facts;
    int32_t inputs, outputs; /* inputs may be LUDA_VARIADIC */
    int32_t optional;        /* inputs, counted from the last, that may be NULL */
    int32_t hidden;          /* outputs, counted from the last, that only gradients need */
    int32_t attrs;           /* enum luda_attrs_family */
} luda_op_info;

typedef struct luda_field_info { const char *kind, *name; int32_t offset, size; } luda_field_info;

LUDA_API const luda_op_info *luda_op_get(luda_op op); /* NULL beyond the last */
/* Field `index` of an attribute family; NULL beyond the last. Offsets count from the start of luda_attrs. */
LUDA_API const luda_field_info *luda_attrs_field(luda_attrs_family family, int index);
/* Fills the row's defaults. */
LUDA_API luda_status luda_attrs_default(luda_op op, luda_attrs *attrs);
/* True if the device has a kernel for the pair. */
LUDA_API int luda_op_supported(luda_op op, luda_dtype dtype, luda_device device);

/*
 * Runs an operator, recording it when gradients are wanted. in[i] may be NULL for optional inputs; attrs NULL means the
 * row's defaults; out has the row's number of outputs, each a new reference (hidden ones included).
 */
LUDA_API luda_status luda_apply(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor **out);
/* The same with the result written into `into`, whose shape, and dtype category, must fit; x:add_(y) is into = x. */
LUDA_API luda_status luda_apply_into(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor *into);

#ifndef LUDA_CDEF
/* luda_exp(x, &y), luda_add(a, b, &c), luda_sum(x, &(struct luda_reduce_attrs){ .keepdim = 1 }, &y), … one per row. */
#define LUDA__IN_0
#define LUDA__IN_1 luda_tensor *x,
#define LUDA__IN_2 luda_tensor *x, luda_tensor *y,
#define LUDA__IN_3 luda_tensor *x, luda_tensor *y, luda_tensor *z,
#define LUDA__IN_5 luda_tensor *x, luda_tensor *y, luda_tensor *z, luda_tensor *u, luda_tensor *v,
#define LUDA__IN_6 luda_tensor *x, luda_tensor *y, luda_tensor *z, luda_tensor *u, luda_tensor *v, luda_tensor *w,
#define LUDA__IN_VARIADIC luda_tensor *const *x, int count,
#define LUDA_PLAIN(name, nin, nout, types, family, ...) LUDA_API luda_status luda_##name(LUDA__IN_##nin luda_tensor **out);
#define LUDA_OP(name, nin, nout, types, family, ...) \
    LUDA_API luda_status luda_##name(LUDA__IN_##nin const struct luda_##family##_attrs *attrs, luda_tensor **out);
#include "../kernels/ops.def"
#endif

/* --- Contexts: gradient mode, default generator, handles, counters --- */

LUDA_API luda_status luda_context_new(luda_context **out);
LUDA_API void luda_context_retain(luda_context *context);
LUDA_API void luda_context_release(luda_context *context);
/* Makes a context current for the calling thread and returns the one before; NULL: the process's default. */
LUDA_API luda_context *luda_context_use(luda_context *context);
LUDA_API luda_context *luda_context_current(void);
/* Recording on or off for the current context; returns the mode before. */
LUDA_API int luda_set_grad_enabled(int enabled);
LUDA_API int luda_grad_enabled(void);
LUDA_API void luda_manual_seed(uint64_t seed);
LUDA_API luda_status luda_generator_new(uint64_t seed, luda_generator **out);
LUDA_API void luda_generator_retain(luda_generator *generator);
LUDA_API void luda_generator_release(luda_generator *generator);
LUDA_API luda_generator *luda_context_generator(luda_context *context); /* lent */
LUDA_API void luda_generator_get(const luda_generator *generator, uint64_t state[2]); /* seed, counter */
LUDA_API luda_status luda_generator_set(luda_generator *generator, const uint64_t state[2]);

/* Workers of the process's pool, the calling thread included (default: the cores it may use). */
LUDA_API luda_status luda_set_threads(int threads);
LUDA_API int luda_threads(void);
LUDA_API const char *luda_simd(void); /* "baseline", "v3" or "v4" */

/* --- Tensors --- */

/* Uninitialised memory; shape may be NULL when ndim is 0. */
LUDA_API luda_status luda_tensor_new(luda_dtype dtype, luda_device device, int ndim, const int64_t *shape, luda_tensor **out);
/* A 0-d CPU tensor. Whole numbers are exact; a value that does not fit the dtype is LUDA_EINVAL. */
LUDA_API luda_status luda_tensor_scalar(double value, luda_dtype dtype, luda_tensor **out);
LUDA_API luda_status luda_tensor_scalar_i64(int64_t value, luda_dtype dtype, luda_tensor **out);
LUDA_API void luda_tensor_retain(luda_tensor *tensor);
LUDA_API void luda_tensor_release(luda_tensor *tensor); /* NULL is fine */
LUDA_API luda_dtype luda_tensor_dtype(const luda_tensor *tensor);
LUDA_API luda_device luda_tensor_device(const luda_tensor *tensor);
LUDA_API int luda_tensor_ndim(const luda_tensor *tensor);
LUDA_API int64_t luda_tensor_numel(const luda_tensor *tensor);
LUDA_API const int64_t *luda_tensor_shape(const luda_tensor *tensor);
LUDA_API const int64_t *luda_tensor_strides(const luda_tensor *tensor); /* in elements */
LUDA_API int luda_tensor_is_contiguous(const luda_tensor *tensor);
/* The first element's address (in device memory for CUDA). */
LUDA_API void *luda_tensor_data(luda_tensor *tensor);
/* Number of in-place changes of the storage, seen through every view. */
LUDA_API uint32_t luda_tensor_version(const luda_tensor *tensor);
/* Counts from 1 for leaves that require gradients, in order of their creation in the context; others are above 2^40. */
LUDA_API uint64_t luda_tensor_id(luda_tensor *tensor);
LUDA_API int luda_tensor_same_storage(const luda_tensor *a, const luda_tensor *b);
/* Element `index` in row-major order, as a number (i64 beyond 2^53 rounds) or exactly. Synchronises the device. */
LUDA_API luda_status luda_tensor_get(const luda_tensor *tensor, int64_t index, double *out);
LUDA_API luda_status luda_tensor_get_i64(const luda_tensor *tensor, int64_t index, int64_t *out);
/* All elements in row-major order, converted as luda_to does, to or from plain memory of `dtype` and numel elements. */
LUDA_API luda_status luda_tensor_read(const luda_tensor *tensor, luda_dtype dtype, void *memory, int64_t numel);
LUDA_API luda_status luda_tensor_write(luda_tensor *tensor, luda_dtype dtype, const void *memory, int64_t numel);
/* A contiguous tensor of the same values: itself where it is already. */
LUDA_API luda_status luda_contiguous(luda_tensor *tensor, luda_tensor **out);
/* A view where strides allow it, else a copy. */
LUDA_API luda_status luda_reshape(luda_tensor *tensor, int ndim, const int64_t *shape, luda_tensor **out);
/* dtype that results when these tensors meet (NULLs are skipped). */
LUDA_API luda_status luda_result_dtype(luda_tensor *const *in, int nin, luda_dtype *out);

/* --- Devices and memory --- */

LUDA_API int luda_device_count(int type);
/* Why a type has no device; lent. */
LUDA_API const char *luda_device_problem(int type);
LUDA_API luda_status luda_synchronize(luda_device device);
typedef struct luda_memory_info { int64_t live, peak, cached, limit, tensors, allocations; } luda_memory_info;
LUDA_API luda_status luda_memory(luda_device device, luda_memory_info *out);
/* Allocations beyond `bytes` live on the device fail with LUDA_ENOMEM; 0: no limit. */
LUDA_API luda_status luda_set_memory_limit(luda_device device, int64_t bytes);
LUDA_API void luda_memory_reset_peak(luda_device device);
LUDA_API void luda_memory_trim(luda_device device); /* gives cached memory back */

/* --- Automatic differentiation --- */

typedef struct luda_gradients luda_gradients;
typedef struct luda_walk luda_walk;
typedef struct luda_node luda_node;

/* On: the tensor becomes a leaf whose gradient backward computes. Floating dtypes only; not on a recorded result. */
LUDA_API luda_status luda_set_requires_grad(luda_tensor *tensor, int required);
LUDA_API int luda_requires_grad(const luda_tensor *tensor); /* leaf or recorded */
LUDA_API int luda_is_leaf(const luda_tensor *tensor);
/* The operator that made it, or NULL. */
LUDA_API const char *luda_grad_op(const luda_tensor *tensor);

typedef struct luda_backward_options {
    int32_t retain;       /* keep the graph for another backward */
    int32_t create_graph; /* record the backward pass itself (implies retain) */
    int32_t ninputs;      /* > 0: gradients of these tensors only */
    luda_tensor *const *inputs;
} luda_backward_options;

/*
 * Backward as an object. roots[i] must have numel 1 where gradients is NULL or gradients[i] is NULL (then the seed is 1).
 * The walk runs in strictly descending creation order and uses no recursion. Released half-way it leaks nothing.
 */
LUDA_API luda_status luda_walk_new(luda_tensor *const *roots, luda_tensor *const *gradients, int nroots,
                                   const luda_backward_options *options, luda_walk **out);
enum { LUDA_WALK_DONE = 0, LUDA_NEEDS_LUA = 1, LUDA_LEAF_FINAL = 2 };
/* Runs on until something must be done outside; *event is one of the three above. */
LUDA_API luda_status luda_walk_step(luda_walk *walk, int *event);
/* LUDA_NEEDS_LUA: the tag given to luda_node_new or luda_hook_add, whether it is a hook, and output gradients (lent or NULL). */
LUDA_API int64_t luda_walk_tag(const luda_walk *walk);
LUDA_API int luda_walk_is_hook(const luda_walk *walk);
LUDA_API luda_tensor *luda_walk_gradient(const luda_walk *walk, int output);
LUDA_API luda_node *luda_walk_node(const luda_walk *walk);
LUDA_API int luda_walk_needs(const luda_walk *walk, int input);
/* Hands back the gradient of an input (or, for a hook, the replacement of the gradient); NULL: none. */
LUDA_API luda_status luda_walk_give(luda_walk *walk, int input, luda_tensor *gradient);
/* LUDA_LEAF_FINAL (only asked for by luda_walk_report_leaves): the leaf's id; its gradient is in the gradients already. */
LUDA_API void luda_walk_report_leaves(luda_walk *walk, int report);
LUDA_API uint64_t luda_walk_leaf(const luda_walk *walk);
/* The gradients so far; lent. */
LUDA_API luda_gradients *luda_walk_gradients(luda_walk *walk);
LUDA_API void luda_walk_release(luda_walk *walk);
/* The loop over a walk; a graph that needs Lua is LUDA_ENOTSUP here. */
LUDA_API luda_status luda_backward(luda_tensor *root, luda_tensor *gradient, const luda_backward_options *options,
                                   luda_gradients **out);

/* Custom nodes: the door through which higher floors enter the graph. */
typedef struct luda_node_class {
    const char *name;
    /*
     * gradients[o] is NULL where output o took no part; writes a new reference to dx[i] where need[i]. NULL: the walk
     * stops with LUDA_NEEDS_LUA instead.
     */
    luda_status (*backward)(luda_node *node, void *state, luda_tensor *const *gradients, const uint8_t *need, luda_tensor **dx);
    void (*release)(void *state); /* may be NULL */
    int32_t never_replay;         /* recomputation must not run it again */
} luda_node_class;

/*
 * Ties outputs (fresh, untracked tensors) to inputs. Without a tracked input, or with recording off, the state is
 * released at once, *out is NULL and the outputs stay untracked. *out is lent and lives as long as its outputs' graph.
 */
LUDA_API luda_status luda_node_new(luda_tensor *const *inputs, int ninputs, luda_tensor *const *outputs, int noutputs,
                                   const luda_node_class *node_class, void *state, luda_node **out);
/* A node whose backward runs in Lua under `tag`. */
LUDA_API luda_status luda_node_new_lua(luda_tensor *const *inputs, int ninputs, luda_tensor *const *outputs, int noutputs,
                                       const char *name, int64_t tag, luda_node **out);
/* Keeps a tensor for backward (its version is checked there); luda_node_kept gives a new reference to the i-th. */
LUDA_API luda_status luda_node_keep(luda_node *node, luda_tensor *tensor);
LUDA_API int luda_node_kept_count(const luda_node *node);
LUDA_API luda_status luda_node_kept(luda_node *node, int index, luda_tensor **out);
/* Tags of Lua nodes and hooks that died since the last call; returns how many were written. */
LUDA_API int luda_context_dead_tags(luda_context *context, int64_t *tags, int capacity);
/* A Lua hook on the gradient of a tracked tensor. */
LUDA_API luda_status luda_hook_add(luda_tensor *tensor, int64_t tag);
LUDA_API luda_status luda_hook_remove(luda_tensor *tensor, int64_t tag);
/* How often an operator's kernel ran in this process: for tests and profiles. */
LUDA_API int64_t luda_op_runs(luda_op op);

/* Gradients by parameter id. */
LUDA_API luda_status luda_gradients_new(luda_gradients **out);
LUDA_API void luda_gradients_retain(luda_gradients *gradients);
LUDA_API void luda_gradients_release(luda_gradients *gradients);
LUDA_API int luda_gradients_count(const luda_gradients *gradients);
LUDA_API uint64_t luda_gradients_id(const luda_gradients *gradients, int index); /* ascending */
LUDA_API luda_tensor *luda_gradients_get(const luda_gradients *gradients, uint64_t id); /* lent, or NULL */
LUDA_API luda_status luda_gradients_set(luda_gradients *gradients, uint64_t id, luda_tensor *gradient); /* NULL removes */

/* --- Tensor files (runtime/core/file.c) --- */

/* --- Optimizers (runtime/optim) --- */

/* --- Collectives (runtime/collective) --- */

/* --- Handles: how a language binding names tensors. A handle is a positive number; 0 means failure. --- */

/* What the front end looks at after every call, without calling. */
typedef struct luda_signals {
    int32_t attend;  /* 0: nothing to do; bit 0: no scope is open, register; bit 1: collection wanted; bit 2: register even in a scope */
    int32_t depth;   /* open scopes */
    int32_t slots;   /* size of the slot table */
    int32_t status;  /* of the last failed call */
    double live_bytes, limit_bytes; /* of tensors that this context's handles and graph hold, and the limit that raises bit 1 */
    double handles;  /* alive */
} luda_signals;
LUDA_API luda_signals *luda_context_signals(luda_context *context);

LUDA_API double luda_handle_new(luda_context *context, luda_tensor *tensor); /* takes the reference, also on failure */
LUDA_API luda_tensor *luda_handle_tensor(luda_context *context, double handle); /* lent; NULL and an error if stale */
LUDA_API int luda_handle_alive(luda_context *context, double handle);
LUDA_API void luda_handle_release(luda_context *context, double handle); /* stale is fine */
/* Moves to the list of an outer scope; depth 0: of none. Returns 1 if it lay deeper before. */
LUDA_API int luda_handle_move(luda_context *context, double handle, int depth);
/* Slot `slot` was registered by the front end; releasing it from a sweep. */
LUDA_API void luda_handle_sweep(luda_context *context, const double *handles, int count);
/* Per slot: 1 if registered outside; the front end sets it, the core clears it. Valid until the table grows. */
LUDA_API uint8_t *luda_handle_marks(luda_context *context);
LUDA_API int luda_scope_enter(luda_context *context); /* the new depth, or 0 */
LUDA_API int luda_scope_leave(luda_context *context, int depth); /* and whatever is open inside it */
/* After a collection step: clears bit 1; bytes >= 0 sets the limit to live + bytes. */
LUDA_API void luda_context_rearm(luda_context *context, double bytes, double handles);

/* Operators on handles: a new handle, or 0. The context becomes the thread's current one. */
LUDA_API double luda_call1(luda_context *context, int op, double a);
LUDA_API double luda_call2(luda_context *context, int op, double a, double b);
/* One operand is a number that does not widen the tensor inside its category; reversed: number op a. */
LUDA_API double luda_call_number(luda_context *context, int op, double a, double number, int reversed);
/* The general form: in[i] 0 means absent; out gets a handle for each output that is not hidden. */
LUDA_API luda_status luda_call_full(luda_context *context, int op, const double *in, int nin, const luda_attrs *attrs, double *out);
LUDA_API luda_status luda_call_into(luda_context *context, int op, const double *in, int nin, const luda_attrs *attrs, double into);

#ifndef LUDA_CDEF
#ifdef __cplusplus
}
#endif
#endif
#endif
