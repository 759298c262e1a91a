/* Times matrix products of a device plugin through its vtable:  bench_products PLUGIN.so SHRINK [OPTION=VALUE...]
 * One JSON line a product: its name, m, n, k, what it is ("mk kn mn": operands' dims) and milliseconds a launch.
 * Operands are bf16 or, where it says so, the output is fp32 and added to. Then products of 8 experts, 2 of them a
 * token, a slot for each token and expert: once said to be what they are, once to be full (attrs.share), which
 * decides how device-cuda makes them. SHRINK divides every extent: 1 for times, 64 to see that all runs. */
#include "bench/device.h"
#include <math.h>

enum { TIMES = 20, ROUNDS = 3 };

/* Products of GPT-2 124M (32 x 1024 tokens) and of a Llama 1B (4 x 4096), forward, for inputs, for weights; and a
 * square one. */
static const struct work {
    const char *name, *a, *b;
    int64_t m, n, k;
    int adds; /* to fp32 */
} works[] = {
    {"gpt2-124m proj", "mk", "kn", 32768, 768, 768, 0},   {"gpt2-124m fc", "mk", "kn", 32768, 3072, 768, 0},
    {"gpt2-124m fc dx", "mk", "nk", 32768, 768, 3072, 0}, {"gpt2-124m fc dw", "km", "kn", 768, 3072, 32768, 1},
    {"llama-1b q", "mk", "kn", 16384, 2048, 2048, 0},     {"llama-1b up", "mk", "kn", 16384, 8192, 2048, 0},
    {"llama-1b up dx", "mk", "nk", 16384, 2048, 8192, 0}, {"llama-1b up dw", "km", "kn", 2048, 8192, 16384, 1},
    {"square", "mk", "kn", 8192, 8192, 8192, 0},
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
    int64_t n = hd_operand_count(o);
    size_t bytes = (size_t)n * hd_dtype_size(o->dtype);
    void *p;
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_PINNED, bytes, &p, &err), &err, "alloc");
    memset(p, 0, bytes);
    for (int64_t i = 0; i < n && o->dtype == HD_BF16; i++) {
        state = state * 1664525u + 1013904223u;
        float v = (float)((int32_t)(state >> 25) - 64) / 64;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    }
    move(x, o->data, p, bytes);
    x->plugin.ops->free(x->plugin.device, HD_MEM_PINNED, p);
}

static struct hd_operand operand(struct bench *x, const char *dims, uint32_t dtype)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_operand o = {.dtype = dtype, .ndim = 2};
    for (uint32_t i = 0; i < 2; i++) {
        o.dim[i] = (uint8_t)dims[i];
        o.extent[i] = extent(x, dims[i]);
    }
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_DEVICE,
                                     (size_t)hd_operand_count(&o) * hd_dtype_size(dtype), &o.data, &err),
                &err, "alloc");
    fill(x, &o, (uint32_t)dims[0] * 7 + (uint32_t)dims[1]);
    return o;
}

/* Milliseconds a launch, back to back: the best of ROUNDS. */
static double run(struct bench *x, struct hd_kernel *k, int times)
{
    struct hd_error err = HD_ERROR_INIT;
    double best = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = bench_now();
        for (int n = 0; n < times; n++)
            bench_check(x->plugin.ops->launch(x->plugin.device, k, 0, &err), &err, "launch");
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

static int measure(struct bench *x, const struct work *w, int times)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    x->work = w;
    struct hd_operand in[2] = {operand(x, w->a, HD_BF16), operand(x, w->b, HD_BF16)},
                      out = operand(x, "mn", w->adds ? HD_F32 : HD_BF16);
    struct hd_instr_desc i = {.struct_size = sizeof i,
                              .op = HD_OP_EINSUM,
                              .n_in = 2,
                              .n_out = 1,
                              .in = in,
                              .out = &out,
                              .attrs = {.struct_size = sizeof i.attrs, .flags = w->adds ? HD_ATTR_ACCUMULATE : 0},
                              .label = "bench"};
    bench_check(x->plugin.ops->prepare(x->plugin.device, &i, &k, &err), &err, "prepare");
    double ms = run(x, k, times);
    int right = w->adds || first_is_right(x, in, &out);
    printf("{\"name\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"dims\": \"%s %s mn\", \"adds\": %d, \"ms\": "
           "%.5f, \"right\": %s}\n",
           w->name, (long long)extent(x, 'm'), (long long)extent(x, 'n'), (long long)extent(x, 'k'), w->a, w->b,
           w->adds, ms, right ? "true" : "false");
    x->plugin.ops->release(x->plugin.device, k);
    for (int n = 0; n < 2; n++)
        x->plugin.ops->free(x->plugin.device, HD_MEM_DEVICE, in[n].data);
    x->plugin.ops->free(x->plugin.device, HD_MEM_DEVICE, out.data);
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
    double ms = run(x, k, times);
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
