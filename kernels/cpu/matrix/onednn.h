/*
 * oneDNN's primitives, opened by name when they are first wanted, so that nothing is linked. Built only where its header was
 * found (LUDA_ONEDNN); a library of another major version is not used, as its structs differ.
 */
#ifndef LUDA_ONEDNN_H
#define LUDA_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>

#include <stddef.h>
#include <stdint.h>

#define ONEDNN_FUNCTIONS(FUNCTION)                                                                                     \
    FUNCTION(dnnl_version)                                                                                             \
    FUNCTION(dnnl_engine_create)                                                                                       \
    FUNCTION(dnnl_stream_create)                                                                                       \
    FUNCTION(dnnl_stream_destroy)                                                                                      \
    FUNCTION(dnnl_memory_create)                                                                                       \
    FUNCTION(dnnl_memory_destroy)                                                                                      \
    FUNCTION(dnnl_memory_desc_init_by_tag)                                                                             \
    FUNCTION(dnnl_memory_desc_init_by_strides)                                                                         \
    FUNCTION(dnnl_memory_desc_equal)                                                                                   \
    FUNCTION(dnnl_memory_desc_get_size)                                                                                \
    FUNCTION(dnnl_primitive_attr_create)                                                                               \
    FUNCTION(dnnl_primitive_attr_destroy)                                                                              \
    FUNCTION(dnnl_primitive_attr_set_scratchpad_mode)                                                                  \
    FUNCTION(dnnl_dilated_convolution_forward_desc_init)                                                               \
    FUNCTION(dnnl_dilated_convolution_backward_data_desc_init)                                                         \
    FUNCTION(dnnl_dilated_convolution_backward_weights_desc_init)                                                      \
    FUNCTION(dnnl_matmul_desc_init)                                                                                    \
    FUNCTION(dnnl_primitive_desc_create)                                                                               \
    FUNCTION(dnnl_primitive_desc_destroy)                                                                              \
    FUNCTION(dnnl_primitive_desc_query)                                                                                \
    FUNCTION(dnnl_primitive_desc_query_md)                                                                             \
    FUNCTION(dnnl_reorder_primitive_desc_create)                                                                       \
    FUNCTION(dnnl_primitive_create)                                                                                    \
    FUNCTION(dnnl_primitive_execute)                                                                                   \
    FUNCTION(dnnl_primitive_destroy)

typedef struct onednn {
#define FIELD(name) __typeof__(name) *name;
    ONEDNN_FUNCTIONS(FIELD)
#undef FIELD
    dnnl_engine_t engine;
} onednn;

/*
 * The functions, or NULL: not installed, another version, or LUDA_GEMM asks for another library. From then on the library
 * runs on the calling thread alone; a primitive must be made and run by threads that called this.
 */
const onednn *luda__onednn(void);

/* Whether the library has nothing better than its reference, and whether it computes by way of a matrix product. */
int luda__onednn_is_reference(const onednn *dnn, const_dnnl_primitive_desc_t description);
int luda__onednn_is_product(const onednn *dnn, const_dnnl_primitive_desc_t description);

/* Runs a primitive on this thread; 0 after a failure. */
int luda__onednn_run(const onednn *dnn, const_dnnl_primitive_t primitive, int count, const int *arguments,
                     const dnnl_memory_desc_t *const *layouts, void *const *data);

/* --- Primitives are kept by what they were made for, as making one takes a fraction of a millisecond --- */

enum { ONEDNN_KEY = 17, ONEDNN_PRIMITIVES = 4, ONEDNN_LAYOUTS = 8 };
enum { ONEDNN_CONV, ONEDNN_MATMUL = 3 }; /* key[0]; a convolution adds its pass */

typedef struct onednn_entry {
    int64_t key[ONEDNN_KEY];
    dnnl_primitive_t primitive[ONEDNN_PRIMITIVES]; /* the first is NULL where the library refused */
    dnnl_memory_desc_t layout[ONEDNN_LAYOUTS];
    int users;
    uint64_t last_use;
} onednn_entry;

/* The entry of a key, filled by `make` where it is new; NULL: refused, or no memory. It stays until it is given back. */
onednn_entry *luda__onednn_take(const onednn *dnn, const int64_t *key,
                                void (*make)(const onednn *dnn, onednn_entry *entry, const void *arg), const void *arg);
void luda__onednn_give_back(onednn_entry *entry);

#endif
