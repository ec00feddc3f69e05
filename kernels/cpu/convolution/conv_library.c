/*
 * See conv_library.h. Images are reordered to channels-last inside a slab, weights to what the library likes once a call:
 * measured, that is 1.2 to 4 times as fast as its kernels for plain images, which are matrix products as our own. Kernels of
 * 1 x 1 and gradients for few channels stay with the matrix product. Primitives are kept, each for one thread.
 */
#include "conv_library.h"

#ifdef LUDA_ONEDNN
#include "kernels/cpu/matrix/onednn.h"

enum { X, W, Y, OPERANDS, FEW_CHANNELS = 8 };

/* Places in an entry: the layouts PLAIN + operand and INNER + operand, the reorders REORDER + operand (NULL: none needed). */
enum { PLAIN = 0, INNER = OPERANDS, BIAS = 2 * OPERANDS, SCRATCHPAD, REORDER = 1 };

typedef onednn_entry entry;

/* What an entry is made for. */
typedef struct request {
    const conv *c;
    conv_pass pass;
    int64_t images;
    int with_bias;
} request;

struct conv_library {
    const onednn *dnn;
    conv_pass pass;
    struct {
        entry *entry;
        int64_t images;
        float *weight; /* reordered, or the caller's */
        void *memory;
    } part[2]; /* a whole slab, and the last one */
};

static int result_of(conv_pass pass)
{
    return pass == CONV_FORWARD ? Y : pass == CONV_INPUT ? X : W;
}

/* --- Making an entry --- */

static int describe(const onednn *dnn, const request *r, entry *e, dnnl_memory_desc_t *wanted, int any)
{
    const conv *c = r->c;

    int64_t o = c->groups * c->outputs, i = c->groups * c->channels, kh = c->kernel.height, kw = c->kernel.width;
    dnnl_dims_t x = { r->images, i, c->height, c->width }, y = { r->images, o, c->rows, c->columns }, bias = { o };
    dnnl_dims_t w = { c->outputs, c->channels, kh, kw }, grouped = { c->groups, c->outputs, c->channels, kh, kw };
    int dims = c->groups > 1 ? 5 : 4;
    const int64_t *kernel = c->groups > 1 ? grouped : w;
    dnnl_format_tag_t images_as = any ? dnnl_format_tag_any : dnnl_nhwc;
    dnnl_memory_desc_t *plain = &e->layout[PLAIN];
    return !dnn->dnnl_memory_desc_init_by_tag(&plain[X], 4, x, dnnl_f32, dnnl_nchw) &&
           !dnn->dnnl_memory_desc_init_by_tag(&plain[Y], 4, y, dnnl_f32, dnnl_nchw) &&
           !dnn->dnnl_memory_desc_init_by_tag(&plain[W], dims, kernel, dnnl_f32, dims == 5 ? dnnl_goihw : dnnl_oihw) &&
           !dnn->dnnl_memory_desc_init_by_tag(&e->layout[BIAS], 1, bias, dnnl_f32, dnnl_a) &&
           !dnn->dnnl_memory_desc_init_by_tag(&wanted[X], 4, x, dnnl_f32, images_as) &&
           !dnn->dnnl_memory_desc_init_by_tag(&wanted[Y], 4, y, dnnl_f32, images_as) &&
           !dnn->dnnl_memory_desc_init_by_tag(&wanted[W], dims, kernel, dnnl_f32, dnnl_format_tag_any);
}

/* The primitive's description; gradients are described beside the forward pass. */
static int describe_pass(const onednn *dnn, const request *r, const entry *e, const dnnl_memory_desc_t *m,
                         dnnl_primitive_desc_t *out)
{
    const conv *c = r->c;
    dnnl_dims_t stride = { c->stride.height, c->stride.width }, padding = { c->padding.height, c->padding.width };
    dnnl_dims_t dilation = { c->dilation.height - 1, c->dilation.width - 1 };
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    dnnl_convolution_desc_t d;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t forward = NULL;
    if (dnn->dnnl_primitive_attr_create(&attr) != dnnl_success)
        return 0;
    int made = !dnn->dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) &&
               !dnn->dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_training, direct, &m[X], &m[W],
                                                                r->with_bias ? &e->layout[BIAS] : NULL, &m[Y], stride, dilation, padding,
                                                                padding) &&
               !dnn->dnnl_primitive_desc_create(&forward, &d, attr, dnn->engine, NULL);
    *out = r->pass == CONV_FORWARD ? forward : NULL;
    if (made && r->pass != CONV_FORWARD) {
        made = !(r->pass == CONV_INPUT ? dnn->dnnl_dilated_convolution_backward_data_desc_init(
                                          &d, direct, &m[X], &m[W], &m[Y], stride, dilation, padding, padding)
                                    : dnn->dnnl_dilated_convolution_backward_weights_desc_init(
                                          &d, direct, &m[X], &m[W], NULL, &m[Y], stride, dilation, padding, padding)) &&
               !dnn->dnnl_primitive_desc_create(out, &d, attr, dnn->engine, forward);
        dnn->dnnl_primitive_desc_destroy(forward);
    }
    dnn->dnnl_primitive_attr_destroy(attr);
    return made;
}

static int make_reorder(const onednn *dnn, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to, dnnl_primitive_t *out)
{
    dnnl_primitive_desc_t d;
    if (dnn->dnnl_memory_desc_equal(from, to))
        return 1;
    if (dnn->dnnl_reorder_primitive_desc_create(&d, from, dnn->engine, to, dnn->engine, NULL) != dnnl_success)
        return 0;
    int made = dnn->dnnl_primitive_create(out, d) == dnnl_success;
    dnn->dnnl_primitive_desc_destroy(d);
    return made;
}

static int take_layouts(const onednn *dnn, conv_pass pass, const_dnnl_primitive_desc_t d, entry *e)
{
    static const dnnl_query_t layout[3][OPERANDS] = {
        { dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md },
        { dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md },
        { dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md },
    };
    const dnnl_memory_desc_t *scratchpad = dnn->dnnl_primitive_desc_query_md(d, dnnl_query_scratchpad_md, 0);
    int made = scratchpad != NULL;
    if (made)
        e->layout[SCRATCHPAD] = *scratchpad;
    for (int o = 0; made && o < OPERANDS; o++) {
        const dnnl_memory_desc_t *inner = dnn->dnnl_primitive_desc_query_md(d, layout[pass][o], 0);
        int back = o == result_of(pass);
        made = inner != NULL;
        if (made) {
            const dnnl_memory_desc_t *plain = &e->layout[PLAIN + o];
            e->layout[INNER + o] = *inner;
            made = make_reorder(dnn, back ? inner : plain, back ? plain : inner, &e->primitive[REORDER + o]);
        }
    }
    return made;
}

/* Channels-last where the library has something fast for it, else as it likes. */
static void make_entry(const onednn *dnn, onednn_entry *e, const void *arg)
{
    const request *r = arg;
    int few = r->pass == CONV_FORWARD && r->c->groups == 1 && r->c->channels < FEW_CHANNELS;
    for (int any = few; any < 2; any++) {
        dnnl_memory_desc_t wanted[OPERANDS];
        dnnl_primitive_desc_t d = NULL;
        if (!describe(dnn, r, e, wanted, any))
            return;
        int fast = describe_pass(dnn, r, e, wanted, &d) && !luda__onednn_is_reference(dnn, d) && !luda__onednn_is_product(dnn, d);
        if (fast && take_layouts(dnn, r->pass, d, e) && dnn->dnnl_primitive_create(&e->primitive[0], d) != dnnl_success)
            e->primitive[0] = NULL;
        if (d)
            dnn->dnnl_primitive_desc_destroy(d);
        if (fast)
            return;
    }
}

static entry *take_entry(const onednn *dnn, const conv *c, conv_pass pass, int64_t images)
{
    request r = { c, pass, images, pass == CONV_FORWARD && c->bias };
    int64_t key[ONEDNN_KEY] = { ONEDNN_CONV + (int)pass, r.with_bias, images, c->groups, c->channels, c->outputs, c->height,
                                c->width, c->kernel.height, c->kernel.width, c->stride.height, c->stride.width,
                                c->padding.height, c->padding.width, c->dilation.height, c->dilation.width };
    return luda__onednn_take(dnn, key, make_entry, &r);
}

/* --- Running --- */

static size_t room(const onednn *dnn, const dnnl_memory_desc_t *d)
{
    return (dnn->dnnl_memory_desc_get_size(d) + 63) / 64 * 64;
}

static int reorder(const onednn *dnn, const entry *e, int operand, int back, void *plain, void *inner)
{
    const dnnl_memory_desc_t *layouts[] = { &e->layout[PLAIN + operand], &e->layout[INNER + operand] };
    return luda__onednn_run(dnn, e->primitive[REORDER + operand], 2,
                            back ? (int[]){ DNNL_ARG_TO, DNNL_ARG_FROM } : (int[]){ DNNL_ARG_FROM, DNNL_ARG_TO }, layouts,
                            (void *[]){ plain, inner });
}

int luda__conv_library_run(const conv_library *l, int64_t images, float *x, float *w, float *y, const float *bias)
{
    static const int names[3][OPERANDS] = { { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST },
                                            { DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST },
                                            { DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST } };
    const onednn *dnn = luda__onednn();
    int part = images != l->part[0].images, result = result_of(l->pass), done = 1;
    const entry *e = l->part[part].entry;
    float *plain[OPERANDS] = { x, w, y }, *inner[OPERANDS];
    size_t bytes = room(dnn, &e->layout[SCRATCHPAD]);
    for (int o = 0; o < OPERANDS; o++)
        bytes += e->primitive[REORDER + o] ? room(dnn, &e->layout[INNER + o]) : 0;
    char *memory = luda__scratch_for(SCRATCH_LIBRARY, larger((int64_t)bytes, 1));
    if (!memory)
        return 0;
    void *scratchpad = memory;
    memory += room(dnn, &e->layout[SCRATCHPAD]);
    for (int o = 0; o < OPERANDS; o++) {
        int ready = o == W && l->pass != CONV_WEIGHT;
        inner[o] = ready ? l->part[part].weight : e->primitive[REORDER + o] ? (float *)memory : plain[o];
        memory += e->primitive[REORDER + o] && !ready ? room(dnn, &e->layout[INNER + o]) : 0;
        if (e->primitive[REORDER + o] && !ready && o != result)
            done = done && reorder(dnn, e, o, 0, plain[o], inner[o]);
    }
    int list[] = { names[l->pass][X], names[l->pass][W], names[l->pass][Y], DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS };
    const dnnl_memory_desc_t *layouts[] = { &e->layout[INNER + X], &e->layout[INNER + W], &e->layout[INNER + Y],
                                            &e->layout[SCRATCHPAD], &e->layout[BIAS] };
    void *data[] = { inner[X], inner[W], inner[Y], scratchpad, (void *)bias };
    done = done && luda__onednn_run(dnn, e->primitive[0], bias ? 5 : 4, list, layouts, data);
    return done && (!e->primitive[REORDER + result] || reorder(dnn, e, result, 1, plain[result], inner[result]));
}

/* --- A call --- */

static int prepare(conv_library *l, const conv *c, int part, int64_t images)
{
    entry *e = take_entry(l->dnn, c, l->pass, images);
    l->part[part].entry = e;
    l->part[part].images = images;
    if (!e || l->pass == CONV_WEIGHT)
        return e != NULL;
    l->part[part].weight = (float *)c->weight;
    if (!e->primitive[REORDER + W])
        return 1;
    l->part[part].weight = l->part[part].memory = aligned_alloc(64, room(l->dnn, &e->layout[INNER + W]));
    return l->part[part].memory && reorder(l->dnn, e, W, 0, (float *)c->weight, l->part[part].weight);
}

conv_library *luda__conv_library_open(const conv *c, conv_pass pass)
{
    int pointwise = c->kernel.height == 1 && c->kernel.width == 1;
    if (pointwise || c->batch == 0 || c->depth == 0 || c->outputs == 0)
        return NULL;
    if (pass == CONV_INPUT && c->groups == 1 && c->channels < FEW_CHANNELS)
        return NULL;
    const onednn *dnn = luda__onednn();
    conv_library *l = dnn ? calloc(1, sizeof *l) : NULL;
    if (!l)
        return NULL;
    l->dnn = dnn;
    l->pass = pass;
    int64_t first = smaller(c->per_slab, c->batch), last = c->batch - (c->slabs - 1) * c->per_slab;
    if (prepare(l, c, 0, first) && (last == first || prepare(l, c, 1, last)))
        return l;
    luda__conv_library_close(l);
    return NULL;
}

void luda__conv_library_close(conv_library *l)
{
    for (int i = 0; l && i < 2; i++) {
        if (l->part[i].entry)
            luda__onednn_give_back(l->part[i].entry);
        free(l->part[i].memory);
    }
    free(l);
}

#else

conv_library *luda__conv_library_open(const conv *c, conv_pass pass)
{
    return NULL;
}

void luda__conv_library_close(conv_library *l)
{
}

int luda__conv_library_run(const conv_library *l, int64_t images, float *x, float *w, float *y, const float *bias)
{
    return 0;
}

#endif
