/* Gradient descent with momentum in `step`, and one peculiarity by flag: STEP_FAILS in the third step, STATES of them
 * instead of one, WHOLE parameters wanted, STATES_SAID beyond n_states, SCRATCH bytes of memory, products of matrices
 * in it, a GROUP for all, and SHAPED: a second state of that kind, of matrices, in int32, whose numbers say whose they
 * are and of which step; a RATE or a DECAY whatever the options say. */
#include <math.h>
#include <stddef.h>

#include "heddle/optimizer.h"

struct settings {
    double lr;
};

static const struct hd_option options[] = {{.name = "lr",
                                            .value = "1e-2",
                                            .help = "learning rate",
                                            .type = HD_OPT_FLOAT,
                                            .offset = offsetof(struct settings, lr)}};

static const char *const names[] = {"a", "b", "c", "d"};

static double learning_rate(const void *settings)
{
#ifdef RATE
    (void)settings;
    return RATE;
#else
    return ((const struct settings *)settings)->lr;
#endif
}

#ifdef DECAY
static double decay(const void *settings, const char *name, uint32_t ndim)
{
    (void)settings, (void)name;
    return ndim > 1 ? DECAY : 0;
}
#endif

#ifndef STATES
#define STATES 1
#endif
#ifdef WHOLE
#define CAPS 0
#else
#define CAPS HD_OPTIM_FLAT
#endif
#ifndef SCRATCH
#define SCRATCH 0
#endif

static uint64_t scratch(const void *settings, const struct hd_optim_param *param)
{
    (void)settings;
    return param->count > 0 ? SCRATCH : 0;
}

#ifdef GROUP
static uint32_t group(const void *settings, const struct hd_optim_param *param)
{
    (void)settings;
    (void)param;
    return GROUP;
}
#endif

/* In the order in which they lie, each with elements in this call; with WHOLE none is cut. */
static int32_t check_params(const struct hd_optim_args *a)
{
    int64_t end = 0;
    for (uint64_t i = 0; i < a->n_params; i++) {
        const struct hd_optim_param *p = &a->params[i];
        int cut = p->first < a->first || p->first + p->count > a->first + a->count;
        if (p->first < end || p->first >= a->first + a->count || p->first + p->count <= a->first)
            return hd_fail(a->err, HD_E_INTERNAL, "%s is no parameter of this call", p->name);
        if (cut && !(CAPS & HD_OPTIM_FLAT))
            return hd_fail(a->err, HD_E_INTERNAL, "%s is cut", p->name);
        if (p->rows && p->count % (p->rows * p->cols))
            return hd_fail(a->err, HD_E_INTERNAL, "%s is no matrix of %lld by %lld", p->name, (long long)p->rows,
                           (long long)p->cols);
        end = p->first + p->count;
    }
    return HD_OK;
}

static void fill(void *user, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        ((float *)user)[i] = (float)(i % 7) - 3;
}

/* a [3 5] times its transpose, in the scratch memory; what is no product is refused. */
static int32_t multiply(const struct hd_optim_args *a)
{
    float *x = a->scratch;
    struct hd_error err = HD_ERROR_INIT;
    const struct hd_optim_matrix left = {x, 5, 1}, right = {x, 1, 5}, apart = {x, 5, 2}, to = {x + 16, 3, 1};
    const struct hd_optim_host *h = a->host;
    if (!x || (uintptr_t)x % 64)
        return hd_fail(a->err, HD_E_INTERNAL, "scratch memory is at %p", a->scratch);
    h->parallel(h->context, SCRATCH / 4, fill, x);
    if (h->product(h->context, HD_F32, 3, 3, 5, &left, &right, &to, a->err))
        return a->err->code;
    for (int i = 0; i < 9; i++) {
        float sum = 0;
        for (int k = 0; k < 5; k++)
            sum += x[i / 3 * 5 + k] * x[i % 3 * 5 + k];
        if (x[16 + i] != sum)
            return hd_fail(a->err, HD_E_INTERNAL, "element %d of a product is %g, not %g", i, (double)x[16 + i],
                           (double)sum);
    }
    if (h->product(h->context, HD_F16, 3, 3, 5, &left, &right, &to, &err) != HD_E_INVALID ||
        h->product(h->context, HD_F32, 3, 3, 5, &apart, &right, &to, &err) != HD_E_INVALID)
        return hd_fail(a->err, HD_E_INTERNAL, "a wrong product is no error");
    return HD_OK;
}

#ifdef SHAPED
#ifndef BLOCK
#define BLOCK 16
#endif

static uint32_t matrices_apart(const void *settings, const struct hd_optim_param *param)
{
    (void)settings;
    return param->rows ? 1 : 0;
}

static uint32_t group_states(const void *settings, uint32_t group)
{
    (void)settings;
    return STATES + (group == 1);
}

static void shape(const void *settings, uint32_t group, uint32_t state, struct hd_optim_state *out)
{
    (void)settings;
    if (group != 1 || state != STATES)
        return;
    *out = (struct hd_optim_state){sizeof *out, SHAPED, HD_I32, BLOCK};
}

static int32_t count_steps(const struct hd_optim_args *a)
{
    int32_t t = (int32_t)a->hyper[HD_HYPER_STEP];
    for (uint64_t i = 0; i < a->n_params; i++) {
        const struct hd_optim_param *p = &a->params[i];
        int64_t n = SHAPED == HD_STATE_ONE ? 1 : SHAPED == HD_STATE_ROW ? p->rows : p->cols * p->cols;
        int32_t *x = (int32_t *)(void *)a->state[STATES] + p->state[STATES], hash = 0;
        for (const char *c = p->name; *c; c++)
            hash = (hash * 31 + *c) % 65536;
        for (int64_t k = 0; k < n && p->group == 1; k++) {
            int32_t is = (int32_t)((hash + k) % 65536) * 1024;
            if (x[k] != (t > 1 ? is + t - 1 : 0))
                return hd_fail(a->err, HD_E_INTERNAL, "number %lld of %s is %d in step %d", (long long)k, p->name, x[k],
                               t);
            x[k] = is + t;
        }
    }
    return HD_OK;
}
#endif

#ifdef EMIT
static int32_t emit(const void *settings, uint32_t *op, struct hd_attrs *attrs, struct hd_error *err)
{
    (void)settings;
    (void)attrs;
    (void)err;
    *op = HD_OP_SGD;
    return HD_OK;
}
#endif

/* The update uses the mean of all states, which are equal: with any number of them it trains the same. */
static int32_t step(const void *settings, const struct hd_optim_args *a)
{
    (void)settings;
    int32_t rc = check_params(a);
    if (rc || (SCRATCH && a->n_params && (rc = multiply(a))))
        return rc;
#ifdef SHAPED
    if ((rc = count_steps(a)))
        return rc;
#endif
#ifdef STEP_FAILS
    if (a->hyper[HD_HYPER_STEP] == 3)
        return hd_fail(a->err, HD_E_UNSUPPORTED, "the factors of step 3 do not converge");
#endif
    for (int64_t i = 0; i < a->count; i++) {
        double mean = 0;
        for (int s = 0; s < STATES; s++) {
            a->state[s][i] = 0.5f * a->state[s][i] + a->grad[i];
            mean += a->state[s][i] / STATES;
        }
        a->param[i] -= (float)(a->hyper[HD_HYPER_LR] * mean);
    }
    return HD_OK;
}

#ifdef STATES_SAID
static uint32_t states(const void *settings)
{
    (void)settings;
    return STATES_SAID;
}
#endif

static const struct hd_optimizer_ops ops = {.struct_size = sizeof ops,
                                            .caps = CAPS,
#ifdef SHAPED
                                            .n_states = STATES + 1,
                                            .group = matrices_apart,
                                            .group_states = group_states,
                                            .state = shape,
#else
                                            .n_states = STATES,
#endif
#ifdef EMIT
                                            .emit = emit,
#endif
                                            .state_names = names,
                                            .step = step,
#ifdef STATES_SAID
                                            .states = states,
#endif
#ifdef GROUP
                                            .group = group,
#endif
                                            .scratch = SCRATCH ? scratch : NULL,
#ifdef DECAY
                                            .decay = decay,
#endif
                                            .learning_rate = learning_rate};

HD_PLUGIN("optim-" NAME, "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = NAME, .summary = "for a test",
          HD_OPTIONS(options, struct settings), .ops = &ops)
