/* Matrix products and attention of a training step, side by side: device plugins, or one plugin with different
 * options, in one process.
 *
 *     build/bench/products/products [-m S,M,LL] [-p PART] [-c CONTEXT] [-d f32|bf16] [-t THREADS] [-s SECONDS]
 *                                   PLUGIN.so[,OPTION=VALUE...]...
 *
 * -p: only works that have PART in their name. -c: attention over CONTEXT tokens instead of 256, one sequence. For each
 * work contestants take turns, sample by sample, for SECONDS in all (and at least LEAST samples each); the best sample
 * counts, so that other work on the machine hardly shows. A sample goes through COPIES instructions with operands of
 * their own, as a step goes through layers. GFLOP/s of each (of attention: of what a causal mask leaves), and the ratio
 * to the first contestant; then what all these of a step take together. Every contestant's results must be the first
 * one's, up to rounding. */
#include <math.h>
#include <unistd.h>

#include "../device.h"

enum { MOST = 8, LEAST = 5, COPIES = 3, OPERANDS = 9, WORDS = 16 };

/* Operands as the models have them, one letter a dim; the extents of m n k, or of b s k g d. `times` in a step;
 * `adds` to what the output holds. */
struct work {
    uint32_t op;
    const char *model, *what, *in, *out;
    int64_t extent[5];
    int times, adds;
};

static const char product_dims[] = "mnk", attention_dims[] = "bskgd";

static const struct work works[] = {
    {HD_OP_EINSUM, "S", "qkv, proj", "mk kn", "mn", {2048, 384, 384}, 24, 0},
    {HD_OP_EINSUM, "S", "qkv, proj dx", "mk nk", "mn", {2048, 384, 384}, 12, 0},
    {HD_OP_EINSUM, "S", "qkv dx, adding", "mk nk", "mn", {2048, 384, 384}, 12, 1},
    {HD_OP_EINSUM, "S", "qkv, proj dw", "kn km", "mn", {384, 384, 2048}, 24, 0},
    {HD_OP_EINSUM, "S", "fc", "mk kn", "mn", {2048, 1536, 384}, 6, 0},
    {HD_OP_EINSUM, "S", "fc dx", "mk nk", "mn", {2048, 384, 1536}, 6, 0},
    {HD_OP_EINSUM, "S", "fc dw", "kn km", "mn", {384, 1536, 2048}, 6, 0},
    {HD_OP_EINSUM, "S", "out", "mk kn", "mn", {2048, 384, 1536}, 6, 0},
    {HD_OP_EINSUM, "S", "out dx", "mk nk", "mn", {2048, 1536, 384}, 6, 0},
    {HD_OP_EINSUM, "S", "out dw", "kn km", "mn", {1536, 384, 2048}, 6, 0},
    {HD_OP_EINSUM, "M", "qkv, proj", "mk kn", "mn", {1024, 768, 768}, 48, 0},
    {HD_OP_EINSUM, "M", "qkv, proj dx", "mk nk", "mn", {1024, 768, 768}, 24, 0},
    {HD_OP_EINSUM, "M", "qkv dx, adding", "mk nk", "mn", {1024, 768, 768}, 24, 1},
    {HD_OP_EINSUM, "M", "qkv, proj dw", "kn km", "mn", {768, 768, 1024}, 48, 0},
    {HD_OP_EINSUM, "M", "fc", "mk kn", "mn", {1024, 3072, 768}, 12, 0},
    {HD_OP_EINSUM, "M", "fc dx", "mk nk", "mn", {1024, 768, 3072}, 12, 0},
    {HD_OP_EINSUM, "M", "fc dw", "kn km", "mn", {768, 3072, 1024}, 12, 0},
    {HD_OP_EINSUM, "M", "out", "mk kn", "mn", {1024, 768, 3072}, 12, 0},
    {HD_OP_EINSUM, "M", "out dx", "mk nk", "mn", {1024, 3072, 768}, 12, 0},
    {HD_OP_EINSUM, "M", "out dw", "kn km", "mn", {3072, 768, 1024}, 12, 0},
    {HD_OP_EINSUM, "M", "head, 256 rows", "mk nk", "mn", {256, 50304, 768}, 4, 0},
    {HD_OP_EINSUM, "M", "head dx, 256 rows", "mk kn", "mn", {256, 768, 50304}, 4, 0},
    {HD_OP_EINSUM, "M", "head dw, 256 rows", "km kn", "mn", {50304, 768, 256}, 4, 1},
    {HD_OP_EINSUM, "LL", "q, o", "mk nk", "mn", {1024, 512, 512}, 16, 0},
    {HD_OP_EINSUM, "LL", "k, v", "mk nk", "mn", {1024, 256, 512}, 16, 0},
    {HD_OP_EINSUM, "LL", "gate, up", "mk nk", "mn", {1024, 1408, 512}, 16, 0},
    {HD_OP_EINSUM, "LL", "down", "mk nk", "mn", {1024, 512, 1408}, 8, 0},
    {HD_OP_EINSUM, "LL", "q, o dx", "mk kn", "mn", {1024, 512, 512}, 16, 1},
    {HD_OP_EINSUM, "LL", "k, v dx", "mk kn", "mn", {1024, 512, 256}, 16, 1},
    {HD_OP_EINSUM, "LL", "gate, up dx", "mk kn", "mn", {1024, 512, 1408}, 16, 1},
    {HD_OP_EINSUM, "LL", "down dx", "mk kn", "mn", {1024, 1408, 512}, 8, 0},
    {HD_OP_EINSUM, "LL", "q, o dw", "km kn", "mn", {512, 512, 1024}, 16, 0},
    {HD_OP_EINSUM, "LL", "k, v dw", "km kn", "mn", {256, 512, 1024}, 16, 0},
    {HD_OP_EINSUM, "LL", "gate, up dw", "km kn", "mn", {1408, 512, 1024}, 16, 0},
    {HD_OP_EINSUM, "LL", "down dw", "km kn", "mn", {512, 1408, 1024}, 8, 0},
    {HD_OP_EINSUM, "LL", "head, 512 rows", "mk nk", "mn", {512, 32000, 512}, 2, 0},
    {HD_OP_EINSUM, "LL", "head dx, 512 rows", "mk kn", "mn", {512, 512, 32000}, 2, 0},
    {HD_OP_EINSUM, "LL", "head dw, 512 rows", "km kn", "mn", {32000, 512, 512}, 2, 1},
    {HD_OP_ATTENTION, "S", "attention", "bskgd bskd bskd", "bskgd bskg", {8, 256, 6, 1, 64}, 6, 0},
    {HD_OP_ATTENTION, "M", "attention", "bskgd bskd bskd", "bskgd bskg", {4, 256, 12, 1, 64}, 12, 0},
    {HD_OP_ATTENTION, "LL", "attention", "bskgd bskd bskd", "bskgd bskg", {4, 256, 4, 2, 64}, 8, 0},
    {HD_OP_ATTENTION_GRAD,
     "S",
     "attention_grad",
     "bskgd bskd bskd bskgd bskg bskgd",
     "bskgd bskd bskd",
     {8, 256, 6, 1, 64},
     6,
     0},
    {HD_OP_ATTENTION_GRAD,
     "M",
     "attention_grad",
     "bskgd bskd bskd bskgd bskg bskgd",
     "bskgd bskd bskd",
     {4, 256, 12, 1, 64},
     12,
     0},
    {HD_OP_ATTENTION_GRAD,
     "LL",
     "attention_grad",
     "bskgd bskd bskd bskgd bskg bskgd",
     "bskgd bskd bskd",
     {4, 256, 4, 2, 64},
     8,
     0},
};

struct contestant {
    char *text; /* of its options, which the plugin may hold on to */
    struct bench_device plugin;
    struct hd_kernel *kernel[COPIES];
    double best, step; /* seconds: of this product; of all of a model's, as often as a step has them */
};

struct bench {
    struct contestant contestant[MOST];
    int count, threads;
    uint32_t dtype;
    double seconds;
    int64_t context; /* 0: as in the table */
    char *memory[COPIES][OPERANDS];
};

/* Processor time of this thread where it is the only one: other work on the machine shows less. */
static double now(const struct bench *b)
{
    struct timespec t;
    clock_gettime(b->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- contestants */

/* "FILE,option=value,..." */
static void contestant_open(struct bench *b, const char *text)
{
    struct contestant *c = &b->contestant[b->count++];
    char *rest = c->text = strdup(text), threads[24];
    const char *words[WORDS] = {threads}, *file = strsep(&rest, ",");
    int n = 1;
    snprintf(threads, sizeof threads, "threads=%d", b->threads);
    for (char *word; n < WORDS - 1 && (word = strsep(&rest, ",")); n++)
        words[n] = word;
    bench_open(&c->plugin, file, words);
}

/* ---- one work */

/* Multiplications and additions of a launch. A causal mask leaves half of the scores; the backward pass has five
 * products of a tile where the forward pass has two. */
static double flops(const struct work *w)
{
    const int64_t *e = w->extent;
    if (w->op == HD_OP_EINSUM)
        return 2.0 * (double)e[0] * (double)e[1] * (double)e[2];
    return (w->op == HD_OP_ATTENTION_GRAD ? 5.0 : 2.0) * (double)(e[0] * e[1] * e[1] * e[2] * e[3] * e[4]);
}

/* The operand that `dims` begins with. Attention's statistics, bskg, and gradients of weights are fp32. */
static struct hd_operand operand(const struct bench *b, const struct work *w, const char *dims, void *data)
{
    const char *all = w->op == HD_OP_EINSUM ? product_dims : attention_dims;
    struct hd_operand o = {.data = data, .dtype = b->dtype};
    const char *first = dims;
    for (; *dims && *dims != ' '; dims++, o.ndim++) {
        o.dim[o.ndim] = (uint8_t)*dims;
        o.extent[o.ndim] = w->extent[strchr(all, *dims) - all];
    }
    if (o.dim[o.ndim - 1] == 'g' || (first == w->out && strstr(w->what, "dw")))
        o.dtype = HD_F32;
    return o;
}

/* All operands, inputs first; returns how many, and how many of them are inputs. */
static int operands_of(const struct bench *b, const struct work *w, int copy, struct hd_operand *o, int *inputs)
{
    int n = 0;
    for (int side = 0; side < 2; side++) {
        const char *dims = side ? w->out : w->in;
        for (; dims; dims = strchr(dims, ' ') ? strchr(dims, ' ') + 1 : NULL, n++)
            o[n] = operand(b, w, dims, b->memory[copy][n]);
        *inputs = side ? *inputs : n;
    }
    return n;
}

static void prepare(struct bench *b, const struct work *w, struct contestant *x)
{
    for (int copy = 0; copy < COPIES; copy++) {
        struct hd_operand o[OPERANDS];
        struct hd_error err = HD_ERROR_INIT;
        int inputs, n = operands_of(b, w, copy, o, &inputs);
        struct hd_instr_desc d = {.struct_size = sizeof d,
                                  .op = w->op,
                                  .n_in = (uint32_t)inputs,
                                  .n_out = (uint32_t)(n - inputs),
                                  .in = o,
                                  .out = o + inputs};
        snprintf(d.label, sizeof d.label, "%s", w->what);
        d.attrs.scale = w->op == HD_OP_EINSUM ? 1 : 1 / sqrt((double)w->extent[4]);
        d.attrs.flags = w->adds ? HD_ATTR_ACCUMULATE : 0;
        if (x->plugin.ops->prepare(x->plugin.device, &d, &x->kernel[copy], &err))
            bench_stop("%s: %s", w->what, err.message);
    }
    x->best = INFINITY;
}

static void fill(const struct hd_operand *o, uint32_t *seed)
{
    for (int64_t i = 0; i < hd_operand_count(o); i++) {
        *seed = *seed * 1664525 + 1013904223;
        float value = (float)(int32_t)*seed * 0x1p-31f;
        uint32_t word;
        memcpy(&word, &value, 4);
        if (o->dtype == HD_F32)
            ((float *)o->data)[i] = value;
        else
            ((uint16_t *)o->data)[i] = (uint16_t)(word >> 16);
    }
}

/* Whole pages of zeros, for free(). */
static void *zeroed(size_t bytes)
{
    enum { PAGE = 4096 };
    size_t rounded = (bytes + PAGE) / PAGE * PAGE;
    void *p = aligned_alloc(PAGE, rounded);
    return p ? memset(p, 0, rounded) : NULL;
}

static void operands_make(struct bench *b, const struct work *w)
{
    uint32_t seed = 1;
    for (int copy = 0; copy < COPIES; copy++) {
        struct hd_operand o[OPERANDS];
        int inputs, n = operands_of(b, w, copy, o, &inputs);
        for (int i = 0; i < n; i++) {
            if (!(b->memory[copy][i] = zeroed((size_t)hd_operand_count(&o[i]) * hd_dtype_size(o[i].dtype))))
                bench_stop("no memory");
            o[i].data = b->memory[copy][i];
            fill(&o[i], &seed);
        }
    }
}

static void launch(struct contestant *x, int copy)
{
    struct hd_error err = HD_ERROR_INIT;
    if (x->plugin.ops->launch(x->plugin.device, x->kernel[copy], 0, &err) ||
        (x->plugin.ops->sync && x->plugin.ops->sync(x->plugin.device, 0, &err)))
        bench_stop("%s", err.message);
}

static double value_at(const struct hd_operand *o, int64_t i)
{
    uint32_t word;
    float value;
    if (o->dtype == HD_F32)
        return ((const float *)o->data)[i];
    word = (uint32_t)((const uint16_t *)o->data)[i] << 16;
    memcpy(&value, &word, 4);
    return value;
}

/* Relative error of one output: the norm of its difference to the first contestant's, over that one's norm. */
static double apart(const struct hd_operand *y, double *want, int first)
{
    double apart = 0, norm = 0;
    for (int64_t i = 0; i < hd_operand_count(y); i++) {
        double value = value_at(y, i);
        want[i] = first ? value : want[i];
        apart += (value - want[i]) * (value - want[i]);
        norm += want[i] * want[i];
    }
    return sqrt(apart / norm);
}

/* All start from zeros. */
static void compare(struct bench *b, const struct work *w)
{
    struct hd_operand o[OPERANDS];
    int inputs, n = operands_of(b, w, 0, o, &inputs);
    double *want[OPERANDS] = {NULL}, bound = b->dtype == HD_F32 ? 1e-5 : 1e-2;
    for (int i = inputs; i < n; i++)
        if (!(want[i] = malloc((size_t)hd_operand_count(&o[i]) * sizeof(double))))
            bench_stop("no memory");
    for (int c = 0; c < b->count; c++) {
        for (int i = inputs; i < n; i++)
            memset(o[i].data, 0, (size_t)hd_operand_count(&o[i]) * hd_dtype_size(o[i].dtype));
        launch(&b->contestant[c], 0);
        for (int i = inputs; i < n; i++)
            if (!(apart(&o[i], want[i], c == 0) < bound))
                bench_stop("%s %s: contestant %d differs from the first", w->model, w->what, c + 1);
    }
    for (int i = inputs; i < n; i++)
        free(want[i]);
}

static void measure(struct bench *b)
{
    double end = now(b) + b->seconds;
    for (int sample = 0; sample < LEAST || now(b) < end; sample++)
        for (int c = 0; c < b->count; c++) {
            struct contestant *x = &b->contestant[c];
            double start = now(b);
            launch(x, sample % COPIES);
            start = now(b) - start;
            x->best = start < x->best ? start : x->best;
        }
}

static void finish(struct bench *b)
{
    for (int c = 0; c < b->count; c++)
        for (int copy = 0; copy < COPIES; copy++)
            b->contestant[c].plugin.ops->release(b->contestant[c].plugin.device, b->contestant[c].kernel[copy]);
    for (int copy = 0; copy < COPIES; copy++)
        for (int i = 0; i < OPERANDS; i++) {
            free(b->memory[copy][i]);
            b->memory[copy][i] = NULL;
        }
}

static void run(struct bench *b, const struct work *w)
{
    char extents[64];
    int at = 0;
    operands_make(b, w);
    for (int c = 0; c < b->count; c++)
        prepare(b, w, &b->contestant[c]);
    compare(b, w);
    measure(b);
    for (int i = 0; i < 5 && w->extent[i]; i++)
        at += snprintf(extents + at, sizeof extents - (size_t)at, "%s%lld", i ? "x" : "", (long long)w->extent[i]);
    printf("%-3s %-18s %-15s %-5s %3d", w->model, w->what, extents, w->op == HD_OP_EINSUM ? w->in : "", w->times);
    for (int c = 0; c < b->count; c++) {
        struct contestant *x = &b->contestant[c];
        x->step += w->times * x->best;
        printf(" %7.1f", 1e-9 * flops(w) / x->best);
        if (c)
            printf(" %5.2f", b->contestant[0].best / x->best);
    }
    putchar('\n');
    fflush(stdout);
    finish(b);
}

/* ---- a model */

static int listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, n) && (at[n] == ',' || !at[n]))
            return 1;
    return 0;
}

static void run_model(struct bench *b, const char *model, const char *part)
{
    for (int c = 0; c < b->count; c++)
        b->contestant[c].step = 0;
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++)
        if (!strcmp(works[i].model, model) && strstr(works[i].what, part)) {
            struct work w = works[i];
            if (b->context && w.op != HD_OP_EINSUM) {
                w.extent[0] = 1;
                w.extent[1] = b->context;
            }
            run(b, &w);
        }
    printf("%-3s all these of a step, ms   %19s", model, "");
    for (int c = 0; c < b->count; c++) {
        printf(" %7.1f", 1e3 * b->contestant[c].step);
        if (c)
            printf(" %5.2f", b->contestant[0].step / b->contestant[c].step);
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    struct bench b = {.threads = 1, .dtype = HD_F32, .seconds = 1};
    const char *models = "S,M,LL", *part = "", *const all[] = {"S", "M", "LL"};
    int option;
    while ((option = getopt(argc, argv, "m:p:c:d:t:s:")) != -1)
        switch (option) {
        case 'm':
            models = optarg;
            break;
        case 'p':
            part = optarg;
            break;
        case 'c':
            b.context = atoi(optarg);
            break;
        case 'd':
            b.dtype = strcmp(optarg, "bf16") ? HD_F32 : HD_BF16;
            break;
        case 't':
            b.threads = atoi(optarg);
            break;
        case 's':
            b.seconds = atof(optarg);
            break;
        default:
            bench_stop("usage: products [-m MODELS] [-p PART] [-c CONTEXT] [-d f32|bf16] [-t THREADS] [-s SECONDS] "
                       "PLUGIN.so[,OPTION=VALUE...]...");
        }
    if (optind == argc || argc - optind > MOST)
        bench_stop("from one to %d contestants: PLUGIN.so[,OPTION=VALUE...]", MOST);
    while (optind < argc)
        contestant_open(&b, argv[optind++]);
    for (int i = 0; i < 3; i++)
        if (listed(models, all[i]))
            run_model(&b, all[i], part);
    for (int c = 0; c < b.count; c++) {
        b.contestant[c].plugin.ops->close(b.contestant[c].plugin.device);
        free(b.contestant[c].text);
    }
    return 0;
}
