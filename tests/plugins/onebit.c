/* strategy-onebit: gradients travel as signs (Seide et al. 2014; 1-bit Adam, Tang et al., arXiv 2102.02888). Sums the
 * buckets of strategy-zero:
 *
 *   encode g + e into signs and the mean magnitude of each member's part; e becomes what is left over
 *   all_to_all                                  each has everybody's codes of its part
 *   decode and sum                              stage 1 ends here: the part is the shard
 *   encode the sum, with an error of its own; all_gather; decode
 *
 * A part is one fp32, then a bit an element: 1 for 0 or more. */
#include <string.h>

#include "heddle/host.h"
#include "heddle/strategy.h"

/* ---- arithmetic */

static int64_t part_of(int64_t n, int64_t parts)
{
    return (n + parts - 1) / parts;
}

static int64_t bytes_of(int64_t part)
{
    return (4 + (part + 7) / 8 + 15) / 16 * 16;
}

/* Is element `at` of the whole buffer one of a parameter's? The rest is padding. `range` rises with `at`. */
static int is_used(const struct hd_attrs *a, int64_t at, uint64_t *range)
{
    while (*range < a->n_ranges && at >= a->ranges[*range].first + a->ranges[*range].count)
        ++*range;
    return *range < a->n_ranges && at >= a->ranges[*range].first;
}

/* Codes of elements [from, to) of g + e, whose first is `at` in the whole buffer. */
static void encode_part(const struct hd_attrs *a, const float *g, float *e, int64_t from, int64_t to, int64_t at,
                        uint8_t *code)
{
    double sum = 0;
    int64_t n = 0;
    uint64_t range = 0;
    float scale;
    for (int64_t i = from; i < to; i++) {
        int used = is_used(a, at + i, &range);
        e[i] = used ? g[i] + e[i] : 0;
        sum += e[i] < 0 ? -(double)e[i] : (double)e[i];
        n += used;
    }
    scale = n ? (float)(sum / (double)n) : 0;
    memcpy(code, &scale, sizeof scale);
    range = 0;
    for (int64_t i = from; i < to; i++) {
        int positive = !(e[i] < 0);
        code[4 + (i - from) / 8] |= (uint8_t)(positive << (i - from) % 8);
        if (is_used(a, at + i, &range))
            e[i] -= positive ? scale : -scale;
    }
}

static int32_t encode(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    int64_t n = d->in[0].extent[0], part = part_of(n, d->attrs.parts);
    uint8_t *codes = d->out[0].data;
    (void)settings, (void)stream, (void)err;
    memset(codes, 0, (size_t)d->out[0].extent[0]);
    for (int64_t k = 0; k < d->attrs.parts; k++) {
        int64_t from = k * part < n ? k * part : n, to = from + part < n ? from + part : n;
        encode_part(&d->attrs, d->in[0].data, d->out[1].data, from, to, d->in[0].start[0], codes + k * bytes_of(part));
    }
    return HD_OK;
}

/* Adds what a part stands for to y[0 .. n), whose first is `at` in the whole buffer. */
static void decode_part(const struct hd_attrs *a, const uint8_t *code, float *y, int64_t n, int64_t at)
{
    uint64_t range = 0;
    float scale;
    memcpy(&scale, code, sizeof scale);
    for (int64_t i = 0; i < n; i++)
        if (is_used(a, at + i, &range))
            y[i] += code[4 + i / 8] >> i % 8 & 1 ? scale : -scale;
}

static int32_t decode(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    const struct hd_attrs *a = &d->attrs;
    int64_t n = d->out[0].extent[0], part = a->flags & HD_ATTR_CONCAT ? part_of(n, a->parts) : n;
    float *y = d->out[0].data;
    (void)settings, (void)stream, (void)err;
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t k = 0; k < a->parts; k++) {
        int64_t from = !(a->flags & HD_ATTR_CONCAT) ? 0 : k * part < n ? k * part : n;
        decode_part(a, (const uint8_t *)d->in[0].data + k * bytes_of(part), y + from, n - from < part ? n - from : part,
                    d->out[0].start[0] + from);
    }
    return HD_OK;
}

/* Do the codes have the bytes that so many parts of the elements take? */
static int32_t check(const void *settings, const struct hd_instr_desc *d, struct hd_error *err)
{
    int encodes = d->out[0].dtype == HD_U8, cut = encodes || d->attrs.flags & HD_ATTR_CONCAT;
    const struct hd_operand *codes = encodes ? &d->out[0] : &d->in[0], *x = encodes ? &d->in[0] : &d->out[0];
    int64_t parts = d->attrs.parts, n;
    (void)settings;
    if (codes->ndim != 1 || x->ndim != 1 || parts < 1)
        return hd_fail(err, HD_E_INVALID, "signs are of flat buffers, in 1 part or more");
    n = bytes_of(cut ? part_of(x->extent[0], parts) : x->extent[0]) * parts;
    if (codes->extent[0] != n)
        return hd_fail(err, HD_E_INVALID, "%lld elements in %lld parts are %lld bytes of signs, not %lld",
                       (long long)x->extent[0], (long long)parts, (long long)n, (long long)codes->extent[0]);
    return HD_OK;
}

static const struct hd_custom_op encode_op = {.struct_size = sizeof encode_op,
                                              .name = "sign_encode",
                                              .in = "f",
                                              .out = "uf",
                                              .proof = HD_CUSTOM_ENCODE,
                                              .state = 1 << 1,
                                              .flops = 4,
                                              .run = encode,
                                              .check = check};
static const struct hd_custom_op decode_op = {.struct_size = sizeof decode_op,
                                              .name = "sign_decode",
                                              .in = "u",
                                              .out = "f",
                                              .proof = HD_CUSTOM_DECODE,
                                              .flops = 1,
                                              .run = decode,
                                              .check = check};

/* ---- the pass */

struct pass {
    const struct hd_host *host;
    const struct hd_pass_api *api;
    struct hd_program *p;
    const struct hd_pass_bucket *bucket;
    struct hd_pass_flat flat;
    struct hd_range *ranges; /* of the parameters in the flat */
};

static void put(const struct pass *x, uint32_t op, hd_tensor in, hd_tensor out, hd_tensor error, int64_t parts,
                uint32_t flags, uint32_t index)
{
    struct hd_attrs attrs = {.struct_size = sizeof attrs,
                             .parts = (uint32_t)parts,
                             .flags = flags,
                             .ranges = x->ranges,
                             .n_ranges = x->flat.n_params};
    struct hd_pass_instr i = {.struct_size = sizeof i,
                              .op = op,
                              .block = x->flat.block,
                              .phase = HD_PHASE_O,
                              .n_in = 1,
                              .n_out = error ? 2 : 1};
    i.in[0] = in;
    i.out[0] = out;
    i.out[1] = error;
    if (op < HD_OP_LIMIT)
        i.axes = x->bucket->axes;
    else
        i.attrs = &attrs;
    x->api->insert(x->p, x->bucket->section, index, 1, &i);
}

static hd_tensor error_like(const struct pass *x, const char *name, hd_tensor t, uint32_t axes)
{
    hd_tensor e = x->api->vector_like(x->p, name, t, axes, HD_LIFE_PERSISTENT);
    x->api->declare(x->p, e, HD_FACT_FEEDBACK, 0, NULL);
    return e;
}

static void exchange(const struct pass *x, int64_t ways)
{
    const struct hd_pass_api *api = x->api;
    const struct hd_pass_bucket *b = x->bucket;
    uint32_t encodes = api->custom_op(x->p, &encode_op), decodes = api->custom_op(x->p, &decode_op);
    int64_t part = part_of(x->flat.count, ways);
    int whole = b->out == b->grad;
    hd_tensor sent = api->vector(x->p, b->flat, "c", ways * bytes_of(part), HD_U8, 0, HD_LIFE_TEMP),
              got = api->vector_like(x->p, "cx", sent, 0, HD_LIFE_TEMP), sum = b->out, sum_sent, gathered;
    put(x, encodes, b->grad, sent, error_like(x, "E", b->grad, 0), ways, 0, b->index);
    put(x, HD_OP_ALL_TO_ALL, sent, got, 0, 0, 0, b->index);
    if (whole)
        sum = api->vector(x->p, b->flat, "s", ways * part, HD_F32, b->axes, HD_LIFE_TEMP);
    put(x, decodes, got, sum, 0, ways, 0, b->last);
    if (!whole)
        return;
    sum_sent = api->vector_like(x->p, "cs", sent, b->axes, HD_LIFE_TEMP);
    gathered = api->vector_like(x->p, "cg", sent, 0, HD_LIFE_TEMP);
    put(x, encodes, sum, sum_sent, error_like(x, "ES", sum, b->axes), 1, 0, b->last);
    put(x, HD_OP_ALL_GATHER, sum_sent, gathered, 0, 0, 0, b->last);
    put(x, decodes, gathered, b->out, 0, ways, HD_ATTR_CONCAT, b->last);
}

static int32_t reduce(const struct hd_host *host, const void *settings, struct hd_program *program,
                      const struct hd_pass_bucket *bucket, struct hd_error *err)
{
    struct pass x = {.host = host, .api = host->pass, .p = program, .bucket = bucket};
    int64_t ways = 1;
    (void)settings;
    if (bucket->rounds > 1)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "strategies.onebit keeps an error as large as all gradients on every rank, which stages 2 and 3 "
                       "of zero are there to avoid: use stage 0 or 1");
    x.api->flat_get(program, bucket->flat, &x.flat);
    if (!(x.ranges = host->alloc((x.flat.n_params + 1) * sizeof *x.ranges)))
        return hd_fail(err, HD_E_NOMEM, "strategies.onebit: out of memory");
    for (uint32_t k = 0; k < x.flat.n_params; k++) {
        struct hd_pass_param param;
        x.api->param(program, x.flat.params[k], &param);
        x.ranges[k] = (struct hd_range){x.flat.offset[k], param.count, 1};
    }
    for (uint32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (bucket->axes & HD_AXIS_BIT(a))
            ways *= x.api->axis_size(program, a);
    exchange(&x, ways);
    host->free(x.ranges);
    return HD_OK;
}

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .reduce = reduce};

HD_PLUGIN("strategy-onebit", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "onebit",
          .summary = "gradients travel as signs and a mean magnitude, with error feedback", .ops = &ops)
