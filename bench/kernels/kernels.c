/* Kernels that memory bounds, as a part of what a copy reaches on the same device in the same run.
 *
 *     build/bench/kernels/kernels [-d bf16|fp16|fp32] [-n SCALE] [-o NAME] PLUGIN.so
 *
 * GB/s: the bytes that an op has to read and write, each once, over the seconds of the best of ROUNDS rounds of TIMES
 * launches. A round of the copy goes before each op's. With -n 0.01 operands are small: to see that all runs, not how
 * fast. */
#include <math.h>
#include <unistd.h>

#include "../device.h"
#include "heddle/optimizer.h"

enum { ROUNDS = 5, TIMES = 20, LETTERS = 26 };

static const double inverse_frequencies[64] = {1, 0.5, 0.1, 0.01};
static const double factors[2] = {0.5, 0.5};
static const struct hd_range ranges[] = {{0, INT64_C(1) << 20, 0.1}, {INT64_C(1) << 20, INT64_C(1) << 40, 0.2}};

/* Operands: dims, one letter each, after a kind: i int32 ids below v, f fp32, d fp64, m another id: the slots of a
 * route. `moved`: what counts, where it is not every operand once. */
static const struct kernel {
    const char *name;
    uint32_t op;
    const char *in, *out, *moved;
    struct hd_attrs attrs;
} kernels[] = {
    {"copy, fp32 from bf16", HD_OP_COPY, "bsh", "f:bsh", NULL, {0}},
    {"add", HD_OP_ADD, "bsh bsh", "bsh", NULL, {0}},
    {"accum", HD_OP_ACCUM, "bsh", "f:bsh", "bsh f:bsh f:bsh", {0}},
    {"blend", HD_OP_BLEND, "f:bsh f:bsh", "f:bsh", NULL, {.table = factors, .n_table = 2}},
    {"fill0", HD_OP_FILL0, NULL, "f:bsh", NULL, {0}},
    {"bias", HD_OP_BIAS, "bsf f", "bsf", NULL, {0}},
    {"bias_dw", HD_OP_BIAS_DW, "bsf", "f:f", NULL, {0}},
    {"gelu", HD_OP_GELU, "bsf", "bsf", NULL, {0}},
    {"gelu_grad", HD_OP_GELU_GRAD, "bsf bsf", "bsf", NULL, {0}},
    {"swiglu", HD_OP_SWIGLU, "bsf bsf", "bsf", NULL, {0}},
    {"swiglu_grad", HD_OP_SWIGLU_GRAD, "bsf bsf bsf", "bsf bsf", NULL, {0}},
    {"rmsnorm, 2048", HD_OP_RMSNORM, "bsh h", "bsh", NULL, {.eps = 1e-5}},
    {"rmsnorm_dx, 2048", HD_OP_RMSNORM_DX, "bsh h bsh", "bsh", NULL, {.eps = 1e-5}},
    {"rmsnorm_dw, 2048", HD_OP_RMSNORM_DW, "bsh bsh", "f:h", NULL, {.eps = 1e-5}},
    {"layernorm, 768", HD_OP_LAYERNORM, "bsg g g", "bsg", NULL, {.eps = 1e-5}},
    {"layernorm_dx, 768", HD_OP_LAYERNORM_DX, "bsg g bsg", "bsg", NULL, {.eps = 1e-5}},
    {"layernorm_dw, 768", HD_OP_LAYERNORM_DW, "bsg bsg", "f:g f:g", NULL, {.eps = 1e-5}},
    {"add_rmsnorm, 2048", HD_OP_ADD_RMSNORM, "bsh bsh h", "bsh bsh", NULL, {.eps = 1e-5}},
    {"rmsnorm_dx_add, 2048", HD_OP_RMSNORM_DX_ADD, "bsh bsh h bsh", "bsh", NULL, {.eps = 1e-5}},
    {"rmsnorm_grad_add, 2048", HD_OP_RMSNORM_GRAD_ADD, "bsh bsh h bsh", "bsh f:h", NULL, {.eps = 1e-5}},
    {"add_layernorm, 768", HD_OP_ADD_LAYERNORM, "bsg bsg g g", "bsg bsg", NULL, {.eps = 1e-5}},
    {"layernorm_dx_add, 768", HD_OP_LAYERNORM_DX_ADD, "bsg bsg g bsg", "bsg", NULL, {.eps = 1e-5}},
    {"layernorm_grad_add, 768", HD_OP_LAYERNORM_GRAD_ADD, "bsg bsg g bsg", "bsg f:g f:g", NULL, {.eps = 1e-5}},
    {"rope", HD_OP_ROPE, "bskd", "bskd", NULL, {.sign = 1, .table = inverse_frequencies, .n_table = 64}},
    {"embed", HD_OP_EMBED, "i:bs vh", "bsh", "i:bs bsh bsh", {0}},
    {"embed_dw", HD_OP_EMBED_DW, "i:bs bsh", "f:vh", NULL, {0}},
    {"position", HD_OP_POSITION, "bsh sh", "bsh", NULL, {0}},
    {"rowmax, 50257", HD_OP_ROWMAX, "blv", "f:bl", NULL, {0}},
    {"xent_local, 50257", HD_OP_XENT_LOCAL, "blv f:bl i:bl", "f:bl f:bl", NULL, {0}},
    {"xent_grad, 50257", HD_OP_XENT_GRAD, "blv f:bl i:bl f:bl f:bl", "blv", NULL, {0}},
    {"total", HD_OP_TOTAL, "f:bsh", "f:", NULL, {.scale = 1}},
    {"sumsq", HD_OP_SUMSQ, "f:n", "d:", NULL, {.ranges = ranges, .n_ranges = 2}},
    {"adamw",
     HD_OP_ADAMW,
     "n d: d:y",
     "f:n f:n f:n n",
     "n f:n f:n f:n f:n f:n f:n n",
     {.ranges = ranges, .n_ranges = 2, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.95, .clip = 1}},
    {"sgd", HD_OP_SGD, "n d: d:y", "f:n f:n n", "n f:n f:n f:n f:n n", {.ranges = ranges, .n_ranges = 2, .beta1 = 0.9}},
    {"encode, 8 bits",
     HD_OP_ENCODE,
     "f:n",
     "u:c f:n",
     "f:n u:c f:n f:n",
     {.flags = HD_ATTR_ACCUMULATE, .ranges = ranges, .n_ranges = 2, .index = 8, .window = 1024, .parts = 1}},
    {"decode, 8 bits",
     HD_OP_DECODE,
     "u:c",
     "f:n",
     NULL,
     {.flags = HD_ATTR_CONCAT, .index = 8, .window = 1024, .parts = 1}},
};

struct bench {
    struct bench_device plugin;
    uint32_t dtype;
    int64_t extent[LETTERS];
};

static void finish(struct bench *b)
{
    struct hd_error err = HD_ERROR_INIT;
    if (b->plugin.ops->sync)
        bench_check(b->plugin.ops->sync(b->plugin.device, HD_STREAM_COMPUTE, &err), &err, "waiting");
}

/* ---- operands */

static const char *parse(const struct bench *b, const char *text, struct hd_operand *o)
{
    char kind = 0;
    *o = (struct hd_operand){.dtype = b->dtype};
    if (text[0] && text[1] == ':') {
        kind = text[0];
        text += 2;
    }
    o->dtype = kind == 'i' ? HD_I32 : kind == 'f' ? HD_F32 : kind == 'd' ? HD_F64 : kind == 'u' ? HD_U8 : b->dtype;
    for (; *text && *text != ' '; text++, o->ndim++) {
        o->dim[o->ndim] = (uint8_t)*text;
        o->extent[o->ndim] = b->extent[*text - 'a'];
    }
    return *text ? text + 1 : text;
}

static size_t bytes_of(const struct hd_operand *o)
{
    return (size_t)hd_operand_count(o) * hd_dtype_size(o->dtype);
}

/* Ids are drawn; hyper is what a step has; all other numbers are small. */
static void fill(const struct bench *b, const struct hd_operand *o, void *to)
{
    static const double hyper[] = {1e-3, 3, 1};
    uint64_t random = 88172645463325252u;
    memset(to, 0x3c, bytes_of(o));
    for (int64_t i = 0; o->dtype == HD_I32 && i < hd_operand_count(o); i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        ((int32_t *)to)[i] = (int32_t)(random % (uint64_t)b->extent['v' - 'a']);
    }
    if (o->ndim == 1 && o->dim[0] == 'y') {
        memset(to, 0, bytes_of(o));
        memcpy(to, hyper, sizeof hyper);
    }
}

static void place(struct bench *b, struct hd_operand *o)
{
    struct hd_error err = HD_ERROR_INIT;
    size_t bytes = bytes_of(o);
    void *start = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!start)
        bench_stop("no memory");
    fill(b, o, start);
    o->data = start;
    if (!(b->plugin.ops->caps & HD_DEVICE_STREAMS))
        return;
    if (b->plugin.ops->alloc(b->plugin.device, HD_MEM_DEVICE, bytes, &o->data, &err) ||
        b->plugin.ops->copy(b->plugin.device, HD_STREAM_COMPUTE, o->data, start, bytes, &err))
        bench_stop("operands: %s", err.message);
    finish(b);
    free(start);
}

static uint32_t operands(struct bench *b, const char *text, struct hd_operand *to)
{
    uint32_t n = 0;
    while (text && *text) {
        text = parse(b, text, &to[n]);
        place(b, &to[n++]);
    }
    return n;
}

static void release(struct bench *b, const struct hd_operand *o, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (b->plugin.ops->caps & HD_DEVICE_STREAMS)
            b->plugin.ops->free(b->plugin.device, HD_MEM_DEVICE, o[i].data);
        else
            free(o[i].data);
}

static double bytes_in(const struct bench *b, const char *text)
{
    double bytes = 0;
    while (text && *text) {
        struct hd_operand o;
        text = parse(b, text, &o);
        bytes += (double)bytes_of(&o);
    }
    return bytes;
}

/* ---- measuring */

struct contest {
    struct hd_kernel *kernel;
    double bytes, best; /* seconds of a launch */
};

static void round_of(struct bench *b, struct contest *c)
{
    struct hd_error err = HD_ERROR_INIT;
    double start = bench_now();
    for (int i = 0; i < TIMES; i++)
        if (b->plugin.ops->launch(b->plugin.device, c->kernel, HD_STREAM_COMPUTE, &err))
            bench_stop("a launch: %s", err.message);
    finish(b);
    double seconds = (bench_now() - start) / TIMES;
    c->best = c->best == 0 || seconds < c->best ? seconds : c->best;
}

static void prepare(struct bench *b, const struct kernel *k, struct hd_operand *in, struct hd_operand *out,
                    struct contest *c)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_instr_desc d = {.struct_size = sizeof d, .op = k->op, .in = in, .out = out, .attrs = k->attrs};
    d.attrs.struct_size = sizeof d.attrs;
    snprintf(d.label, sizeof d.label, "%s", k->name);
    d.n_in = operands(b, k->in, in);
    d.n_out = operands(b, k->out, out);
    c->bytes = k->moved ? bytes_in(b, k->moved) : bytes_in(b, k->in) + bytes_in(b, k->out);
    if (b->plugin.ops->prepare(b->plugin.device, &d, &c->kernel, &err))
        bench_stop("%s: %s", k->name, err.message);
    finish(b);
}

static void measure(struct bench *b, const struct kernel *k, struct contest *copy)
{
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    struct contest c = {0};
    uint32_t n_in = 0, n_out = 0;
    prepare(b, k, in, out, &c);
    for (const char *p = k->in; p && *p; n_in++)
        p = strchr(p, ' ') ? strchr(p, ' ') + 1 : "";
    for (const char *p = k->out; p && *p; n_out++)
        p = strchr(p, ' ') ? strchr(p, ' ') + 1 : "";
    for (int i = 0; i < ROUNDS; i++) {
        round_of(b, copy);
        round_of(b, &c);
    }
    double rate = c.bytes / c.best, bare = copy->bytes / copy->best;
    printf("%-22s %9.1f us %9.1f MB %8.1f GB/s  %5.2f of a copy\n", k->name, c.best * 1e6, c.bytes * 1e-6, rate * 1e-9,
           rate / bare);
    fflush(stdout);
    b->plugin.ops->release(b->plugin.device, c.kernel);
    release(b, in, n_in);
    release(b, out, n_out);
}

/* 8 x 4096 tokens, 2048 wide. */
static void set_extents(struct bench *b, double scale)
{
    static const struct {
        char letter;
        int64_t extent;
    } whole[] = {{'b', 8}, {'f', 8192}, {'h', 2048}, {'g', 768}, {'k', 16}, {'d', 128}, {'y', HD_HYPER_COUNT}};
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        b->extent[whole[i].letter - 'a'] = whole[i].extent;
    b->extent['s' - 'a'] = (int64_t)ceil(4096 * scale);
    b->extent['l' - 'a'] = (int64_t)ceil(512 * scale);
    b->extent['v' - 'a'] = 50257;
    b->extent['n' - 'a'] = (int64_t)ceil((1 << 27) * scale / 16) * 16;
    b->extent['c' - 'a'] = hd_code_bytes(b->extent['n' - 'a'], 1024, 8);
}

int main(int argc, char **argv)
{
    static const struct kernel plain = {"copy", HD_OP_COPY, "n", "n", NULL, {0}};
    struct bench b = {.dtype = HD_BF16};
    const char *only = "";
    double scale = 1;
    for (int o; (o = getopt(argc, argv, "d:n:o:")) != -1;)
        if (o == 'd')
            b.dtype = !strcmp(optarg, "fp32") ? HD_F32 : !strcmp(optarg, "fp16") ? HD_F16 : HD_BF16;
        else if (o == 'n')
            scale = atof(optarg);
        else if (o == 'o')
            only = optarg;
        else
            return 2;
    if (optind + 1 != argc || !(scale > 0))
        bench_stop("usage: kernels [-d bf16|fp16|fp32] [-n SCALE] [-o NAME] PLUGIN.so");
    set_extents(&b, scale);
    bench_open(&b.plugin, argv[optind], NULL);
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    struct contest copy = {0};
    prepare(&b, &plain, in, out, &copy);
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (strstr(kernels[i].name, only) && b.plugin.ops->supports(b.plugin.device, kernels[i].op, b.dtype))
            measure(&b, &kernels[i], &copy);
    printf("%-22s %9.1f us %9.1f MB %8.1f GB/s\n", "copy", copy.best * 1e6, copy.bytes * 1e-6,
           copy.bytes / copy.best * 1e-9);
    b.plugin.ops->release(b.plugin.device, copy.kernel);
    release(&b, in, 1);
    release(&b, out, 1);
    b.plugin.ops->close(b.plugin.device);
    return 0;
}
