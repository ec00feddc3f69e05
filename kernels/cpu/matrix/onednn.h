/*
 * oneDNN's primitives, opened by name when they are first wanted, so that nothing is linked. Built only where its header was
 * found (LUDA_ONEDNN); a library of another major version is not used, as its structs differ.
 */
#ifndef LUDA_ONEDNN_H
#define LUDA_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>

#include <stddef.h>

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

/* An implementation made for this processor, not the library's reference or its detour over a matrix product. */
int luda__onednn_is_fast(const onednn *dnn, const_dnnl_primitive_desc_t description);

/* Runs a primitive on this thread; 0 after a failure. */
int luda__onednn_run(const onednn *dnn, const_dnnl_primitive_t primitive, int count, const int *arguments,
                     const dnnl_memory_desc_t *const *descriptions, void *const *data);

#endif
