/* Rows of option tables, their checks and plain loops that optimizers share. Define OPTIM_SETTINGS, the type of the
 * settings, before this header is included; rows name its fields. */
#ifndef HD_PLUGINS_COMMON_OPTIM_H
#define HD_PLUGINS_COMMON_OPTIM_H

#include <math.h>

#include "heddle/optimizer.h"

/* A row for a field; what follows it adds to these designators, or overrides them. */
#define OPTIM_OPTION(name_, field, type_, value_, ...)                                            \
    {                                                                                             \
        .name = name_, .offset = offsetof(OPTIM_SETTINGS, field), .type = type_, .value = value_, \
        .flags = HD_OPTION_GLOBAL, __VA_ARGS__                                                    \
    }
#define OPTIM_NUMBER(name_, field, value_, max_, ...) \
    OPTIM_OPTION(name_, field, HD_OPT_FLOAT, value_, .min = 0, .max = max_, __VA_ARGS__)
/* Keeps a divisor from 0: with 0, what has had no gradient yet (a token not seen) would become NaN. */
#define OPTIM_EPS(name_, field, value_, ...) \
    OPTIM_OPTION(name_, field, HD_OPT_FLOAT, value_, .min = 1e-30, .max = 1, __VA_ARGS__)
#define OPTIM_CHOICE(name_, field, choices_, value_, ...) \
    OPTIM_OPTION(name_, field, HD_OPT_ENUM, value_, .choices = choices_, __VA_ARGS__)

/* Rows that most optimizers have, of the fields lr, betas, weight_decay, decay and clip. */
#define OPTIM_LR(value_, ...) OPTIM_NUMBER("lr", lr, value_, 1e6, .aliases = "learning_rate", __VA_ARGS__)
#define OPTIM_SCHEDULED "peak learning rate; the schedule section shapes it"
#define OPTIM_BETAS(value_, ...) OPTIM_OPTION("betas", betas, HD_OPT_LIST, value_, __VA_ARGS__)
#define OPTIM_WEIGHT_DECAY(value_, help_) OPTIM_NUMBER("weight_decay", weight_decay, value_, 1e3, .help = help_)
#define OPTIM_DECOUPLED "decoupled: parameters shrink by lr times this"
#define OPTIM_CLIP(value_)                                                                                     \
    OPTIM_NUMBER("clip", clip, value_, 1e30, .aliases = "grad_clip|max_grad_norm|gradient_clipping|clip_grad", \
                 .help = "largest global gradient norm, 0 for no clipping")
enum { OPTIM_DECAY_MATRICES = 0, OPTIM_DECAY_ALL = 1 };
#define OPTIM_DECAY                                                                      \
    OPTIM_CHOICE("decay", decay, "matrices|all", "matrices", .needs = "weight_decay!=0", \
                 .help = "what decays: tensors of two dimensions or more, or all")

/* Refuses a list that has not n numbers from `least` up to but not `end`; `name`: the optimizer's. */
static inline int32_t optim_check_list(const struct hd_list *list, const char *key, const char *name, uint64_t n,
                                       double least, double end, struct hd_error *err)
{
    if (list->count != n)
        return hd_fail(err, HD_E_INVALID, "optimizer.%s has %llu number%s, %s needs %llu%s", key,
                       (unsigned long long)list->count, list->count == 1 ? "" : "s", name, (unsigned long long)n,
                       list->count == 1 && strchr(list->text[0], ',') ? ": write a list in brackets, [A, B]" : "");
    for (uint64_t i = 0; i < n; i++)
        if (!(list->number[i] >= least && list->number[i] < end)) /* NaN too */
            return hd_fail(err, HD_E_INVALID, "optimizer.%s: '%s' is not a number from %g up to but not %g", key,
                           list->text[i], least, end);
    return HD_OK;
}

/* The factor of a gradient: undoes the loss scale and clips. */
static inline double optim_scale(const struct hd_optim_args *a, double clip)
{
    double inv_scale = a->hyper[HD_HYPER_INV_SCALE];
    return inv_scale * hd_clip_factor(a->norm2 * inv_scale * inv_scale, clip, sqrt);
}

/* The part of a parameter that lies in this call: its begin and its end, counted from the call's first element. */
static inline int64_t optim_begin(const struct hd_optim_args *a, const struct hd_optim_param *p)
{
    return p->first > a->first ? p->first - a->first : 0;
}
static inline int64_t optim_end(const struct hd_optim_args *a, const struct hd_optim_param *p)
{
    int64_t end = p->first + p->count - a->first;
    return end < a->count ? end : a->count;
}

/* AdamW's constants of one step. */
struct optim_adamw {
    double lr, beta1, beta2, eps, scale; /* scale: of the gradient */
    double rate, root;                   /* lr and the root of the second mean, corrected for the bias */
};

static inline struct optim_adamw optim_adamw_begin(const struct hd_optim_args *a, double lr, const double *betas,
                                                   double eps, double scale)
{
    double t = a->hyper[HD_HYPER_STEP];
    return (struct optim_adamw){.lr = lr,
                                .beta1 = betas[0],
                                .beta2 = betas[1],
                                .eps = eps,
                                .scale = scale,
                                .rate = lr / (1 - pow(betas[0], t)),
                                .root = sqrt(1 - pow(betas[1], t))};
}

/* One element, by the rule in heddle/optimizer.h: the means in *m and *v, and the new parameter as the answer. */
static inline double optim_adamw_element(const struct optim_adamw *x, double p, double grad, double decay, double *m,
                                         double *v)
{
    double g = grad * x->scale;
    *m = x->beta1 * *m + (1 - x->beta1) * g;
    *v = x->beta2 * *v + (1 - x->beta2) * g * g;
    return p * (1 - x->lr * decay) - x->rate * *m / (sqrt(*v) / x->root + x->eps);
}

/* Elements [first, last) of the call, all with one decay; the means are fp32 states 0 and 1. */
static inline void optim_adamw_run(const struct optim_adamw *x, const struct hd_optim_args *a, int64_t first,
                                   int64_t last, double decay)
{
    for (int64_t i = first; i < last; i++) {
        double m = a->state[0][i], v = a->state[1][i];
        a->param[i] = (float)optim_adamw_element(x, a->param[i], a->grad[i], decay, &m, &v);
        a->state[0][i] = (float)m;
        a->state[1][i] = (float)v;
    }
}

/* Slots that answer with a field of the settings. */
#define OPTIM_ANSWER(function, field)                     \
    static double function(const void *settings)          \
    {                                                     \
        return ((const OPTIM_SETTINGS *)settings)->field; \
    }
#define OPTIM_ANSWER_DECAY(function)                                               \
    static double function(const void *settings, const char *param, uint32_t ndim) \
    {                                                                              \
        const OPTIM_SETTINGS *s = settings;                                        \
        (void)param;                                                               \
        return s->decay == OPTIM_DECAY_ALL || ndim >= 2 ? s->weight_decay : 0.0;   \
    }

#endif
