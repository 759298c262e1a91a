/* Times matrix products of a device plugin through its vtable:  bench_products PLUGIN.so SHRINK [OPTION=VALUE...]
 * One JSON line a product: its name, m, n, k, what it is ("mk kn mn": operands' dims) and milliseconds a launch.
 * Operands are bf16 or, where it says so, the output is fp32 and added to. Products with something behind them are
 * there twice: as one instruction, which the plugin may make one product, and apart. Then products of 8 experts, 2 of
 * them a token, a slot for each token and expert: once said to be what they are, once to be full (attrs.share), which
 * decides how device-cuda makes them. SHRINK divides every extent: 1 for times, 64 to see that all runs. */
#include "bench/device.h"
#include <math.h>

enum { TIMES = 20, ROUNDS = 3 };

/* Products of GPT-2 124M (32 x 1024 tokens) and of a Llama 1B (4 x 4096), forward, for inputs, for weights; a square
 * one; those of GPT-2's head for some rows at a time; projections of one input as one product (tests/gpu/products adds
 * up what it would stand for). */
static const struct work {
    const char *name, *a, *b;
    int64_t m, n, k;
    int adds;    /* to fp32 */
    uint32_t op; /* 0: HD_OP_EINSUM */
    uint32_t apart;
} works[] = {
    {"gpt2-124m proj", "mk", "kn", 32768, 768, 768, 0},
    {"gpt2-124m fc", "mk", "kn", 32768, 3072, 768, 0},
    {"gpt2-124m fc dx", "mk", "nk", 32768, 768, 3072, 0},
    {"gpt2-124m fc dw", "km", "kn", 768, 3072, 32768, 1},
    {"llama-1b q", "mk", "kn", 16384, 2048, 2048, 0},
    {"llama-1b up", "mk", "kn", 16384, 8192, 2048, 0},
    {"llama-1b up dx", "mk", "nk", 16384, 2048, 8192, 0},
    {"llama-1b up dw", "km", "kn", 2048, 8192, 16384, 1},
    {"square", "mk", "kn", 8192, 8192, 8192, 0},
    {"proj dw", "km", "kn", 768, 768, 32768, 1},
    {"proj dw, bias", "km", "kn", 768, 768, 32768, 1, HD_OP_EINSUM_BIAS_DW, 0},
    {"proj dw, bias apart", "km", "kn", 768, 768, 32768, 1, HD_OP_EINSUM_BIAS_DW, 1},
    {"fc dw, bias", "km", "kn", 3072, 768, 32768, 1, HD_OP_EINSUM_BIAS_DW, 0},
    {"fc dw, bias apart", "km", "kn", 3072, 768, 32768, 1, HD_OP_EINSUM_BIAS_DW, 1},
    {"fc, gelu", "mk", "kn", 32768, 3072, 768, 0, HD_OP_EINSUM_GELU, 0},
    {"fc, gelu apart", "mk", "kn", 32768, 3072, 768, 0, HD_OP_EINSUM_GELU, 1},
    {"fc2 dx, gelu", "mk", "nk", 32768, 3072, 768, 0, HD_OP_EINSUM_GELU_GRAD, 0},
    {"fc2 dx, gelu apart", "mk", "nk", 32768, 3072, 768, 0, HD_OP_EINSUM_GELU_GRAD, 1},
    {"logits, 2560 rows", "mk", "nk", 2560, 50304, 768, 0},
    {"head dx, 2560 rows", "mk", "kn", 2560, 768, 50304, 0},
    {"head dw, 2560 rows", "km", "kn", 50304, 768, 2560, 1},
    {"logits, 5504 rows", "mk", "nk", 5504, 50304, 768, 0},
    {"head dx, 5504 rows", "mk", "kn", 5504, 768, 50304, 0},
    {"head dw, 5504 rows", "km", "kn", 50304, 768, 5504, 1},
    {"logits, 11008 rows", "mk", "nk", 11008, 50304, 768, 0},
    {"head dx, 11008 rows", "mk", "kn", 11008, 768, 50304, 0},
    {"head dw, 11008 rows", "km", "kn", 50304, 768, 11008, 1},
    {"gpt2-124m qkv", "mk", "kn", 32768, 2304, 768, 0},
    {"gpt2-124m proj dx", "mk", "nk", 32768, 768, 768, 0},
    {"gpt2-124m qkv dx", "mk", "nk", 32768, 768, 2304, 0},
    {"gpt2-124m qkv dw", "km", "kn", 768, 2304, 32768, 1},
    {"llama-1b k", "mk", "nk", 16384, 512, 2048, 0},
    {"llama-1b qkv", "mk", "nk", 16384, 3072, 2048, 0},
    {"llama-1b q dx", "mk", "kn", 16384, 2048, 2048, 0},
    {"llama-1b k dx", "mk", "kn", 16384, 2048, 512, 0},
    {"llama-1b qkv dx", "mk", "kn", 16384, 2048, 3072, 0},
    {"llama-1b q dw", "km", "kn", 2048, 2048, 16384, 1},
    {"llama-1b k dw", "km", "kn", 512, 2048, 16384, 1},
    {"llama-1b qkv dw", "km", "kn", 3072, 2048, 16384, 1},
    {"llama-1b gate+up", "mk", "kn", 16384, 16384, 2048, 0},
    {"llama-1b gate+up dx", "mk", "nk", 16384, 2048, 16384, 0},
    {"llama-1b gate+up dw", "km", "kn", 2048, 16384, 16384, 1},
};

enum { MOST_PARTS = 3, IN_OUT = 5 };

/* Instructions one after another, on these operands. */
struct sequence {
    struct hd_operand operand[IN_OUT]; /* a, b, bias or what GELU was of; the product, and what comes with it */
    struct hd_operand in[MOST_PARTS][3], out[MOST_PARTS][2];
    struct hd_kernel *kernel[MOST_PARTS];
    int64_t n;
};

struct bench {
    struct bench_device plugin;
    const struct work *work;
    int64_t shrink;
};

static int64_t extent(const struct bench *x, char dim)
{
    int64_t n = dim == 'm' ? x->work->m : dim == 'n' ? x->work->n : x->work->k;
    return n / x->shrink > 8 ? n / x->shrink : 8;
}

static void move(struct bench *x, void *to, const void *from, size_t bytes)
{
    struct hd_error err = HD_ERROR_INIT;
    bench_check(x->plugin.ops->copy(x->plugin.device, 0, to, from, bytes, &err), &err, "copy");
    bench_check(x->plugin.ops->sync(x->plugin.device, 0, &err), &err, "sync");
}

/* Numbers that look random: what products cost depends on them. bf16: from -1 to 1 in steps of 1/64. */
static void fill(struct bench *x, const struct hd_operand *o, uint32_t state)
{
    struct hd_error err = HD_ERROR_INIT;
    const int64_t n = hd_operand_count(o), period = (1 << 20) - 1;
    size_t bytes = (size_t)n * hd_dtype_size(o->dtype);
    void *p;
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_PINNED, bytes, &p, &err), &err, "alloc");
    memset(p, 0, bytes);
    for (int64_t i = 0; i < n && i < period && o->dtype == HD_BF16; i++) {
        state = state * 1664525u + 1013904223u;
        float v = (float)((int32_t)(state >> 25) - 64) / 64;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    }
    for (int64_t i = period; i < n && o->dtype == HD_BF16; i += period)
        memcpy((uint16_t *)p + i, p, (size_t)(n - i < period ? n - i : period) * sizeof(uint16_t));
    move(x, o->data, p, bytes);
    x->plugin.ops->free(x->plugin.device, HD_MEM_PINNED, p);
}

static struct hd_operand operand(struct bench *x, const char *dims, uint32_t dtype)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_operand o = {.dtype = dtype};
    for (; dims[o.ndim]; o.ndim++) {
        o.dim[o.ndim] = (uint8_t)dims[o.ndim];
        o.extent[o.ndim] = extent(x, dims[o.ndim]);
    }
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_DEVICE,
                                     (size_t)hd_operand_count(&o) * hd_dtype_size(dtype), &o.data, &err),
                &err, "alloc");
    fill(x, &o, (uint32_t)dims[0] * 7 + (uint32_t)dims[1]);
    return o;
}

/* Milliseconds a launch of all, back to back: the best of ROUNDS. */
static double run(struct bench *x, struct hd_kernel *const *kernels, int count, int times)
{
    struct hd_error err = HD_ERROR_INIT;
    double best = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = bench_now();
        for (int n = 0; n < times * count; n++)
            bench_check(x->plugin.ops->launch(x->plugin.device, kernels[n % count], 0, &err), &err, "launch");
        bench_check(x->plugin.ops->sync(x->plugin.device, 0, &err), &err, "sync");
        best = fmin(best, 1e3 * (bench_now() - begin) / times);
    }
    return best;
}

/* Element 0 of the output, which is not added to, by hand. */
static int first_is_right(struct bench *x, const struct hd_operand *in, const struct hd_operand *out)
{
    struct hd_error err = HD_ERROR_INIT;
    int64_t k = extent(x, 'k'), step[2];
    double want = 0, got;
    uint16_t *p[2], first;
    for (int n = 0; n < 2; n++) {
        size_t bytes = (size_t)hd_operand_count(&in[n]) * 2;
        bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_PINNED, bytes, (void **)&p[n], &err), &err, "alloc");
        move(x, p[n], in[n].data, bytes);
        step[n] = in[n].dim[0] == 'k' ? in[n].extent[1] : 1;
    }
    for (int64_t i = 0; i < k; i++) {
        uint32_t bits[2] = {(uint32_t)p[0][i * step[0]] << 16, (uint32_t)p[1][i * step[1]] << 16};
        float v[2];
        memcpy(v, bits, sizeof v);
        want += (double)v[0] * (double)v[1];
    }
    move(x, p[0], out->data, 2);
    first = p[0][0];
    uint32_t bits = (uint32_t)first << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    got = (double)v;
    for (int n = 0; n < 2; n++)
        x->plugin.ops->free(x->plugin.device, HD_MEM_PINNED, p[n]);
    return fabs(got - want) <= 0.01 * sqrt((double)k);
}

/* Adds an instruction; operands are indices of s->operand. second: the second output, -1 for none. */
static void add(struct bench *x, struct sequence *s, uint32_t op, const int *in, uint32_t n_in, int out, int second)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_instr_desc i = {.struct_size = sizeof i,
                              .op = op,
                              .n_in = n_in,
                              .n_out = second < 0 ? 1 : 2,
                              .in = s->in[s->n],
                              .out = s->out[s->n],
                              .attrs = {.struct_size = sizeof i.attrs, .flags = x->work->adds ? HD_ATTR_ACCUMULATE : 0},
                              .label = "bench"};
    for (uint32_t n = 0; n < n_in; n++)
        s->in[s->n][n] = s->operand[in[n]];
    s->out[s->n][0] = s->operand[out];
    if (second >= 0)
        s->out[s->n][1] = s->operand[second];
    bench_check(x->plugin.ops->prepare(x->plugin.device, &i, &s->kernel[s->n], &err), &err, "prepare");
    s->n++;
}

enum { A, B, BESIDE, PRODUCT, SECOND };

/* What an epilogue stands for, as device-cuda has it too. */
static void add_apart(struct bench *x, struct sequence *s)
{
    add(x, s, HD_OP_EINSUM, (const int[]){A, B}, 2, PRODUCT, -1);
    if (x->work->op == HD_OP_EINSUM_BIAS_DW)
        add(x, s, HD_OP_BIAS_DW, (const int[]){A}, 1, SECOND, -1);
    if (x->work->op == HD_OP_EINSUM_GELU_GRAD)
        add(x, s, HD_OP_GELU_GRAD, (const int[]){BESIDE, PRODUCT}, 2, PRODUCT, -1);
    if (x->work->op == HD_OP_EINSUM_GELU) {
        add(x, s, HD_OP_BIAS, (const int[]){PRODUCT, BESIDE}, 2, PRODUCT, -1);
        add(x, s, HD_OP_GELU, (const int[]){PRODUCT}, 1, SECOND, -1);
    }
}

static int measure(struct bench *x, const struct work *w, int times)
{
    x->work = w;
    const char *beside = w->op == HD_OP_EINSUM_GELU ? "n" : "mn", *second = w->op == HD_OP_EINSUM_GELU ? "mn" : "m";
    uint32_t dtype = w->adds ? HD_F32 : HD_BF16;
    struct sequence s = {.operand = {operand(x, w->a, HD_BF16), operand(x, w->b, HD_BF16),
                                     operand(x, w->op ? beside : "n", HD_BF16), operand(x, "mn", dtype),
                                     operand(x, w->op ? second : "m", dtype)}};
    const int in[] = {A, B, BESIDE};
    bench_words[0] = 0;
    int more = w->op == HD_OP_EINSUM_BIAS_DW || w->op == HD_OP_EINSUM_GELU;
    if (w->apart || !w->op)
        add_apart(x, &s);
    else
        add(x, &s, w->op, in, w->op == HD_OP_EINSUM_BIAS_DW ? 2 : 3, PRODUCT, more ? SECOND : -1);
    if (*bench_words) /* what `tune` found of both forms */
        fprintf(stderr, "%s, %s\n", w->name, bench_words);
    double ms = run(x, s.kernel, s.n, times);
    int alone = !w->adds && !w->op, right = !alone || first_is_right(x, s.operand, &s.operand[PRODUCT]);
    printf("{\"name\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"dims\": \"%s %s mn\", \"adds\": %d, \"ms\": "
           "%.5f, \"right\": %s}\n",
           w->name, (long long)extent(x, 'm'), (long long)extent(x, 'n'), (long long)extent(x, 'k'), w->a, w->b, !alone,
           ms, right ? "true" : "false");
    for (int n = 0; n < s.n; n++)
        x->plugin.ops->release(x->plugin.device, s.kernel[n]);
    for (int n = 0; n < IN_OUT; n++)
        x->plugin.ops->free(x->plugin.device, HD_MEM_DEVICE, s.operand[n].data);
    return right;
}

/* ---- experts */

enum { EXPERTS = 8, CHOSEN = 2 };

static const int64_t tokens = 8192, hidden = 2048, ffn = 5632;

static struct hd_operand slots_operand(struct bench *x, uint32_t ndim, const char *dims, const int64_t *extent,
                                       uint32_t dtype)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_operand o = {.dtype = dtype, .ndim = ndim};
    for (uint32_t i = 0; i < ndim; i++) {
        o.dim[i] = (uint8_t)dims[i];
        o.extent[i] = extent[i];
    }
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_DEVICE,
                                     (size_t)hd_operand_count(&o) * hd_dtype_size(dtype), &o.data, &err),
                &err, "alloc");
    if (dtype == HD_BF16)
        fill(x, &o, ndim);
    return o;
}

/* Every token is in the slots of two experts that follow each other, from a place that looks random. */
static void choose_slots(struct bench *x, const struct hd_operand *o)
{
    struct hd_error err = HD_ERROR_INIT;
    int64_t s = o->extent[2];
    size_t bytes = (size_t)hd_operand_count(o) * 4;
    uint32_t state = 5;
    int32_t *p;
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_PINNED, bytes, (void **)&p, &err), &err, "alloc");
    memset(p, 0, bytes);
    for (int64_t i = 0; i < s; i++) {
        state = state * 1664525u + 1013904223u;
        for (uint32_t n = 0; n < CHOSEN; n++)
            p[((state >> 20) + n) % EXPERTS * s + i] = (int32_t)i + 1;
    }
    move(x, o->data, p, bytes);
    x->plugin.ops->free(x->plugin.device, HD_MEM_PINNED, p);
}

static void measure_experts(struct bench *x, const char *name, double share, int times)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    int64_t s = tokens / x->shrink, h = hidden / x->shrink / 8 * 8, f = ffn / x->shrink / 8 * 8;
    h = h ? h : 8, f = f ? f : 8;
    struct hd_operand in[3] = {slots_operand(x, 4, "besh", (const int64_t[]){1, EXPERTS, s, h}, HD_BF16),
                               slots_operand(x, 3, "ehf", (const int64_t[]){EXPERTS, h, f}, HD_BF16),
                               slots_operand(x, 3, "bes", (const int64_t[]){1, EXPERTS, s}, HD_I32)},
                      out = slots_operand(x, 4, "besf", (const int64_t[]){1, EXPERTS, s, f}, HD_BF16);
    struct hd_instr_desc i = {.struct_size = sizeof i,
                              .op = HD_OP_GROUPED,
                              .n_in = 3,
                              .n_out = 1,
                              .in = in,
                              .out = &out,
                              .attrs = {.struct_size = sizeof i.attrs, .share = share},
                              .label = "bench"};
    choose_slots(x, &in[2]);
    bench_check(x->plugin.ops->prepare(x->plugin.device, &i, &k, &err), &err, "prepare");
    double ms = run(x, &k, 1, times);
    printf("{\"name\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"dims\": \"experts\", \"adds\": 1, \"ms\": "
           "%.5f, \"right\": true}\n",
           name, (long long)s * CHOSEN, (long long)f, (long long)h, ms);
    x->plugin.ops->release(x->plugin.device, k);
    for (int n = 0; n < 3; n++)
        x->plugin.ops->free(x->plugin.device, HD_MEM_DEVICE, in[n].data);
    x->plugin.ops->free(x->plugin.device, HD_MEM_DEVICE, out.data);
}

int main(int n, char **words)
{
    struct bench x = {.shrink = n > 2 ? atoll(words[2]) : 0};
    int right = 1;
    if (x.shrink < 1) {
        fprintf(stderr, "usage: bench_products PLUGIN.so SHRINK [OPTION=VALUE...]\n");
        return 2;
    }
    bench_open(&x.plugin, words[1], (const char *const *)words + 3);
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++)
        right &= measure(&x, &works[i], x.shrink > 1 ? 1 : TIMES);
    measure_experts(&x, "experts, few", (double)CHOSEN / EXPERTS, x.shrink > 1 ? 1 : TIMES);
    measure_experts(&x, "experts, all", 1, x.shrink > 1 ? 1 : TIMES);
    x.plugin.ops->close(x.plugin.device);
    return !right;
}
