/* The parsed operator table, for the core and the autodiff floor. */
#ifndef LUDA_OPS_H
#define LUDA_OPS_H

#include "core.h"

typedef enum luda__dtype_class { LUDA__BOOL, LUDA__INT, LUDA__FLOAT } luda__dtype_class; /* ascending */

luda__dtype_class luda__class_of(luda_dtype dtype);
const char *luda__dtype_file_name(luda_dtype dtype); /* as in safetensors: "F32" */

/* What floating inputs of a row become under autocast; double stays. */
typedef enum luda__autocast { LUDA__AUTOCAST_NONE, LUDA__AUTOCAST_LOW, LUDA__AUTOCAST_F32 } luda__autocast;

typedef struct luda__op_facts {
    bool random, inplace, accumulate, recompute_cheap, recompute_activation, is_view;
    luda__autocast autocast;
    /* Elementwise rows: the number of inputs (0: not one), and the result's type where all have the same, or -1 where they are cast. */
    int8_t map_inputs;
    int8_t map_result[LUDA_DTYPE_COUNT];
} luda__op_facts;

extern luda__op_facts luda__facts_of[LUDA_OP_COUNT];

static inline const luda__op_facts *luda__facts(luda_op op)
{
    return &luda__facts_of[op];
}

/* Type rules (types.c): what inputs are cast to and what outputs are, into the plan. */
luda_status luda__plan_types(luda_plan *plan);
/* Shape rules (shapes.c): output shapes, and strides for views, into the plan. */
luda_status luda__plan_shapes(luda_plan *plan);
/*
 * Adds the result of a row with the fact `accumulate`, whose inputs need no cast, to a contiguous tensor of its shape and
 * dtype that shares memory with no input.
 */
luda_status luda__accumulate(luda_op op, luda_tensor *const *in, int nin, const luda_attrs *attrs, luda_tensor *into);
/*
 * An elementwise row over CPU tensors of one dtype, without recording: each is contiguous and of the shape of `like`, which is
 * one of them, or a single element, also stretched to that shape. Into one that fits, or NULL.
 */
luda_status luda__run_map(luda_op op, luda_tensor *const *in, int nin, const luda_tensor *like, luda_dtype result,
                          luda_tensor *into, luda_tensor **out);
luda_dtype luda__promote(luda_dtype a, luda_dtype b);

#endif
