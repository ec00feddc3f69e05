/* Numbers of an update that depend on the step alone, in double: bias corrections, and what Adam's relatives multiply by. */
#include "optimizer.h"

static luda_optim_adam adam(const luda_optim_update *u, double l2, double decay)
{
    return (luda_optim_adam){ l2, 1 - u->lr * decay, u->lr / u->correction[0], 0, 1 / sqrt(u->correction[1]), u->hyper->eps };
}

/* NAdam's momentum at a step, which grows towards beta1. */
static double momentum_at(const luda_optim_hyper *h, int64_t step)
{
    return h->beta1 * (1 - 0.5 * pow(0.96, (double)step * h->momentum_decay));
}

/* The product of all momenta so far goes on from the slot's; of a state that was loaded it is made again, in the same order. */
static luda_optim_adam nadam(luda__optim_slot *slot, const luda_optim_update *u)
{
    luda_optim_adam a = adam(u, u->hyper->weight_decay, 0);
    double next = momentum_at(u->hyper, u->step + 1);
    if (slot->momenta_step == 0 || slot->momenta_step > u->step)
        slot->momenta = 1, slot->momenta_step = 0;
    for (; slot->momenta_step < u->step; slot->momenta_step++)
        slot->momenta *= momentum_at(u->hyper, slot->momenta_step + 1);
    a.direct = u->lr * (1 - momentum_at(u->hyper, u->step)) / (1 - slot->momenta);
    a.moment = u->lr * next / (1 - slot->momenta * next);
    return a;
}

/* The variance of the adaptive rate is rectified; the first steps, where it has none, are plain momentum. */
static luda_optim_adam radam(const luda_optim_update *u)
{
    luda_optim_adam a = adam(u, u->hyper->weight_decay, 0);
    double most = 2 / (1 - u->hyper->beta2) - 1;
    double length = most - 2 * (double)u->step * (1 - u->correction[1]) / u->correction[1];
    if (length > 5) {
        a.moment *= sqrt(u->correction[1] * (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
        a.root = 1;
    } else {
        a.root = 0;
        a.eps = 1;
    }
    return a;
}

void luda__optim_factors(int kind, luda__optim_slot *slot, luda_optim_update *u, const luda_optim_update *before)
{
    const double beta[3] = { u->hyper->beta1, u->hyper->beta2, u->hyper->beta3 };
    bool same = before && before->hyper == u->hyper && before->step == u->step;

    for (int i = 0; i < 3; i++)
        u->correction[i] = same ? before->correction[i] : 1 - pow(beta[i], (double)u->step);
    if (same && kind != LUDA_OPTIM_nadam)
        u->adam = before->adam;
    else if (kind == LUDA_OPTIM_nadam)
        u->adam = nadam(slot, u);
    else if (kind == LUDA_OPTIM_radam)
        u->adam = radam(u);
    else if (kind == LUDA_OPTIM_adam)
        u->adam = adam(u, u->hyper->weight_decay, 0);
    else
        u->adam = adam(u, 0, u->hyper->weight_decay);
}
