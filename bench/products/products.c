/* Matrix products of a training step, side by side: device plugins, or one plugin with different options, in one
 * process.
 *
 *     build/bench/products/products [-m S,M,LL] [-p PART] [-d f32|bf16] [-t THREADS] [-s SECONDS]
 *                                   PLUGIN.so[,OPTION=VALUE...]...
 *
 * -p: only products that have PART in their name.
 * For each product contestants take turns, sample by sample, for SECONDS in all (and at least LEAST samples each); the
 * best sample counts, so that other work on the machine hardly shows. A sample goes through COPIES instructions with
 * operands of their own, as a step goes through layers. GFLOP/s of each, and the ratio to the first contestant; then
 * what all products of a step take together. Every contestant's result must be the first one's, up to rounding. */
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "heddle/device.h"
#include "heddle/host.h"

enum { MOST = 8, LEAST = 5, COPIES = 3, OPERANDS = 3, PAGE = 4096 };

/* y[m n] (+)= a[.. k] b[.. k]: operands as the models have them, one letter a dim. `times` in a step. */
static const struct product {
    const char *model, *what, *a, *b, *y;
    int64_t m, n, k;
    int times, adds;
} products[] = {
    {"S", "qkv, proj", "mk", "kn", "mn", 2048, 384, 384, 24, 0},
    {"S", "qkv, proj dx", "mk", "nk", "mn", 2048, 384, 384, 12, 0},
    {"S", "qkv dx, adding", "mk", "nk", "mn", 2048, 384, 384, 12, 1},
    {"S", "qkv, proj dw", "kn", "km", "mn", 384, 384, 2048, 24, 0},
    {"S", "fc", "mk", "kn", "mn", 2048, 1536, 384, 6, 0},
    {"S", "fc dx", "mk", "nk", "mn", 2048, 384, 1536, 6, 0},
    {"S", "fc dw", "kn", "km", "mn", 384, 1536, 2048, 6, 0},
    {"S", "out", "mk", "kn", "mn", 2048, 384, 1536, 6, 0},
    {"S", "out dx", "mk", "nk", "mn", 2048, 1536, 384, 6, 0},
    {"S", "out dw", "kn", "km", "mn", 1536, 384, 2048, 6, 0},
    {"M", "qkv, proj", "mk", "kn", "mn", 1024, 768, 768, 48, 0},
    {"M", "qkv, proj dx", "mk", "nk", "mn", 1024, 768, 768, 24, 0},
    {"M", "qkv dx, adding", "mk", "nk", "mn", 1024, 768, 768, 24, 1},
    {"M", "qkv, proj dw", "kn", "km", "mn", 768, 768, 1024, 48, 0},
    {"M", "fc", "mk", "kn", "mn", 1024, 3072, 768, 12, 0},
    {"M", "fc dx", "mk", "nk", "mn", 1024, 768, 3072, 12, 0},
    {"M", "fc dw", "kn", "km", "mn", 768, 3072, 1024, 12, 0},
    {"M", "out", "mk", "kn", "mn", 1024, 768, 3072, 12, 0},
    {"M", "out dx", "mk", "nk", "mn", 1024, 3072, 768, 12, 0},
    {"M", "out dw", "kn", "km", "mn", 3072, 768, 1024, 12, 0},
    {"M", "head, 256 rows", "mk", "nk", "mn", 256, 50304, 768, 4, 0},
    {"M", "head dx, 256 rows", "mk", "kn", "mn", 256, 768, 50304, 4, 0},
    {"M", "head dw, 256 rows", "km", "kn", "mn", 50304, 768, 256, 4, 1},
    {"LL", "q, o", "mk", "nk", "mn", 1024, 512, 512, 16, 0},
    {"LL", "k, v", "mk", "nk", "mn", 1024, 256, 512, 16, 0},
    {"LL", "gate, up", "mk", "nk", "mn", 1024, 1408, 512, 16, 0},
    {"LL", "down", "mk", "nk", "mn", 1024, 512, 1408, 8, 0},
    {"LL", "q, o dx", "mk", "kn", "mn", 1024, 512, 512, 16, 1},
    {"LL", "k, v dx", "mk", "kn", "mn", 1024, 512, 256, 16, 1},
    {"LL", "gate, up dx", "mk", "kn", "mn", 1024, 512, 1408, 16, 1},
    {"LL", "down dx", "mk", "kn", "mn", 1024, 1408, 512, 8, 0},
    {"LL", "q, o dw", "km", "kn", "mn", 512, 512, 1024, 16, 0},
    {"LL", "k, v dw", "km", "kn", "mn", 256, 512, 1024, 16, 0},
    {"LL", "gate, up dw", "km", "kn", "mn", 1408, 512, 1024, 16, 0},
    {"LL", "down dw", "km", "kn", "mn", 512, 1408, 1024, 8, 0},
    {"LL", "head, 512 rows", "mk", "nk", "mn", 512, 32000, 512, 2, 0},
    {"LL", "head dx, 512 rows", "mk", "kn", "mn", 512, 512, 32000, 2, 0},
    {"LL", "head dw, 512 rows", "km", "kn", "mn", 32000, 512, 512, 2, 1},
};

struct contestant {
    const struct hd_device_ops *ops;
    struct hd_device *device;
    char settings[256];
    struct hd_kernel *kernel[COPIES];
    double best, step; /* seconds: of this product; of all of a model's, as often as a step has them */
};

struct bench {
    struct contestant at[MOST];
    int count, threads;
    uint32_t dtype;
    double seconds;
    char *memory[COPIES][OPERANDS];
};

static void __attribute__((noreturn, format(printf, 1, 2))) stop(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("products: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

/* Processor time of this thread where it is the only one: other work on the machine shows less. */
static double now(const struct bench *b)
{
    struct timespec t;
    clock_gettime(b->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- contestants */

static void say(uint32_t level, const char *component, const char *format, ...)
{
    va_list args;
    if (level > HD_LOG_WARN)
        return;
    va_start(args, format);
    fprintf(stderr, "%s: ", component);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static void *zeroed(size_t bytes)
{
    size_t rounded = (bytes + PAGE) / PAGE * PAGE;
    void *p = aligned_alloc(PAGE, rounded);
    return p ? memset(p, 0, rounded) : NULL;
}

static const struct hd_host host = {
    .struct_size = sizeof host, .abi_minor = HD_ABI_MINOR, .log = say, .alloc = zeroed, .free = free};

static int32_t choice_of(const struct hd_option *o, const char *value)
{
    int32_t index = 0;
    size_t n = strlen(value);
    for (const char *c = o->choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL, index++)
        if (!strncmp(c, value, n) && (c[n] == '|' || !c[n]))
            return index;
    stop("%s is none of %s", value, o->choices);
}

static void option_set(const struct hd_component *c, struct contestant *x, const char *name, const char *value)
{
    for (size_t i = 0; i < c->n_options; i++) {
        const struct hd_option *o = &c->options[i];
        int64_t number = strtoll(value, NULL, 10);
        int32_t choice;
        if (strcmp(o->name, name))
            continue;
        if (o->type == HD_OPT_ENUM) {
            choice = choice_of(o, value);
            memcpy(x->settings + o->offset, &choice, sizeof choice);
        } else {
            memcpy(x->settings + o->offset, &number, sizeof number);
        }
        return;
    }
    stop("no option %s", name);
}

/* "FILE,option=value,..." */
static void contestant_open(struct bench *b, const char *words)
{
    char copy[1024], threads[16], *rest = copy, *word;
    struct contestant *x = &b->at[b->count++];
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1};
    struct hd_error err = HD_ERROR_INIT;
    snprintf(copy, sizeof copy, "%s", words);
    snprintf(threads, sizeof threads, "%d", b->threads);
    const char *file = strsep(&rest, ",");
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    hd_plugin_entry entry = library ? (hd_plugin_entry)(uintptr_t)dlsym(library, HD_PLUGIN_SYMBOL) : NULL;
    if (!entry)
        stop("%s", dlerror());
    const struct hd_component *c = entry()->components[0];
    if (c->kind != HD_KIND_DEVICE || c->settings_size > sizeof x->settings)
        stop("%s is no device that this program knows", file);
    for (size_t i = 0; i < c->n_options; i++)
        if (c->options[i].type == HD_OPT_INT && c->options[i].value)
            option_set(c, x, c->options[i].name, c->options[i].value);
    option_set(c, x, "threads", threads);
    while ((word = strsep(&rest, ","))) {
        char *value = strchr(word, '=');
        if (!value)
            stop("%s: want option=value", word);
        *value = 0;
        option_set(c, x, word, value + 1);
    }
    x->ops = c->ops;
    if (x->ops->open(&host, x->settings, &place, &x->device, &err))
        stop("%s: %s", words, err.message);
}

/* ---- one product */

static int64_t extent_of(const struct product *p, char dim)
{
    return dim == 'm' ? p->m : dim == 'n' ? p->n : p->k;
}

static struct hd_operand operand(const struct bench *b, const struct product *p, const char *dims, void *data)
{
    struct hd_operand o = {.data = data, .dtype = b->dtype, .ndim = 2};
    for (int i = 0; i < 2; i++) {
        o.dim[i] = (uint8_t)dims[i];
        o.extent[i] = extent_of(p, dims[i]);
    }
    return o;
}

static struct hd_operand operand_at(const struct bench *b, const struct product *p, int copy, int which)
{
    const char *dims = which == 0 ? p->a : which == 1 ? p->b : p->y;
    return operand(b, p, dims, b->memory[copy][which]);
}

static void prepare(struct bench *b, const struct product *p, struct contestant *x)
{
    for (int copy = 0; copy < COPIES; copy++) {
        struct hd_operand in[2] = {operand_at(b, p, copy, 0), operand_at(b, p, copy, 1)},
                          out = operand_at(b, p, copy, 2);
        struct hd_instr_desc d = {
            .struct_size = sizeof d, .op = HD_OP_EINSUM, .n_in = 2, .n_out = 1, .in = in, .out = &out};
        struct hd_error err = HD_ERROR_INIT;
        snprintf(d.label, sizeof d.label, "%s", p->what);
        d.attrs.scale = 1;
        d.attrs.flags = p->adds ? HD_ATTR_ACCUMULATE : 0;
        if (x->ops->prepare(x->device, &d, &x->kernel[copy], &err))
            stop("%s: %s", p->what, err.message);
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

static void operands_make(struct bench *b, const struct product *p)
{
    uint32_t seed = 1;
    for (int copy = 0; copy < COPIES; copy++)
        for (int i = 0; i < OPERANDS; i++) {
            struct hd_operand o = operand_at(b, p, copy, i);
            if (!(b->memory[copy][i] = zeroed((size_t)hd_operand_count(&o) * hd_dtype_size(o.dtype))))
                stop("no memory");
            o.data = b->memory[copy][i];
            fill(&o, &seed);
        }
}

static void launch(struct contestant *x, int copy)
{
    struct hd_error err = HD_ERROR_INIT;
    if (x->ops->launch(x->device, x->kernel[copy], 0, &err) || (x->ops->sync && x->ops->sync(x->device, 0, &err)))
        stop("%s", err.message);
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

/* All start from zeros: norm of the difference to the first one's result, over its norm. */
static void compare(struct bench *b, const struct product *p)
{
    struct hd_operand y = operand_at(b, p, 0, 2);
    int64_t n = hd_operand_count(&y);
    double *want = malloc((size_t)n * sizeof *want);
    if (!want)
        stop("no memory");
    for (int c = 0; c < b->count; c++) {
        double apart = 0, norm = 0;
        memset(y.data, 0, (size_t)n * hd_dtype_size(y.dtype));
        launch(&b->at[c], 0);
        for (int64_t i = 0; i < n; i++) {
            double value = value_at(&y, i);
            want[i] = c ? want[i] : value;
            apart += (value - want[i]) * (value - want[i]);
            norm += want[i] * want[i];
        }
        if (!(sqrt(apart / norm) < (b->dtype == HD_F32 ? 1e-5 : 1e-2)))
            stop("%s %s: contestant %d differs from the first by %g", p->model, p->what, c + 1, sqrt(apart / norm));
    }
    free(want);
}

static void measure(struct bench *b)
{
    double end = now(b) + b->seconds;
    for (int sample = 0; sample < LEAST || now(b) < end; sample++)
        for (int c = 0; c < b->count; c++) {
            struct contestant *x = &b->at[c];
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
            b->at[c].ops->release(b->at[c].device, b->at[c].kernel[copy]);
    for (int copy = 0; copy < COPIES; copy++)
        for (int i = 0; i < OPERANDS; i++)
            free(b->memory[copy][i]);
}

static void run(struct bench *b, const struct product *p)
{
    char name[64];
    operands_make(b, p);
    for (int c = 0; c < b->count; c++)
        prepare(b, p, &b->at[c]);
    compare(b, p);
    measure(b);
    snprintf(name, sizeof name, "%lldx%lldx%lld", (long long)p->m, (long long)p->n, (long long)p->k);
    printf("%-3s %-18s %-15s %-2s %-2s %3d", p->model, p->what, name, p->a, p->b, p->times);
    for (int c = 0; c < b->count; c++) {
        struct contestant *x = &b->at[c];
        x->step += p->times * x->best;
        printf(" %7.1f", 2e-9 * (double)p->m * (double)p->n * (double)p->k / x->best);
        if (c)
            printf(" %5.2f", b->at[0].best / x->best);
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
        b->at[c].step = 0;
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
        if (!strcmp(products[i].model, model) && strstr(products[i].what, part))
            run(b, &products[i]);
    printf("%-3s all these of a step, ms   %19s", model, "");
    for (int c = 0; c < b->count; c++) {
        printf(" %7.1f", 1e3 * b->at[c].step);
        if (c)
            printf(" %5.2f", b->at[0].step / b->at[c].step);
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    struct bench b = {.threads = 1, .dtype = HD_F32, .seconds = 1};
    const char *models = "S,M,LL", *part = "", *const all[] = {"S", "M", "LL"};
    int option;
    while ((option = getopt(argc, argv, "m:p:d:t:s:")) != -1)
        switch (option) {
        case 'm':
            models = optarg;
            break;
        case 'p':
            part = optarg;
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
            stop("usage: products [-m MODELS] [-p PART] [-d f32|bf16] [-t THREADS] [-s SECONDS] "
                 "PLUGIN.so[,OPTION=VALUE...]...");
        }
    if (optind == argc || argc - optind > MOST)
        stop("from one to %d contestants: PLUGIN.so[,OPTION=VALUE...]", MOST);
    while (optind < argc)
        contestant_open(&b, argv[optind++]);
    for (int i = 0; i < 3; i++)
        if (listed(models, all[i]))
            run_model(&b, all[i], part);
    for (int c = 0; c < b.count; c++)
        b.at[c].ops->close(b.at[c].device);
    return 0;
}
