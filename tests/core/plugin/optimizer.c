/* Gradient descent with momentum in `step`, and one peculiarity by flag: STEP_FAILS in the third step, STATES of them
 * instead of one, WHOLE parameters wanted, STATES_SAID beyond n_states, SCRATCH bytes of memory, products of matrices
 * in it, a GROUP for all. */
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
    return ((const struct settings *)settings)->lr;
}

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

/* The update uses the mean of all states, which are equal: with any number of them it trains the same. */
static int32_t step(const void *settings, const struct hd_optim_args *a)
{
    (void)settings;
    int32_t rc = check_params(a);
    if (rc || (SCRATCH && a->n_params && (rc = multiply(a))))
        return rc;
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
                                            .n_states = STATES,
                                            .state_names = names,
                                            .step = step,
#ifdef STATES_SAID
                                            .states = states,
#endif
#ifdef GROUP
                                            .group = group,
#endif
                                            .scratch = SCRATCH ? scratch : NULL,
                                            .learning_rate = learning_rate};

HD_PLUGIN("optim-" NAME, "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = NAME, .summary = "for a test",
          HD_OPTIONS(options, struct settings), .ops = &ops)
