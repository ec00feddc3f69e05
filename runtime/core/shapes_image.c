/* Shape rules of convolution and pooling: images are [N, C, H, W], kernels [O, C / groups, KH, KW]. */
#include "shapes.h"

#include <string.h>

/* --- Windows --- */

/* How a kernel slides over images; ceil_mode also keeps a last window that is not full. */
typedef struct sliding {
    luda_pair kernel, stride, padding, dilation;
    bool ceil_mode;
} sliding;

enum { MOST = INT32_MAX };

static luda_status check_range(const luda_plan *plan, const char *name, luda_pair p, int least)
{
    int64_t low = p.height < p.width ? p.height : p.width, high = p.height < p.width ? p.width : p.height;
    if (low < least || high > MOST)
        return luda__fail(LUDA_EINVAL, "%s: %s is %lld x %lld; %d to %d are possible", plan->info->name, name, (long long)p.height,
                          (long long)p.width, least, MOST);
    return LUDA_OK;
}

/* Windows along one dimension of n elements; 0: the kernel does not fit. */
static int64_t windows(int64_t n, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode)
{
    int64_t room = n + 2 * padding - dilation * (kernel - 1) - 1;
    if (room < 0)
        return 0;
    int64_t count = room / stride + 1;
    bool more = ceil_mode && room % stride > 0 && count * stride < n + padding; /* it would begin inside, or left of it */
    return count + more;
}

static luda_status slide(const luda_plan *plan, const sliding *s, int64_t height, int64_t width, int64_t *rows, int64_t *columns)
{
    LUDA_TRY(check_range(plan, "image", (luda_pair){ height, width }, 0));
    LUDA_TRY(check_range(plan, "kernel", s->kernel, 1));
    LUDA_TRY(check_range(plan, "stride", s->stride, 1));
    LUDA_TRY(check_range(plan, "padding", s->padding, 0));
    LUDA_TRY(check_range(plan, "dilation", s->dilation, 1));
    *rows = windows(height, s->kernel.height, s->stride.height, s->padding.height, s->dilation.height, s->ceil_mode);
    *columns = windows(width, s->kernel.width, s->stride.width, s->padding.width, s->dilation.width, s->ceil_mode);
    if (*rows > 0 && *columns > 0)
        return LUDA_OK;
    return luda__fail(LUDA_ESHAPE,
                      "%s: a kernel of %lld x %lld (dilation %lld x %lld) is larger than the image of %lld x %lld with its "
                      "padding of %lld x %lld",
                      plan->info->name, (long long)s->kernel.height, (long long)s->kernel.width, (long long)s->dilation.height,
                      (long long)s->dilation.width, (long long)height, (long long)width, (long long)s->padding.height,
                      (long long)s->padding.width);
}

static luda_status need_images(const luda_plan *plan, int input)
{
    char text[160];
    const luda_tensor *x = plan->in[input];
    if (x->ndim == 4)
        return LUDA_OK;
    return luda__fail(LUDA_ESHAPE, "%s: images [N, C, H, W] are needed, the shape is %s; add dimensions with unsqueeze",
                      plan->info->name, luda__shape_text(x->ndim, x->shape, text, sizeof text));
}

/* The gradient of a row that made rows x columns windows from images of `size`. */
static luda_status gradient_fits(const luda_plan *plan, const sliding *s, luda_pair size)
{
    const luda_tensor *g = plan->in[0];
    int64_t rows, columns;
    LUDA_TRY(check_range(plan, "size", size, 0));
    LUDA_TRY(slide(plan, s, size.height, size.width, &rows, &columns));
    if (g->shape[2] == rows && g->shape[3] == columns)
        return LUDA_OK;
    return luda__fail(LUDA_ESHAPE, "%s: images of %lld x %lld have windows of %lld x %lld, the gradient has %lld x %lld",
                      plan->info->name, (long long)size.height, (long long)size.width, (long long)rows, (long long)columns,
                      (long long)g->shape[2], (long long)g->shape[3]);
}

/* --- Convolution --- */

static luda_status check_groups(const luda_plan *plan, int64_t groups, int64_t channels, int64_t outputs)
{
    if (groups < 1 || channels % groups != 0 || outputs % groups != 0)
        return luda__fail(LUDA_ESHAPE, "%s: %lld channels in and %lld out cannot be divided into %lld groups", plan->info->name,
                          (long long)channels, (long long)outputs, (long long)groups);
    return LUDA_OK;
}

luda_status luda__shape_conv(luda_plan *plan)
{
    const struct luda_conv_attrs *a = &plan->attrs.conv;
    const luda_tensor *x = plan->in[0], *w = plan->in[1], *b = plan->nin > 2 ? plan->in[2] : NULL;
    LUDA_TRY(need_images(plan, 0));
    if (w->ndim != 4)
        return luda__shapes_differ(plan, x, w, "the input is [N, C, H, W], the weight [O, C / groups, KH, KW]");
    LUDA_TRY(check_groups(plan, a->groups, x->shape[1], w->shape[0]));
    if (w->shape[1] * a->groups != x->shape[1]) {
        char hint[128];
        snprintf(hint, sizeof hint, "the weight takes %lld channels in %lld groups, the input has %lld", (long long)w->shape[1],
                 (long long)a->groups, (long long)x->shape[1]);
        return luda__shapes_differ(plan, x, w, hint);
    }
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
        return luda__shapes_differ(plan, w, b, "the bias has one element for each output channel");
    sliding s = { { w->shape[2], w->shape[3] }, a->stride, a->padding, a->dilation, false };
    int64_t shape[4] = { x->shape[0], w->shape[0] };
    LUDA_TRY(slide(plan, &s, x->shape[2], x->shape[3], &shape[2], &shape[3]));
    return luda__set_shape(plan, 0, 4, shape);
}

/* gradient, weight */
luda_status luda__shape_conv_input(luda_plan *plan)
{
    const struct luda_conv_backward_attrs *a = &plan->attrs.conv_backward;
    const luda_tensor *g = plan->in[0], *w = plan->in[1];
    LUDA_TRY(need_images(plan, 0));
    if (w->ndim != 4 || w->shape[0] != g->shape[1])
        return luda__shapes_differ(plan, g, w, "the gradient is [N, O, OH, OW], the weight [O, C / groups, KH, KW]");
    LUDA_TRY(check_groups(plan, a->groups, w->shape[1] * a->groups, w->shape[0]));
    sliding s = { { w->shape[2], w->shape[3] }, a->stride, a->padding, a->dilation, false };
    LUDA_TRY(gradient_fits(plan, &s, a->size));
    return luda__set_shape(plan, 0, 4, (int64_t[]){ g->shape[0], w->shape[1] * a->groups, a->size.height, a->size.width });
}

/* gradient, input */
luda_status luda__shape_conv_weight(luda_plan *plan)
{
    const struct luda_conv_backward_attrs *a = &plan->attrs.conv_backward;
    const luda_tensor *g = plan->in[0], *x = plan->in[1];
    LUDA_TRY(need_images(plan, 0));
    LUDA_TRY(need_images(plan, 1));
    if (g->shape[0] != x->shape[0])
        return luda__shapes_differ(plan, g, x, "the gradient is [N, O, OH, OW], the input [N, C, H, W]");
    LUDA_TRY(check_groups(plan, a->groups, x->shape[1], g->shape[1]));
    sliding s = { a->size, a->stride, a->padding, a->dilation, false };
    LUDA_TRY(gradient_fits(plan, &s, (luda_pair){ x->shape[2], x->shape[3] }));
    return luda__set_shape(plan, 0, 4, (int64_t[]){ g->shape[1], x->shape[1] / a->groups, a->size.height, a->size.width });
}

/* --- Pooling --- */

/* Fills a stride of 0. Half of the kernel at most is padding, so that no window lies in it alone. */
static luda_status check_pool(const luda_plan *plan, luda_pair kernel, luda_pair padding, luda_pair *stride)
{
    LUDA_TRY(check_range(plan, "kernel", kernel, 1));
    if (stride->height == 0 && stride->width == 0)
        *stride = kernel;
    if (2 * padding.height > kernel.height || 2 * padding.width > kernel.width)
        return luda__fail(LUDA_EINVAL, "%s: padding of %lld x %lld is more than half of the kernel of %lld x %lld", plan->info->name,
                          (long long)padding.height, (long long)padding.width, (long long)kernel.height, (long long)kernel.width);
    return LUDA_OK;
}

/* With a dilation a window may step over a small image. */
static luda_status reaches(const luda_plan *plan, int64_t n, int64_t count, int64_t kernel, int64_t stride, int64_t padding,
                           int64_t dilation)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t start = i * stride - padding, skip = start < 0 ? (-start + dilation - 1) / dilation : 0;
        if (skip >= kernel || start + skip * dilation >= n)
            return luda__fail(LUDA_ESHAPE,
                              "%s: window %lld (kernel %lld, dilation %lld) meets none of %lld elements along a dimension with "
                              "padding %lld",
                              plan->info->name, (long long)i, (long long)kernel, (long long)dilation, (long long)n, (long long)padding);
    }
    return LUDA_OK;
}

luda_status luda__shape_max_pool(luda_plan *plan)
{
    struct luda_max_pool_attrs *a = &plan->attrs.max_pool;
    const luda_tensor *x = plan->in[0];
    LUDA_TRY(need_images(plan, 0));
    LUDA_TRY(check_pool(plan, a->kernel, a->padding, &a->stride));
    sliding s = { a->kernel, a->stride, a->padding, a->dilation, a->ceil_mode };
    int64_t shape[4] = { x->shape[0], x->shape[1] };
    LUDA_TRY(slide(plan, &s, x->shape[2], x->shape[3], &shape[2], &shape[3]));
    LUDA_TRY(reaches(plan, x->shape[2], shape[2], a->kernel.height, a->stride.height, a->padding.height, a->dilation.height));
    LUDA_TRY(reaches(plan, x->shape[3], shape[3], a->kernel.width, a->stride.width, a->padding.width, a->dilation.width));
    LUDA_TRY(luda__set_shape(plan, 1, 4, shape));
    return luda__set_shape(plan, 0, 4, shape);
}

/* gradient, positions */
luda_status luda__shape_max_pool_backward(luda_plan *plan)
{
    struct luda_max_pool_backward_attrs *a = &plan->attrs.max_pool_backward;
    const luda_tensor *g = plan->in[0], *positions = plan->in[1];
    LUDA_TRY(need_images(plan, 0));
    if (positions->ndim != 4 || memcmp(positions->shape, g->shape, 4 * sizeof *g->shape) != 0)
        return luda__shapes_differ(plan, g, positions, "there must be one position for each gradient");
    LUDA_TRY(check_pool(plan, a->kernel, a->padding, &a->stride));
    sliding s = { a->kernel, a->stride, a->padding, a->dilation, a->ceil_mode };
    LUDA_TRY(gradient_fits(plan, &s, a->size));
    return luda__set_shape(plan, 0, 4, (int64_t[]){ g->shape[0], g->shape[1], a->size.height, a->size.width });
}

luda_status luda__shape_avg_pool(luda_plan *plan)
{
    struct luda_avg_pool_attrs *a = &plan->attrs.avg_pool;
    const luda_tensor *x = plan->in[0];
    LUDA_TRY(need_images(plan, 0));
    LUDA_TRY(check_pool(plan, a->kernel, a->padding, &a->stride));
    sliding s = { a->kernel, a->stride, a->padding, { 1, 1 }, a->ceil_mode };
    int64_t shape[4] = { x->shape[0], x->shape[1] };
    LUDA_TRY(slide(plan, &s, x->shape[2], x->shape[3], &shape[2], &shape[3]));
    return luda__set_shape(plan, 0, 4, shape);
}

luda_status luda__shape_avg_pool_backward(luda_plan *plan)
{
    struct luda_avg_pool_backward_attrs *a = &plan->attrs.avg_pool_backward;
    const luda_tensor *g = plan->in[0];
    LUDA_TRY(need_images(plan, 0));
    LUDA_TRY(check_pool(plan, a->kernel, a->padding, &a->stride));
    sliding s = { a->kernel, a->stride, a->padding, { 1, 1 }, a->ceil_mode };
    LUDA_TRY(gradient_fits(plan, &s, a->size));
    return luda__set_shape(plan, 0, 4, (int64_t[]){ g->shape[0], g->shape[1], a->size.height, a->size.width });
}
