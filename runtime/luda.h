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

#define LUDA_VERSION_MAJOR 0
#define LUDA_VERSION_MINOR 1
#define LUDA_VERSION_PATCH 0

/* Version of the library in the process: major * 10000 + minor * 100 + patch. */
LUDA_API int luda_version(void);

/* --- Status --- */

typedef enum luda_status {
#define LUDA_STATUS(name, number, word, sentence) LUDA_##name = number,
#include "status.def"
} luda_status;

/* The last failure of the calling thread: "op: what is wrong, with the numbers; hint". Success does not clear it. */
LUDA_API const char *luda_last_error(void);
/* For custom nodes, transports and bindings: sets that sentence and returns the status. */
LUDA_API luda_status luda_set_error(luda_status status, const char *sentence);
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
typedef struct luda_pair { int64_t height, width; } luda_pair;
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
#define luda__kind_pair luda_pair
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

/* activation of linear */
enum { LUDA_ACTIVATION_NONE = 0, LUDA_ACTIVATION_RELU = 1, LUDA_ACTIVATION_GELU_TANH = 2 };

/* transform of dft: complex to complex, real to the first half, the first half to real */
enum { LUDA_DFT_COMPLEX = 0, LUDA_DFT_REAL = 1, LUDA_DFT_HERMITIAN = 2 };

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
/* The first row with an unknown fact or attribute, or NULL; the build checks that there is none. */
LUDA_API const char *luda_table_fault(void);
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
#define LUDA__IN_4 luda_tensor *x, luda_tensor *y, luda_tensor *z, luda_tensor *u,
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
/*
 * Autocast of the current context: rows with the fact autocast=low compute in this half type (LUDA_BF16 or LUDA_F16), rows
 * with autocast=f32 in f32, whichever of these three types their inputs have. Any other value turns it off. Returns what
 * it was before; -1: off. In-place forms, `out` and backward are never cast. The rounded copy of a leaf is kept with
 * its storage until the values change; luda_optim_step renews it. Writes through luda_tensor_data are not noticed.
 */
LUDA_API int luda_set_autocast(int dtype);
LUDA_API int luda_autocast(void);
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
/* The same, or NULL unless the CPU finds all elements there in row-major order. */
LUDA_API void *luda_tensor_elements(luda_tensor *tensor);
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
/*
 * A contiguous CPU tensor over memory that somebody else owns; free (may be NULL) is called once when the last tensor over it
 * is gone. The address must be a multiple of the element's size. _lua: `tag` is among the dead tags then, instead.
 */
LUDA_API luda_status luda_tensor_wrap(luda_dtype dtype, int ndim, const int64_t *shape, void *memory,
                                      void (*free)(void *owner, void *memory, size_t bytes), void *owner, luda_tensor **out);
LUDA_API luda_status luda_tensor_wrap_lua(luda_dtype dtype, int ndim, const int64_t *shape, void *memory, int64_t tag,
                                          luda_tensor **out);
/*
 * The same bytes as another element type, over the same storage. Where sizes differ the last dimension, whose elements must
 * be adjacent, shrinks or grows.
 */
LUDA_API luda_status luda_tensor_bitcast(luda_tensor *tensor, luda_dtype dtype, luda_tensor **out);
/* A contiguous tensor of the same values: itself where it is already. */
LUDA_API luda_status luda_contiguous(luda_tensor *tensor, luda_tensor **out);
/* A view where strides allow it, else a copy. */
LUDA_API luda_status luda_reshape(luda_tensor *tensor, int ndim, const int64_t *shape, luda_tensor **out);
/* dtype that results when these tensors meet (NULLs are skipped). */
LUDA_API luda_status luda_result_dtype(luda_tensor *const *in, int nin, luda_dtype *out);
/*
 * DLPack 0.8, without a copy. to: the caller owns *out and calls its deleter once (luda_dlpack_release does), or hands it to
 * a library that will; the memory lives as long as either side needs it. A tracked tensor is refused. from: on success the
 * tensor owns `managed` and calls its deleter with the last view; on failure nothing was taken. Refused: element types and
 * devices that LUDA lacks, more than 8 dimensions, elements that are not aligned. Writes of either side are seen by both,
 * and luda_tensor_version does not count those of the other.
 */
struct DLManagedTensor;
LUDA_API luda_status luda_tensor_to_dlpack(luda_tensor *tensor, struct DLManagedTensor **out);
LUDA_API luda_status luda_tensor_from_dlpack(struct DLManagedTensor *managed, luda_tensor **out);
LUDA_API void luda_dlpack_release(struct DLManagedTensor *managed); /* NULL is fine */

/* --- Devices and memory --- */

LUDA_API int luda_device_count(int type);
/* Why a type has no device; lent. */
LUDA_API const char *luda_device_problem(int type);
LUDA_API luda_status luda_synchronize(luda_device device);
typedef struct luda_memory_info { int64_t live, peak, cached, limit, tensors, allocations; } luda_memory_info;
/* Bytes and counts. What other threads that still run did to CPU memory may be missing, up to 1 MiB a thread. */
LUDA_API luda_status luda_memory(luda_device device, luda_memory_info *out);
/* Allocations beyond `bytes` live on the device fail with LUDA_ENOMEM; 0: no limit. */
LUDA_API luda_status luda_set_memory_limit(luda_device device, int64_t bytes);
LUDA_API void luda_memory_reset_peak(luda_device device);
LUDA_API void luda_memory_trim(luda_device device); /* gives cached memory back */
/*
 * Memory by the place in a program that made it. mark: the tensor's storage belongs to this site from now on, unless it
 * belongs to one already. site: the index-th site that was ever marked, with its live bytes and storages, or NULL.
 */
LUDA_API luda_status luda_memory_mark(luda_tensor *tensor, const char *site);
LUDA_API const char *luda_memory_site(int index, int64_t *bytes, int64_t *storages);

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
    uint64_t since;       /* a mark of luda_graph_mark: gradients stop at what was recorded before; 0: none */
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

/*
 * Custom nodes: an operator of one's own, with its backward in C (examples/own_operator.c is a whole one). It computes its
 * results into fresh tensors, with recording off or into memory of its own, then ties them to its inputs by luda_node_new.
 */
typedef struct luda_node_class {
    const char *name; /* lives as long as the library */
    /*
     * gradients[o] is lent, NULL where output o took no part. Writes a new reference to dx[i] where need[i]: of the input's
     * shape, or NULL for none. A status other than LUDA_OK (luda_set_error has the sentence) ends the walk with it; what lies
     * in dx is released then too. Kept tensors come from luda_node_kept. NULL: the walk stops with LUDA_NEEDS_LUA instead.
     */
    luda_status (*backward)(luda_node *node, void *state, luda_tensor *const *gradients, const uint8_t *need, luda_tensor **dx);
    void (*release)(void *state); /* called once for each state, by whichever call ends its life; may be NULL */
    int32_t never_replay;         /* recomputation must not run it again */
    int32_t recorded;             /* backward consists of operators, so that create_graph can record it; else that is LUDA_EGRAPH */
} luda_node_class;

/*
 * Ties outputs (fresh, untracked tensors) to inputs. Inputs that are NULL, and outputs that are NULL or of no floating dtype,
 * have no gradient. Takes the state in every case: without a tracked input, with recording off, without a differentiable
 * output (then *out is NULL and the outputs stay untracked) and on failure it is released at once. *out is lent and lives as
 * long as its outputs' graph. Whether forward must keep anything: luda_grad_enabled() and luda_requires_grad(input).
 */
LUDA_API luda_status luda_node_new(luda_tensor *const *inputs, int ninputs, luda_tensor *const *outputs, int noutputs,
                                   const luda_node_class *node_class, void *state, luda_node **out);
/* The library that an address lies in stays loaded: nodes hold its classes, whoever closes it. */
LUDA_API luda_status luda_library_keep(const void *address);
/* A node whose backward runs in Lua under `tag`. */
LUDA_API luda_status luda_node_new_lua(luda_tensor *const *inputs, int ninputs, luda_tensor *const *outputs, int noutputs,
                                       const char *name, int64_t tag, luda_node **out);
/*
 * A segment that is recorded again in backward: what was recorded below `values` since the mark is given back, and a node of
 * `count` fresh outputs takes its place, whose backward runs in Lua under `tag`: it calls the function again, walks the new
 * graph with `since` and passes the gradients on with luda_walk_hand_over. Communication inside is LUDA_EGRAPH. *out is lent.
 */
LUDA_API uint64_t luda_graph_mark(luda_context *context);
LUDA_API int luda_graph_since(const luda_tensor *tensor, uint64_t mark); /* recorded after the mark */
LUDA_API luda_status luda_node_new_segment(luda_tensor *const *values, luda_tensor *const *outputs, int count, uint64_t mark,
                                           int64_t tag, luda_node **out);
LUDA_API luda_status luda_walk_hand_over(luda_walk *inner, luda_walk *outer);
/*
 * With 1 + a mark of luda_graph_mark: of what the current context records after the mark, results of memory-bound rows (the
 * fact recompute) are not kept where they can be made again from what is; a walk makes them again, once each, and drops them
 * when it has passed their row. 0: off. Returns what it was before.
 */
LUDA_API uint64_t luda_set_recompute(uint64_t from);
/*
 * Keeps a tensor (an input, an output of the node, any other) for backward; the NULL node of a call that is not recorded
 * keeps nothing. luda_node_kept gives a new reference to the i-th; LUDA_EGRAPH if it was changed in place since.
 */
LUDA_API luda_status luda_node_keep(luda_node *node, luda_tensor *tensor);
LUDA_API int luda_node_kept_count(const luda_node *node);
LUDA_API luda_status luda_node_kept(luda_node *node, int index, luda_tensor **out);
/*
 * For bindings: a call of a function of the language with its own backward, by handles; 0 is no tensor. enter: says which inputs
 * want gradients, turns recording off and returns the mode before (a negative status: a dead handle). record: sets the mode,
 * replaces the outputs by fresh ones tied to the inputs, keeps `saved`; tag 0 afterwards: nothing was tied. next: gives a
 * waiting node the gradients `inputs` (the first `given`) and goes on to the next event (or a negative status), both only where
 * `event` is -1 and not one that the walk stands at; it fills everything in when the event is LUDA_NEEDS_FUNCTION: outputs are
 * their gradients.
 */
enum { LUDA_NEEDS_FUNCTION = 3 };
typedef struct luda_function_call {
    int32_t capacity; /* of each array */
    int32_t ninputs, noutputs, nsaved, given;
    int32_t needs;    /* bit i: input i wants a gradient; bit 31: any beyond */
    int32_t dead;     /* there are dead tags */
    double tag;
    double *inputs, *outputs, *saved;
} luda_function_call;
LUDA_API int luda_function_enter(luda_context *context, luda_function_call *call);
LUDA_API luda_status luda_function_record(luda_context *context, luda_function_call *call, int mode, const char *name);
LUDA_API int luda_function_next(luda_context *context, luda_function_call *call, luda_walk *walk, int event);
/* Tags of Lua nodes and hooks that died since the last call; returns how many were written. */
LUDA_API int luda_context_dead_tags(luda_context *context, int64_t *tags, int capacity);
/*
 * On: an operator whose result is not finite while its inputs are fails with LUDA_EGRAPH, and so does a node of a walk whose
 * gradients are not finite while those that came in are. Returns what was set before. luda_anomaly_node: the order of the
 * node of the last such failure; luda_graph_order: the order of the node that a tensor is a result of, or 0.
 */
LUDA_API int luda_set_anomaly(int on);
LUDA_API uint64_t luda_anomaly_node(luda_context *context);
LUDA_API uint64_t luda_graph_order(const luda_tensor *tensor);
/*
 * The graph below a tensor as Graphviz text, ended by a zero, of which at most `size` bytes are written; *needed is how many the
 * whole takes.
 */
LUDA_API luda_status luda_graph_dot(luda_tensor *root, char *text, size_t size, size_t *needed);
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

/* --- Profiles (runtime/core/profile.c): what ran under a context, and when. On CUDA an event is the time to enqueue. --- */

enum { LUDA_PROFILE_OPERATOR = 0, LUDA_PROFILE_BACKWARD = 1 };
/* Nanoseconds of the monotonic clock; `name` lives as long as the library. */
typedef struct luda_profile_event { const char *name; int32_t kind; int64_t start, duration; } luda_profile_event;
LUDA_API luda_status luda_profile_start(luda_context *context);
LUDA_API void luda_profile_stop(luda_context *context); /* forgets the events */
LUDA_API int64_t luda_profile_now(void);
LUDA_API int64_t luda_profile_count(const luda_context *context);
LUDA_API int64_t luda_profile_lost(const luda_context *context); /* for want of memory */
LUDA_API int luda_profile_get(const luda_context *context, int64_t index, luda_profile_event *out); /* 0: there is none */

/* --- Tensor files (runtime/core/file.c): safetensors with checksums --- */

typedef struct luda_file luda_file;
typedef struct luda_file_entry { const char *name; luda_tensor *tensor; } luda_file_entry;

/*
 * Writes tensors (any strides, any device) and metadata: the same content gives the same bytes. The file appears complete
 * or not at all; on failure what stood there before still stands. Names and metadata are UTF-8.
 */
LUDA_API luda_status luda_file_save(const char *path, const luda_file_entry *entries, int n, const char *const *metadata_keys,
                                    const char *const *metadata_values, int nmeta);
/*
 * The same in the background: the call returns when the elements are copied into memory that the saver keeps between
 * saves, and a thread writes them. A save waits for the one before; if that one failed, its failure is what wait or the
 * next save returns, once, and nothing of the next save is done. exit() waits for savers.
 */
typedef struct luda_saver luda_saver;
LUDA_API luda_status luda_saver_new(luda_saver **out);
LUDA_API luda_status luda_saver_save(luda_saver *saver, const char *path, const luda_file_entry *entries, int n,
                                     const char *const *metadata_keys, const char *const *metadata_values, int nmeta);
LUDA_API luda_status luda_saver_wait(luda_saver *saver);
LUDA_API void luda_saver_close(luda_saver *saver); /* waits; NULL is fine */
/* Plain bytes with the same promise: complete or not at all. */
LUDA_API luda_status luda_file_write(const char *path, const char *bytes, size_t size);
/*
 * Opens a file and checks its whole header (LUDA_ECORRUPT names "header" or the tensor). Everything below is lent by the
 * file until it is closed; tensors are in the order of their names.
 */
LUDA_API luda_status luda_file_open(const char *path, luda_file **out);
LUDA_API void luda_file_close(luda_file *file); /* NULL is fine */
LUDA_API int luda_file_count(const luda_file *file);
LUDA_API int luda_file_find(const luda_file *file, const char *name); /* -1: no such tensor */
LUDA_API const char *luda_file_name(const luda_file *file, int index); /* NULL beyond the last */
LUDA_API int luda_file_dtype(const luda_file *file, int index);
LUDA_API int luda_file_ndim(const luda_file *file, int index);
LUDA_API const int64_t *luda_file_shape(const luda_file *file, int index);
LUDA_API const char *luda_file_metadata_key(const luda_file *file, int index); /* sorted; NULL beyond the last */
LUDA_API const char *luda_file_metadata(const luda_file *file, const char *key); /* NULL: no such key */
/* CRC-32C of the header, which holds those of all tensors: the content's identity. -1: another program wrote the file. */
LUDA_API int64_t luda_file_checksum(const luda_file *file);
/* A new CPU tensor. A file that carries checksums is verified. */
LUDA_API luda_status luda_file_read(const luda_file *file, int index, luda_tensor **out);

/* --- Optimizers (runtime/optim); the rules are rows of kernels/optim.def --- */

typedef enum luda_optim_kind {
#define LUDA_OPTIM(name, ...) LUDA_OPTIM_##name,
#include "../kernels/optim.def"
    LUDA_OPTIM_COUNT
} luda_optim_kind;

typedef struct luda_optim luda_optim;
typedef struct luda_optim_option_info { const char *name; double value; } luda_optim_option_info; /* value: the default */

LUDA_API const char *luda_optim_name(int kind); /* NULL beyond the last */
LUDA_API const luda_optim_option_info *luda_optim_option(int kind, int index); /* NULL beyond the last */

/* What holds for all groups; 0 is the default of every field. */
typedef struct luda_optim_settings {
    double max_grad_norm;  /* > 0: all gradients are scaled together so that their common norm is at most this */
    double clip_norm;      /* > 0: the same for each gradient by itself */
    double clip_value;     /* > 0: elements are clamped to this size. At most one of these three. */
    double gradient_scale; /* gradients are divided by it before anything else; 0 means 1 */
    int32_t fp32_master;   /* halves are updated in float32, which is kept, and get its rounded value */
} luda_optim_settings;

typedef struct luda_optim_report {
    int32_t skipped;  /* a gradient was not finite: nothing was changed */
    int32_t updated;  /* parameters */
    double grad_norm; /* of all gradients, unscaled and unclipped */
    double clip_coef; /* of max_grad_norm: 1 where nothing was clipped */
} luda_optim_report;

/*
 * An optimizer of these parameters (floating tensors, each listed once). Parameter i uses the options of group[i]: row
 * group[i] of `options`, values in the order of luda_optim_option. group NULL: all in group 0; options NULL: one group
 * with the defaults; settings NULL: all 0.
 */
LUDA_API luda_status luda_optim_new(int kind, luda_tensor *const *parameters, int count, const int32_t *group,
                                    const double *options, int ngroups, const luda_optim_settings *settings, luda_optim **out);
LUDA_API void luda_optim_retain(luda_optim *optim);
LUDA_API void luda_optim_release(luda_optim *optim); /* NULL is fine */
LUDA_API luda_status luda_optim_set_settings(luda_optim *optim, const luda_optim_settings *settings);
/* From the next step on; index as in luda_optim_option. */
LUDA_API luda_status luda_optim_set_option(luda_optim *optim, int group, int index, double value);
/*
 * Updates in place every parameter that has a gradient; the others, their states and their step counts stay as they
 * are. A half parameter's gradient may be float32. A gradient that is not finite skips the whole step. report may be NULL.
 */
LUDA_API luda_status luda_optim_step(luda_optim *optim, double lr, luda_gradients *gradients, luda_optim_report *report);

/* What a record holds. State positions go from 0 to LUDA_OPTIM_MAX_STATES - 1; a name of NULL says that one is not used. */
enum { LUDA_OPTIM_MAX_STATES = 5 };
LUDA_API int luda_optim_parameter_count(const luda_optim *optim);
LUDA_API luda_tensor *luda_optim_parameter(const luda_optim *optim, int parameter); /* lent */
LUDA_API const char *luda_optim_state_name(const luda_optim *optim, int parameter, int state);
LUDA_API int luda_optim_state_dtype(const luda_optim *optim, int parameter, int state);
/* Its number of dimensions, as the parameter's, and their sizes. -1: not used. */
LUDA_API int luda_optim_state_shape(const luda_optim *optim, int parameter, int state, int64_t *shape);
/* Lent; NULL before the first update. */
LUDA_API luda_tensor *luda_optim_state(const luda_optim *optim, int parameter, int state);
/* LUDA_EMISMATCH where the tensor does not fit; set_state copies it. */
LUDA_API luda_status luda_optim_check_state(const luda_optim *optim, int parameter, int state, const luda_tensor *tensor);
LUDA_API luda_status luda_optim_set_state(luda_optim *optim, int parameter, int state, const luda_tensor *tensor);
LUDA_API int64_t luda_optim_steps(const luda_optim *optim, int parameter);
/* 0 also drops the parameter's states: it was never updated. */
LUDA_API luda_status luda_optim_set_steps(luda_optim *optim, int parameter, int64_t steps);

/* targets[i] = beta * targets[i] + alpha * sources[i], in place, over a whole list; beta 0 does not read the targets. */
LUDA_API luda_status luda_axpby(luda_tensor *const *targets, luda_tensor *const *sources, int count, double alpha, double beta);
/* Norm of all gradients together, in double. Not finite where an element is not. */
LUDA_API luda_status luda_gradients_norm(const luda_gradients *gradients, double *out);
/*
 * Clips gradients: all together by their common norm (which is returned; where it is not finite nothing changes, and
 * luda_optim_step will skip), each by its own norm (one whose norm is not finite stays as it is), or element by element
 * (infinities become the limit, NaN stays). In place, so that whoever else holds a gradient sees it clipped; only those that
 * are recorded, not contiguous, or share their storage are replaced by clipped copies.
 */
LUDA_API luda_status luda_gradients_clip_norm(luda_gradients *gradients, double limit, double *norm);
LUDA_API luda_status luda_gradients_clip_each(luda_gradients *gradients, double limit);
LUDA_API luda_status luda_gradients_clip_value(luda_gradients *gradients, double limit);
/* Replaces gradients by factor times themselves, those of halves by float32 ones. */
LUDA_API luda_status luda_gradients_scale(luda_gradients *gradients, double factor);

/* Sums gradients of several backward passes, for these parameters; gradients of others are left out. */
typedef struct luda_accumulator luda_accumulator;
LUDA_API luda_status luda_accumulator_new(luda_tensor *const *parameters, int count, luda_accumulator **out);
LUDA_API void luda_accumulator_release(luda_accumulator *accumulator); /* NULL is fine */
/*
 * Adds weight * gradient. dtype -1 keeps the type of the sum so far (at first: of the gradient); another type is that of
 * the sum from now on, so LUDA_F32 adds halves without rounding in between. Weight 0 counts and adds nothing.
 */
LUDA_API luda_status luda_accumulator_add(luda_accumulator *accumulator, luda_gradients *gradients, double weight, int dtype);
/* Moves the sums out and starts anew; mean: divided by the sum of weights, which must not be 0. */
LUDA_API luda_status luda_accumulator_take(luda_accumulator *accumulator, int mean, luda_gradients **out);
LUDA_API int64_t luda_accumulator_count(const luda_accumulator *accumulator); /* additions since the last take */
LUDA_API double luda_accumulator_weight(const luda_accumulator *accumulator);
LUDA_API luda_tensor *luda_accumulator_sum(const luda_accumulator *accumulator, int parameter); /* lent, or NULL */
/* Replaces the whole state by copies; sums[i] may be NULL. LUDA_EMISMATCH leaves it as it was. */
LUDA_API luda_status luda_accumulator_set(luda_accumulator *accumulator, luda_tensor *const *sums, int64_t count, double weight);

/* --- Collectives (runtime/collective) --- */

/*
 * A communicator joins `size` ranks. All ranks make the same calls in the same order; before data moves they compare what
 * they ask for, and a difference is LUDA_EMISMATCH on every rank. Every call has a deadline that starts when the first
 * rank arrives: LUDA_ETIMEOUT names the ranks that are missing. After these two the communicator stays usable. A rank that
 * went away is LUDA_EPEER, an aborted communicator LUDA_ECANCELLED, for good.
 *
 * Inputs are never modified. Results are new contiguous tensors on the input's device, with the same bits on every rank
 * and from run to run. Halves are accumulated in float and rounded once; integers keep their width; a mean is the sum
 * divided once. One thread uses a communicator at a time; a second one is refused. With one rank nothing is exchanged.
 *
 * Rank processes of which all are on one host (at most 64) share memory, through which calls go; LUDA_LANE=off in any
 * rank's environment keeps the group to sockets. A rank that waits spins for LUDA_SPIN_US microseconds and sleeps then.
 */
typedef struct luda_comm luda_comm;

typedef enum luda_reduction {
#define LUDA_REDUCTION(name, NAME, ...) LUDA_REDUCE_##NAME,
#include "collective/names.def"
    LUDA_REDUCE_COUNT
} luda_reduction;

/*
 * How data moves. direct: rank r sums slice r in rank order and hands it back. default: the communicator's own, or
 * direct. auto: the one that a model of latency and bandwidth expects to be fastest, the same on all ranks. The model's
 * constants are read when a communicator is made, from LUDA_LINK_LATENCY_US (20), LUDA_LINK_MESSAGE_US (2; the time a
 * rank is busy with a message) and LUDA_LINK_GBPS (3; gigabytes a second); ranks must agree about them.
 */
typedef enum luda_algorithm {
#define LUDA_ALGORITHM(name, NAME) LUDA_ALGORITHM_##NAME,
#include "collective/names.def"
    LUDA_ALGORITHM_COUNT
} luda_algorithm;

/* What ranks do together. */
typedef enum luda_comm_call {
#define LUDA_CALL(name, NAME) LUDA_CALL_##NAME,
#include "collective/names.def"
    LUDA_CALL_COUNT
} luda_comm_call;

LUDA_API const char *luda_reduction_name(luda_reduction reduction); /* "sum" */
LUDA_API int luda_reduction_from_name(const char *name);            /* -1 for an unknown name */
LUDA_API const char *luda_algorithm_name(luda_algorithm algorithm);
LUDA_API int luda_algorithm_from_name(const char *name);

/* Of a communicator, or of one call. Zero means: the communicator's, or the default. */
typedef struct luda_comm_options {
    uint32_t size;     /* sizeof(luda_comm_options) */
    int32_t algorithm; /* enum luda_algorithm */
    double timeout;    /* seconds; default 300 */
    int32_t dim;       /* along which pieces are joined or cut; negative counts from the end */
    int32_t tag;       /* of send and recv: messages of one tag arrive in order */
    const char *site;  /* where the call stands in the program: goes into messages and the flight record, never compared */
    const void *secret; /* of luda_rendezvous_new and luda_comm_connect: secret_bytes (at least 16) random bytes; NULL: none */
    size_t secret_bytes;
    int32_t encrypt;   /* of luda_comm_connect, with a secret; equal on all ranks. What ranks of one host exchange through memory
                          that they share travels nowhere, and is not encrypted */
    int32_t port;      /* of luda_comm_connect: where other ranks connect to this one; 0: a free one */
    int32_t connections; /* of luda_comm_connect: TCP connections for data between two ranks, 1 to 64; equal on all ranks.
                            Default: LUDA_CONNECTIONS in the environment, or 1 */
    const int64_t *sizes;    /* uneven pieces: the length of each rank's along dim; NULL: equal ones */
    const int64_t *received; /* all_to_all with sizes: what comes from each rank; NULL: the ranks ask each other */
    int32_t pieces;          /* entries of sizes and of received: one a rank */
    int32_t arity;           /* children of a node of a tree; default 2. 1 is a chain */
} luda_comm_options;

/* The ranks of one process: out[r] is for the thread that is rank r. */
LUDA_API luda_status luda_comm_new_local_group(int size, const luda_comm_options *options, luda_comm **out);
LUDA_API void luda_comm_retain(luda_comm *comm);
LUDA_API void luda_comm_release(luda_comm *comm);
LUDA_API int luda_comm_rank(const luda_comm *comm);
LUDA_API int luda_comm_size(const luda_comm *comm);
LUDA_API const char *luda_comm_transport(const luda_comm *comm); /* "local", "tcp", … */
/* Leaves: other ranks that wait for this one, now or later, get LUDA_EPEER. The last release does the same. */
LUDA_API void luda_comm_close(luda_comm *comm);
/* Every pending and later call of every rank fails with LUDA_ECANCELLED and this text. From any thread. */
LUDA_API void luda_comm_abort(luda_comm *comm, const char *text);

/* options may be NULL everywhere. */
LUDA_API luda_status luda_comm_barrier(luda_comm *comm, const luda_comm_options *options);
LUDA_API luda_status luda_comm_all_reduce(luda_comm *comm, luda_tensor *tensor, luda_reduction reduction,
                                          const luda_comm_options *options, luda_tensor **out);
/* In place. A failure while data moves (a lost rank, an abort) leaves the values undefined; a mismatch changes nothing. */
LUDA_API luda_status luda_comm_all_reduce_into(luda_comm *comm, luda_tensor *tensor, luda_reduction reduction,
                                               const luda_comm_options *options);
/* *out is NULL on ranks other than the root. */
LUDA_API luda_status luda_comm_reduce(luda_comm *comm, luda_tensor *tensor, luda_reduction reduction, int root,
                                      const luda_comm_options *options, luda_tensor **out);
/*
 * tensor is NULL on a rank that does not know shape and dtype, or a placeholder of the same shape and dtype. root -1:
 * whichever rank passes a tensor, and exactly one must.
 */
LUDA_API luda_status luda_comm_broadcast(luda_comm *comm, luda_tensor *tensor, int root, const luda_comm_options *options,
                                         luda_tensor **out);
/*
 * Joins pieces in rank order along options->dim: equal ones, or as long as options->sizes says, the same list on every
 * rank. Pieces may be empty.
 */
LUDA_API luda_status luda_comm_all_gather(luda_comm *comm, luda_tensor *tensor, const luda_comm_options *options,
                                          luda_tensor **out);
/* Rank r gets the r-th of `size` slices of the reduction along options->dim: equal ones, or of options->sizes. */
LUDA_API luda_status luda_comm_reduce_scatter(luda_comm *comm, luda_tensor *tensor, luda_reduction reduction,
                                              const luda_comm_options *options, luda_tensor **out);
/* all_gather at the root only; *out is NULL elsewhere. */
LUDA_API luda_status luda_comm_gather(luda_comm *comm, luda_tensor *tensor, int root, const luda_comm_options *options,
                                      luda_tensor **out);
/* Rank r gets the r-th slice of the root's tensor; other ranks pass NULL, and the same options->sizes if there are any. */
LUDA_API luda_status luda_comm_scatter(luda_comm *comm, luda_tensor *tensor, int root, const luda_comm_options *options,
                                       luda_tensor **out);
/*
 * Slice q of rank r becomes slice r of rank q. Uneven: options->sizes is what this rank sends to each and differs by rank.
 * options->received, on all ranks or on none, saves a message in a row; where it is not what the others send, LUDA_ESHAPE.
 */
LUDA_API luda_status luda_comm_all_to_all(luda_comm *comm, luda_tensor *tensor, const luda_comm_options *options,
                                          luda_tensor **out);
/*
 * Buffered: returns before the receiver asks, unless 64 MiB on their way to that rank have not left: then it waits for them,
 * until the deadline. Shape and dtype travel along. Neither takes part in the order of calls.
 */
LUDA_API luda_status luda_comm_send(luda_comm *comm, luda_tensor *tensor, int to, const luda_comm_options *options);
LUDA_API luda_status luda_comm_recv(luda_comm *comm, int from, const luda_comm_options *options, luda_tensor **out);

/*
 * A tensor in memory that the ranks of one host share, so that all_reduce_into needs no copy of it: what buckets of
 * gradients are made of. A call of all ranks, with the same shape and dtype; the values are undefined. Like any other tensor
 * otherwise, also where ranks are on several hosts. It lives on after the communicator. A rank that comes late to a call
 * that failed while data moved may still write into it: take a new one then.
 */
LUDA_API luda_status luda_comm_empty(luda_comm *comm, luda_dtype dtype, int ndim, const int64_t *shape,
                                     const luda_comm_options *options, luda_tensor **out);

/*
 * A new group of the ranks that give the same color, in order of key, then of rank. A negative color: *out is NULL.
 * Every rank of the communicator must take part.
 */
LUDA_API luda_status luda_comm_split(luda_comm *comm, int color, int key, const luda_comm_options *options, luda_comm **out);

/*
 * A call that goes on while the caller does something else: any but send and recv. Calls run in the order in which they
 * were started; the other functions wait for all of them first. The work keeps the tensor; it must not be changed until
 * the work is done, and for in_place (all_reduce only) not be read either. wait: the result (NULL out: not wanted), or
 * LUDA_ETIMEOUT after `timeout` seconds, and then the work goes on. The result of a tracked tensor is tied to it where it
 * is first waited for: waits must have the same order on all ranks. Releasing does not cancel. For a failure: culprits,
 * difference and failure as for luda_comm_culprits, of this work.
 */
typedef struct luda_work luda_work;
LUDA_API luda_status luda_comm_start(luda_comm *comm, luda_comm_call call, luda_tensor *tensor, luda_reduction reduction,
                                     int root, int in_place, const luda_comm_options *options, luda_work **out);
LUDA_API int luda_work_done(luda_work *work);
LUDA_API luda_status luda_work_wait(luda_work *work, double timeout, luda_tensor **out);
LUDA_API int luda_work_culprits(luda_work *work, int32_t *ranks, int capacity);
LUDA_API const char *luda_work_difference(luda_work *work);
LUDA_API const char *luda_work_failure(luda_work *work, int index, int32_t *rank);
LUDA_API void luda_work_release(luda_work *work);

/*
 * About the last failed call of this communicator: the ranks to blame (returns how many; writes at most capacity), the
 * field that ranks disagreed about ("shape"; NULL after other failures), and entry `index` of what each rank asked for
 * (NULL beyond the last). Lent until the next call.
 */
LUDA_API int luda_comm_culprits(const luda_comm *comm, int32_t *ranks, int capacity);
LUDA_API const char *luda_comm_difference(const luda_comm *comm);
LUDA_API const char *luda_comm_failure(const luda_comm *comm, int index, int32_t *rank);

/*
 * Ranks in processes of their own meet at a rendezvous: a server on the network thread of one of them, or of a launcher.
 * bind is "host:port" (NULL: 127.0.0.1 and a free port). session names the group, 32 hexadecimal digits (NULL: random
 * ones); whoever does not know it is turned away. missing: the ranks that have not joined.
 *
 * Without options->secret only loopback addresses are bound and connected to. With it, which all ranks must give too, both
 * ends of every connection first prove that they know it, and everything later is authenticated: what was altered, replayed
 * or left out on the way fails the connection (LUDA_EPEER names the rank). options->encrypt also hides what is sent, even
 * from who learns the secret later. Needs libsodium (LUDA_ENOTSUP).
 */
typedef struct luda_rendezvous luda_rendezvous;
LUDA_API luda_status luda_rendezvous_new(const char *bind, const char *session, int size, const luda_comm_options *options,
                                         luda_rendezvous **out);
LUDA_API const char *luda_rendezvous_address(const luda_rendezvous *rendezvous); /* with the port that was taken */
LUDA_API const char *luda_rendezvous_session(const luda_rendezvous *rendezvous);
LUDA_API int luda_rendezvous_missing(luda_rendezvous *rendezvous, int32_t *ranks, int capacity);
LUDA_API void luda_rendezvous_close(luda_rendezvous *rendezvous);
LUDA_API void luda_rendezvous_release(luda_rendezvous *rendezvous); /* closes too */
/*
 * Joins a group as one of its ranks: keeps trying until the server is up, waits for all others, and connects to each of
 * them. options->timeout holds for joining too; LUDA_ETIMEOUT says who is missing.
 */
LUDA_API luda_status luda_comm_connect(const char *address, const char *session, int rank, int size,
                                       const luda_comm_options *options, luda_comm **out);
/*
 * The same over a transport by name: "tcp" (or NULL) is luda_comm_connect. "mpi" is a program's rank in an installed MPI that
 * started it (address and session NULL, rank -1 and size 0: MPI knows). Other names are those of libraries, see
 * luda_transport.h: libluda_NAME.so beside libluda, or what luda_transport_load opened (it stays open). LUDA_EIO: no such library.
 */
LUDA_API luda_status luda_comm_open(const char *transport, const char *address, const char *session, int rank, int size,
                                    const luda_comm_options *options, luda_comm **out);
LUDA_API luda_status luda_transport_load(const char *path);

/* The flight record: the last calls, oldest first. Times are seconds since 1970; finished is 0 while the call runs. */
enum { LUDA_FLIGHT_QUEUED = 0, LUDA_FLIGHT_RUNNING = 1, LUDA_FLIGHT_DONE = 2, LUDA_FLIGHT_FAILED = 3 };
typedef struct luda_flight {
    uint64_t sequence; /* 0 for send and recv */
    const char *operation; /* "all_reduce"; static */
    int32_t dtype, ndim; /* -1 where the rank does not know */
    int64_t shape[8];
    int64_t bytes;
    int32_t state;
    double started, finished;
    char site[64];
} luda_flight;
LUDA_API int luda_comm_flights(luda_comm *comm);
LUDA_API luda_status luda_comm_flight(luda_comm *comm, int index, luda_flight *out);

/* --- Handles: how a language binding names tensors. A handle is a positive number; 0 means failure. --- */

/* What the front end looks at after every call, without calling. */
typedef struct luda_signals {
    int32_t attend;  /* 0: nothing to do; bit 0: no scope is open, register; bit 1: collection wanted; bit 2: register even in a scope; bit 3: note the site */
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
/* Releases what a sweep found unreachable. */
LUDA_API void luda_handle_sweep(luda_context *context, const double *handles, int count);
LUDA_API int luda_scope_enter(luda_context *context); /* the new depth, or 0 */
LUDA_API int luda_scope_leave(luda_context *context, int depth); /* and whatever is open inside it */
/* After a collection step: clears bit 1; bytes >= 0 sets the limit to live + bytes. */
LUDA_API void luda_context_rearm(luda_context *context, double bytes, double handles);

/* Operators on handles: a new handle, or 0. The context becomes the thread's current one. */
LUDA_API double luda_call1(luda_context *context, int op, double a);
LUDA_API double luda_call2(luda_context *context, int op, double a, double b);
/* One operand is a number that does not widen the tensor inside its category; reversed: number op a. */
LUDA_API double luda_call_number(luda_context *context, int op, double a, double number, int reversed);
/* The same in place. */
LUDA_API luda_status luda_call_number_into(luda_context *context, int op, double a, double number);
/* One input, or two where b is not 0, with attributes; the only output that is not hidden, or the first. */
LUDA_API double luda_call_attrs(luda_context *context, int op, double a, double b, const luda_attrs *attrs);
/* The general form: in[i] 0 means absent; out gets a handle for each output that is not hidden. */
LUDA_API luda_status luda_call_full(luda_context *context, int op, const double *in, int nin, const luda_attrs *attrs, double *out);
/*
 * Backward from a handle, as far as it goes without Lua: the gradients (a new reference). NULL: a failure, or *walk waits for
 * what *event says. gradient: a handle, or 0 for a root of one element.
 */
LUDA_API luda_gradients *luda_call_backward(luda_context *context, double root, double gradient, int retain, int create_graph,
                                            luda_walk **walk, int *event);
LUDA_API luda_status luda_call_into(luda_context *context, int op, const double *in, int nin, const luda_attrs *attrs, double into);

#ifndef LUDA_CDEF
#ifdef __cplusplus
}
#endif
#endif
#endif
