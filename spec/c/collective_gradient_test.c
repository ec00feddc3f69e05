/*
 * Gradients through collectives: of the sum over ranks of every rank's loss. Right values are derived by hand beside each
 * case. x0 = [1], x1 = [2] unless the case says otherwise.
 */
#include "collective_ranks.h"

static luda_tensor *leaf(int64_t n, const double *values)
{
    luda_tensor *x = vector(LUDA_F32, n, values);
    EXPECT_OK(luda_set_requires_grad(x, 1));
    return x;
}

/* sum(w * y), whose gradient in y is w. */
static luda_tensor *weighted(luda_tensor *y, const double *w)
{
    luda_tensor *weights = vector(LUDA_F32, luda_tensor_numel(y), w), *product = NULL, *loss = NULL;
    EXPECT_OK(luda_mul(y, weights, &product));
    EXPECT_OK(luda_sum(product, NULL, &loss));
    luda_tensor_release(product);
    luda_tensor_release(weights);
    return loss;
}

/* Backward from sum(w * y); the gradient of x must be `right`. Releases y. */
static void expect_gradient(luda_tensor *x, luda_tensor *y, const double *w, const double *right)
{
    luda_gradients *gradients = NULL;
    luda_tensor *loss = weighted(y, w), *g;
    EXPECT_OK(luda_backward(loss, NULL, NULL, &gradients));
    g = gradients ? luda_gradients_get(gradients, luda_tensor_id(x)) : NULL;
    EXPECT(g != NULL);
    for (int64_t i = 0; g && i < luda_tensor_numel(x); i++)
        EXPECT_NEAR(item(g, i), right[i], 1e-6 * fabs(right[i]));
    luda_gradients_release(gradients);
    luda_tensor_release(loss);
    luda_tensor_release(y);
}

static void two_ranks(luda_comm *comm, int rank, void *arg)
{
    const double c[2] = { 1, 10 }, w[2][2] = { { 1, 2 }, { 30, 40 } };
    luda_tensor *x = leaf(1, (double[]){ rank + 1 }), *y, *ab;
    luda_comm_options last = { .size = sizeof last, .dim = -1 };

    /* Every rank's y is x0 + x1: d(1 y + 10 y) = 11 on both. */
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(strcmp(luda_grad_op(y), "all_reduce") == 0);
    expect_gradient(x, y, &c[rank], (double[]){ 11 });
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MEAN, NULL, &y));
    expect_gradient(x, y, &c[rank], (double[]){ 5.5 });
    /* Rank r's element is weighed by both ranks: 1 + 30, 2 + 40. */
    EXPECT_OK(luda_comm_all_gather(comm, x, &last, &y));
    expect_gradient(x, y, w[rank], (double[]){ rank == 0 ? 31 : 42 });
    /* y0 = a0 + a1 weighs 5, y1 = b0 + b1 weighs 7. */
    ab = leaf(2, (double[]){ 3 - rank, -4 });
    EXPECT_OK(luda_comm_reduce_scatter(comm, ab, LUDA_REDUCE_SUM, NULL, &y));
    expect_gradient(ab, y, (double[]){ rank == 0 ? 5 : 7 }, (double[]){ 5, 7 });
    EXPECT_OK(luda_comm_reduce_scatter(comm, ab, LUDA_REDUCE_MEAN, NULL, &y));
    expect_gradient(ab, y, (double[]){ rank == 0 ? 5 : 7 }, (double[]){ 2.5, 3.5 });
    /* All ranks' results are rank 1's x: 1 + 10 there, nothing elsewhere. */
    EXPECT_OK(luda_comm_broadcast(comm, x, 1, NULL, &y));
    expect_gradient(x, y, &c[rank], (double[]){ rank == 1 ? 11 : 0 });
    /* y on rank r is [ab0[r], ab1[r]]: element i of rank r is weighed by rank i at place r. */
    EXPECT_OK(luda_comm_all_to_all(comm, ab, NULL, &y));
    expect_gradient(ab, y, w[rank], (double[]){ w[0][rank], w[1][rank] });
    /* Composed: loss_r = c_r (x0 + x1)^2; d = 2 (x0 + x1) (c0 + c1) = 66. */
    luda_tensor *square, *s;
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &s));
    EXPECT_OK(luda_mul(s, s, &square));
    luda_tensor_release(s);
    expect_gradient(x, square, &c[rank], (double[]){ 66 });
    luda_tensor_release(x);
    luda_tensor_release(ab);
}

/*
 * Second order: s = x0 + x1, loss_r = c_r s^3. The first gradient on each rank is sum_q c_q 3 s^2 = 99 at s = 3 (times
 * c0 + c1 = 11); its own derivative, summed over both ranks' first gradients, is 2 * 11 * 6 s = 396.
 */
static void second_order(luda_comm *comm, int rank, void *arg)
{
    const double c[2] = { 1, 10 };
    luda_tensor *x = leaf(1, (double[]){ rank + 1 }), *s, *square, *cube, *loss, *g;
    luda_backward_options create = { .create_graph = 1 };
    luda_gradients *first, *second;
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &s));
    EXPECT_OK(luda_mul(s, s, &square));
    EXPECT_OK(luda_mul(square, s, &cube));
    loss = weighted(cube, &c[rank]);
    EXPECT_OK(luda_backward(loss, NULL, &create, &first));
    g = luda_gradients_get(first, luda_tensor_id(x));
    EXPECT_NEAR(item(g, 0), 297, 1e-3);
    EXPECT_OK(luda_backward(g, NULL, NULL, &second));
    EXPECT_NEAR(item(luda_gradients_get(second, luda_tensor_id(x)), 0), 396, 1e-3);
    luda_gradients_release(first);
    luda_gradients_release(second);
    luda_tensor_release(loss);
    luda_tensor_release(cube);
    luda_tensor_release(square);
    luda_tensor_release(s);
    luda_tensor_release(x);
}

/* The graph keeps the communicator; what has no gradient says so on every rank and works untracked. */
static void limits(luda_comm *comm, int rank, void *arg)
{
    luda_tensor *x = leaf(1, (double[]){ rank + 1 }), *y = NULL, *z = NULL;
    EXPECT_STATUS(LUDA_EGRAPH, luda_comm_all_reduce(comm, x, LUDA_REDUCE_MAX, NULL, &y));
    EXPECT_STATUS(LUDA_EGRAPH, luda_comm_reduce(comm, x, LUDA_REDUCE_SUM, 0, NULL, &y));
    EXPECT_STATUS(LUDA_EGRAPH, luda_comm_gather(comm, x, 0, NULL, &y));
    EXPECT_STATUS(LUDA_EGRAPH, luda_comm_all_reduce_into(comm, x, LUDA_REDUCE_SUM, NULL));
    EXPECT_STATUS(LUDA_EGRAPH, luda_comm_send(comm, x, 0, NULL));
    luda_set_grad_enabled(0);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_MAX, NULL, &z));
    EXPECT(item(z, 0) == 2 && !luda_requires_grad(z));
    luda_tensor_release(z);
    luda_set_grad_enabled(1);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    luda_comm_close(comm);
    luda_gradients *gradients = NULL;
    EXPECT_STATUS(LUDA_ECLOSED, luda_backward(y, NULL, NULL, &gradients));
    luda_tensor_release(x);
    luda_tensor_release(y);
}

int main(void)
{
    luda_memory_info before, after;
    luda_tensor *warm = one(1);
    luda_tensor_release(warm);
    EXPECT_OK(luda_memory(cpu, &before));
    run_everywhere(2, two_ranks, NULL);
    run_everywhere(2, second_order, NULL);
    run_everywhere(2, limits, NULL);
    EXPECT_OK(luda_memory(cpu, &after));
    EXPECT(after.tensors == before.tensors);
    return summary("collective gradients");
}
