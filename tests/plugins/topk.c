/* strategy-topk: of every bucket of strategy-zero only the largest elements travel (Aji and Heafield, arXiv 1704.05021;
 * Lin et al., arXiv 1712.01887); the rest waits in an error for later steps. Every rank gets everybody's choice.
 *
 * Codes: k pairs of an index in the bucket and an fp32 value, in the order of the indexes. Of equal magnitudes the one
 * with the lower index is larger. */
#include <string.h>

#include "heddle/host.h"
#include "heddle/strategy.h"

struct settings {
    double keep;
};

struct pair {
    uint32_t index;
    float value;
};

/* ---- arithmetic */

/* The bits of a magnitude: they order as it does, and NaN is above all. */
static uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

/* The k-th largest magnitude, byte by byte from the highest; *equal: how many of that magnitude are among the k. */
static uint32_t threshold(const float *x, int64_t n, int64_t k, int64_t *equal)
{
    uint32_t found = 0;
    for (uint32_t shift = 32; shift > 0;) {
        int64_t count[256] = {0};
        uint32_t byte = 256, above = shift == 32 ? 0 : found >> shift;
        shift -= 8;
        for (int64_t i = 0; i < n; i++)
            if (shift == 24 || magnitude(x[i]) >> (shift + 8) == above)
                count[magnitude(x[i]) >> shift & 255]++;
        while (count[--byte] < k)
            k -= count[byte];
        found |= byte << shift;
    }
    *equal = k;
    return found;
}

static int32_t encode(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    const float *g = d->in[0].data;
    float *e = d->out[1].data;
    struct pair *code = d->out[0].data;
    int64_t n = d->in[0].extent[0], k = d->out[0].extent[0] / (int64_t)sizeof *code, equal;
    uint32_t least;
    (void)settings, (void)stream, (void)err;
    for (int64_t i = 0; i < n; i++)
        e[i] += g[i];
    least = threshold(e, n, k, &equal);
    for (int64_t i = 0; i < n; i++) {
        uint32_t m = magnitude(e[i]);
        if (m < least || (m == least && equal-- <= 0))
            continue;
        *code++ = (struct pair){(uint32_t)i, e[i]};
        e[i] = 0;
    }
    return HD_OK;
}

static int32_t decode(const void *settings, const struct hd_instr_desc *d, void *stream, struct hd_error *err)
{
    const struct pair *code = d->in[0].data;
    int64_t pairs = d->in[0].extent[0] / (int64_t)sizeof *code, first = d->out[0].start[0], n = d->out[0].extent[0];
    float *y = d->out[0].data;
    (void)settings, (void)stream;
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < pairs; i++) {
        int64_t at = code[i].index - first;
        if (at >= 0 && at < n)
            y[at] += code[i].value;
        else if (d->attrs.index <= code[i].index)
            return hd_fail(err, HD_E_INTERNAL, "a rank sent element %u of a bucket of %u", code[i].index,
                           d->attrs.index);
    }
    return HD_OK;
}

static int32_t check(const void *settings, const struct hd_instr_desc *d, struct hd_error *err)
{
    int encodes = d->out[0].dtype == HD_U8;
    int64_t pairs = (encodes ? &d->out[0] : &d->in[0])->extent[0] / (int64_t)sizeof(struct pair),
            n = encodes ? d->in[0].extent[0] : d->attrs.index;
    (void)settings;
    if (encodes ? pairs < 1 || pairs > n : pairs % d->attrs.parts != 0)
        return hd_fail(err, HD_E_INVALID, "%lld pairs for a bucket of %lld elements", (long long)pairs, (long long)n);
    return n <= UINT32_MAX ? HD_OK : hd_fail(err, HD_E_UNSUPPORTED, "indexes of %lld elements", (long long)n);
}

/* For a device of the tests, whose memory these functions reach as they do the host's: as a plug-in brings one for
 * "cuda" that launches a kernel on the stream. */
static const struct hd_custom_kernel encode_kernels[] = {{"async", encode}}, decode_kernels[] = {{"async", decode}};

static const struct hd_custom_op encode_op = {.struct_size = sizeof encode_op,
                                              .name = "topk_encode",
                                              .in = "f",
                                              .out = "uf",
                                              .proof = HD_CUSTOM_ENCODE,
                                              .state = 1 << 1,
                                              .flops = 6,
                                              .run = encode,
                                              .kernels = encode_kernels,
                                              .n_kernels = 1,
                                              .check = check};
static const struct hd_custom_op decode_op = {.struct_size = sizeof decode_op,
                                              .name = "topk_decode",
                                              .in = "u",
                                              .out = "f",
                                              .proof = HD_CUSTOM_DECODE,
                                              .run = decode,
                                              .kernels = decode_kernels,
                                              .n_kernels = 1,
                                              .check = check};

/* ---- the pass */

static int32_t reduce(const struct hd_host *host, const void *settings, struct hd_program *p,
                      const struct hd_pass_bucket *b, struct hd_error *err)
{
    const struct hd_pass_api *api = host->pass;
    uint32_t encodes = api->custom_op(p, &encode_op), decodes = api->custom_op(p, &decode_op);
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .parts = 1};
    struct hd_pass_flat flat;
    int64_t ways = 1, k;
    if (b->rounds > 1)
        return hd_fail(
            err, HD_E_UNSUPPORTED,
            "strategies.topk keeps an error as large as all gradients on every rank, which stages 2 and 3 of "
            "zero are there to avoid: use stage 0 or 1");
    api->flat_get(p, b->flat, &flat);
    if (flat.count > UINT32_MAX)
        return hd_fail(err, HD_E_UNSUPPORTED, "strategies.topk: a bucket of %lld elements: use smaller buckets",
                       (long long)flat.count);
    for (uint32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (b->axes & HD_AXIS_BIT(a))
            ways *= api->axis_size(p, a);
    k = (int64_t)((double)flat.count * ((const struct settings *)settings)->keep);
    k = (k < 1 ? 1 : k) * (int64_t)sizeof(struct pair);
    hd_tensor error = api->vector_like(p, "E", b->grad, 0, HD_LIFE_PERSISTENT),
              sent = api->vector(p, b->flat, "c", ways * k, HD_U8, b->axes, HD_LIFE_TEMP),
              got = api->vector_like(p, "cg", sent, 0, HD_LIFE_TEMP);
    struct hd_pass_instr encoded = {.struct_size = sizeof encoded,
                                    .op = encodes,
                                    .block = flat.block,
                                    .phase = HD_PHASE_O,
                                    .n_in = 1,
                                    .n_out = 2,
                                    .in = {b->grad},
                                    .out = {sent, error},
                                    .attrs = &attrs},
                         gathered = encoded, decoded = encoded;
    api->declare(p, error, HD_FACT_FEEDBACK, 0, NULL);
    gathered.op = HD_OP_ALL_GATHER;
    gathered.axes = b->axes;
    gathered.in[0] = sent;
    gathered.out[0] = decoded.in[0] = got;
    gathered.attrs = NULL;
    decoded.op = decodes;
    decoded.out[0] = b->out;
    gathered.n_out = decoded.n_out = 1;
    api->insert(p, b->section, b->index, 1, &encoded);
    api->insert(p, b->section, b->index, 1, &gathered);
    attrs.parts = (uint32_t)ways;
    attrs.index = (uint32_t)flat.count;
    api->insert(p, b->section, b->last, 1, &decoded);
    return HD_OK;
}

static const struct hd_option options[] = {{.name = "keep",
                                            .value = "0.01",
                                            .type = HD_OPT_FLOAT,
                                            .min = 1e-6,
                                            .max = 1,
                                            .flags = HD_OPTION_GLOBAL,
                                            .offset = offsetof(struct settings, keep),
                                            .help = "share of each bucket's elements that travel in a step"}};

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .reduce = reduce};

HD_PLUGIN("strategy-topk", "0.1.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = "topk",
          .summary = "only the largest elements of gradients travel, with error feedback",
          HD_OPTIONS(options, struct settings), .ops = &ops)
