/*
 * DLPack both ways: the layout that its specification states, every type and stride, who frees what and when, and what is
 * refused leaves the lender its memory.
 */
#include "check.h"

#include <stddef.h>
#include <stdlib.h>

/* The structures of DLPack 0.8, as a user of its header has them. */
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

static const luda_device cpu = { LUDA_CPU, 0 };
static const struct { luda_dtype dtype; int code, bits; } types[] = {
    { LUDA_F64, 2, 64 }, { LUDA_F32, 2, 32 }, { LUDA_F16, 2, 16 }, { LUDA_BF16, 4, 16 }, { LUDA_I64, 0, 64 },
    { LUDA_I32, 0, 32 }, { LUDA_I16, 0, 16 }, { LUDA_I8, 0, 8 },   { LUDA_U8, 1, 8 },    { LUDA_BOOL, 6, 8 },
};

static int64_t live_tensors(void)
{
    luda_memory_info info;
    EXPECT_OK(luda_memory(cpu, &info));
    return info.tensors;
}

static void test_lending(void)
{
    int64_t shape[] = { 3, 4 }, before = live_tensors();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        luda_tensor *t, *turned, *part;
        DLManagedTensor *m;
        double values[12], found[6];
        for (int k = 0; k < 12; k++)
            values[k] = types[i].dtype == LUDA_BOOL ? k % 3 == 0 : k;
        EXPECT_OK(luda_tensor_new(types[i].dtype, cpu, 2, shape, &t));
        EXPECT_OK(luda_tensor_write(t, LUDA_F64, values, 12));
        EXPECT_OK(luda_transpose(t, &(struct luda_transpose_attrs){ 0, 1 }, &turned));
        EXPECT_OK(luda_narrow(turned, &(struct luda_narrow_attrs){ 0, 1, 2, 2 }, &part)); /* rows 1 and 3 of [4, 3] */
        EXPECT_OK(luda_tensor_to_dlpack(part, &m));
        const DLTensor *d = &m->dl_tensor;
        int size = types[i].bits / 8;
        EXPECT(d->device.device_type == 1 && d->device.device_id == 0 && d->ndim == 2);
        EXPECT(d->dtype.code == types[i].code && d->dtype.bits == types[i].bits && d->dtype.lanes == 1);
        EXPECT(d->shape[0] == 2 && d->shape[1] == 3 && d->strides[0] == 2 && d->strides[1] == 4);
        EXPECT(d->data == luda_tensor_data(t) && d->byte_offset == (uint64_t)size);
        luda_tensor_release(part);
        luda_tensor_release(turned);
        luda_tensor_release(t);
        EXPECT(live_tensors() == before + 1); /* the loan keeps what it needs */
        luda_tensor *back;
        EXPECT_OK(luda_tensor_from_dlpack(m, &back));
        EXPECT_OK(luda_tensor_read(back, LUDA_F64, found, 6));
        for (int k = 0; k < 6; k++) {
            int index = k % 3 * 4 + 1 + k / 3 * 2;
            EXPECT(found[k] == values[index]);
        }
        EXPECT((int)luda_tensor_dtype(back) == (int)types[i].dtype);
        luda_tensor_release(back);
        EXPECT(live_tensors() == before);
    }
}

static void test_loan_returned(void)
{
    luda_tensor *t;
    DLManagedTensor *m, *second;
    int64_t before = live_tensors(), shape = 0;
    EXPECT_OK(luda_tensor_scalar(7, LUDA_F64, &t));
    EXPECT_OK(luda_tensor_to_dlpack(t, &m));
    EXPECT_OK(luda_tensor_to_dlpack(t, &second));
    luda_tensor_release(t);
    EXPECT(m->dl_tensor.ndim == 0 && *(double *)m->dl_tensor.data == 7);
    m->deleter(m);
    EXPECT(*(double *)second->dl_tensor.data == 7);
    luda_dlpack_release((struct DLManagedTensor *)second);
    luda_dlpack_release(NULL);
    EXPECT(live_tensors() == before);

    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &shape, &t));
    EXPECT_OK(luda_tensor_to_dlpack(t, &m));
    luda_tensor_release(t);
    EXPECT_OK(luda_tensor_from_dlpack(m, &t));
    EXPECT(luda_tensor_numel(t) == 0);
    luda_tensor_release(t);

    EXPECT_OK(luda_tensor_scalar(7, LUDA_F64, &t));
    EXPECT_OK(luda_set_requires_grad(t, 1));
    m = NULL;
    EXPECT_STATUS(LUDA_EGRAPH, luda_tensor_to_dlpack(t, &m));
    EXPECT(m == NULL);
    luda_tensor_release(t);
    EXPECT(live_tensors() == before);
}

/* --- Memory of another library --- */

static int freed;

static void foreign_deleter(DLManagedTensor *self)
{
    freed++;
    EXPECT(self->manager_ctx == &freed);
}

static DLManagedTensor foreign(void *data, int ndim, int64_t *shape, int64_t *strides)
{
    return (DLManagedTensor){ { data, { 1, 0 }, ndim, { 2, 32, 1 }, shape, strides, 0 }, &freed, foreign_deleter };
}

static void test_borrowing(void)
{
    float memory[12];
    int64_t shape[] = { 2, 3 }, backwards[] = { -6, 2 }, repeated[] = { 0, 1 };
    luda_tensor *t, *view, *sum;
    double found[6];
    for (int i = 0; i < 12; i++)
        memory[i] = (float)i;

    freed = 0;
    DLManagedTensor m = foreign(memory, 2, shape, NULL); /* no strides: contiguous */
    m.dl_tensor.byte_offset = 8;
    EXPECT_OK(luda_tensor_from_dlpack((struct DLManagedTensor *)&m, &t));
    EXPECT(luda_tensor_is_contiguous(t) && luda_tensor_data(t) == memory + 2);
    EXPECT_OK(luda_select(t, &(struct luda_select_attrs){ 0, 1 }, &view));
    memory[5] = 50;
    luda_tensor_release(t);
    EXPECT(freed == 0); /* a view is left */
    EXPECT_OK(luda_tensor_read(view, LUDA_F64, found, 3));
    EXPECT(found[0] == 50 && found[1] == 6 && found[2] == 7);
    luda_tensor_release(view);
    EXPECT(freed == 1);
    memory[5] = 5;

    m = foreign(memory + 6, 2, shape, backwards); /* 6 8 10, then 0 2 4 */
    EXPECT_OK(luda_tensor_from_dlpack((struct DLManagedTensor *)&m, &t));
    EXPECT_OK(luda_tensor_read(t, LUDA_F64, found, 6));
    EXPECT(found[0] == 6 && found[2] == 10 && found[3] == 0 && found[5] == 4);
    EXPECT_OK(luda_sum(t, NULL, &sum));
    EXPECT_OK(luda_tensor_get(sum, 0, found));
    EXPECT(found[0] == 30);
    luda_tensor_release(sum);
    luda_tensor_release(t);
    EXPECT(freed == 2);

    m = foreign(memory, 2, shape, repeated);
    EXPECT_OK(luda_tensor_from_dlpack((struct DLManagedTensor *)&m, &t));
    EXPECT(luda_apply_into(LUDA_OP_neg, &t, 1, NULL, t) != LUDA_OK); /* elements share memory: not written in place */
    luda_tensor_release(t);

    m = foreign(memory, 1, shape, NULL);
    m.deleter = NULL;
    EXPECT_OK(luda_tensor_from_dlpack((struct DLManagedTensor *)&m, &t));
    EXPECT_OK(luda_apply_into(LUDA_OP_neg, &t, 1, NULL, t));
    EXPECT(memory[1] == -1); /* a write is seen by both sides */
    luda_tensor_release(t);
    EXPECT(freed == 3);
}

static void refused(luda_status status, DLManagedTensor m)
{
    luda_tensor *t = NULL;
    EXPECT_STATUS(status, luda_tensor_from_dlpack((struct DLManagedTensor *)&m, &t));
    EXPECT(t == NULL && strncmp(luda_last_error(), "from_dlpack: ", 13) == 0);
}

static void test_refusals(void)
{
    float memory[12];
    int64_t shape[] = { 2, 3 }, negative[] = { 2, -3 }, many[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 }, strides[] = { 3, 1 };
    int64_t huge[] = { (int64_t)1 << 40, (int64_t)1 << 40 }, far[] = { (int64_t)1 << 62, 1 }, before = live_tensors();
    freed = 0;
    DLManagedTensor m = foreign(memory, 2, shape, strides);
    for (int code = 0; code < 8; code++) { /* what no element type has: complex, opaque, u16, u32, u64, f8, … */
        m.dl_tensor.dtype = (DLDataType){ (uint8_t)code, code == 1 || code == 6 ? 16 : 128, 1 };
        refused(LUDA_EDTYPE, m);
    }
    m.dl_tensor.dtype = (DLDataType){ 2, 32, 4 };
    refused(LUDA_EDTYPE, m);
    m = foreign(memory, 2, negative, NULL);
    refused(LUDA_ESHAPE, m);
    m = foreign(memory, 9, many, NULL);
    refused(LUDA_ESHAPE, m);
    m = foreign(memory, -1, shape, NULL);
    refused(LUDA_ESHAPE, m);
    m = foreign(memory, 2, NULL, NULL);
    refused(LUDA_ESHAPE, m);
    m = foreign(memory, 2, huge, NULL);
    refused(LUDA_ESHAPE, m);
    m = foreign(memory, 2, shape, far);
    refused(LUDA_ESHAPE, m);
    m = foreign(NULL, 2, shape, strides);
    refused(LUDA_EINVAL, m);
    m = foreign(memory, 2, shape, strides);
    m.dl_tensor.byte_offset = 2;
    refused(LUDA_EINVAL, m);
    m.dl_tensor.byte_offset = 0;
    m.dl_tensor.device.device_type = 10; /* ROCm */
    refused(LUDA_EDEVICE, m);
    EXPECT(freed == 0 && live_tensors() == before);
}

/* --- Memory by site --- */

static int64_t bytes_of(const char *site, int64_t *storages)
{
    int64_t bytes;
    const char *name;
    for (int i = 0; (name = luda_memory_site(i, &bytes, storages)); i++)
        if (strcmp(name, site) == 0)
            return bytes;
    return -1;
}

static void test_sites(void)
{
    int64_t shape[] = { 5, 2 }, storages;
    luda_tensor *a, *b, *view;
    EXPECT(luda_memory_site(0, &storages, &storages) == NULL);
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 2, shape, &a));
    EXPECT_OK(luda_tensor_new(LUDA_F64, cpu, 2, shape, &b));
    EXPECT_OK(luda_memory_mark(a, "one:1"));
    EXPECT_OK(luda_memory_mark(b, "one:1"));
    EXPECT(bytes_of("one:1", &storages) == 120 && storages == 2);
    EXPECT_OK(luda_select(a, &(struct luda_select_attrs){ 0, 1 }, &view));
    EXPECT_OK(luda_memory_mark(view, "two:2")); /* the storage has its site */
    EXPECT(bytes_of("two:2", &storages) <= 0);
    luda_tensor_release(a);
    EXPECT(bytes_of("one:1", &storages) == 120); /* the view holds it */
    luda_tensor_release(view);
    luda_tensor_release(b);
    EXPECT(bytes_of("one:1", &storages) == 0 && storages == 0);
}

int main(void)
{
    EXPECT(offsetof(DLTensor, byte_offset) == 40 && sizeof(DLManagedTensor) == 64);
    test_sites();
    test_lending();
    test_loan_returned();
    test_borrowing();
    test_refusals();
    return summary("dlpack_test");
}
