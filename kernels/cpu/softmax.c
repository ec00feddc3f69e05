/* softmax, log_softmax and softmax_backward along any dimension. */
#include "rows.h"
#include "scalar.h"

#define EACH_CLASSES CLASS_FLOAT
#define EACH "softmax.inc"
#include "each.h"
