/* What a C user writes: an MLP trained through luda.h alone, in a process without LuaJIT, also after memory ran out. */
#include <luda.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static int passed, failed;

static void expect(int truth, const char *what)
{
    passed += truth != 0;
    failed += truth == 0;
    if (!truth)
        printf("FAILED: %s (%s)\n", what, luda_last_error());
}

enum { ROWS = 37, IN = 3, HIDDEN = 13, OUT = 2 };
static const luda_device cpu = { LUDA_CPU, 0 };

static luda_tensor *uniform(int rows, int columns, double scale, int trained)
{
    struct luda_random_attrs attrs = { .shape = { 2, { rows, columns } }, .dtype = LUDA_F32, .device = cpu };
    luda_tensor *unit, *scaled, *factor;
    if (luda_randn(&attrs, &unit) != LUDA_OK || luda_tensor_scalar(scale, LUDA_F32, &factor) != LUDA_OK)
        return NULL;
    luda_mul(unit, factor, &scaled);
    luda_tensor_release(unit);
    luda_tensor_release(factor);
    luda_set_requires_grad(scaled, trained);
    return scaled;
}

/* mean of (tanh(x w1) w2 - y)^2 */
static luda_status forward(luda_tensor *x, luda_tensor *y, luda_tensor *w1, luda_tensor *w2, luda_tensor **loss)
{
    luda_tensor *a = NULL, *b = NULL, *c = NULL, *d = NULL, *e = NULL;
    luda_status status = luda_matmul(x, w1, &a);
    if (status == LUDA_OK)
        status = luda_tanh(a, &b);
    if (status == LUDA_OK)
        status = luda_matmul(b, w2, &c);
    if (status == LUDA_OK)
        status = luda_sub(c, y, &d);
    if (status == LUDA_OK)
        status = luda_square(d, &e);
    if (status == LUDA_OK)
        status = luda_mean(e, NULL, loss);
    luda_tensor *all[] = { a, b, c, d, e };
    for (int i = 0; i < 5; i++)
        luda_tensor_release(all[i]);
    return status;
}

static luda_status step(luda_optim *optim, luda_tensor *x, luda_tensor *y, luda_tensor **w, double *value)
{
    luda_tensor *loss = NULL;
    luda_gradients *gradients = NULL;
    luda_status status = forward(x, y, w[0], w[1], &loss);
    if (status == LUDA_OK)
        status = luda_tensor_get(loss, 0, value);
    if (status == LUDA_OK)
        status = luda_backward(loss, NULL, NULL, &gradients);
    if (status == LUDA_OK)
        status = luda_optim_step(optim, 0.05, gradients, NULL);
    luda_gradients_release(gradients);
    luda_tensor_release(loss);
    return status;
}

static int process_has(const char *word)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, word) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

int main(void)
{
    luda_manual_seed(7);
    luda_tensor *x = uniform(ROWS, IN, 1, 0), *y = uniform(ROWS, OUT, 1, 0);
    luda_tensor *w[] = { uniform(IN, HIDDEN, 0.5, 1), uniform(HIDDEN, OUT, 0.3, 1) };
    luda_optim *optim;
    double first = 0, last = 0;
    luda_memory_info before, after;
    expect(luda_optim_new(LUDA_OPTIM_adamw, w, 2, NULL, NULL, 1, NULL, &optim) == LUDA_OK, "the optimizer is made");
    expect(step(optim, x, y, w, &first) == LUDA_OK, "the first step");
    luda_memory(cpu, &before);
    for (int i = 0; i < 300; i++)
        expect(step(optim, x, y, w, &last) == LUDA_OK, "a step");
    luda_memory(cpu, &after);
    expect(isfinite(last) && last < 0.5 * first, "300 steps halve the loss");
    expect(after.live == before.live && after.tensors == before.tensors, "a step leaves nothing behind");

    luda_set_memory_limit(cpu, after.live + 64);
    expect(step(optim, x, y, w, &last) == LUDA_ENOMEM, "no memory is an error");
    luda_set_memory_limit(cpu, 0);
    luda_memory(cpu, &before);
    expect(before.live == after.live && before.tensors == after.tensors, "the failed step leaves nothing behind");
    double then = last;
    for (int i = 0; i < 20; i++)
        expect(step(optim, x, y, w, &last) == LUDA_OK, "a step after memory ran out");
    expect(last <= then * 1.01, "training goes on");
    expect(!process_has("luajit") && !process_has("lua5"), "no Lua in the process");

    luda_optim_release(optim);
    luda_tensor *all[] = { x, y, w[0], w[1] };
    for (int i = 0; i < 4; i++)
        luda_tensor_release(all[i]);
    luda_memory(cpu, &after);
    expect(after.tensors == 0 && after.live == 0, "everything was released");
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
