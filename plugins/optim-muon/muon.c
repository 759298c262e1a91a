/* Muon as torch.optim.Muon (Jordan et al. 2024; Liu et al., arXiv 2502.16982) for the matrices of hidden layers, AdamW
 * as optim-adamw for the rest: embeddings, the head, vectors. Matrices are updated as a whole, by Newton-Schulz
 * iterations on the device's products; what AdamW updates may be cut anywhere. */
#include <math.h>

#include "heddle/optimizer.h"

enum { GROUP_ADAMW = 0, GROUP_MUON = 1 };
enum { DECAY_MATRICES = 0, DECAY_ALL = 1 };
enum { ADJUST_ORIGINAL = 0, ADJUST_MATCH_RMS_ADAMW = 1 };
enum { NS_FP32 = 0, NS_BF16 = 1 };

struct muon_settings {
    double lr, adamw_lr, momentum, weight_decay, eps, adamw_eps, clip;
    struct hd_list coefficients, betas;
    int64_t ns_steps;
    int32_t nesterov, adjust, dtype, decay;
};

#define OFFSET(field) .offset = offsetof(struct muon_settings, field)
#define NUMBER(name_, field, value_, most, ...)                                                     \
    {                                                                                               \
        .name = name_, .value = value_, .type = HD_OPT_FLOAT, .min = 0, .max = most, OFFSET(field), \
        .flags = HD_OPTION_GLOBAL, __VA_ARGS__                                                      \
    }

static const struct hd_option options[] = {
    NUMBER("lr", lr, "1e-3", 1e6, .aliases = "learning_rate",
           .help = "peak learning rate of the hidden matrices; the "
                   "schedule section shapes it"),
    NUMBER("adamw_lr", adamw_lr, "3e-4", 1e6, .help = "peak learning rate of the rest, shaped alike"),
    NUMBER("momentum", momentum, "0.95", 1, .help = "decay rate of the mean of a matrix's gradient"),
    {.name = "nesterov",
     .value = "true",
     .type = HD_OPT_BOOL,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(nesterov),
     .help = "Nesterov momentum"},
    {.name = "ns_steps",
     .value = "5",
     .type = HD_OPT_INT,
     .min = 1,
     .max = 99,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(ns_steps),
     .help = "Newton-Schulz iterations"},
    {.name = "ns_coefficients",
     .value = "[3.4445, -4.775, 2.0315]",
     .type = HD_OPT_LIST,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(coefficients),
     .help = "a, b, c of an iteration: X becomes a X + b (X X') X + c (X X')^2 X"},
    {.name = "ns_dtype",
     .value = "fp32",
     .type = HD_OPT_ENUM,
     .choices = "fp32|bf16",
     .flags = HD_OPTION_GLOBAL,
     OFFSET(dtype),
     .help = "of the iterations; PyTorch has bf16 alone"},
    {.name = "adjust_lr",
     .aliases = "adjust_lr_fn",
     .value = "original",
     .type = HD_OPT_ENUM,
     .choices = "original|match_rms_adamw",
     .flags = HD_OPTION_GLOBAL,
     OFFSET(adjust),
     .help = "the factor of lr for a matrix of r rows and c columns: original: the root of max(1, r / c); "
             "match_rms_adamw: 0.2 times the root of max(r, c)"},
    NUMBER("eps", eps, "1e-7", 1, .help = "least norm that a matrix is divided by before the iterations"),
    NUMBER("weight_decay", weight_decay, "0.1", 1e3,
           .help = "decoupled: parameters shrink by their learning rate times this"),
    {.name = "decay",
     .value = "matrices",
     .type = HD_OPT_ENUM,
     .choices = "matrices|all",
     .flags = HD_OPTION_GLOBAL,
     OFFSET(decay),
     .help = "what decays: tensors of two dimensions or more, or all"},
    {.name = "betas",
     .aliases = "adamw_betas",
     .value = "[0.9, 0.95]",
     .type = HD_OPT_LIST,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(betas),
     .help = "AdamW's decay rates of the means of the gradient and of its square, each from 0 up to but not 1"},
    NUMBER("adamw_eps", adamw_eps, "1e-8", 1, .help = "AdamW's: added to the root of the second mean"),
    NUMBER("clip", clip, "0", 1e30, .aliases = "grad_clip|max_grad_norm|gradient_clipping|clip_grad",
           .help = "largest global gradient norm, 0 for no clipping"),
};

static const char *const state_names[] = {"exp_avg", "exp_avg_sq"};

/* ---- [control] */

static int32_t check_numbers(const struct hd_list *list, const char *key, uint64_t n, double least, double end,
                             struct hd_error *err)
{
    if (list->count != n)
        return hd_fail(err, HD_E_INVALID, "optimizer.%s has %llu number%s, Muon needs %llu", key,
                       (unsigned long long)list->count, list->count == 1 ? "" : "s", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++)
        if (!(list->number[i] >= least && list->number[i] < end)) /* NaN too */
            return hd_fail(err, HD_E_INVALID, "optimizer.%s: '%s' is not a number from %g up to but not %g", key,
                           list->text[i], least, end);
    return HD_OK;
}

static int32_t muon_check(const void *settings, struct hd_error *err)
{
    const struct muon_settings *s = settings;
    int32_t rc = check_numbers(&s->betas, "betas", 2, 0, 1, err);
    if (!rc)
        rc = check_numbers(&s->coefficients, "ns_coefficients", 3, -1e3, 1e3, err);
    if (!rc && s->momentum >= 1)
        rc = hd_fail(err, HD_E_INVALID, "optimizer.momentum is 1: the mean would never move; use 0.95");
    if (!rc && !(s->lr > 0))
        rc = hd_fail(err, HD_E_INVALID,
                     "optimizer.lr is 0: adamw_lr is shaped as lr is, so lr has to be above 0; to freeze the hidden "
                     "matrices use a tiny one");
    return rc;
}

static double muon_decay(const void *settings, const char *param, uint32_t ndim)
{
    const struct muon_settings *s = settings;
    (void)param;
    return s->decay == DECAY_ALL || ndim >= 2 ? s->weight_decay : 0.0;
}

static uint32_t muon_group(const void *settings, const struct hd_optim_param *param)
{
    (void)settings;
    return param->rows && !(param->flags & (HD_OPTIM_EMBEDDING | HD_OPTIM_HEAD)) ? GROUP_MUON
                                                                                 : GROUP_ADAMW | HD_OPTIM_CUT;
}

static uint32_t muon_group_states(const void *settings, uint32_t group)
{
    (void)settings;
    return group == GROUP_MUON ? 1 : 2;
}

static double muon_learning_rate(const void *settings)
{
    return ((const struct muon_settings *)settings)->lr;
}

static double muon_clip(const void *settings)
{
    return ((const struct muon_settings *)settings)->clip;
}

/* The iterations' matrix is m by n, m <= n: X, the product and two squares of m by m. */
static int64_t short_side(const struct hd_optim_param *p)
{
    return p->rows < p->cols ? p->rows : p->cols;
}

static uint64_t muon_scratch(const void *settings, const struct hd_optim_param *param)
{
    uint64_t m = (uint64_t)short_side(param);
    (void)settings;
    return param->group == GROUP_MUON ? 2 * ((uint64_t)(param->rows * param->cols) + m * m) * sizeof(float) : 0;
}

static double muon_flops(const void *settings, const struct hd_optim_param *param)
{
    const struct muon_settings *s = settings;
    double m = (double)short_side(param);
    double long_side = (double)(param->rows + param->cols) - m;
    if (param->group != GROUP_MUON)
        return 0;
    /* (X X'), its square, and that times X: of every matrix that the parameter holds */
    return (double)s->ns_steps * (double)param->count * (4 + 2 * m / long_side) * m;
}

/* ---- [progress] AdamW: elements [first, first + count) of the call, all with one decay */

struct adamw {
    const struct muon_settings *s;
    const struct hd_optim_args *a;
    int64_t at;
    double decay, scale;
};

static void adamw_range(void *user, int64_t first, int64_t last)
{
    const struct adamw *x = user;
    const struct muon_settings *s = x->s;
    const struct hd_optim_args *a = x->a;
    double lr = a->hyper[HD_HYPER_LR] * (s->adamw_lr / s->lr), t = a->hyper[HD_HYPER_STEP];
    double b1 = s->betas.number[0], b2 = s->betas.number[1];
    double rate = lr / (1 - pow(b1, t)), root = sqrt(1 - pow(b2, t));
    for (int64_t i = x->at + first; i < x->at + last; i++) {
        double g = a->grad[i] * x->scale;
        double m = b1 * a->state[0][i] + (1 - b1) * g;
        double v = b2 * a->state[1][i] + (1 - b2) * g * g;
        double p = a->param[i] * (1 - lr * x->decay);
        a->param[i] = (float)(p - rate * m / (sqrt(v) / root + s->adamw_eps));
        a->state[0][i] = (float)m;
        a->state[1][i] = (float)v;
    }
}

/* The part of the parameter that lies in this call. */
static void update_elements(const struct muon_settings *s, const struct hd_optim_args *a,
                            const struct hd_optim_param *p, double scale)
{
    struct adamw x = {.s = s, .a = a, .scale = scale};
    int64_t at = p->first > a->first ? p->first - a->first : 0, end = p->first + p->count - a->first;
    end = end < a->count ? end : a->count;
    while (at < end) {
        int64_t n = hd_decay_run(a, at, &x.decay);
        n = n < end - at ? n : end - at;
        x.at = at;
        a->host->parallel(a->host->context, n, adamw_range, &x);
        at += n;
    }
}

/* ---- [progress] Muon: one matrix, in the iterations m by n with m <= n */

struct muon {
    const struct muon_settings *s;
    const struct hd_optim_host *host;
    const float *grad;
    float *mean, *param;
    int64_t rows, cols, m, n;
    double scale, norm, rate, keep; /* rate: of the update; keep: what weight decay leaves */
    float *product;                 /* [m n] or [m m] */
    void *x, *gram, *square;        /* [m n], [m m], [m m], in the dtype of the iterations */
};

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float load(const struct muon *w, const void *from, int64_t i)
{
    uint32_t bits;
    float x;
    if (w->s->dtype == NS_FP32)
        return ((const float *)from)[i];
    bits = (uint32_t)((const uint16_t *)from)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void store(const struct muon *w, void *to, int64_t i, double x)
{
    if (w->s->dtype == NS_FP32)
        ((float *)to)[i] = (float)x;
    else
        ((uint16_t *)to)[i] = bf16_of((float)x);
}

/* The place of element (i, j) of the iterations' matrix in the parameter. */
static int64_t place(const struct muon *w, int64_t i, int64_t j)
{
    return w->rows > w->cols ? j * w->m + i : i * w->n + j;
}

/* The mean of the gradient, and x of it; rows of x. */
static void average(void *user, int64_t first, int64_t last)
{
    const struct muon *w = user;
    const double momentum = w->s->momentum;
    for (int64_t i = first; i < last; i++)
        for (int64_t j = 0; j < w->n; j++) {
            int64_t at = place(w, i, j);
            double g = w->grad[at] * w->scale, mean = w->mean[at] + (g - w->mean[at]) * (1 - momentum);
            w->mean[at] = (float)mean;
            store(w, w->x, i * w->n + j, w->s->nesterov ? g + momentum * (mean - g) : mean);
        }
}

static void normalise(void *user, int64_t first, int64_t last)
{
    const struct muon *w = user;
    for (int64_t i = first * w->n; i < last * w->n; i++)
        store(w, w->x, i, load(w, w->x, i) / w->norm);
}

static void keep_gram(void *user, int64_t first, int64_t last)
{
    const struct muon *w = user;
    for (int64_t i = first * w->m; i < last * w->m; i++)
        store(w, w->gram, i, w->product[i]);
}

static void keep_square(void *user, int64_t first, int64_t last)
{
    const struct muon *w = user;
    const double *c = w->s->coefficients.number;
    for (int64_t i = first * w->m; i < last * w->m; i++)
        store(w, w->square, i, c[1] * load(w, w->gram, i) + c[2] * w->product[i]);
}

static void keep_x(void *user, int64_t first, int64_t last)
{
    const struct muon *w = user;
    const double *c = w->s->coefficients.number;
    for (int64_t i = first * w->n; i < last * w->n; i++)
        store(w, w->x, i, c[0] * load(w, w->x, i) + w->product[i]);
}

static void apply(void *user, int64_t first, int64_t last)
{
    const struct muon *w = user;
    for (int64_t i = first; i < last; i++)
        for (int64_t j = 0; j < w->n; j++) {
            float *p = &w->param[place(w, i, j)];
            *p = (float)(*p * w->keep - w->rate * load(w, w->x, i * w->n + j));
        }
}

/* The Frobenius norm of x, at least eps, as PyTorch has it in the iterations' dtype. */
static double norm_of(const struct muon *w)
{
    double sum = 0;
    for (int64_t i = 0; i < w->m * w->n; i++)
        sum += (double)load(w, w->x, i) * load(w, w->x, i);
    sum = sqrt(sum);
    if (w->s->dtype == NS_BF16) {
        uint16_t rounded = bf16_of((float)sum);
        sum = load(w, &rounded, 0);
    }
    return sum > w->s->eps ? sum : w->s->eps;
}

static int32_t multiply(const struct muon *w, const struct hd_optim_matrix *a, const struct hd_optim_matrix *b,
                        int64_t n, int64_t k, struct hd_error *err)
{
    const struct hd_optim_matrix c = {w->product, n, 1};
    return w->host->product(w->host->context, w->s->dtype == NS_BF16 ? HD_BF16 : HD_F32, w->m, n, k, a, b, &c, err);
}

static int32_t iterate(struct muon *w, struct hd_error *err)
{
    const struct hd_optim_matrix x = {w->x, w->n, 1}, across = {w->x, 1, w->n}, gram = {w->gram, w->m, 1},
                                 square = {w->square, w->m, 1};
    void (*parallel)(void *, int64_t, void (*)(void *, int64_t, int64_t), void *) = w->host->parallel;
    int32_t rc = HD_OK;
    for (int64_t step = 0; !rc && step < w->s->ns_steps; step++) {
        if ((rc = multiply(w, &x, &across, w->m, w->n, err)))
            break;
        parallel(w->host->context, w->m, keep_gram, w);
        if ((rc = multiply(w, &gram, &gram, w->m, w->m, err)))
            break;
        parallel(w->host->context, w->m, keep_square, w);
        if ((rc = multiply(w, &square, &x, w->n, w->m, err)))
            break;
        parallel(w->host->context, w->m, keep_x, w);
    }
    return rc;
}

static int32_t update_matrix(struct muon *w, struct hd_error *err)
{
    int32_t rc;
    w->host->parallel(w->host->context, w->m, average, w);
    w->norm = norm_of(w);
    w->host->parallel(w->host->context, w->m, normalise, w);
    if ((rc = iterate(w, err)))
        return rc;
    w->host->parallel(w->host->context, w->m, apply, w);
    return HD_OK;
}

static double adjusted(const struct muon_settings *s, const struct hd_optim_param *p)
{
    double rows = (double)p->rows, cols = (double)p->cols;
    if (s->adjust == ADJUST_MATCH_RMS_ADAMW)
        return 0.2 * sqrt(rows > cols ? rows : cols);
    return sqrt(rows > cols ? rows / cols : 1);
}

static int32_t update_matrices(const struct muon_settings *s, const struct hd_optim_args *a,
                               const struct hd_optim_param *p, double scale)
{
    struct muon w = {.s = s, .host = a->host, .rows = p->rows, .cols = p->cols, .m = short_side(p), .scale = scale};
    int64_t at = p->first - a->first, size = p->rows * p->cols;
    double lr = a->hyper[HD_HYPER_LR], decay;
    int32_t rc = HD_OK;
    if (at < 0 || at + p->count > a->count)
        return hd_fail(a->err, HD_E_UNSUPPORTED, "%s is cut, and Muon updates whole matrices", p->name);
    hd_decay_run(a, at, &decay);
    w.n = size / w.m;
    w.keep = 1 - lr * decay;
    w.rate = lr * adjusted(s, p);
    w.product = a->scratch;
    w.x = w.product + size;
    w.gram = w.product + 2 * size;
    w.square = w.product + 2 * size + w.m * w.m;
    for (int64_t end = at + p->count; !rc && at < end; at += size) { /* experts are several */
        w.grad = a->grad + at;
        w.mean = a->state[0] + at;
        w.param = a->param + at;
        rc = update_matrix(&w, a->err);
    }
    return rc;
}

static int32_t muon_step(const void *settings, const struct hd_optim_args *a)
{
    const struct muon_settings *s = settings;
    double inv_scale = a->hyper[HD_HYPER_INV_SCALE];
    double scale = inv_scale * hd_clip_factor(a->norm2 * inv_scale * inv_scale, s->clip, sqrt);
    int32_t rc = HD_OK;
    if (!hd_update_runs(a->hyper, a->norm2))
        return HD_OK;
    for (uint64_t i = 0; !rc && i < a->n_params; i++)
        if (a->params[i].group == GROUP_MUON)
            rc = update_matrices(s, a, &a->params[i], scale);
        else
            update_elements(s, a, &a->params[i], scale);
    return rc;
}

static const struct hd_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .n_states = 2,
    .state_names = state_names,
    .decay = muon_decay,
    .step = muon_step,
    .learning_rate = muon_learning_rate,
    .clip = muon_clip,
    .check = muon_check,
    .group = muon_group,
    .group_states = muon_group_states,
    .scratch = muon_scratch,
    .flops = muon_flops,
};

HD_PLUGIN("optim-muon", "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "muon",
          .summary = "Muon as PyTorch's for hidden matrices, AdamW for the rest",
          HD_OPTIONS(options, struct muon_settings), .ops = &ops)
