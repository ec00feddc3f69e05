/* Convolution by oneDNN, for float32 and where it is faster than matrix products. */
#ifndef LUDA_CONV_LIBRARY_H
#define LUDA_CONV_LIBRARY_H

#include "conv.h"

typedef enum conv_pass { CONV_FORWARD, CONV_INPUT, CONV_WEIGHT } conv_pass; /* which operand is computed: y, x, w */

typedef struct conv_library conv_library;

/* What runs the slabs of one call, or NULL: the library is not here or not for this call. c->weight is read now. */
conv_library *luda__conv_library_open(const conv *c, conv_pass pass);
void luda__conv_library_close(conv_library *l);

/* The slab's images x and results y, dense, and for CONV_WEIGHT its part of the gradient, dense; 0 after a failure. */
int luda__conv_library_run(const conv_library *l, int64_t images, float *x, float *w, float *y, const float *bias);

#endif
