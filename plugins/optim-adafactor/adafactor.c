/* Adafactor as torch.optim.Adafactor (Shazeer and Stern, arXiv 1804.04235): of the mean of squared gradients a matrix
 * keeps the means of its rows and of its columns, whose product estimates it. Both the update and the parameter are
 * measured by their root mean square, so parameters are updated as a whole. */
#define OPTIM_SETTINGS struct adafactor_settings
#include "../common/optim.h"

enum { GROUP_VECTOR = 0, GROUP_MATRIX = 1 };
enum { VARIANCE = 0, COLUMNS = 1 }; /* states: of each row, or of each element of what is no matrix; of each column */

struct adafactor_settings {
    double lr, beta2_decay, eps1, eps2, d, weight_decay, clip;
    int32_t decay; /* OPTIM_DECAY_... */
    int32_t reserved;
};

static const struct hd_option options[] = {
    OPTIM_LR("1e-2", .help = "peak learning rate, relative to a parameter's root mean square; at most 1 over the root "
                             "of the step; the schedule section shapes it"),
    OPTIM_OPTION("beta2_decay", beta2_decay, HD_OPT_FLOAT, "-0.8", .min = -10, .max = 0,
                 .help = "step t has the share t to this power in the mean of squared gradients"),
    OPTIM_EPS("eps1", eps1, "1.1920929e-07",
              .help = "least mean of row means, and its square the least estimate of a squared gradient"),
    OPTIM_NUMBER("eps2", eps2, "1e-3", 1, .help = "least root mean square of a parameter"),
    OPTIM_OPTION("d", d, HD_OPT_FLOAT, "1.0", .min = 1, .max = 1e6, .aliases = "clip_threshold",
                 .help = "updates whose root mean square is larger are scaled down to it"),
    OPTIM_WEIGHT_DECAY("0", OPTIM_DECOUPLED),
    OPTIM_CLIP("0"),
    OPTIM_DECAY,
};

static const char *const state_names[] = {"variance", "col_var"};

/* ---- [control] */

OPTIM_ANSWER_DECAY(adafactor_decay)
OPTIM_ANSWER(adafactor_learning_rate, lr)
OPTIM_ANSWER(adafactor_clip, clip)

static uint32_t adafactor_group(const void *settings, const struct hd_optim_param *param)
{
    (void)settings;
    return param->rows ? GROUP_MATRIX : GROUP_VECTOR;
}

static uint32_t adafactor_group_states(const void *settings, uint32_t group)
{
    (void)settings;
    return group == GROUP_MATRIX ? 2 : 1;
}

static void adafactor_state(const void *settings, uint32_t group, uint32_t state, struct hd_optim_state *out)
{
    (void)settings;
    if (group == GROUP_MATRIX)
        out->kind = state == VARIANCE ? HD_STATE_ROW : HD_STATE_COLUMN;
}

/* Sums of every row, in fp64: of the parameter's squares and of the update's. */
static uint64_t adafactor_scratch(const void *settings, const struct hd_optim_param *param)
{
    (void)settings;
    return 2 * sizeof(double) * (uint64_t)(param->rows ? param->rows : 1);
}

/* ---- [progress] one matrix; a vector is one row, whose elements each have a variance */

struct factored {
    const float *grad;
    float *param, *rows_mean, *cols_mean; /* rows_mean: NULL for a vector, whose cols_mean is its variance */
    double *param_sum, *update_sum;       /* by row */
    int64_t rows, cols;
    double scale, share, least, mean; /* share: of this step in the means; mean: of rows_mean */
    double keep, rate;
};

/* The update of element (i, j), before it is scaled. */
static double direction(const struct factored *f, int64_t i, int64_t j)
{
    double v = f->rows_mean ? (double)f->rows_mean[i] * f->cols_mean[j] / f->mean : f->cols_mean[j];
    return f->grad[i * f->cols + j] * f->scale / sqrt(v > f->least ? v : f->least);
}

static void average_rows(void *user, int64_t first, int64_t last)
{
    const struct factored *f = user;
    for (int64_t i = first; i < last; i++) {
        double sum = 0;
        for (int64_t j = 0; j < f->cols; j++) {
            double g = f->grad[i * f->cols + j] * f->scale;
            sum += g * g;
        }
        f->rows_mean[i] = (float)(f->rows_mean[i] + f->share * (sum / (double)f->cols - f->rows_mean[i]));
    }
}

static void average_columns(void *user, int64_t first, int64_t last)
{
    const struct factored *f = user;
    for (int64_t j = first; j < last; j++) {
        double sum = 0;
        for (int64_t i = 0; i < f->rows; i++) {
            double g = f->grad[i * f->cols + j] * f->scale;
            sum += g * g;
        }
        f->cols_mean[j] = (float)(f->cols_mean[j] + f->share * (sum / (double)f->rows - f->cols_mean[j]));
    }
}

static void measure(void *user, int64_t first, int64_t last)
{
    const struct factored *f = user;
    for (int64_t i = first; i < last; i++) {
        f->param_sum[i] = f->update_sum[i] = 0;
        for (int64_t j = 0; j < f->cols; j++) {
            double p = f->param[i * f->cols + j], u = direction(f, i, j);
            f->param_sum[i] += p * p;
            f->update_sum[i] += u * u;
        }
    }
}

static void apply(void *user, int64_t first, int64_t last)
{
    const struct factored *f = user;
    for (int64_t i = first; i < last; i++)
        for (int64_t j = 0; j < f->cols; j++) {
            float *p = &f->param[i * f->cols + j];
            *p = (float)(*p * f->keep - f->rate * direction(f, i, j));
        }
}

/* The root mean square of all elements. */
static double root_mean_square(const struct factored *f, const double *sums)
{
    double sum = 0;
    for (int64_t i = 0; i < f->rows; i++)
        sum += sums[i];
    return sqrt(sum / ((double)f->rows * (double)f->cols));
}

static void update(const struct adafactor_settings *s, const struct hd_optim_host *host, struct factored *f, double lr,
                   double t)
{
    double most = 1 / sqrt(t), size, step;
    if (f->rows_mean) {
        host->parallel(host->context, f->rows, average_rows, f);
        f->mean = 0;
        for (int64_t i = 0; i < f->rows; i++)
            f->mean += f->rows_mean[i] / (double)f->rows;
        f->mean = f->mean > s->eps1 ? f->mean : s->eps1;
    }
    host->parallel(host->context, f->cols, average_columns, f);
    host->parallel(host->context, f->rows, measure, f);
    size = root_mean_square(f, f->param_sum);
    step = root_mean_square(f, f->update_sum) / s->d;
    f->rate = (size > s->eps2 ? size : s->eps2) * (lr < most ? lr : most) / (step > 1 ? step : 1);
    host->parallel(host->context, f->rows, apply, f);
}

static int32_t update_param(const struct adafactor_settings *s, const struct hd_optim_args *a,
                            const struct hd_optim_param *p)
{
    double lr = a->hyper[HD_HYPER_LR], t = a->hyper[HD_HYPER_STEP], decay;
    int64_t at = p->first - a->first, rows = p->rows ? p->rows : 1, cols = p->rows ? p->cols : p->count;
    if (at < 0 || at + p->count > a->count)
        return hd_fail(a->err, HD_E_UNSUPPORTED, "%s is cut, and Adafactor updates whole parameters", p->name);
    hd_decay_run(a, at, &decay);
    for (int64_t k = 0; k < p->count / (rows * cols); k++) { /* experts are several */
        struct factored f = {.grad = a->grad + at + k * rows * cols,
                             .param = a->param + at + k * rows * cols,
                             .rows_mean = p->rows ? a->state[VARIANCE] + p->state[VARIANCE] + k * rows : NULL,
                             .cols_mean = p->rows ? a->state[COLUMNS] + p->state[COLUMNS] + k * cols
                                                  : a->state[VARIANCE] + p->state[VARIANCE],
                             .param_sum = a->scratch,
                             .update_sum = (double *)a->scratch + rows,
                             .rows = rows,
                             .cols = cols,
                             .scale = optim_scale(a, s->clip),
                             .share = pow(t, s->beta2_decay),
                             .least = s->eps1 * s->eps1,
                             .keep = 1 - lr * decay};
        update(s, a->host, &f, lr, t);
    }
    return HD_OK;
}

static int32_t adafactor_step(const void *settings, const struct hd_optim_args *a)
{
    int32_t rc = HD_OK;
    if (!hd_update_runs(a->hyper, a->norm2))
        return HD_OK;
    for (uint64_t i = 0; !rc && i < a->n_params; i++)
        rc = update_param(settings, a, &a->params[i]);
    return rc;
}

static const struct hd_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .n_states = 2,
    .state_names = state_names,
    .decay = adafactor_decay,
    .step = adafactor_step,
    .learning_rate = adafactor_learning_rate,
    .clip = adafactor_clip,
    .group = adafactor_group,
    .group_states = adafactor_group_states,
    .scratch = adafactor_scratch,
    .state = adafactor_state,
};

HD_PLUGIN("optim-adafactor", "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "adafactor",
          .summary = "Adafactor as PyTorch's: squared gradients by their rows and columns",
          HD_OPTIONS(options, struct adafactor_settings), .ops = &ops)
