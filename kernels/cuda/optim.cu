/*
 * Optimizers, sums and norms over lists of arrays: one launch an array. Every rule is the one of kernels/cpu/optimizer/optim.inc for a
 * single element; its constants are made on the host, as there.
 */
#include "scalar.cuh"
#include "team.cuh"

#include "../optim.h"

/* --- Any floating type --- */

template <class C>
__device__ C load_any(const void *data, int dtype, int64_t i)
{
    if (dtype == LUDA_F32)
        return static_cast<C>(static_cast<const float *>(data)[i]);
    if (dtype == LUDA_F64)
        return static_cast<C>(static_cast<const double *>(data)[i]);
    if (dtype == LUDA_BF16)
        return static_cast<C>(load(static_cast<const __nv_bfloat16 *>(data)[i]));
    return static_cast<C>(load(static_cast<const __half *>(data)[i]));
}

template <class C>
__device__ void store_any(void *data, int dtype, int64_t i, C value)
{
    if (dtype == LUDA_F32)
        static_cast<float *>(data)[i] = to<float>(value);
    else if (dtype == LUDA_F64)
        static_cast<double *>(data)[i] = to<double>(value);
    else if (dtype == LUDA_BF16)
        static_cast<__nv_bfloat16 *>(data)[i] = to<__nv_bfloat16>(value);
    else
        static_cast<__half *>(data)[i] = to<__half>(value);
}

/* NaN stays. */
template <class C>
__device__ C clamp(C x, C limit)
{
    x = x > limit ? limit : x;
    return x < -limit ? -limit : x;
}

static luda_status done(const char *what, char *message)
{
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        return LUDA_OK;
    snprintf(message, 256, "%s: %s", what, cudaGetErrorString(error));
    return LUDA_ECUDA;
}

static luda_cuda_stream *select(void *stream, const char *what, char *message)
{
    luda_cuda_stream *s = static_cast<luda_cuda_stream *>(stream);
    if (s && cudaSetDevice(s->device) == cudaSuccess)
        return s;
    snprintf(message, 256, "%s: there is no stream", what);
    return NULL;
}

/* --- squares --- */

static const int64_t PIECES = 64;

/* partial[blockIdx.x] = sum of (scale x)^2 over every gridDim.x-th block of elements. */
__global__ void square_pieces(int64_t n, const void *data, int dtype, double scale, double *partial)
{
    __shared__ double sums[BLOCK];
    const tile t = { BLOCK, 1, false };
    double sum = 0;
    for (int64_t i = first_element(); i < n; i += step()) {
        double x = scale * load_any<double>(data, dtype, i);
        sum += x * x;
    }
    sum = combine_lanes(t, sums, sum, add_up<double>());
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

static int pieces_of(const luda_optim_array *a)
{
    int64_t blocks = (a->span.numel + 16 * BLOCK - 1) / (16 * BLOCK);
    return static_cast<int>(blocks < PIECES ? blocks : PIECES);
}

static luda_status squares_in(luda_cuda_stream *s, const luda_optim_array *arrays, int count, double scale, double *sums,
                              char *message)
{
    size_t bytes = static_cast<size_t>(count) * PIECES * sizeof(double);
    double *partial = static_cast<double *>(luda__cuda_scratch(s, bytes)), *host = static_cast<double *>(malloc(bytes));
    luda_status status = LUDA_OK;
    if (!partial || !host) {
        snprintf(message, 256, "norm: no memory for %zu bytes of partial sums", bytes);
        status = LUDA_ENOMEM;
    }
    for (int i = 0; i < count && status == LUDA_OK; i++) {
        if (arrays[i].span.numel == 0)
            continue;
        LUDA_LAUNCH(square_pieces, static_cast<unsigned>(pieces_of(&arrays[i])), BLOCK, 0, s->stream, arrays[i].span.numel,
                    arrays[i].data, static_cast<int>(arrays[i].dtype), scale, partial + static_cast<int64_t>(i) * PIECES);
        status = done("norm", message);
    }
    if (status == LUDA_OK) {
        cudaMemcpyAsync(host, partial, bytes, cudaMemcpyDeviceToHost, s->stream);
        cudaStreamSynchronize(s->stream);
        status = done("norm", message);
    }
    for (int i = 0; i < count && status == LUDA_OK; i++) {
        sums[i] = 0;
        for (int p = 0; p < pieces_of(&arrays[i]); p++)
            sums[i] += host[static_cast<int64_t>(i) * PIECES + p];
    }
    free(host);
    return status;
}

static luda_status squares(const luda_optim_array *arrays, int count, double scale, double *sums, void *stream, char *message)
{
    luda_cuda_stream *s = select(stream, "norm", message);
    if (!s)
        return LUDA_ECUDA;
    if (count == 0)
        return LUDA_OK;
    pthread_mutex_lock(&s->lock);
    luda_status status = squares_in(s, arrays, count, scale, sums, message);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* --- sum --- */

template <class C>
__global__ void add_scaled(int64_t n, void *target, int target_dtype, const void *source, int source_dtype, C alpha, C beta, C limit)
{
    for (int64_t i = first_element(); i < n; i += step()) {
        C y = alpha * load_any<C>(source, source_dtype, i);
        if (beta != 0)
            y = beta * load_any<C>(target, target_dtype, i) + y;
        store_any(target, target_dtype, i, clamp(y, limit));
    }
}

template <class C>
static void launch_sum(const luda_optim_sum *s, cudaStream_t stream)
{
    LUDA_LAUNCH((add_scaled<C>), blocks_for(s->span.numel), BLOCK, 0, stream, s->span.numel, s->target,
                static_cast<int>(s->target_dtype), s->source, static_cast<int>(s->source_dtype), static_cast<C>(s->alpha),
                static_cast<C>(s->beta), static_cast<C>(s->limit));
}

static luda_status sum(const luda_optim_sum *sums, int count, void *stream, char *message)
{
    luda_cuda_stream *s = select(stream, "sum", message);
    luda_status status = s ? LUDA_OK : LUDA_ECUDA;
    for (int i = 0; i < count && status == LUDA_OK; i++) {
        if (sums[i].span.numel == 0)
            continue;
        if (sums[i].target_dtype == LUDA_F64 || sums[i].source_dtype == LUDA_F64)
            launch_sum<double>(&sums[i], s->stream);
        else
            launch_sum<float>(&sums[i], s->stream);
        status = done("sum", message);
    }
    return status;
}

/* --- Rules --- */

template <class C>
struct states {
    C *of[LUDA_OPTIM_STATES];
};

template <class C>
struct rule_sgd {
    C lr, decay, momentum, fresh, kept;
    bool nesterov;

    explicit rule_sgd(const luda_optim_update *u)
    {
        const luda_optim_hyper *h = u->hyper;
        lr = static_cast<C>(u->lr);
        decay = static_cast<C>(h->weight_decay);
        momentum = static_cast<C>(h->momentum);
        fresh = static_cast<C>(u->step == 1 ? 1 : 1 - h->dampening); /* the first momentum is the gradient itself */
        kept = u->step == 1 ? 0 : momentum;
        nesterov = h->nesterov != 0;
    }
    __device__ C operator()(C p, C g, const states<C> &s, int64_t i) const
    {
        C d = decay != 0 ? g + decay * p : g;
        if (!s.of[0])
            return p - lr * d;
        C m = s.of[0][i] = fresh * d + kept * s.of[0][i];
        return p - lr * (nesterov ? d + momentum * m : m);
    }
};

template <class C>
struct rule_adam {
    C b1, b2, r1, r2, l2, keep, moment, direct, root, eps;
    bool cautious;

    explicit rule_adam(const luda_optim_update *u)
    {
        const luda_optim_hyper *h = u->hyper;
        const luda_optim_adam *a = &u->adam;
        b1 = static_cast<C>(h->beta1);
        b2 = static_cast<C>(h->beta2);
        r1 = static_cast<C>(1 - h->beta1);
        r2 = static_cast<C>(1 - h->beta2);
        l2 = static_cast<C>(a->l2);
        keep = static_cast<C>(a->keep);
        moment = static_cast<C>(a->moment);
        direct = static_cast<C>(a->direct);
        root = static_cast<C>(a->root);
        eps = static_cast<C>(a->eps);
        cautious = h->cautious != 0;
    }
    __device__ C operator()(C p, C g, const states<C> &s, int64_t i) const
    {
        C d = l2 != 0 ? g + l2 * p : g;
        C first = s.of[0][i] = b1 * s.of[0][i] + r1 * d;
        C second = s.of[1][i] = b2 * s.of[1][i] + r2 * d * d;
        if (s.of[2])
            second = s.of[2][i] = s.of[2][i] > second ? s.of[2][i] : second;
        p *= cautious && (p >= 0) != (first >= 0) ? C(1) : keep;
        return p - (moment * first + direct * d) / (sqrt(second) * root + eps);
    }
};

template <class C>
struct rule_adamax {
    C b1, b2, r1, eps, decay, rate;

    explicit rule_adamax(const luda_optim_update *u)
    {
        const luda_optim_hyper *h = u->hyper;
        b1 = static_cast<C>(h->beta1);
        b2 = static_cast<C>(h->beta2);
        r1 = static_cast<C>(1 - h->beta1);
        eps = static_cast<C>(h->eps);
        decay = static_cast<C>(h->weight_decay);
        rate = static_cast<C>(u->lr / u->correction[0]);
    }
    __device__ C operator()(C p, C g, const states<C> &s, int64_t i) const
    {
        C d = decay != 0 ? g + decay * p : g;
        C first = s.of[0][i] = b1 * s.of[0][i] + r1 * d;
        C size = (d < 0 ? -d : d) + eps, faded = b2 * s.of[1][i];
        size = s.of[1][i] = faded > size ? faded : size;
        return p - rate * first / size;
    }
};

template <class C>
struct rule_lion {
    C b1, b2, r1, r2, lr, keep;

    explicit rule_lion(const luda_optim_update *u)
    {
        const luda_optim_hyper *h = u->hyper;
        b1 = static_cast<C>(h->beta1);
        b2 = static_cast<C>(h->beta2);
        r1 = static_cast<C>(1 - h->beta1);
        r2 = static_cast<C>(1 - h->beta2);
        lr = static_cast<C>(u->lr);
        keep = static_cast<C>(1 - u->lr * h->weight_decay);
    }
    __device__ C operator()(C p, C g, const states<C> &s, int64_t i) const
    {
        C look = b1 * s.of[0][i] + r1 * g;
        s.of[0][i] = b2 * s.of[0][i] + r2 * g;
        return p * keep - (look > 0 ? lr : look < 0 ? -lr : C(0));
    }
};

template <class C>
struct rule_adadelta {
    C rho, rest, eps, decay, lr;

    explicit rule_adadelta(const luda_optim_update *u)
    {
        const luda_optim_hyper *h = u->hyper;
        rho = static_cast<C>(h->rho);
        rest = static_cast<C>(1 - h->rho);
        eps = static_cast<C>(h->eps);
        decay = static_cast<C>(h->weight_decay);
        lr = static_cast<C>(u->lr);
    }
    __device__ C operator()(C p, C g, const states<C> &s, int64_t i) const
    {
        C d = decay != 0 ? g + decay * p : g;
        C square = s.of[0][i] = rho * s.of[0][i] + rest * d * d;
        C delta = sqrt(s.of[1][i] + eps) / sqrt(square + eps) * d;
        s.of[1][i] = rho * s.of[1][i] + rest * delta * delta;
        return p - lr * delta;
    }
};

template <class C>
struct rule_adagrad {
    C decay, eps, rate;

    explicit rule_adagrad(const luda_optim_update *u)
    {
        decay = static_cast<C>(u->hyper->weight_decay);
        eps = static_cast<C>(u->hyper->eps);
        rate = static_cast<C>(u->lr / (1 + static_cast<double>(u->step - 1) * u->hyper->lr_decay));
    }
    __device__ C operator()(C p, C g, const states<C> &s, int64_t i) const
    {
        C d = decay != 0 ? g + decay * p : g;
        C total = s.of[0][i] = s.of[0][i] + d * d;
        return p - rate * d / (sqrt(total) + eps);
    }
};

template <class C>
struct rule_rmsprop {
    C decay, eps, lr, a, r, mu;

    explicit rule_rmsprop(const luda_optim_update *u)
    {
        const luda_optim_hyper *h = u->hyper;
        decay = static_cast<C>(h->weight_decay);
        eps = static_cast<C>(h->eps);
        lr = static_cast<C>(u->lr);
        a = static_cast<C>(h->alpha);
        r = static_cast<C>(1 - h->alpha);
        mu = static_cast<C>(h->momentum);
    }
    __device__ C operator()(C p, C g, const states<C> &s, int64_t i) const
    {
        C d = decay != 0 ? g + decay * p : g;
        C square = s.of[0][i] = a * s.of[0][i] + r * d * d;
        if (s.of[2]) {
            C center = s.of[2][i] = a * s.of[2][i] + r * d;
            square -= center * center;
            square = square > 0 ? square : 0; /* rounding may take the variance of a constant gradient below zero */
        }
        C step = d / (sqrt(square) + eps);
        if (s.of[1])
            step = s.of[1][i] = step + mu * s.of[1][i];
        return p - lr * step;
    }
};

template <class C>
struct rule_adan {
    C b1, b2, b3, eps, lr, r1, r2, r3, scale1, scale2, root, before, after;
    bool first;

    explicit rule_adan(const luda_optim_update *u)
    {
        const luda_optim_hyper *h = u->hyper;
        double decay = u->lr * h->weight_decay;
        b1 = static_cast<C>(h->beta1);
        b2 = static_cast<C>(h->beta2);
        b3 = static_cast<C>(h->beta3);
        eps = static_cast<C>(h->eps);
        lr = static_cast<C>(u->lr);
        r1 = static_cast<C>(1 - h->beta1);
        r2 = static_cast<C>(1 - h->beta2);
        r3 = static_cast<C>(1 - h->beta3);
        scale1 = static_cast<C>(1 / u->correction[0]);
        scale2 = static_cast<C>(h->beta2 / u->correction[1]);
        root = static_cast<C>(1 / sqrt(u->correction[2]));
        before = static_cast<C>(h->no_prox != 0 ? 1 - decay : 1);
        after = static_cast<C>(h->no_prox != 0 ? 1 : 1 / (1 + decay));
        first = u->step == 1;
    }
    __device__ C operator()(C p, C g, const states<C> &s, int64_t i) const
    {
        C change = first ? C(0) : g - s.of[3][i];
        C mean = s.of[0][i] = b1 * s.of[0][i] + r1 * g;
        C slope = s.of[1][i] = b2 * s.of[1][i] + r2 * change;
        C look = g + b2 * change;
        C size = s.of[2][i] = b3 * s.of[2][i] + r3 * look * look;
        s.of[3][i] = g;
        return (p * before - lr * (scale1 * mean + scale2 * slope) / (sqrt(size) * root + eps)) * after;
    }
};

/* --- Steps --- */

template <class C>
struct update {
    int dtype, image_dtype, gradient_dtype;
    C factor, limit;
    states<C> state;
};

template <class RULE, class C>
__global__ void apply_rule(int64_t n, update<C> u, RULE rule, void *value, void *image, const void *gradient)
{
    for (int64_t i = first_element(); i < n; i += step()) {
        C g = clamp(u.factor * load_any<C>(gradient, u.gradient_dtype, i), u.limit);
        C p = rule(load_any<C>(value, u.dtype, i), g, u.state, i);
        store_any(value, u.dtype, i, p);
        if (image)
            store_any(image, u.image_dtype, i, p);
    }
}

template <class RULE, class C>
static void launch_rule(const luda_optim_update *u, cudaStream_t stream)
{
    update<C> w = { u->dtype, u->image_dtype, u->gradient_dtype, static_cast<C>(u->factor), static_cast<C>(u->limit), {} };
    for (int i = 0; i < LUDA_OPTIM_STATES; i++)
        w.state.of[i] = static_cast<C *>(u->state[i]);
    LUDA_LAUNCH((apply_rule<RULE, C>), blocks_for(u->span.numel), BLOCK, 0, stream, u->span.numel, w, RULE(u), u->value,
                u->image, u->gradient);
}

template <template <class> class RULE>
static luda_status step_all(const luda_optim_update *updates, int count, void *stream, char *message)
{
    luda_cuda_stream *s = select(stream, "optim", message);
    luda_status status = s ? LUDA_OK : LUDA_ECUDA;
    for (int i = 0; i < count && status == LUDA_OK; i++) {
        if (updates[i].span.numel == 0)
            continue;
        if (updates[i].dtype == LUDA_F64)
            launch_rule<RULE<double>, double>(&updates[i], s->stream);
        else
            launch_rule<RULE<float>, float>(&updates[i], s->stream);
        status = done("optim", message);
    }
    return status;
}

static luda_status step_rule(int kind, const luda_optim_update *updates, int count, void *stream, char *message)
{
    /* ORDER optim: one entry for each row. */
    static luda_status (*const loops[])(const luda_optim_update *, int, void *, char *) = {
#define LUDA_OPTIM(name, loop, ...) step_all<rule_##loop>,
#include "../optim.def"
    };
    return loops[kind](updates, count, stream, message);
}

const luda_optim_kernels luda_optim_kernels_cuda = { squares, sum, step_rule };
