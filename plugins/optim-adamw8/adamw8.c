/* AdamW whose means are codes of 8 bits (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv
 * 2110.02861), as torchao.optim.AdamW8bit: every block of elements has a scale, its largest absolute value, and an
 * element the code of the nearest number of a dynamic map. The update itself uses the means before they are rounded. */
#define OPTIM_SETTINGS struct adamw8_settings
#include "../common/optim.h"

#include "dynamic_map.h"

enum { GROUP_FP32 = 0, GROUP_CODES = 1 };
enum { MEAN = 0, SQUARE, MEAN_SCALE, SQUARE_SCALE, STATES };

struct adamw8_settings {
    double lr;
    struct hd_list betas;
    double eps, weight_decay, clip;
    int64_t block, least;
    int32_t decay; /* OPTIM_DECAY_... */
    int32_t reserved;
};

static const struct hd_option options[] = {
    OPTIM_LR("3e-4", .help = OPTIM_SCHEDULED),
    OPTIM_BETAS("[0.9, 0.95]",
                .help = "decay rates of the means of the gradient and of its square, each from 0 up to but not 1"),
    OPTIM_EPS("eps", eps, "1e-8", .aliases = "adam_epsilon|adam_eps", .help = "added to the root of the second mean"),
    OPTIM_WEIGHT_DECAY("0.1", OPTIM_DECOUPLED),
    OPTIM_CLIP("1.0"),
    OPTIM_DECAY,
    OPTIM_OPTION("block_size", block, HD_OPT_INT, "256", .min = 16, .max = 65536,
                 .help = "elements that share a scale: a power of two"),
    OPTIM_OPTION("min_8bit_size", least, HD_OPT_INT, "4096", .min = 0, .max = 1e18,
                 .help = "matrices of fewer elements, and those that blocks do not divide, have means in fp32"),
};

static const char *const state_names[STATES] = {"exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale"};

/* ---- [control] */

OPTIM_ANSWER_DECAY(adamw8_decay)
OPTIM_ANSWER(adamw8_learning_rate, lr)
OPTIM_ANSWER(adamw8_clip, clip)

static int32_t adamw8_check(const void *settings, struct hd_error *err)
{
    const struct adamw8_settings *s = settings;
    if (s->block & (s->block - 1))
        return hd_fail(err, HD_E_INVALID, "optimizer.block_size is %lld: it must be a power of two, as 256",
                       (long long)s->block);
    return optim_check_list(&s->betas, "betas", "AdamW", 2, 0, 1, err);
}

/* By the whole matrix, so that a checkpoint goes on on any mesh. */
static uint32_t adamw8_group(const void *settings, const struct hd_optim_param *p)
{
    const struct adamw8_settings *s = settings;
    int64_t size = p->all_rows * p->all_cols;
    return HD_OPTIM_CUT | (p->rows && size >= s->least && size % s->block == 0 ? GROUP_CODES : GROUP_FP32);
}

static uint32_t adamw8_group_states(const void *settings, uint32_t group)
{
    (void)settings;
    return group == GROUP_CODES ? STATES : MEAN_SCALE;
}

static void adamw8_state(const void *settings, uint32_t group, uint32_t state, struct hd_optim_state *out)
{
    if (group != GROUP_CODES)
        return;
    out->dtype = state < MEAN_SCALE ? HD_U8 : HD_F32;
    out->kind = state < MEAN_SCALE ? HD_STATE_ELEMENT : HD_STATE_BLOCK;
    out->block = ((const struct adamw8_settings *)settings)->block;
}

/* ---- [progress] */

struct adamw8 {
    struct optim_adamw rule;
    const struct hd_optim_args *a;
    int64_t at, end, block; /* elements of the call */
    double decay;
};

/* The nearest of the map's ascending numbers; of two equally near ones the larger. */
static uint8_t code_of(const float map[256], float x)
{
    uint32_t code = 0;
    for (uint32_t half = 128; half; half /= 2)
        code += x >= map[code + half] ? half : 0;
    return (uint8_t)(code < 255 && x - map[code] >= (map[code + 1] - map[code]) * 0.5f ? code + 1 : code);
}

/* The parameter's next value, and the means of element i. */
static double element(const struct adamw8 *x, int64_t i, double *m, double *v)
{
    const struct hd_optim_args *a = x->a;
    int64_t block = i / x->block;
    *m = signed_map[((const uint8_t *)a->state[MEAN])[i]] * a->state[MEAN_SCALE][block];
    *v = unsigned_map[((const uint8_t *)a->state[SQUARE])[i]] * a->state[SQUARE_SCALE][block];
    return optim_adamw_element(&x->rule, a->param[i], a->grad[i], x->decay, m, v);
}

static void update_block(const struct adamw8 *x, int64_t first, int64_t end)
{
    const struct hd_optim_args *a = x->a;
    float scale[2] = {1e-12f, 1e-12f};
    double m, v;
    for (int64_t i = first; i < end; i++) {
        (void)element(x, i, &m, &v);
        scale[0] = fmaxf(scale[0], fabsf((float)m));
        scale[1] = fmaxf(scale[1], (float)v);
    }
    for (int64_t i = first; i < end; i++) {
        a->param[i] = (float)element(x, i, &m, &v);
        ((uint8_t *)a->state[MEAN])[i] = code_of(signed_map, (float)m / scale[0]);
        ((uint8_t *)a->state[SQUARE])[i] = code_of(unsigned_map, (float)v / scale[1]);
    }
    a->state[MEAN_SCALE][first / x->block] = scale[0];
    a->state[SQUARE_SCALE][first / x->block] = scale[1];
}

static void update_blocks(void *user, int64_t first, int64_t last)
{
    const struct adamw8 *x = user;
    for (int64_t b = first; b < last; b++) {
        int64_t at = x->at + b * x->block;
        update_block(x, at, at + x->block < x->end ? at + x->block : x->end);
    }
}

static void update_elements(void *user, int64_t first, int64_t last)
{
    const struct adamw8 *x = user;
    optim_adamw_run(&x->rule, x->a, x->at + first, x->at + last, x->decay);
}

static int32_t adamw8_step(const void *settings, const struct hd_optim_args *a)
{
    const struct adamw8_settings *s = settings;
    struct adamw8 x = {
        .rule = optim_adamw_begin(a, a->hyper[HD_HYPER_LR], s->betas.number, s->eps, optim_scale(a, s->clip)),
        .a = a,
        .block = s->block};
    if (!hd_update_runs(a->hyper, a->norm2))
        return HD_OK;
    for (uint64_t n = 0; n < a->n_params; n++) {
        const struct hd_optim_param *p = &a->params[n];
        int64_t count = optim_end(a, p) - optim_begin(a, p), run;
        x.at = optim_begin(a, p);
        x.end = x.at + count;
        run = hd_decay_run_to(a, x.at, x.end, &x.decay);
        if (run < count || (p->group == GROUP_CODES && x.at % x.block))
            return hd_fail(a->err, HD_E_INTERNAL, "%s has two weight decays, or begins within a block", p->name);
        if (p->group == GROUP_CODES)
            a->host->parallel(a->host->context, (count + x.block - 1) / x.block, update_blocks, &x);
        else
            a->host->parallel(a->host->context, count, update_elements, &x);
    }
    return HD_OK;
}

static const struct hd_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .n_states = STATES,
    .state_names = state_names,
    .decay = adamw8_decay,
    .step = adamw8_step,
    .learning_rate = adamw8_learning_rate,
    .clip = adamw8_clip,
    .check = adamw8_check,
    .group = adamw8_group,
    .group_states = adamw8_group_states,
    .state = adamw8_state,
};

static const struct hd_alias aliases[] = {
    {.name = "adamw_8bit", .summary = "what transformers calls it"},
    {.name = "adamw_bnb_8bit", .summary = "the same, by bitsandbytes"},
};

HD_PLUGIN("optim-adamw8", "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "adamw8",
          .summary = "AdamW with means in 8 bits, block by block, as torchao's AdamW8bit",
          HD_OPTIONS(options, struct adamw8_settings), .ops = &ops, HD_ALIASES(aliases))
