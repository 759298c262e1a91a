/* Muon as torch.optim.Muon (Jordan et al. 2024; Liu et al., arXiv 2502.16982) for the matrices of hidden layers, AdamW
 * as optim-adamw for the rest: embeddings, the head, vectors. Matrices are updated as a whole, by Newton-Schulz
 * iterations on the device's products; what AdamW updates may be cut anywhere. */
#define OPTIM_SETTINGS struct muon_settings
#include "../common/optim.h"

enum { GROUP_ADAMW = 0, GROUP_MUON = 1 };
enum { ADJUST_ORIGINAL = 0, ADJUST_MATCH_RMS_ADAMW = 1 };
enum { NS_FP32 = 0, NS_BF16 = 1 };

struct muon_settings {
    double lr, adamw_lr, momentum, weight_decay, eps, adamw_eps, clip;
    struct hd_list coefficients, betas;
    int64_t ns_steps;
    int32_t nesterov, adjust, dtype, decay;
};

static const struct hd_option options[] = {
    OPTIM_LR("1e-3", .help = "peak learning rate of the hidden matrices; the schedule section shapes it"),
    OPTIM_NUMBER("adamw_lr", adamw_lr, "3e-4", 1e6, .help = "peak learning rate of the rest, shaped alike"),
    OPTIM_NUMBER("momentum", momentum, "0.95", 1, .help = "decay rate of the mean of a matrix's gradient"),
    OPTIM_OPTION("nesterov", nesterov, HD_OPT_BOOL, "true", .help = "Nesterov momentum"),
    OPTIM_OPTION("ns_steps", ns_steps, HD_OPT_INT, "5", .min = 1, .max = 99, .help = "Newton-Schulz iterations"),
    OPTIM_OPTION("ns_coefficients", coefficients, HD_OPT_LIST, "[3.4445, -4.775, 2.0315]",
                 .help = "a, b, c of an iteration: X becomes a X + b (X X') X + c (X X')^2 X"),
    OPTIM_CHOICE("ns_dtype", dtype, "fp32|bf16", "fp32", .help = "of the iterations; PyTorch has bf16 alone"),
    OPTIM_CHOICE("adjust_lr", adjust, "original|match_rms_adamw", "original", .aliases = "adjust_lr_fn",
                 .help = "the factor of lr for a matrix of r rows and c columns: original: the root of max(1, r / c); "
                         "match_rms_adamw: 0.2 times the root of max(r, c)"),
    OPTIM_NUMBER("eps", eps, "1e-7", 1, .help = "least norm that a matrix is divided by before the iterations"),
    OPTIM_WEIGHT_DECAY("0.1", "decoupled: parameters shrink by their learning rate times this"),
    OPTIM_DECAY,
    OPTIM_BETAS("[0.9, 0.95]", .aliases = "adamw_betas",
                .help = "AdamW's decay rates of the means of the gradient and of its square, each from 0 up to but "
                        "not 1"),
    OPTIM_EPS("adamw_eps", adamw_eps, "1e-8", .help = "AdamW's: added to the root of the second mean"),
    OPTIM_CLIP("0"),
};

static const char *const state_names[] = {"exp_avg", "exp_avg_sq"};

/* ---- [control] */

static int32_t muon_check(const void *settings, struct hd_error *err)
{
    const struct muon_settings *s = settings;
    int32_t rc = optim_check_list(&s->betas, "betas", "Muon", 2, 0, 1, err);
    if (!rc)
        rc = optim_check_list(&s->coefficients, "ns_coefficients", "Muon", 3, -1e3, 1e3, err);
    if (!rc && s->momentum >= 1)
        rc = hd_fail(err, HD_E_INVALID, "optimizer.momentum is 1: the mean would never move; use 0.95");
    if (!rc && !(s->lr > 0))
        rc = hd_fail(err, HD_E_INVALID,
                     "optimizer.lr is 0: adamw_lr is shaped as lr is, so lr has to be above 0; to freeze the hidden "
                     "matrices use a tiny one");
    return rc;
}

OPTIM_ANSWER_DECAY(muon_decay)
OPTIM_ANSWER(muon_learning_rate, lr)
OPTIM_ANSWER(muon_clip, clip)

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

/* ---- [progress] AdamW */

struct adamw {
    struct optim_adamw rule;
    const struct hd_optim_args *a;
    int64_t at;
    double decay;
};

static void adamw_range(void *user, int64_t first, int64_t last)
{
    const struct adamw *x = user;
    optim_adamw_run(&x->rule, x->a, x->at + first, x->at + last, x->decay);
}

/* The part of the parameter that lies in this call. */
static void update_elements(const struct muon_settings *s, const struct hd_optim_args *a,
                            const struct hd_optim_param *p, double scale)
{
    double lr = a->hyper[HD_HYPER_LR] * (s->adamw_lr / s->lr);
    struct adamw x = {.rule = optim_adamw_begin(a, lr, s->betas.number, s->adamw_eps, scale), .a = a};
    for (int64_t at = optim_begin(a, p), end = optim_end(a, p), n; at < end; at += n) {
        n = hd_decay_run(a, at, &x.decay);
        n = n < end - at ? n : end - at;
        x.at = at;
        a->host->parallel(a->host->context, n, adamw_range, &x);
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
    double scale = optim_scale(a, s->clip);
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
