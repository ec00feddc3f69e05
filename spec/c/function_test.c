/* Operators with their own backward, written in C through luda.h: gradients, what is kept, who frees what, failures. */
#include "check.h"

#include <stdlib.h>

static const luda_device cpu = { LUDA_CPU, 0 };

static luda_tensor *of(int ndim, const int64_t *shape, const double *values, int tracked)
{
    luda_tensor *t;
    EXPECT_OK(luda_tensor_new(LUDA_F64, cpu, ndim, shape, &t));
    EXPECT_OK(luda_tensor_write(t, LUDA_F64, values, luda_tensor_numel(t)));
    EXPECT_OK(luda_set_requires_grad(t, tracked));
    return t;
}

static luda_tensor *vector(const double *values, int64_t count, int tracked)
{
    return of(1, &count, values, tracked);
}

static double at(luda_tensor *t, int64_t index)
{
    double value = NAN;
    EXPECT(t != NULL);
    if (t)
        EXPECT_OK(luda_tensor_get(t, index, &value));
    return value;
}

/* --- y = x x w and z = x + 3 w, and the whole number of positive x; in plain loops over f64 --- */

typedef struct state {
    int alive, fail, wrong_shape;
} state;

static int released, seen_need[2], seen_z;

static void release_state(void *opaque)
{
    state *s = opaque;
    EXPECT(s->alive);
    s->alive = 0;
    released++;
    free(s);
}

static luda_status fill_gradients(const state *s, luda_tensor *const *g, luda_tensor *x, luda_tensor *w, const uint8_t *need,
                                  luda_tensor **dx)
{
    const double *xs = luda_tensor_elements(x), *ws = luda_tensor_elements(w);
    for (int i = 0; i < 2; i++) {
        int64_t wrong = 7;
        if (!need[i])
            continue;
        luda_status status = s->wrong_shape ? luda_tensor_new(LUDA_F64, cpu, 1, &wrong, &dx[i])
                                            : luda_tensor_new(LUDA_F64, cpu, luda_tensor_ndim(x), luda_tensor_shape(x), &dx[i]);
        if (status != LUDA_OK)
            return status;
        if (s->fail)
            return luda_set_error(LUDA_EIO, "square_times: the disk is gone");
        double *to = luda_tensor_elements(dx[i]);
        for (int64_t k = 0; k < luda_tensor_numel(dx[i]) && !s->wrong_shape; k++)
            to[k] = (g[0] ? at(g[0], k) * (i == 0 ? 2 * xs[k] * ws[k] : xs[k] * xs[k]) : 0) + (g[1] ? at(g[1], k) * (i == 0 ? 1 : 3) : 0);
    }
    return LUDA_OK;
}

static luda_status backward(luda_node *node, void *opaque, luda_tensor *const *g, const uint8_t *need, luda_tensor **dx)
{
    luda_tensor *x = NULL, *w = NULL, *y = NULL;
    EXPECT(luda_node_kept_count(node) == 3);
    EXPECT(!luda_grad_enabled());
    seen_need[0] = need[0];
    seen_need[1] = need[1];
    seen_z = g[1] != NULL;
    luda_status status = luda_node_kept(node, 0, &x);
    if (status == LUDA_OK)
        status = luda_node_kept(node, 1, &w);
    if (status == LUDA_OK)
        status = luda_node_kept(node, 2, &y); /* its own result */
    if (status == LUDA_OK) {
        EXPECT_NEAR(at(y, 0), at(x, 0) * at(x, 0) * at(w, 0), 1e-12);
        status = fill_gradients(opaque, g, x, w, need, dx);
    }
    luda_tensor_release(x);
    luda_tensor_release(w);
    luda_tensor_release(y);
    return status;
}

static const luda_node_class square_times_class = { .name = "square_times", .backward = backward, .release = release_state };

static luda_status packed(luda_tensor *x, luda_tensor **out)
{
    int mode = luda_set_grad_enabled(0);
    luda_status status = luda_contiguous(x, out);
    luda_set_grad_enabled(mode);
    return status;
}

/* out: y, z and the number of positive x. */
static luda_status square_times_with(luda_tensor *x, luda_tensor *w, state given, luda_tensor **out)
{
    luda_tensor *xs = NULL, *ws = NULL;
    luda_node *node = NULL;
    int64_t positive = 0;
    EXPECT_OK(packed(x, &xs));
    EXPECT_OK(packed(w, &ws));
    for (int o = 0; o < 2; o++)
        EXPECT_OK(luda_tensor_new(LUDA_F64, cpu, luda_tensor_ndim(x), luda_tensor_shape(x), &out[o]));
    const double *a = luda_tensor_elements(xs), *b = luda_tensor_elements(ws);
    double *y = luda_tensor_elements(out[0]), *z = luda_tensor_elements(out[1]);
    for (int64_t k = 0; k < luda_tensor_numel(x); k++) {
        y[k] = a[k] * a[k] * b[k];
        z[k] = a[k] + 3 * b[k];
        positive += a[k] > 0;
    }
    EXPECT_OK(luda_tensor_scalar_i64(positive, LUDA_I64, &out[2]));
    state *s = malloc(sizeof *s);
    *s = given;
    s->alive = 1;
    luda_tensor *in[] = { x, w };
    luda_status status = luda_node_new(in, 2, out, 3, &square_times_class, s, &node);
    luda_tensor *kept[] = { xs, ws, out[0] };
    for (int k = 0; k < 3 && status == LUDA_OK; k++)
        status = luda_node_keep(node, kept[k]);
    luda_tensor_release(xs);
    luda_tensor_release(ws);
    for (int o = 0; o < 3 && status != LUDA_OK; o++)
        luda_tensor_release(out[o]);
    return status;
}

static luda_status square_times(luda_tensor *x, luda_tensor *w, luda_tensor **out)
{
    return square_times_with(x, w, (state){ 0 }, out);
}

static void release_all(luda_tensor **list, int count)
{
    for (int i = 0; i < count; i++)
        luda_tensor_release(list[i]);
}

/* --- cube, whose backward consists of operators --- */

static luda_status cube_backward(luda_node *node, void *unused, luda_tensor *const *g, const uint8_t *need, luda_tensor **dx)
{
    luda_tensor *x = NULL, *square = NULL, *three = NULL, *slope = NULL;
    luda_status status = luda_node_kept(node, 0, &x);
    if (status == LUDA_OK)
        status = luda_mul(x, x, &square);
    if (status == LUDA_OK)
        status = luda_tensor_scalar(3, LUDA_F64, &three);
    if (status == LUDA_OK)
        status = luda_mul(square, three, &slope);
    if (status == LUDA_OK && need[0])
        status = luda_mul(slope, g[0], &dx[0]);
    luda_tensor *all[] = { x, square, three, slope };
    release_all(all, 4);
    return status;
}

static const luda_node_class cube_class = { .name = "cube", .backward = cube_backward, .recorded = 1 };

static luda_status cube(luda_tensor *x, const luda_node_class *class, luda_tensor **out)
{
    luda_tensor *square = NULL, *y = NULL;
    luda_node *node = NULL;
    int mode = luda_set_grad_enabled(0);
    luda_status status = luda_mul(x, x, &square);
    if (status == LUDA_OK)
        status = luda_mul(square, x, &y);
    luda_set_grad_enabled(mode);
    if (status == LUDA_OK)
        status = luda_node_new(&x, 1, &y, 1, class, NULL, &node);
    if (status == LUDA_OK)
        status = luda_node_keep(node, x);
    luda_tensor_release(square);
    if (status != LUDA_OK)
        luda_tensor_release(y);
    else
        *out = y;
    return status;
}

/* --- Tests --- */

static const double X[] = { 0.5, -1.25, 2, -0.75, 1.5, 0.25 }, W[] = { 2, 0.5, -1, 1.5, -0.25, 3 };
static const double G[] = { 1, -2, 0.5, 3, -0.25, -1 };

static int64_t live(void)
{
    luda_memory_info info;
    EXPECT_OK(luda_memory(cpu, &info));
    return info.tensors;
}

static void derived_by_hand(void)
{
    luda_tensor *x = vector(X, 6, 1), *w = vector(W, 6, 1), *g = vector(G, 6, 0), *out[3];
    luda_gradients *grads;
    EXPECT_OK(square_times(x, w, out));
    EXPECT(luda_requires_grad(out[0]) && luda_requires_grad(out[1]) && !luda_requires_grad(out[2]));
    EXPECT(strcmp(luda_grad_op(out[0]), "square_times") == 0);
    EXPECT_NEAR(at(out[2], 0), 4, 0);
    EXPECT_OK(luda_backward(out[0], g, NULL, &grads));
    EXPECT(!seen_z && seen_need[0] && seen_need[1]);
    for (int k = 0; k < 6; k++) {
        EXPECT_NEAR(at(luda_gradients_get(grads, luda_tensor_id(x)), k), G[k] * 2 * X[k] * W[k], 1e-12);
        EXPECT_NEAR(at(luda_gradients_get(grads, luda_tensor_id(w)), k), G[k] * X[k] * X[k], 1e-12);
    }
    EXPECT_STATUS(LUDA_EGRAPH, luda_backward(out[0], g, NULL, &grads)); /* consumed */
    luda_gradients_release(grads);
    release_all(out, 3);
    luda_tensor *all[] = { x, w, g };
    release_all(all, 3);
}

/* sum of g y + g z as a number */
static double value_of(const double *xs, const double *ws)
{
    double sum = 0;
    for (int k = 0; k < 6; k++)
        sum += G[k] * (xs[k] * xs[k] * ws[k]) + G[k] * (xs[k] + 3 * ws[k]);
    return sum;
}

/* Strided inputs, and both results used: against differences of the function itself. */
static void differences(void)
{
    const int64_t shape[] = { 3, 2 };
    luda_tensor *x = of(2, shape, X, 1), *w = of(2, shape, W, 0), *g = of(2, shape, G, 0), *xt, *wt, *gt, *out[3], *sum;
    luda_gradients *grads;
    const struct luda_transpose_attrs swap = { 0, 1 };
    EXPECT_OK(luda_transpose(x, &swap, &xt));
    EXPECT_OK(luda_transpose(w, &swap, &wt));
    EXPECT_OK(luda_transpose(g, &swap, &gt));
    EXPECT(!luda_tensor_is_contiguous(xt) && luda_tensor_elements(xt) == NULL);
    EXPECT_OK(square_times(xt, wt, out));
    EXPECT_OK(luda_add(out[0], out[1], &sum));
    EXPECT_OK(luda_backward(sum, gt, NULL, &grads));
    EXPECT(seen_z && seen_need[0] && !seen_need[1]);
    for (int k = 0; k < 6; k++) {
        double low[6], high[6], h = 1e-6;
        memcpy(low, X, sizeof low);
        memcpy(high, X, sizeof high);
        low[k] -= h;
        high[k] += h;
        EXPECT_NEAR(at(luda_gradients_get(grads, luda_tensor_id(x)), k), (value_of(high, W) - value_of(low, W)) / (2 * h), 1e-7);
    }
    luda_gradients_release(grads);
    release_all(out, 3);
    luda_tensor *all[] = { x, w, xt, wt, g, gt, sum };
    release_all(all, 7);
}

static void failures(void)
{
    luda_tensor *x = vector(X, 6, 1), *w = vector(W, 6, 1), *g = vector(G, 6, 0), *out[3], *twice;
    luda_gradients *grads = NULL;
    int64_t before = live();
    for (int round = 0; round < 3; round++) {
        EXPECT_OK(luda_add(x, x, &twice));
        EXPECT_OK(square_times_with(twice, w, (state){ .fail = round != 1, .wrong_shape = round == 1 }, out));
        EXPECT_STATUS(round == 1 ? LUDA_ESHAPE : LUDA_EIO, luda_backward(out[0], g, NULL, &grads));
        EXPECT(strcmp(luda_last_error(), round == 1 ? "square_times: backward gave a gradient of shape [7] for an input of shape [6]"
                                                    : "square_times: the disk is gone") == 0);
        EXPECT(grads == NULL);
        release_all(out, 3);
        luda_tensor_release(twice);
        EXPECT(live() == before);
    }
    EXPECT_OK(luda_add(x, x, &twice));
    EXPECT_OK(square_times(twice, w, out));
    EXPECT_OK(luda_backward(out[0], g, NULL, &grads)); /* the next one works: d (2x)^2 w / dx = 8 x w */
    EXPECT_NEAR(at(luda_gradients_get(grads, luda_tensor_id(x)), 2), G[2] * 8 * X[2] * W[2], 1e-12);
    luda_gradients_release(grads);
    release_all(out, 3);
    luda_tensor_release(twice);
    EXPECT(live() == before);

    EXPECT_OK(square_times(x, w, out));
    EXPECT_OK(luda_tensor_write(w, LUDA_F64, X, 6));
    EXPECT_STATUS(LUDA_EGRAPH, luda_backward(out[0], g, NULL, &grads));
    EXPECT(strstr(luda_last_error(), "square_times: its saved tensor 2 of shape [6] in f64, kept for backward, was changed in place") != NULL);
    release_all(out, 3);
    luda_tensor *all[] = { x, w, g };
    release_all(all, 3);
}

/* Every way in which a state's life may end, once each. */
static void states(void)
{
    luda_tensor *x = vector(X, 6, 1), *w = vector(W, 6, 0), *g = vector(G, 6, 0), *plain = vector(X, 6, 0), *out[3];
    luda_gradients *grads;
    luda_backward_options retain = { .retain = 1 };
    released = 0;
    EXPECT_OK(square_times(x, w, out));
    EXPECT(released == 0);
    release_all(out, 3); /* never walked */
    EXPECT(released == 1);
    EXPECT_OK(square_times(x, w, out));
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(luda_backward(out[0], g, &retain, &grads));
        luda_gradients_release(grads);
    }
    EXPECT(released == 1);
    EXPECT_OK(luda_backward(out[0], g, NULL, &grads)); /* consumed before its results go */
    EXPECT(released == 2);
    luda_gradients_release(grads);
    release_all(out, 3);
    EXPECT(released == 2);
    EXPECT_OK(square_times(plain, w, out)); /* nothing tracked */
    EXPECT(released == 3 && !luda_requires_grad(out[0]));
    release_all(out, 3);
    int mode = luda_set_grad_enabled(0);
    EXPECT_OK(square_times(x, w, out));
    luda_set_grad_enabled(mode);
    EXPECT(released == 4 && !luda_requires_grad(out[0]));
    release_all(out, 3);
    state *s = calloc(1, sizeof *s);
    luda_node *node;
    luda_tensor *whole;
    s->alive = 1;
    EXPECT_OK(luda_tensor_scalar_i64(3, LUDA_I64, &whole));
    EXPECT_OK(luda_node_new(&x, 1, &whole, 1, &square_times_class, s, &node)); /* no result that has a gradient */
    EXPECT(node == NULL && released == 5);
    EXPECT_OK(luda_node_keep(node, x));
    luda_tensor *all[] = { x, w, g, plain, whole };
    release_all(all, 5);
    EXPECT(released == 5);
}

static void second_derivatives(void)
{
    luda_tensor *x = vector(X, 6, 1), *w = vector(W, 6, 0), *g = vector(G, 6, 0), *y, *out[3];
    luda_backward_options create = { .create_graph = 1 };
    luda_gradients *first, *second;
    luda_node_class unrecorded = cube_class;
    EXPECT_OK(cube(x, &cube_class, &y));
    EXPECT_OK(luda_backward(y, g, &create, &first));
    luda_tensor *dx = luda_gradients_get(first, luda_tensor_id(x));
    EXPECT(dx && luda_requires_grad(dx));
    EXPECT_OK(luda_backward(dx, w, NULL, &second));
    for (int k = 0; k < 6; k++) {
        EXPECT_NEAR(at(dx, k), 3 * X[k] * X[k] * G[k], 1e-12);
        EXPECT_NEAR(at(luda_gradients_get(second, luda_tensor_id(x)), k), 6 * X[k] * G[k] * W[k], 1e-12);
    }
    luda_gradients_release(first);
    luda_gradients_release(second);
    luda_tensor_release(y);

    unrecorded.recorded = 0;
    EXPECT_OK(cube(x, &unrecorded, &y));
    EXPECT_STATUS(LUDA_EGRAPH, luda_backward(y, g, &create, &first));
    EXPECT(strstr(luda_last_error(), "cube: its backward is not recorded") != NULL);
    luda_tensor_release(y);
    EXPECT_OK(square_times(x, w, out));
    EXPECT_STATUS(LUDA_EGRAPH, luda_backward(out[0], g, &create, &first));
    release_all(out, 3);
    luda_tensor *all[] = { x, w, g };
    release_all(all, 3);
}

/* Without a backward the walk stops for whoever drives it. */
static void driven_from_outside(void)
{
    static const luda_node_class outside = { .name = "outside" };
    luda_tensor *x = vector(X, 6, 1), *g = vector(G, 6, 0), *y;
    luda_walk *walk;
    int event;
    EXPECT_OK(cube(x, &outside, &y));
    EXPECT_OK(luda_walk_new(&y, &g, 1, NULL, &walk));
    EXPECT_OK(luda_walk_step(walk, &event));
    EXPECT(event == LUDA_NEEDS_LUA && luda_walk_needs(walk, 0) && !luda_walk_is_hook(walk));
    EXPECT(luda_walk_gradient(walk, 0) == g && luda_node_kept_count(luda_walk_node(walk)) == 1);
    EXPECT_OK(luda_walk_give(walk, 0, g));
    EXPECT_OK(luda_walk_step(walk, &event));
    EXPECT(event == LUDA_WALK_DONE);
    EXPECT_NEAR(at(luda_gradients_get(luda_walk_gradients(walk), luda_tensor_id(x)), 3), G[3], 0);
    luda_walk_release(walk);
    luda_tensor *all[] = { x, g, y };
    release_all(all, 3);
}

int main(void)
{
    int64_t before = live();
    derived_by_hand();
    differences();
    failures();
    states();
    second_derivatives();
    driven_from_outside();
    EXPECT(live() == before);
    return summary("function");
}
