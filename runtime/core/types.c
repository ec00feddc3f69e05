/* Type rules: to what each input is promoted and what the outputs are. One function per word of the types column. */
#include "ops.h"

/* --- Promotion: category first, then width; only plain numbers are weak, and those were resolved by the caller --- */

static int rank_in_class(luda_dtype dtype)
{
    static const int rank[LUDA_DTYPE_COUNT] = {
        [LUDA_BOOL] = 0, [LUDA_U8] = 1, [LUDA_I8] = 1, [LUDA_I16] = 2, [LUDA_I32] = 3, [LUDA_I64] = 4,
        [LUDA_F16] = 1,  [LUDA_BF16] = 1, [LUDA_F32] = 2, [LUDA_F64] = 3,
    };
    return rank[dtype];
}

luda_dtype luda__promote(luda_dtype a, luda_dtype b)
{
    if (a == b)
        return a;
    if (luda__class_of(a) != luda__class_of(b))
        return luda__class_of(a) > luda__class_of(b) ? a : b;
    if (rank_in_class(a) != rank_in_class(b))
        return rank_in_class(a) > rank_in_class(b) ? a : b;
    return luda__class_of(a) == LUDA__FLOAT ? LUDA_F32 : LUDA_I16; /* f16 with bf16, u8 with i8 */
}

luda_status luda_result_dtype(luda_tensor *const *in, int nin, luda_dtype *out)
{
    bool found = false;
    luda_dtype dtype = LUDA_F32;
    for (int i = 0; i < nin; i++) {
        if (!in[i])
            continue;
        dtype = found ? luda__promote(dtype, (luda_dtype)in[i]->dtype) : (luda_dtype)in[i]->dtype;
        found = true;
    }
    if (!found)
        return luda__fail(LUDA_EINVAL, "result_dtype: no tensor was given");
    *out = dtype;
    return LUDA_OK;
}

/* --- Helpers of the rules --- */

/* Casts inputs from `first` to their common dtype, which out[0] gets too. */
static luda_status promote_from(luda_plan *plan, int first)
{
    luda_dtype common;
    LUDA_TRY(luda_result_dtype(plan->in + first, plan->nin - first, &common));
    for (int i = first; i < plan->nin && i < LUDA_MAX_INPUTS; i++)
        plan->cast[i] = common;
    plan->out[0].dtype = common;
    return LUDA_OK;
}

static luda_dtype first_cast(const luda_plan *plan)
{
    return plan->cast[0];
}

static luda_dtype accumulator_of(luda_dtype dtype)
{
    return dtype == LUDA_F64 ? LUDA_F64 : LUDA_F32;
}

static luda_status refuse(const luda_plan *plan, int input, const char *wanted)
{
    const luda_tensor *x = plan->in[input];
    char shape[160];
    return luda__fail(LUDA_EDTYPE, "%s: input %d of shape %s is %s; %s", plan->info->name, input + 1,
                      luda__shape_text(x->ndim, x->shape, shape, sizeof shape), luda_dtype_name((luda_dtype)x->dtype), wanted);
}

static luda_status need_float(luda_plan *plan)
{
    for (int i = 0; i < plan->nin; i++)
        if (plan->in[i] && luda__class_of((luda_dtype)plan->in[i]->dtype) != LUDA__FLOAT)
            return refuse(plan, i, "a floating type is needed, convert it with :to(\"f32\")");
    return LUDA_OK;
}

/* Index data are i64 for kernels; narrower integers are widened, anything else is refused. */
static luda_status need_index(luda_plan *plan, int input)
{
    if (luda__class_of((luda_dtype)plan->in[input]->dtype) != LUDA__INT)
        return refuse(plan, input, "positions and labels are integers, convert it with :to(\"i64\")");
    plan->cast[input] = LUDA_I64;
    return LUDA_OK;
}

/* --- The rules --- */

static luda_status types_ANY(luda_plan *plan)
{
    return promote_from(plan, 0);
}

static luda_status types_VIEW(luda_plan *plan)
{
    return promote_from(plan, 0);
}

static luda_status types_NUM(luda_plan *plan)
{
    LUDA_TRY(promote_from(plan, 0));
    if (first_cast(plan) == LUDA_BOOL)
        return refuse(plan, 0, "numbers are needed, use logical operators or convert it with :to(\"i64\")");
    return LUDA_OK;
}

static luda_status types_FLOAT(luda_plan *plan)
{
    LUDA_TRY(promote_from(plan, 0));
    if (luda__class_of(first_cast(plan)) != LUDA__FLOAT)
        for (int i = 0; i < plan->nin; i++)
            plan->cast[i] = plan->out[0].dtype = LUDA_F32;
    return LUDA_OK;
}

static luda_status types_FLOAT_ONLY(luda_plan *plan)
{
    LUDA_TRY(need_float(plan));
    return promote_from(plan, 0);
}

/* LAPACK has two element types. */
static luda_status types_MATRIX(luda_plan *plan)
{
    LUDA_TRY(types_FLOAT_ONLY(plan));
    if (luda_dtype_size(first_cast(plan)) == 2)
        return refuse(plan, 0, "f32 or f64 is needed, convert it with :to(\"f32\")");
    plan->out[1].dtype = plan->out[2].dtype = plan->out[0].dtype;
    return LUDA_OK;
}

static luda_status types_FLOAT_NUM(luda_plan *plan)
{
    return types_NUM(plan);
}

static luda_status types_BITS(luda_plan *plan)
{
    for (int i = 0; i < plan->nin; i++)
        if (luda__class_of((luda_dtype)plan->in[i]->dtype) == LUDA__FLOAT)
            return refuse(plan, i, "integers or booleans are needed, convert it with :to(\"i64\")");
    return promote_from(plan, 0);
}

static luda_status types_INTEGER(luda_plan *plan)
{
    LUDA_TRY(promote_from(plan, 0));
    for (int i = 0; i < plan->nin; i++)
        if (luda__class_of(first_cast(plan)) != LUDA__INT && luda__class_of((luda_dtype)plan->in[i]->dtype) != LUDA__INT)
            return refuse(plan, i, "integers are needed, convert it with :to(\"i64\")");
    return LUDA_OK;
}

static luda_status types_COMPARE(luda_plan *plan)
{
    LUDA_TRY(promote_from(plan, 0));
    plan->out[0].dtype = LUDA_BOOL;
    return LUDA_OK;
}

static luda_status types_SELECT(luda_plan *plan)
{
    if (plan->in[0]->dtype != LUDA_BOOL)
        return refuse(plan, 0, "a mask is bool, make one by comparing, as in x:ne(0)");
    plan->cast[0] = LUDA_BOOL;
    return promote_from(plan, 1);
}

static luda_status types_SUM(luda_plan *plan)
{
    LUDA_TRY(promote_from(plan, 0));
    if (luda__class_of(first_cast(plan)) != LUDA__FLOAT)
        plan->out[0].dtype = LUDA_I64;
    return LUDA_OK;
}

static luda_status types_EXTREMUM(luda_plan *plan)
{
    LUDA_TRY(promote_from(plan, 0));
    plan->out[1].dtype = LUDA_I64;
    return LUDA_OK;
}

static luda_status types_TAKE(luda_plan *plan)
{
    plan->cast[0] = plan->out[0].dtype = (luda_dtype)plan->in[0]->dtype;
    return need_index(plan, 1);
}

/* x, positions, what is written into x */
static luda_status types_PUT(luda_plan *plan)
{
    luda_dtype dtype = (luda_dtype)plan->in[0]->dtype, source = (luda_dtype)plan->in[2]->dtype;
    if (luda__class_of(source) > luda__class_of(dtype))
        return luda__fail(LUDA_EDTYPE, "%s: %s cannot be written into %s; convert with :to", plan->info->name,
                          luda_dtype_name(source), luda_dtype_name(dtype));
    plan->cast[0] = plan->cast[2] = plan->out[0].dtype = dtype;
    return need_index(plan, 1);
}

static luda_status types_POSITIONS(luda_plan *plan)
{
    plan->cast[0] = (luda_dtype)plan->in[0]->dtype;
    plan->out[0].dtype = plan->out[1].dtype = LUDA_I64;
    return LUDA_OK;
}

static luda_status types_SEARCH(luda_plan *plan)
{
    LUDA_TRY(promote_from(plan, 0));
    plan->out[0].dtype = LUDA_I64;
    return LUDA_OK;
}

static luda_status types_CREATE(luda_plan *plan)
{
    const luda_field_info *field = NULL;
    for (int i = 0; (field = luda_attrs_field(plan->info->attrs, i)) && field->kind[0] != 'd'; i++)
        ;
    int32_t dtype = *(const int32_t *)((const char *)&plan->attrs + field->offset);
    if (dtype < 0 || dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "%s: there is no element type %d", plan->info->name, dtype);
    plan->out[0].dtype = (luda_dtype)dtype;
    return LUDA_OK;
}

static luda_status types_CREATE_FLOAT(luda_plan *plan)
{
    LUDA_TRY(types_CREATE(plan));
    if (luda__class_of(plan->out[0].dtype) != LUDA__FLOAT)
        return luda__fail(LUDA_EDTYPE, "%s: %s numbers were asked for; a floating type is needed", plan->info->name,
                          luda_dtype_name(plan->out[0].dtype));
    return LUDA_OK;
}

static luda_status types_CAST(luda_plan *plan)
{
    int32_t dtype = plan->attrs.cast.dtype;
    plan->cast[0] = (luda_dtype)plan->in[0]->dtype;
    if (dtype < -1 || dtype >= LUDA_DTYPE_COUNT)
        return luda__fail(LUDA_EDTYPE, "to: there is no element type %d", dtype);
    plan->attrs.cast.dtype = dtype < 0 ? plan->in[0]->dtype : dtype;
    plan->out[0].dtype = (luda_dtype)plan->attrs.cast.dtype;
    return LUDA_OK;
}

/* Affine parameters keep f32 beside half activations; otherwise they take the input's dtype. */
static void keep_affine(luda_plan *plan, int input)
{
    if (input < plan->nin && plan->in[input])
        plan->cast[input] = plan->in[input]->dtype == LUDA_F32 ? LUDA_F32 : plan->cast[0];
    if (input < plan->nin && plan->in[input] && plan->cast[0] == LUDA_F64)
        plan->cast[input] = LUDA_F64;
}

static luda_status types_NORM(luda_plan *plan)
{
    LUDA_TRY(need_float(plan));
    plan->cast[0] = plan->out[0].dtype = (luda_dtype)plan->in[0]->dtype;
    keep_affine(plan, 1);
    keep_affine(plan, 2);
    if (plan->nin == 3 && plan->in[1] && plan->in[2])
        plan->cast[2] = plan->cast[1];
    plan->out[1].dtype = plan->out[2].dtype = accumulator_of(plan->cast[0]);
    return LUDA_OK;
}

/* gradient, x, mean, rstd, weight */
static luda_status types_NORM_BACKWARD(luda_plan *plan)
{
    LUDA_TRY(need_float(plan));
    luda_dtype dtype = (luda_dtype)plan->in[1]->dtype;
    plan->cast[0] = plan->cast[1] = plan->out[0].dtype = dtype;
    plan->cast[2] = plan->cast[3] = accumulator_of(dtype);
    keep_affine(plan, 4);
    plan->out[1].dtype = plan->out[2].dtype = plan->nin > 4 && plan->in[4] ? plan->cast[4] : accumulator_of(dtype);
    return LUDA_OK;
}

/* input, weight, bias */
static luda_status types_CONV(luda_plan *plan)
{
    LUDA_TRY(need_float(plan));
    plan->cast[0] = plan->cast[1] = plan->out[0].dtype =
        luda__promote((luda_dtype)plan->in[0]->dtype, (luda_dtype)plan->in[1]->dtype);
    keep_affine(plan, 2);
    return LUDA_OK;
}

/* The same, with the sums before the activation. */
static luda_status types_LINEAR(luda_plan *plan)
{
    LUDA_TRY(types_CONV(plan));
    plan->out[1].dtype = plan->out[0].dtype;
    return LUDA_OK;
}

static luda_status types_RMS_NORM(luda_plan *plan)
{
    LUDA_TRY(need_float(plan));
    plan->cast[0] = plan->out[0].dtype = (luda_dtype)plan->in[0]->dtype;
    keep_affine(plan, 1);
    plan->out[1].dtype = accumulator_of(plan->cast[0]);
    return LUDA_OK;
}

/* gradient, x, rstd, weight */
static luda_status types_RMS_NORM_BACKWARD(luda_plan *plan)
{
    LUDA_TRY(need_float(plan));
    luda_dtype dtype = (luda_dtype)plan->in[1]->dtype;
    plan->cast[0] = plan->cast[1] = plan->out[0].dtype = dtype;
    plan->cast[2] = accumulator_of(dtype);
    keep_affine(plan, 3);
    plan->out[1].dtype = plan->nin > 3 && plan->in[3] ? plan->cast[3] : accumulator_of(dtype);
    return LUDA_OK;
}

static luda_status types_LOSS(luda_plan *plan)
{
    luda_dtype dtype = (luda_dtype)plan->in[0]->dtype;
    if (luda__class_of(dtype) != LUDA__FLOAT)
        return refuse(plan, 0, "logits have a floating type, convert it with :to(\"f32\")");
    plan->cast[0] = plan->out[0].dtype = dtype;
    LUDA_TRY(need_index(plan, 1));
    keep_affine(plan, 2);
    plan->out[1].dtype = accumulator_of(dtype);
    return LUDA_OK;
}

/* gradient, logits, labels, log-sum-exp, class weights */
static luda_status types_LOSS_BACKWARD(luda_plan *plan)
{
    luda_dtype dtype = (luda_dtype)plan->in[1]->dtype;
    if (luda__class_of(dtype) != LUDA__FLOAT)
        return refuse(plan, 1, "logits have a floating type, convert it with :to(\"f32\")");
    plan->cast[0] = plan->cast[1] = plan->out[0].dtype = dtype;
    LUDA_TRY(need_index(plan, 2));
    plan->cast[3] = accumulator_of(dtype);
    keep_affine(plan, 4);
    return LUDA_OK;
}

static luda_status types_ATTENTION(luda_plan *plan)
{
    LUDA_TRY(types_FLOAT_ONLY(plan));
    plan->out[1].dtype = accumulator_of(plan->cast[0]);
    return LUDA_OK;
}

/* gradient, q, k, v, output, log-sum-exp */
static luda_status types_ATTENTION_BACKWARD(luda_plan *plan)
{
    LUDA_TRY(need_float(plan));
    luda_dtype dtype = (luda_dtype)plan->in[1]->dtype;
    for (int i = 0; i < 5; i++)
        plan->cast[i] = dtype;
    plan->cast[5] = accumulator_of(dtype);
    plan->out[0].dtype = plan->out[1].dtype = plan->out[2].dtype = dtype;
    return LUDA_OK;
}

static luda_status (*const rules[])(luda_plan *) = {
#define LUDA_OP(name, nin, nout, types, ...) types_##types,
#include "../../kernels/ops.def"
};

luda_status luda__plan_types(luda_plan *plan)
{
    return rules[plan->op](plan);
}
