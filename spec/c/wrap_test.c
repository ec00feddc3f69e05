/* Tensors over memory of the caller: read and written where it lies, given back once, after the last view. */
#include "check.h"

#include <stdlib.h>

static int given_back;

static void give_back(void *owner, void *memory, size_t bytes)
{
    given_back++;
    EXPECT(owner == &given_back && bytes == 6 * sizeof(float));
    free(memory);
}

static void memory_of_the_caller(void)
{
    const int64_t shape[] = { 2, 3 };
    float *memory = malloc(6 * sizeof *memory);
    luda_tensor *x = NULL, *row = NULL, *bits = NULL;
    double value = 0;
    int64_t whole = 0;
    for (int i = 0; i < 6; i++)
        memory[i] = (float)i - 2;
    EXPECT_OK(luda_tensor_wrap(LUDA_F32, 2, shape, memory, give_back, &given_back, &x));
    EXPECT(luda_tensor_data(x) == memory && luda_tensor_is_contiguous(x));
    EXPECT_OK(luda_select(x, &(struct luda_select_attrs){ .dim = 0, .index = 1 }, &row));
    EXPECT_OK(luda_tensor_bitcast(row, LUDA_I32, &bits));
    luda_tensor_release(x);
    luda_tensor_release(row);
    EXPECT(given_back == 0);
    memory[4] = 1;
    EXPECT_OK(luda_tensor_get_i64(bits, 1, &whole));
    EXPECT(whole == 0x3F800000);
    luda_tensor_release(bits);
    EXPECT(given_back == 1);

    float here[2] = { 3, 4 };
    EXPECT_OK(luda_tensor_wrap(LUDA_F32, 1, shape, here, NULL, NULL, &x));
    EXPECT_OK(luda_tensor_get(x, 1, &value));
    EXPECT(value == 4);
    luda_tensor_release(x);
}

static void refusals(void)
{
    const int64_t shape[] = { 2, 3 }, negative[] = { -1 };
    float here[6] = { 0 };
    luda_tensor *x = NULL;
    EXPECT_STATUS(LUDA_EINVAL, luda_tensor_wrap(LUDA_F32, 2, shape, NULL, give_back, NULL, &x));
    EXPECT_STATUS(LUDA_EINVAL, luda_tensor_wrap(LUDA_F32, 1, shape, (char *)here + 2, give_back, NULL, &x));
    EXPECT_STATUS(LUDA_ESHAPE, luda_tensor_wrap(LUDA_F32, 1, negative, here, give_back, NULL, &x));
    EXPECT_STATUS(LUDA_EDTYPE, luda_tensor_wrap((luda_dtype)99, 1, shape, here, give_back, NULL, &x));
    EXPECT(x == NULL && given_back == 1);
    EXPECT_OK(luda_tensor_wrap(LUDA_F32, 2, shape, here, NULL, NULL, &x));
    luda_tensor *wide = NULL;
    EXPECT_STATUS(LUDA_ESHAPE, luda_tensor_bitcast(x, LUDA_F64, &wide));
    EXPECT_STATUS(LUDA_EDTYPE, luda_tensor_bitcast(x, LUDA_BOOL, &wide));
    EXPECT(wide == NULL);
    luda_tensor_release(x);
}

int main(void)
{
    memory_of_the_caller();
    refusals();
    return summary("wrap_test");
}
