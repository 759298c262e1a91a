/* heddle calibrate: measures this machine and prints the file by which `heddle plan --machine FILE` knows it. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "cli/command.h"
#include "core/base/dtype.h"
#include "core/base/option.h"
#include "runtime/rendezvous/host_store.h"

enum { TRIES = 7, OPERANDS = 5, LARGEST = 64 << 20 }; /* bytes of an operand: beyond any cache of one core's share */

struct calibration {
    const char *device_name, *comm_name;
    uint32_t ranks;
    const struct hd_device_ops *ops;
    struct hd_device *device;
    void *memory[OPERANDS];
    /* Results: */
    double kernel, bandwidth, attention, half, peak[HD__DTYPE_COUNT];
    double small_us, busbw; /* of all_reduce: microseconds of the smallest, GB/s of the largest */
};

/* ---- one kernel */

static struct hd_operand operand(const struct calibration *c, int slot, uint32_t dtype, const char *dims,
                                 const int64_t *extent)
{
    struct hd_operand x = {.data = c->memory[slot], .dtype = dtype, .ndim = (uint32_t)strlen(dims)};
    for (uint32_t d = 0; d < x.ndim; d++) {
        x.dim[d] = (uint8_t)dims[d];
        x.extent[d] = extent[d];
    }
    return x;
}

/* The best of some tries, seconds; short kernels are repeated. */
static int32_t time_kernel(const struct calibration *c, struct hd_instr_desc *d, double *best, struct hd_error *err)
{
    struct hd_kernel *k;
    double once = 0;
    d->struct_size = sizeof *d;
    d->attrs.struct_size = sizeof d->attrs;
    snprintf(d->label, sizeof d->label, "calibrate");
    *best = INFINITY;
    int32_t rc = c->ops->prepare(c->device, d, &k, err);
    if (rc)
        return rc;
    for (int t = 0; t <= TRIES && !rc; t++) {
        int repeat = t && once < 1e-3 ? (int)HD__MIN(1e-3 / HD__MAX(once, 1e-7), 1000) + 1 : 1;
        double start = hd__now();
        for (int n = 0; n < repeat && !rc; n++)
            rc = c->ops->launch(c->device, k, 0, err);
        if (!rc && c->ops->sync)
            rc = c->ops->sync(c->device, 0, err);
        once = (hd__now() - start) / repeat;
        *best = t ? HD__MIN(*best, once) : *best; /* the first warms up */
    }
    c->ops->release(c->device, k);
    return rc;
}

/* FLOPs a second of [m k] x [k n]. */
static int32_t time_product(const struct calibration *c, uint32_t dtype, const int64_t mnk[3], double *rate,
                            struct hd_error *err)
{
    const int64_t mk[] = {mnk[0], mnk[2]}, kn[] = {mnk[2], mnk[1]}, mn[] = {mnk[0], mnk[1]};
    struct hd_operand in[] = {operand(c, 0, dtype, "mk", mk), operand(c, 1, dtype, "kn", kn)};
    struct hd_operand out = operand(c, 2, dtype, "mn", mn);
    struct hd_instr_desc d = {.op = HD_OP_EINSUM, .n_in = 2, .n_out = 1, .in = in, .out = &out};
    double seconds;
    int32_t rc = time_kernel(c, &d, &seconds, err);
    *rate = 2.0 * (double)mnk[0] * (double)mnk[1] * (double)mnk[2] / seconds;
    return rc;
}

/* ---- what a machine file has */

/* Shapes as in a model: large, and with one dim or all of them short. */
static const int64_t shapes[][3] = {{1024, 1024, 1024}, {512, 2048, 512}, {512, 512, 2048}, {1024, 1024, 64},
                                    {1024, 64, 1024},   {64, 1024, 1024}, {256, 256, 256},  {64, 64, 64}};

/* The best rate is the peak; half, of d / (d + half) for each of m, n and k, is nearest to all rates in ratio. */
static void fit_products(const double *rate, double *peak, double *half)
{
    double least = INFINITY;
    *peak = 0;
    for (size_t s = 0; s < HD__COUNT(shapes); s++)
        *peak = HD__MAX(*peak, rate[s]);
    for (double h = 0; h <= 256; h += 0.5) {
        double squares = 0;
        for (size_t s = 0; s < HD__COUNT(shapes); s++) {
            double off = log(rate[s] / *peak);
            for (int d = 0; d < 3; d++)
                off += log(((double)shapes[s][d] + h) / (double)shapes[s][d]);
            squares += off * off;
        }
        if (squares < least) {
            least = squares;
            *half = h;
        }
    }
}

static int32_t measure_products(struct calibration *c, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t i = 0, dtype; (dtype = hd__dtype_float_at(i)) && !rc; i++) {
        double rate[HD__COUNT(shapes)], half = 0;
        int fast = hd_dtype_size(dtype) == 4 || hd_dtype_size(dtype) == 2; /* others have reference kernels alone */
        if (!fast || !c->ops->supports(NULL, HD_OP_EINSUM, dtype))
            continue;
        for (size_t s = 0; s < HD__COUNT(shapes) && !rc; s++)
            rc = time_product(c, dtype, shapes[s], &rate[s], err);
        if (rc)
            break;
        fit_products(rate, &c->peak[dtype], &half);
        c->half = dtype == HD_F32 ? half : c->half;
    }
    return rc;
}

static int32_t measure_memory(struct calibration *c, struct hd_error *err)
{
    const int64_t few[] = {16}, many[] = {LARGEST / 4};
    struct hd_operand in[] = {operand(c, 0, HD_F32, "n", few), operand(c, 1, HD_F32, "n", few)};
    struct hd_operand out = operand(c, 2, HD_F32, "n", few);
    struct hd_instr_desc d = {.op = HD_OP_ADD, .n_in = 2, .n_out = 1, .in = in, .out = &out};
    double seconds = 0;
    int32_t rc = time_kernel(c, &d, &c->kernel, err);
    in[0] = operand(c, 0, HD_F32, "n", many);
    in[1] = operand(c, 1, HD_F32, "n", many);
    out = operand(c, 2, HD_F32, "n", many);
    if (!rc)
        rc = time_kernel(c, &d, &seconds, err);
    c->bandwidth = 3.0 * LARGEST / seconds;
    return rc;
}

/* Attention's causal half, as a share of the peak of products. */
static int32_t measure_attention(struct calibration *c, struct hd_error *err)
{
    enum { S = 1024, K = 8, D = 64 };
    const int64_t query[] = {1, S, K, 1, D}, key[] = {1, S, K, D};
    struct hd_operand in[] = {operand(c, 0, HD_F32, "bskgd", query), operand(c, 1, HD_F32, "bskd", key),
                              operand(c, 2, HD_F32, "bskd", key)};
    struct hd_operand out[] = {operand(c, 3, HD_F32, "bskgd", query), operand(c, 4, HD_F32, "bskg", query)};
    struct hd_instr_desc d = {
        .op = HD_OP_ATTENTION, .n_in = 3, .n_out = 2, .in = in, .out = out, .attrs = {.scale = 0.125}};
    double seconds;
    int32_t rc = time_kernel(c, &d, &seconds, err);
    c->attention = 2.0 * S * S * K * D / seconds / c->peak[HD_F32];
    return rc;
}

static void on_row(void *user, const struct hd__bench_row *row)
{
    struct calibration *c = user;
    c->small_us = c->small_us > 0 ? c->small_us : row->time_us;
    c->busbw = row->busbw;
}

static int32_t measure_transport(struct calibration *c, struct hd__plugins *plugins, struct hd__arena *arena,
                                 struct hd_error *err)
{
    const struct hd__component *comm;
    void *settings;
    int32_t rc = hd__bench_find(plugins, HD_KIND_COMM, c->comm_name, NULL, 0, arena, &comm, &settings, err);
    if (!rc && comm->ops.comm.launcher)
        rc = hd_fail(err, HD_E_UNSUPPORTED, "comm-%s wants its ranks started by another command: use --comm shm",
                     comm->name);
    if (rc)
        return rc;
    struct hd__bench bench = {.component = comm,
                              .settings = settings,
                              .ranks = (int32_t)c->ranks,
                              .dtype = HD_F32,
                              .first = 64,
                              .last = 16 << 20,
                              .factor = 512,
                              .warmup = 5,
                              .timeout = 60,
                              .n_ops = 1,
                              .ops = {HD__BENCH_ALL_REDUCE}};
    return hd__bench_run(&bench, on_row, c, err);
}

/* ---- all */

static uint32_t memory_kind(const struct calibration *c)
{
    return c->ops->caps & HD_DEVICE_HOST_MEMORY ? HD_MEM_HOST : HD_MEM_DEVICE;
}

static int32_t measure_device(struct calibration *c, struct hd__plugins *plugins, struct hd__arena *arena,
                              struct hd_error *err)
{
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1};
    const struct hd__component *device;
    void *settings;
    int32_t rc = hd__bench_find(plugins, HD_KIND_DEVICE, c->device_name, NULL, 0, arena, &device, &settings, err);
    if (rc)
        return rc;
    c->ops = &device->ops.device;
    if ((rc = c->ops->open(hd__store_host_table(), settings, &place, &c->device, err)))
        return rc;
    for (int i = 0; i < OPERANDS && !rc; i++) {
        if (c->ops->alloc)
            rc = c->ops->alloc(c->device, memory_kind(c), LARGEST, &c->memory[i], err);
        else if (!(c->memory[i] = aligned_alloc(4096, LARGEST)))
            rc = hd_fail(err, HD_E_NOMEM, "no memory for an operand of %d bytes", LARGEST);
        if (!rc && memory_kind(c) == HD_MEM_HOST)
            memset(c->memory[i], 0, LARGEST);
    }
    rc = rc ? rc : measure_memory(c, err);
    rc = rc ? rc : measure_products(c, err);
    rc = rc ? rc : measure_attention(c, err);
    for (int i = 0; i < OPERANDS; i++)
        if (c->memory[i] && c->ops->alloc)
            c->ops->free(c->device, memory_kind(c), c->memory[i]);
        else
            free(c->memory[i]);
    c->ops->close(c->device);
    return rc;
}

static void print_machine(const struct calibration *c, double memory)
{
    char machine[256];
    double wide = c->peak[HD_F32], narrow = 0;
    hd__bench_machine_text(machine);
    for (uint32_t dtype = 1; dtype < HD__DTYPE_COUNT; dtype++)
        narrow = hd_dtype_size(dtype) == 2 ? HD__MAX(narrow, c->peak[dtype]) : narrow;
    printf("# Measured by heddle calibrate: %s\nname: here\ndevice: %s\nranks: %u\n", machine, c->device_name,
           c->ranks);
    printf("memory: %.0f\nbandwidth: %.4g\nkernel: %.3g\npeak_fp32: %.4g\n", memory, c->bandwidth, c->kernel, wide);
    if (narrow > 0)
        printf("peak_16: %.4g\n", narrow);
    printf("half: %.1f\nattention: %.3f\n", c->half, HD__MIN(HD__MAX(c->attention, 0.01), 1));
    printf("levels:\n  - {name: %s, bandwidth: %.4g, latency: %.3g}\n", c->comm_name, HD__MAX(c->busbw * 1e9, 1),
           c->small_us * 1e-6 / (2 * (c->ranks - 1)));
}

static int run(int argc, char **argv)
{
    struct calibration c = {.device_name = "cpu", .comm_name = "shm", .ranks = 2};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__arena arena = {0};
    for (int i = 1; i < argc; i += 2) {
        char *end;
        int known = !strcmp(argv[i], "--device") || !strcmp(argv[i], "--comm") || !strcmp(argv[i], "--ranks");
        if (!known || i + 1 == argc)
            return hd__cli_usage_error(&hd__command_calibrate, known ? "%s needs a value" : "there is no option %s",
                                       argv[i]);
        if (!strcmp(argv[i], "--device"))
            c.device_name = argv[i + 1];
        else if (!strcmp(argv[i], "--comm"))
            c.comm_name = argv[i + 1];
        else if (c.ranks = (uint32_t)strtoul(argv[i + 1], &end, 10), *end || c.ranks < 2 || c.ranks > 1024)
            return hd__cli_usage_error(&hd__command_calibrate, "--ranks %s: wanted a whole number from 2 to 1024",
                                       argv[i + 1]);
    }
    struct hd__plugins *plugins = hd__plugins_create(hd__store_host_table());
    int32_t rc = hd__plugins_add_default_folders(plugins, &err);
    rc = rc ? rc : measure_transport(&c, plugins, &arena, &err);
    rc = rc ? rc : measure_device(&c, plugins, &arena, &err);
    if (!rc)
        print_machine(&c, (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / c.ranks);
    else
        fprintf(stderr, "heddle calibrate: %s\n", err.message);
    hd__plugins_destroy(plugins);
    hd__arena_free(&arena);
    return !rc ? HD__EXIT_DONE : rc == HD_E_NOTFOUND || rc == HD_E_UNSUPPORTED ? HD__EXIT_REFUSED : HD__EXIT_FAILED;
}

const struct hd__command hd__command_calibrate = {
    .name = "calibrate",
    .usage = "[--device NAME] [--comm NAME] [--ranks N]",
    .summary = "measure this machine for heddle plan",
    .help =
        "Measures products by shape, attention, memory, a launch, and all_reduce between ranks on this machine, and\n"
        "prints a machine file, by which heddle plan then knows it. Takes some seconds; what else runs meanwhile is\n"
        "measured with it. Ranks are taken to share the host's memory: set `memory` by hand for other devices. Not\n"
        "measured: the network, and how transfers slow compute.\n\n"
        "  --device NAME     cpu, cuda (cpu)\n"
        "  --comm NAME       the transport between the ranks (shm)\n"
        "  --ranks N         of the machine (2)\n",
    .example = "  heddle calibrate --ranks 4 > here.yaml\n",
    .run = run,
};
