/* Times attention of a device plugin through its vtable:
 *   bench_attention PLUGIN.so B S K G D [bf16|fp16 [OPTION=VALUE...]]
 * One JSON line: milliseconds forward and backward, what they had to compute and move, and what a copy of the device
 * reaches. Flops count each pair of a query and a key that it sees once: 4 d a pair forward, 10 d backward. Bytes
 * count every operand once. */
#include "bench/device.h"
#include <math.h>

enum { Q, K, V, O, LSE, GRAD, DQ, DK, DV, OPERANDS, TIMES = 20 };

struct bench {
    struct bench_device plugin;
    struct hd_operand at[OPERANDS];
    int64_t b, s, k, g, d;
    uint32_t dtype;
};

static struct hd_operand operand(struct bench *x, const char *dims, uint32_t dtype)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_operand o = {.dtype = dtype, .ndim = (uint32_t)strlen(dims)};
    for (uint32_t i = 0; i < o.ndim; i++) {
        o.dim[i] = (uint8_t)dims[i];
        o.extent[i] = dims[i] == 'b'   ? x->b
                      : dims[i] == 's' ? x->s
                      : dims[i] == 'k' ? x->k
                      : dims[i] == 'g' ? x->g
                                       : x->d;
    }
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_DEVICE,
                                     (size_t)hd_operand_count(&o) * hd_dtype_size(dtype), &o.data, &err),
                &err, "alloc");
    return o;
}

static void move(struct bench *x, void *to, const void *from, size_t bytes)
{
    struct hd_error err = HD_ERROR_INIT;
    bench_check(x->plugin.ops->copy(x->plugin.device, 0, to, from, bytes, &err), &err, "copy");
    bench_check(x->plugin.ops->sync(x->plugin.device, 0, &err), &err, "sync");
}

/* Numbers from -1 to 1 in steps of 1/64: exact in both dtypes. */
static uint16_t number(uint32_t *state, uint32_t dtype)
{
    *state = *state * 1664525u + 1013904223u;
    float v = (float)((int32_t)(*state >> 25) - 64) / 64;
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (dtype == HD_BF16)
        return (uint16_t)(bits >> 16);
    _Float16 half = (_Float16)v;
    uint16_t h;
    memcpy(&h, &half, sizeof h);
    return h;
}

static void fill(struct bench *x, int which)
{
    struct hd_error err = HD_ERROR_INIT;
    int64_t n = hd_operand_count(&x->at[which]);
    uint32_t state = 7 + (uint32_t)which;
    void *p;
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_PINNED, (size_t)n * 2, &p, &err), &err, "alloc");
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)p)[i] = number(&state, x->dtype);
    move(x, x->at[which].data, p, (size_t)n * 2);
    x->plugin.ops->free(x->plugin.device, HD_MEM_PINNED, p);
}

/* Milliseconds a launch, back to back, after a first one. */
static double run(struct bench *x, uint32_t op, int n_in, int n_out, const struct hd_operand *out, int times)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *kernel;
    struct hd_instr_desc i = {.struct_size = sizeof i,
                              .op = op,
                              .n_in = (uint32_t)n_in,
                              .n_out = (uint32_t)n_out,
                              .in = x->at,
                              .out = out,
                              .attrs = {.struct_size = sizeof i.attrs, .scale = 1 / sqrt((double)x->d)},
                              .label = "bench"};
    bench_check(x->plugin.ops->prepare(x->plugin.device, &i, &kernel, &err), &err, "prepare");
    double begin = 0;
    for (int n = -1; n < times; n++) {
        bench_check(x->plugin.ops->launch(x->plugin.device, kernel, 0, &err), &err, "launch");
        if (n < 0) {
            bench_check(x->plugin.ops->sync(x->plugin.device, 0, &err), &err, "sync");
            begin = bench_now();
        }
    }
    bench_check(x->plugin.ops->sync(x->plugin.device, 0, &err), &err, "sync");
    double seconds = bench_now() - begin;
    x->plugin.ops->release(x->plugin.device, kernel);
    return 1e3 * seconds / times;
}

/* GB/s read and written by copies within the device. */
static double copy_rate(struct bench *x, size_t bytes, int times)
{
    struct hd_error err = HD_ERROR_INIT;
    void *a, *b;
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_DEVICE, bytes, &a, &err), &err, "alloc");
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_DEVICE, bytes, &b, &err), &err, "alloc");
    move(x, a, b, bytes);
    double begin = bench_now();
    for (int n = 0; n < times; n++)
        bench_check(x->plugin.ops->copy(x->plugin.device, 0, n % 2 ? a : b, n % 2 ? b : a, bytes, &err), &err, "copy");
    bench_check(x->plugin.ops->sync(x->plugin.device, 0, &err), &err, "sync");
    double seconds = bench_now() - begin;
    x->plugin.ops->free(x->plugin.device, HD_MEM_DEVICE, a);
    x->plugin.ops->free(x->plugin.device, HD_MEM_DEVICE, b);
    return 2e-9 * (double)bytes * times / seconds;
}

/* Position 0 sees itself alone: its o is its v, bit for bit. */
static int first_is_right(struct bench *x)
{
    struct hd_error err = HD_ERROR_INIT;
    size_t row = (size_t)(x->k * x->g * x->d) * 2;
    uint16_t *p;
    bench_check(x->plugin.ops->alloc(x->plugin.device, HD_MEM_PINNED, 2 * row, (void **)&p, &err), &err, "alloc");
    move(x, p, x->at[O].data, row);
    move(x, (char *)p + row, x->at[V].data, row / (size_t)x->g);
    int same = 1;
    for (int64_t h = 0; h < x->k * x->g; h++)
        same &= !memcmp(p + h * x->d, (char *)p + row + h / x->g * x->d * 2, (size_t)x->d * 2);
    x->plugin.ops->free(x->plugin.device, HD_MEM_PINNED, p);
    return same;
}

int main(int n, char **words)
{
    struct bench x = {.dtype = n > 7 && !strcmp(words[7], "fp16") ? HD_F16 : HD_BF16};
    if (n < 7) {
        fprintf(stderr, "usage: bench_attention PLUGIN.so B S K G D [bf16|fp16 [OPTION=VALUE...]]\n");
        return 2;
    }
    int64_t *sizes[] = {&x.b, &x.s, &x.k, &x.g, &x.d};
    for (int i = 0; i < 5; i++)
        if ((*sizes[i] = atoll(words[2 + i])) < 1)
            bench_stop("%s is no size", words[2 + i]);
    bench_open(&x.plugin, words[1], n > 7 ? (const char *const *)words + 8 : NULL);
    for (int i = 0; i < OPERANDS; i++) {
        int query = i == Q || i == O || i == GRAD || i == DQ;
        x.at[i] = operand(&x, i == LSE ? "bskg" : query ? "bskgd" : "bskd", i == LSE ? HD_F32 : x.dtype);
    }
    for (int i = 0; i < 3; i++)
        fill(&x, i);
    fill(&x, GRAD);
    double pairs = (double)x.s * (double)(x.s + 1) / 2 * (double)(x.b * x.k * x.g), d = (double)x.d;
    double q = 2 * (double)hd_operand_count(&x.at[Q]), kv = 2 * (double)hd_operand_count(&x.at[K]), lse = 2 * q / d;
    int times = pairs * d > 1e8 ? TIMES : 1;
    double forward = run(&x, HD_OP_ATTENTION, 3, 2, &x.at[O], times);
    int right = first_is_right(&x);
    double backward = run(&x, HD_OP_ATTENTION_GRAD, 6, 3, &x.at[DQ], times),
           copy = copy_rate(&x, times > 1 ? (size_t)1 << 30 : 1 << 16, times);
    printf("{\"forward_ms\": %.4f, \"forward_flops\": %.6g, \"forward_bytes\": %.6g, \"backward_ms\": %.4f, "
           "\"backward_flops\": %.6g, "
           "\"backward_bytes\": %.6g, \"copy_gbs\": %.1f, \"peak_flops\": %.6g, \"wgmma\": %s, \"right\": %s}\n",
           forward, 4 * d * pairs, 2 * q + 2 * kv + lse, backward, 10 * d * pairs, 4 * q + 4 * kv + lse, copy,
           x.plugin.ops->peak_flops ? x.plugin.ops->peak_flops(x.plugin.device, x.dtype) : 0,
           bench_heard("by wgmma is used") ? "true" : "false", right ? "true" : "false");
    x.plugin.ops->close(x.plugin.device);
    return !right;
}
