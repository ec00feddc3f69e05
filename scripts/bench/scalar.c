/* Loops over two arrays as a C programmer writes them, compiled without vectorisation: see scripts/bench/loops.lua. */
#include <math.h>
#include <stddef.h>

enum { AXPBY, SUM_OF_SQUARES, RELU, EXP }; /* ORDER loops, scripts/bench/loops.lua */

static void axpby(const float *x, float *y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = 2.5f * x[i] + 0.5f * y[i];
}

static void sum_of_squares(const float *x, float *y, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    y[0] = (float)sum;
}

static void relu(const float *x, float *y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] > 0 ? x[i] : 0;
}

static void exponentials(const float *x, float *y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = (float)exp(x[i]);
}

static void (*const loops[])(const float *, float *, size_t) = {
    [AXPBY] = axpby, [SUM_OF_SQUARES] = sum_of_squares, [RELU] = relu, [EXP] = exponentials,
};

__attribute__((visibility("default"))) void luda_limits_scalar(int function, const float *x, float *y, size_t count)
{
    loops[function](x, y, count);
}
