/* See gemm_bf16.h. */
#include "gemm_bf16.h"

#ifdef LUDA_ONEDNN
#include "kernels/cpu/pool/pool.h"
#include "onednn.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { A, B, RESULT, SCRATCHPAD }; /* layouts of an entry */

static int wanted;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int has_avx512_bf16(void)
{
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx512bw") && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 5 & 1);
#else
    return 0;
#endif
}

static void decide(void)
{
    const char *asked = getenv("LUDA_GEMM");
    wanted = (asked && strcmp(asked, "onednn_bf16") == 0) || has_avx512_bf16();
}

typedef struct product {
    int64_t m, n, k, lda, ldb, ldc;
    int ta, tb;
} product;

static void make_entry(const onednn *dnn, onednn_entry *e, const void *arg)
{
    const product *p = arg;
    dnnl_dims_t a = { p->m, p->k }, b = { p->k, p->n }, c = { p->m, p->n }, c_strides = { p->ldc, 1 };
    dnnl_dims_t a_strides = { p->ta ? 1 : p->lda, p->ta ? p->lda : 1 };
    dnnl_dims_t b_strides = { p->tb ? 1 : p->ldb, p->tb ? p->ldb : 1 };
    dnnl_matmul_desc_t d;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t description;
    if (dnn->dnnl_memory_desc_init_by_strides(&e->layout[A], 2, a, dnnl_bf16, a_strides) ||
        dnn->dnnl_memory_desc_init_by_strides(&e->layout[B], 2, b, dnnl_bf16, b_strides) ||
        dnn->dnnl_memory_desc_init_by_strides(&e->layout[RESULT], 2, c, dnnl_f32, c_strides) ||
        dnn->dnnl_matmul_desc_init(&d, &e->layout[A], &e->layout[B], NULL, &e->layout[RESULT]) ||
        dnn->dnnl_primitive_attr_create(&attr))
        return;
    int made = !dnn->dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) &&
               !dnn->dnnl_primitive_desc_create(&description, &d, attr, dnn->engine, NULL);
    dnn->dnnl_primitive_attr_destroy(attr);
    if (!made)
        return;
    const dnnl_memory_desc_t *scratchpad = dnn->dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    if (scratchpad && !luda__onednn_is_reference(dnn, description)) {
        e->layout[SCRATCHPAD] = *scratchpad;
        if (dnn->dnnl_primitive_create(&e->primitive[0], description) != dnnl_success)
            e->primitive[0] = NULL;
    }
    dnn->dnnl_primitive_desc_destroy(description);
}

int luda__has_gemm_bf16(void)
{
    pthread_once(&once, decide);
    return wanted && luda__onednn();
}

int luda__gemm_bf16(int ta, int tb, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b,
                    int64_t ldb, float *c, int64_t ldc)
{
    static const int names[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD };
    product p = { m, n, k, lda, ldb, ldc, ta, tb };
    int64_t key[ONEDNN_KEY] = { ONEDNN_MATMUL, m, n, k, lda, ldb, ldc, ta, tb };
    const onednn *dnn = luda__has_gemm_bf16() && m > 0 && n > 0 && k > 0 ? luda__onednn() : NULL;
    onednn_entry *e = dnn ? luda__onednn_take(dnn, key, make_entry, &p) : NULL;
    if (!e)
        return 0;
    void *scratchpad = luda__scratch_for(SCRATCH_LIBRARY, dnn->dnnl_memory_desc_get_size(&e->layout[SCRATCHPAD]) + 1);
    const dnnl_memory_desc_t *layouts[] = { &e->layout[A], &e->layout[B], &e->layout[RESULT], &e->layout[SCRATCHPAD] };
    void *data[] = { (void *)a, (void *)b, c, scratchpad };
    int done = scratchpad && luda__onednn_run(dnn, e->primitive[0], 4, names, layouts, data);
    luda__onednn_give_back(e);
    return done;
}

#else

int luda__has_gemm_bf16(void)
{
    return 0;
}

int luda__gemm_bf16(int ta, int tb, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b,
                    int64_t ldb, float *c, int64_t ldc)
{
    return 0;
}

#endif
