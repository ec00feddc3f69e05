/* Autocast from C: the mode, backward inside of it, and the copy of a parameter with its parameter. */
#include "optim_helpers.h"

static void the_mode_is_a_half_type_or_off(void)
{
    EXPECT(luda_autocast() == -1);
    EXPECT(luda_set_autocast(LUDA_BF16) == -1);
    EXPECT(luda_set_autocast(LUDA_F16) == LUDA_BF16);
    EXPECT(luda_set_autocast(LUDA_F32) == LUDA_F16);
    EXPECT(luda_autocast() == -1);
}

/* 1 + 2^-12 is no half of either kind: what was recorded in f32 stays f32 in backward. */
static void backward_is_not_cast(void)
{
    const double value = 1 + 0x1p-12, one = 1;
    const int64_t shape[2] = { 1, 1 };
    luda_tensor *x = vector(LUDA_F32, 1, &value), *w = vector(LUDA_F32, 1, &one), *a = NULL, *y = NULL, *low = NULL;
    luda_gradients *gradients = NULL;
    EXPECT_OK(luda_set_requires_grad(w, 1));
    EXPECT_OK(luda_reshape(w, 2, shape, &a));
    EXPECT_OK(luda_matmul(x, a, &y));
    luda_set_autocast(LUDA_BF16);
    EXPECT_OK(luda_backward(y, NULL, NULL, &gradients));
    EXPECT(luda_autocast() == LUDA_BF16);
    EXPECT(at(luda_gradients_get(gradients, luda_tensor_id(w)), 0) == value);
    EXPECT_OK(luda_matmul(x, a, &low));
    EXPECT(luda_tensor_dtype(low) == LUDA_BF16 && at(low, 0) == 1);
    luda_set_autocast(-1);
    luda_gradients_release(gradients);
    luda_tensor *list[] = { x, w, a, y, low };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        luda_tensor_release(list[i]);
}

int main(void)
{
    static void (*const tests[])(void) = { the_mode_is_a_half_type_or_off, backward_is_not_cast };
    return run_all("autocast_test", tests, sizeof tests / sizeof *tests);
}
