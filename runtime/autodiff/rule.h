/*
 * What gradient rules are written with: operators on tensors, with a sticky status and temporaries that the walk releases.
 * Inside a rule `w` is the call; the short names of rules.c are macros over these functions.
 */
#ifndef LUDA_RULE_H
#define LUDA_RULE_H

#include "graph.h"

typedef luda_tensor *T;

/* Any operator: NULL after a failure. The first output; others go to `others` where it is not NULL. */
T luda__rule_apply(luda_rule *w, luda_op op, T const *in, int nin, const luda_attrs *attrs, T *others);
T luda__rule1(luda_rule *w, luda_op op, T a);
/* op(g[0], a) of an elementwise row, where the rule needs g[0] no more: in its place, if nobody else sees it. */
T luda__rule_last(luda_rule *w, luda_op op, T a);
T luda__rule2(luda_rule *w, luda_op op, T a, T b);
T luda__rule3(luda_rule *w, luda_op op, T a, T b, T c);
/* a op number, with the number in a's dtype. */
T luda__rule_number(luda_rule *w, luda_op op, T a, double number);
T luda__rule_reshape(luda_rule *w, T a, int ndim, const int64_t *shape);
/* [N, K] with the leading dimensions of [..., K] joined; [K] becomes [1, K]. */
T luda__rule_rows(luda_rule *w, T a);
T luda__rule_expand(luda_rule *w, T a, int ndim, const int64_t *shape);
T luda__rule_cast(luda_rule *w, T a, luda_dtype dtype, luda_device device);
T luda__rule_transpose(luda_rule *w, T a); /* the last two dimensions */
T luda__rule_unsqueeze(luda_rule *w, T a, int dim);
T luda__rule_squeeze(luda_rule *w, T a, int dim);
/* count 0: all dimensions */
T luda__rule_sum(luda_rule *w, T a, int count, const int32_t *dims, bool keepdim);
T luda__rule_mean(luda_rule *w, T a, int dim); /* kept */
/* A tensor of one value; shape NULL: 0-d. */
T luda__rule_full(luda_rule *w, T like, luda_dtype dtype, double value, int ndim, const int64_t *shape);
T luda__rule_arange(luda_rule *w, T like, luda_dtype dtype, int64_t count);
/* Takes over a reference that the walk will release. */
T luda__rule_keep(luda_rule *w, luda_status status, T made);
/* Sets the gradient of input i from a temporary or lent tensor (NULL: none). */
void luda__rule_set(luda_rule *w, int i, T gradient);

/*
 * Adds to what input i's gradient has got so far, in place; false where that is not possible and nothing was done: the
 * rule then sets the gradient. An operator's result, or g at `length` positions of a dimension.
 */
bool luda__rule_add(luda_rule *w, int i, luda_op op, T const *in, int nin, const luda_attrs *attrs);
bool luda__rule_add_part(luda_rule *w, int i, T g, const struct luda_narrow_attrs *part);

#define RULE(name) void luda__gradient_of_##name(luda_rule *w)
/* Sugar: one output, called once for each needed input i, returns its gradient. */
#define RULE1(name)                                                                                                    \
    static T each_##name(luda_rule *w, int i, T g, T const *x, T const *y);                                            \
    void luda__gradient_of_##name(luda_rule *w)                                                                               \
    {                                                                                                                  \
        for (int i = 0; i < w->node->nin; i++)                                                                         \
            if (w->need[i])                                                                                            \
                luda__rule_set(w, i, each_##name(w, i, w->g[0], w->x, w->y));                                          \
    }                                                                                                                  \
    static T each_##name(luda_rule *w, int i, T g, T const *x, T const *y)

#endif
