/* Helpers shared by the shape rules (shapes.c) and the view rules (views.c). */
#ifndef LUDA_SHAPES_H
#define LUDA_SHAPES_H

#include "ops.h"

#include <stdio.h>

luda_status luda__set_shape(luda_plan *plan, int output, int ndim, const int64_t *shape);
luda_status luda__same_shape(luda_plan *plan, int output, int input);
/* Negative dimensions count from the end; written back. */
luda_status luda__normalize_dim(const luda_plan *plan, int32_t *dim, int ndim);
luda_status luda__shapes_differ(const luda_plan *plan, const luda_tensor *a, const luda_tensor *b, const char *hint);

/* Rules of views: shape, strides and offset over the first input's storage. */
luda_status luda__shape_narrow(luda_plan *plan);
luda_status luda__shape_select(luda_plan *plan);
luda_status luda__shape_transpose(luda_plan *plan);
luda_status luda__shape_permute(luda_plan *plan);
luda_status luda__shape_expand(luda_plan *plan);
luda_status luda__shape_view(luda_plan *plan);
luda_status luda__shape_squeeze(luda_plan *plan);
luda_status luda__shape_unsqueeze(luda_plan *plan);

/* Rules of index data and order (shapes_order.c). */
luda_status luda__shape_gather(luda_plan *plan);
luda_status luda__shape_scatter(luda_plan *plan);
luda_status luda__shape_nonzero(luda_plan *plan);
luda_status luda__shape_paired(luda_plan *plan);
luda_status luda__shape_search(luda_plan *plan);
luda_status luda__shape_dft(luda_plan *plan);

/* Rules of convolution and pooling (shapes_image.c). */
luda_status luda__shape_conv(luda_plan *plan);
luda_status luda__shape_conv_input(luda_plan *plan);
luda_status luda__shape_conv_weight(luda_plan *plan);
luda_status luda__shape_max_pool(luda_plan *plan);
luda_status luda__shape_max_pool_backward(luda_plan *plan);
luda_status luda__shape_avg_pool(luda_plan *plan);
luda_status luda__shape_avg_pool_backward(luda_plan *plan);

/* Rules of linear algebra (shapes_linalg.c). */
luda_status luda__shape_square(luda_plan *plan);
luda_status luda__shape_factors(luda_plan *plan);
luda_status luda__shape_eigh(luda_plan *plan);
luda_status luda__shape_solve(luda_plan *plan);
luda_status luda__shape_det(luda_plan *plan);

/* Widens ndim, shape by a; false where sizes clash. Aligned at the last dimension; 1 gives way, also to 0. */
bool luda__widen(const int64_t *a, int a_ndim, int *ndim, int64_t *shape);
/* Fills -1 and checks the element count; false where it does not fit. */
bool luda__infer_shape(int64_t numel, luda_shape *shape);
/* Strides that give x another shape without a copy; false where there are none. */
bool luda__view_strides(const luda_tensor *x, int ndim, const int64_t *shape, int64_t *stride);

#endif
