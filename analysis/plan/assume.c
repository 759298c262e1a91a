/* Costs of other systems' steps beyond those of heddle's program: settings of a plan, not of the job. */
#include <math.h>
#include <stdlib.h>

#include "analysis/plan/seconds_internal.h"
#include "core/base/dtype.h"
#include "core/base/option.h"
#include "core/program/ops.h"

#define SETTING(key, field, words)                                                                          \
    {                                                                                                       \
        .name = key, .type = HD_OPT_BOOL, .offset = offsetof(struct hd__assume_words, field), .help = words \
    }

#define SECONDS(key, field, words)                                                                                   \
    {                                                                                                                \
        .name = key, .type = HD_OPT_FLOAT, .min = 0, .max = 1e6, .offset = offsetof(struct hd__assume_words, field), \
        .help = words                                                                                                \
    }

/* As they are written; those whose default is yes are turned round. */
struct hd__assume_words {
    int32_t fused_attention, dropout, tp_overlap, tp_pipelined, dp_overlap, fused_kernels, fused_optimizer,
        whole_recompute;
    double recomputed_products, states, stage_f, stage_b, stage_w, stage_send;
    const char *speeds, *memory;
};

static const struct hd_option settings[] = {
    SETTING("fused_attention", fused_attention, "no: scores and softmax in memory, of all pairs of positions"),
    SETTING("dropout", dropout, "yes: of scores in memory, and of what is added to the residual stream"),
    SETTING("tp_overlap", tp_overlap, "no: transfers over tp do not overlap with compute"),
    SETTING("tp_pipelined", tp_pipelined, "yes: they overlap with the products beside them, piece by piece"),
    SETTING("dp_overlap", dp_overlap, "no: transfers over dp follow after the last micro-batch"),
    SETTING("fused_kernels", fused_kernels, "no: biases, activations, sums, norms and the loss in passes of their own"),
    SETTING("fused_optimizer", fused_optimizer, "no: gradients are unscaled, checked and clipped in passes"),
    SETTING("whole_recompute", whole_recompute, "yes: recomputed blocks run again to their end, needed or not"),
    {.name = "recomputed_products",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1,
     .offset = offsetof(struct hd__assume_words, recomputed_products),
     .help = "share of the blocks' products that run again before their gradients"},
    {.name = "states",
     .type = HD_OPT_FLOAT,
     .min = 2,
     .max = 64,
     .offset = offsetof(struct hd__assume_words, states),
     .help = "bytes a parameter of weights, gradients and optimizer states"},
    SECONDS("stage_f", stage_f, "of a stage's forward pass of a micro-batch, if measured"),
    SECONDS("stage_b", stage_b, "of its gradients of inputs"),
    SECONDS("stage_w", stage_w, "of its gradients of weights"),
    SECONDS("stage_send", stage_send, "of a message between stages"),
    {.name = "speeds",
     .type = HD_OPT_STRING,
     .offset = offsetof(struct hd__assume_words, speeds),
     .help = "of compute on equal parts of the ranks, in their order: 1:1:0.5; the machine's is 1"},
    {.name = "memory",
     .type = HD_OPT_STRING,
     .offset = offsetof(struct hd__assume_words, memory),
     .help = "of a rank in equal parts of the ranks, in their order: 80GB:40GB"},
};

static const struct hd_option speed_of_part = {.name = "speeds", .type = HD_OPT_FLOAT, .min = 0.01, .max = 10},
                              memory_of_part = {.name = "memory", .type = HD_OPT_SIZE, .min = 1e6, .max = 1e18};

static int32_t parse_one(const char *item, size_t n, struct hd__assume_words *words, struct hd__arena *arena,
                         struct hd_error *err)
{
    const struct hd__options table = HD__OPTIONS(settings);
    struct hd_error why = HD_ERROR_INIT;
    char *key = hd__format("%.*s", (int)n, item), *value = strchr(key, '=');
    int32_t rc = HD_OK;
    if (value)
        *value++ = 0;
    int64_t row = hd__option_find(&table, key);
    if (row < 0 || !value) {
        struct hd__text names = {0};
        for (size_t s = 0; s < HD__COUNT(settings); s++)
            hd__text_add(&names, "%s%s", s ? ", " : "", settings[s].name);
        rc = hd_fail(err, HD_E_INVALID, "'%.*s': %s: write KEY=VALUE with %s", (int)HD__MIN(n, 60), item,
                     row < 0 ? "unknown key" : "no value", names.at);
        hd__text_free(&names);
    } else if (hd__option_parse(&settings[row], value, words, arena, &why)) {
        rc = hd_fail(err, HD_E_INVALID, "%s: %s", key, why.message);
    }
    free(key);
    return rc;
}

/* "80GB:40GB", each as the option says. */
static int32_t parse_parts(const struct hd_option *each, const char *text, struct hd__parts *parts,
                           struct hd__arena *arena, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (int more = 1; more && !rc; text += strcspn(text, ":") + more) {
        char *one = hd__format("%.*s", (int)strcspn(text, ":"), text);
        struct hd_error why = HD_ERROR_INIT;
        double number = 0;
        int64_t bytes = 0;
        more = text[strcspn(text, ":")] == ':';
        if (hd__option_parse(each, one, each->type == HD_OPT_SIZE ? (void *)&bytes : &number, arena, &why))
            rc = hd_fail(err, HD_E_INVALID, "%s: '%.40s': %s", each->name, one, why.message);
        else if (parts->count == HD__COUNT(parts->at))
            rc = hd_fail(err, HD_E_INVALID, "%s: of at most %zu parts of the ranks", each->name, HD__COUNT(parts->at));
        else
            parts->at[parts->count++] = each->type == HD_OPT_SIZE ? (double)bytes : number;
        free(one);
    }
    return rc;
}

double hd__parts_least(const struct hd__parts *parts, int32_t first, int32_t n, int32_t ranks, double other)
{
    int64_t count = parts->count;
    double least = count ? INFINITY : other;
    for (int64_t k = first * count / ranks; k * ranks < (int64_t)(first + n) * count; k++)
        least = fmin(least, parts->at[k]);
    return least;
}

int32_t hd__assume_fits(const struct hd__assume *assume, int64_t ranks, struct hd_error *err)
{
    const struct hd__parts *parts[] = {&assume->speeds, &assume->memory};
    for (size_t k = 0; k < HD__COUNT(parts); k++)
        if (parts[k]->count && ranks % parts[k]->count)
            return hd_fail(err, HD_E_INVALID,
                           "--assume %s: %u numbers for %lld ranks: each is of an equal part of the ranks, in their "
                           "order, so the ranks are a multiple of them",
                           k ? "memory" : "speeds", parts[k]->count, (long long)ranks);
    return HD_OK;
}

/* The next micro-batch goes to the coordinate that would be done with it first. */
void hd__assume_shares(const double *speed, uint32_t n, int64_t total, int64_t *shares)
{
    for (uint32_t d = 0; d < n; d++)
        total -= shares[d] = 3; /* the first and the last have code of their own, and one is between */
    for (; total > 0; total--) {
        uint32_t first = 0;
        for (uint32_t d = 1; d < n; d++)
            if ((double)(shares[d] + 1) / speed[d] < (double)(shares[first] + 1) / speed[first])
                first = d;
        shares[first]++;
    }
}

int32_t hd__assume_parse(const char *text, struct hd__assume *assume, struct hd_error *err)
{
    struct hd__assume_words w = {
        .fused_attention = 1, .tp_overlap = 1, .dp_overlap = 1, .fused_kernels = 1, .fused_optimizer = 1};
    struct hd__arena arena = {0};
    int32_t rc = HD_OK;
    do {
        size_t n = strcspn(text, ",");
        rc = parse_one(text, n, &w, &arena, err);
        text += n;
    } while (!rc && *text++);
    *assume = (struct hd__assume){.unfused_attention = !w.fused_attention,
                                  .dropout = w.dropout,
                                  .blocking_tp = !w.tp_overlap,
                                  .pipelined_tp = w.tp_pipelined,
                                  .blocking_dp = !w.dp_overlap,
                                  .separate_kernels = !w.fused_kernels,
                                  .separate_optimizer = !w.fused_optimizer,
                                  .whole_recompute = w.whole_recompute,
                                  .recomputed_products = w.recomputed_products,
                                  .states = w.states,
                                  .stage_f = w.stage_f,
                                  .stage_b = w.stage_b,
                                  .stage_w = w.stage_w,
                                  .stage_send = w.stage_send};
    if (!rc && w.speeds)
        rc = parse_parts(&speed_of_part, w.speeds, &assume->speeds, &arena, err);
    if (!rc && w.memory)
        rc = parse_parts(&memory_of_part, w.memory, &assume->memory, &arena, err);
    hd__arena_free(&arena);
    if (rc)
        return rc;
    if (!w.tp_overlap && w.tp_pipelined)
        return hd_fail(err, HD_E_INVALID, "tp_overlap=no and tp_pipelined=yes contradict each other: choose one");
    if (!(w.stage_f > 0) && (w.stage_b > 0 || w.stage_w > 0 || w.stage_send > 0))
        return hd_fail(err, HD_E_INVALID, "stage_b, stage_w and stage_send are beside stage_f, which is missing");
    if (w.stage_f > 0 && !(w.stage_b > 0))
        return hd_fail(err, HD_E_INVALID, "stage_f is beside stage_b, which is missing: gradients would take no time");
    return HD_OK;
}

int hd__is_tp_transfer(const struct hd__instr *i)
{
    const uint32_t tp = HD_AXIS_BIT(HD_AXIS_TP) | HD_AXIS_BIT(HD_AXIS_TQ);
    return hd__is_collective(i->op) && i->axes & tp && !(i->axes & ~tp);
}

int hd__assume_blocks(const struct hd__assume *assume, const struct hd__instr *i)
{
    return assume->blocking_tp && hd__is_tp_transfer(i);
}

int hd__assume_defers(const struct hd__assume *assume, const struct hd__instr *i)
{
    return assume->blocking_dp && hd__is_collective(i->op) && i->axes & HD__DP_AXES;
}

/* ---- attention with its scores in memory */

struct scores {
    struct hd__product product; /* queries by keys: m and n are positions, k the head's dim */
    double bytes;               /* of the scores */
    double rows, columns;       /* of a factor that has as many rows as queries, or as keys: its bytes */
};

static struct scores scores_of(const struct hd__machine *m, const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *q = hd__tensor_const(p, i->in[0]), *k = hd__tensor_const(p, i->in[1]);
    double size = (double)hd_dtype_size(q->dtype), queries = (double)hd__local_extent(p, q, 1);
    double keys = (double)hd__local_extent(p, k, 1), d = (double)hd__local_extent(p, q, q->ndim - 1);
    double heads = (double)hd__numel(p, q) / queries / d;
    return (struct scores){
        .product = {.batch = heads, .m = queries, .n = keys, .k = d, .peak = hd__machine_peak(m, q->dtype)},
        .bytes = size * heads * queries * keys,
        .rows = size * heads * queries * d,
        .columns = size * heads * keys * d};
}

/* Seconds of a product that writes the scores' shape, or that reads it and writes `rows` positions. */
static double score_product(const struct hd__machine *m, const struct scores *s, int writes, double rows, double sum)
{
    struct hd__product x = s->product;
    if (!writes) {
        x.m = rows;
        x.n = s->product.k;
        x.k = sum;
    }
    x.written = writes ? s->bytes : s->rows;
    x.bytes = s->bytes + s->rows + s->columns;
    return m->kernel + hd__product_seconds(m, &x);
}

#define DROPPED 2.5 /* passes of dropout over 16 bits, forward or backward: in, out, and a mask of a byte */

static double scores_forward(const struct hd__machine *m, const struct hd__assume *assume, const struct scores *s)
{
    double passes = 2 + (assume->dropout ? DROPPED : 0); /* softmax with scale and mask in one kernel */
    return score_product(m, s, 1, 0, 0) + score_product(m, s, 0, s->product.m, s->product.n) +
           hd__pass_seconds(m, passes * s->bytes) + (1 + assume->dropout) * m->kernel;
}

static double scores_backward(const struct hd__machine *m, const struct hd__assume *assume, const struct scores *s)
{
    double passes = 3 + (assume->dropout ? DROPPED : 0); /* of the softmax and its gradient in, the scores' out */
    return score_product(m, s, 1, 0, 0) + score_product(m, s, 0, s->product.m, s->product.n) +
           2 * score_product(m, s, 0, s->product.n, s->product.m) + hd__pass_seconds(m, passes * s->bytes) +
           (1 + assume->dropout) * m->kernel;
}

double hd__assumed_attention(const struct hd__machine *m, const struct hd__assume *assume, const struct hd_program *p,
                             const struct hd__instr *i)
{
    struct scores s = scores_of(m, p, i);
    if (i->op == HD_OP_ATTENTION)
        return scores_forward(m, assume, &s);
    return scores_backward(m, assume, &s) + (assume->recomputed_scores ? scores_forward(m, assume, &s) : 0);
}

/* ---- passes that heddle's kernels save */

static const struct {
    uint16_t op;
    uint8_t kernels; /* beyond the one */
    double passes;   /* over memory, in sizes of the first output */
} separate[] = {
    {HD_OP_EINSUM_BIAS, 0, 2}, /* the bias is copied into the output, to which the product is added */
    {HD_OP_EINSUM_GELU, 1, 1},      {HD_OP_EINSUM_GELU_GRAD, 1, 2}, {HD_OP_EINSUM_BIAS_DW, 1, 0},
    {HD_OP_ADD_RMSNORM, 1, 1},      {HD_OP_ADD_LAYERNORM, 1, 1},    {HD_OP_RMSNORM_DX_ADD, 1, 2},
    {HD_OP_LAYERNORM_DX_ADD, 1, 2}, {HD_OP_RMSNORM_GRAD_ADD, 2, 4}, {HD_OP_LAYERNORM_GRAD_ADD, 2, 4},
    {HD_OP_XENT_GRAD, 6, 25}, /* logits to fp32, their largest, less it, exp, over the sum, times dy, to 16 bits */
};

#define LOSS_BYTES 58 /* a logit that is written, goes through these passes, and whose gradient is read twice */
#define CLIP_BYTES \
    24 /* a parameter: unscaled and checked (8), clipped (8), cleared (4), weights read to be copied (4) */

static double loss_bytes(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *x = hd__tensor_const(p, i->in[0]);
    double h = (double)hd__local_extent(p, x, x->ndim - 1);
    return LOSS_BYTES * hd__instr_flops(p, i) / i->n_out / 2 / h;
}

static int adds_to_stream(uint16_t op)
{
    return op == HD_OP_ADD_LAYERNORM || op == HD_OP_ADD_RMSNORM;
}

static int differentiates_stream(uint16_t op)
{
    return op == HD_OP_LAYERNORM_GRAD_ADD || op == HD_OP_RMSNORM_GRAD_ADD || op == HD_OP_LAYERNORM_DX_ADD ||
           op == HD_OP_RMSNORM_DX_ADD;
}

double hd__assumed_extra(const struct hd__machine *m, const struct hd__assume *assume, const struct hd_program *p,
                         const struct hd__instr *i)
{
    double out = i->n_out ? (double)hd__tensor_bytes(p, hd__tensor_const(p, i->out[0])) : 0, bytes = 0, kernels = 0;
    for (size_t s = 0; s < HD__COUNT(separate) && assume->separate_kernels; s++)
        if (separate[s].op == i->op) {
            bytes += separate[s].passes * out;
            kernels += separate[s].kernels;
        }
    if (assume->separate_kernels && i->op == HD_OP_XENT_HEAD)
        bytes += loss_bytes(p, i);
    if (assume->dropout && adds_to_stream(i->op))
        bytes += 0.5 * out;
    if (assume->dropout && differentiates_stream(i->op)) {
        bytes += DROPPED * out;
        kernels++;
    }
    if (assume->separate_optimizer && hd__op(i->op)->class == HD__CLASS_UPDATE && i->op != HD_OP_SUMSQ)
        bytes += CLIP_BYTES * (double)hd__numel(p, hd__tensor_const(p, i->out[0]));
    return hd__pass_seconds(m, bytes) + kernels * m->kernel;
}
