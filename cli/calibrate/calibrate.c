/* heddle calibrate: measures this machine and prints the file by which `heddle plan --machine FILE` knows it. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "analysis/plan/seconds.h"
#include "cli/bench/bench.h"
#include "cli/calibrate/jobs.h"
#include "cli/command.h"
#include "core/base/dtype.h"
#include "core/base/option.h"
#include "runtime/cpu/parallel_for.h"
#include "runtime/cpu/share.h"
#include "runtime/rendezvous/host_store.h"

enum { TRIES = 7, OPERANDS = 8 };

struct calibration {
    const char *device_name, *comm_name;
    uint32_t ranks, steps; /* steps: of a small job */
    const struct hd_device_ops *ops;
    struct hd_device *device;
    void *memory[OPERANDS];
    int64_t bytes;             /* of an operand: beyond any cache */
    double least;              /* seconds of a try */
    uint32_t trained;          /* the dtype that decides about `units` and `half` */
    struct hd__machine result; /* by the model of hd__plan_seconds */
    double peak[HD__DTYPE_COUNT];
    double small_us, busbw; /* of all_reduce: microseconds of the smallest, GB/s of the largest */
};

static int on_host(const struct calibration *c)
{
    return (c->ops->caps & HD_DEVICE_HOST_MEMORY) != 0;
}

/* A device is kept busy by larger operands, for longer, and trains in the second dtype, which has 16 bits. */
static void choose_sizes(struct calibration *c)
{
    c->bytes = on_host(c) ? 64 << 20 : 512 << 20;
    c->least = on_host(c) ? 1e-3 : 5e-2;
    c->trained = hd__dtype_float_at(on_host(c) ? 0 : 1);
}

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

/* The best of some tries, seconds; a device's last, at the clock that it then keeps. Short kernels are repeated. */
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
        int repeat = t && once < c->least ? (int)HD__MIN(c->least / HD__MAX(once, 1e-7), 1000) + 1 : 1;
        double start = hd__now();
        for (int n = 0; n < repeat && !rc; n++)
            rc = c->ops->launch(c->device, k, 0, err);
        if (!rc && c->ops->sync)
            rc = c->ops->sync(c->device, 0, err);
        once = (hd__now() - start) / repeat;
        *best = !on_host(c) ? once : t ? HD__MIN(*best, once) : *best; /* the first warms up */
    }
    c->ops->release(c->device, k);
    return rc;
}

/* Seconds of [m k] x [k n]. */
static int32_t time_product(const struct calibration *c, uint32_t dtype, const int64_t mnk[3], double *seconds,
                            struct hd_error *err)
{
    const int64_t mk[] = {mnk[0], mnk[2]}, kn[] = {mnk[2], mnk[1]}, mn[] = {mnk[0], mnk[1]};
    struct hd_operand in[] = {operand(c, 0, dtype, "mk", mk), operand(c, 1, dtype, "kn", kn)};
    struct hd_operand out = operand(c, 2, dtype, "mn", mn);
    struct hd_instr_desc d = {.op = HD_OP_EINSUM, .n_in = 2, .n_out = 1, .in = in, .out = &out};
    return time_kernel(c, &d, seconds, err);
}

/* ---- what a machine file has */

/* m, n and k as in models: of a host large, and with one dim or all of them short; of a device those of a layer and of
 * its weights' gradients. */
enum { SHAPES = 8 };
static const int64_t host_shapes[SHAPES][3] = {{1024, 1024, 1024}, {512, 2048, 512}, {512, 512, 2048}, {1024, 1024, 64},
                                               {1024, 64, 1024},   {64, 1024, 1024}, {256, 256, 256},  {64, 64, 64}};
static const int64_t device_shapes[SHAPES][3] = {{8192, 8192, 8192},  {16384, 8192, 2048}, {16384, 2048, 8192},
                                                 {2048, 8192, 16384}, {32768, 768, 768},   {768, 768, 32768},
                                                 {2048, 2048, 16384}, {16384, 512, 2048}};

/* Sum of the squared logarithms of planned over measured seconds. With units, for the peak by which their mean is 0. */
static double misfit(const struct hd__machine *m, const int64_t (*shape)[3], const double *seconds, double width,
                     double *peak)
{
    double mean = 1, squares = 0;
    for (int round = 0; round < 50 && fabs(mean) > 1e-6; round++) {
        double sum = 0;
        squares = 0;
        for (int s = 0; s < SHAPES; s++) {
            const double d[] = {(double)shape[s][0], (double)shape[s][1], (double)shape[s][2]};
            struct hd__product x = {.batch = 1, .m = d[0], .n = d[1], .k = d[2], .peak = *peak};
            x.written = d[0] * d[1] * width;
            x.bytes = (d[0] + d[1]) * d[2] * width + x.written;
            double off = log(hd__product_seconds(m, &x) / seconds[s]);
            sum += off;
            squares += off * off;
        }
        mean = m->units > 0 ? sum / SHAPES : 0;
        *peak *= exp(mean);
    }
    return squares;
}

static double best_rate(const int64_t (*shape)[3], const double *seconds)
{
    double best = 0;
    for (int s = 0; s < SHAPES; s++)
        best = HD__MAX(best, 2.0 * (double)(shape[s][0] * shape[s][1] * shape[s][2]) / seconds[s]);
    return best;
}

/* Finds the units that compute tiles, or for a host the dim that halves the best rate, for which the fit is best. */
static void fit_products(struct calibration *c, const int64_t (*shape)[3], const double *seconds, uint32_t dtype)
{
    struct hd__machine m = c->result;
    double *free_one = on_host(c) ? &m.half : &m.units, least = INFINITY, width = (double)hd_dtype_size(dtype);
    double first = dtype == c->trained ? 1 : *free_one, last = dtype == c->trained ? 256 : *free_one;
    for (*free_one = first; *free_one <= last; ++*free_one) {
        double peak = best_rate(shape, seconds), squares = misfit(&m, shape, seconds, width, &peak);
        if (squares < least) {
            least = squares;
            c->result.half = m.half;
            c->result.units = m.units;
            c->peak[dtype] = peak;
        }
    }
}

/* The trained dtype first: it decides for all. */
static int32_t measure_products(struct calibration *c, struct hd_error *err)
{
    const int64_t(*shape)[3] = on_host(c) ? host_shapes : device_shapes;
    int32_t rc = HD_OK;
    for (uint32_t i = 0, dtype = c->trained; dtype && !rc; dtype = hd__dtype_float_at(i++)) {
        int fast = hd_dtype_size(dtype) == 4 || hd_dtype_size(dtype) == 2; /* others have reference kernels alone */
        double seconds[SHAPES];
        if (!fast || (i && dtype == c->trained) || !c->ops->supports(NULL, HD_OP_EINSUM, dtype))
            continue;
        for (int s = 0; s < SHAPES && !rc; s++)
            rc = time_product(c, dtype, shape[s], &seconds[s], err);
        if (!rc)
            fit_products(c, shape, seconds, dtype);
    }
    return rc;
}

static int32_t measure_memory(struct calibration *c, struct hd_error *err)
{
    const int64_t few[] = {16}, many[] = {c->bytes / 4};
    struct hd_operand in[] = {operand(c, 0, HD_F32, "n", few), operand(c, 1, HD_F32, "n", few)};
    struct hd_operand out = operand(c, 2, HD_F32, "n", few);
    struct hd_instr_desc d = {.op = HD_OP_ADD, .n_in = 2, .n_out = 1, .in = in, .out = &out};
    double seconds = 0;
    int32_t rc = time_kernel(c, &d, &c->result.kernel, err);
    in[0] = operand(c, 0, HD_F32, "n", many);
    in[1] = operand(c, 1, HD_F32, "n", many);
    out = operand(c, 2, HD_F32, "n", many);
    if (!rc)
        rc = time_kernel(c, &d, &seconds, err);
    c->result.bandwidth = 3.0 * (double)c->bytes / seconds;
    return rc;
}

/* Attention's causal half and its gradients, as shares of the peak of products. */
static int32_t measure_attention(struct calibration *c, struct hd_error *err)
{
    enum { K = 8, D = 64 };
    int64_t batch = on_host(c) ? 1 : 16, length = on_host(c) ? 1024 : 4096;
    const int64_t query[] = {batch, length, K, 1, D}, key[] = {batch, length, K, D};
    struct hd_operand q = operand(c, 0, c->trained, "bskgd", query), k = operand(c, 1, c->trained, "bskd", key);
    struct hd_operand v = operand(c, 2, c->trained, "bskd", key), o = operand(c, 3, c->trained, "bskgd", query);
    struct hd_operand lse = operand(c, 4, HD_F32, "bskg", query);
    struct hd_operand in[] = {q, k, v, o, lse, q}, out[] = {o, lse};
    struct hd_operand grads[] = {operand(c, 5, c->trained, "bskgd", query), operand(c, 6, c->trained, "bskd", key),
                                 operand(c, 7, c->trained, "bskd", key)};
    struct hd_instr_desc forward = {
        .op = HD_OP_ATTENTION, .n_in = 3, .n_out = 2, .in = in, .out = out, .attrs = {.scale = 0.125}};
    struct hd_instr_desc backward = {
        .op = HD_OP_ATTENTION_GRAD, .n_in = 6, .n_out = 3, .in = in, .out = grads, .attrs = {.scale = 0.125}};
    double seconds, flops = 2.0 * (double)(batch * length * length) * K * D;
    int32_t rc = time_kernel(c, &forward, &seconds, err);
    c->result.attention = flops / seconds / c->peak[c->trained];
    rc = rc ? rc : time_kernel(c, &backward, &seconds, err);
    c->result.attention_grad = 2.5 * flops / seconds / c->peak[c->trained];
    return rc;
}

/* Ranks of a transport: two at least. */
static uint32_t bench_ranks(const struct calibration *c)
{
    return HD__MAX(c->ranks, 2);
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
                              .ranks = (int32_t)bench_ranks(c),
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

/* Numbers of 0.5 to 2, of either sign, in every dtype: products of zeros take a device less power. */
static int32_t make_operands(struct calibration *c, struct hd_error *err)
{
    size_t bytes = (size_t)c->bytes;
    uint16_t *numbers = hd__alloc(bytes);
    uint32_t random = 1;
    int32_t rc = HD_OK;
    for (size_t i = 0; i < bytes / sizeof *numbers; i++) {
        random = random * 1664525 + 1013904223;
        numbers[i] = (uint16_t)(0x3f00 | (random >> 16 & 0x80ff));
    }
    for (int i = 0; i < OPERANDS && !rc; i++) {
        if (c->ops->alloc)
            rc = c->ops->alloc(c->device, on_host(c) ? HD_MEM_HOST : HD_MEM_DEVICE, bytes, &c->memory[i], err);
        else if (!(c->memory[i] = aligned_alloc(4096, bytes)))
            rc = hd_fail(err, HD_E_NOMEM, "no memory for an operand of %zu bytes", bytes);
        if (!rc && on_host(c))
            memcpy(c->memory[i], numbers, bytes);
        else if (!rc && !(rc = c->ops->copy(c->device, HD_STREAM_COMPUTE, c->memory[i], numbers, bytes, err)))
            rc = c->ops->sync(c->device, HD_STREAM_COMPUTE, err);
    }
    free(numbers);
    return rc;
}

/* Seconds that this thread was ready to run, and the processor ran another; 0: the kernel does not say. */
static double waited_for_processor(void)
{
    unsigned long long ran, waited = 0;
    FILE *in = fopen("/proc/thread-self/schedstat", "r");
    if (in && fscanf(in, "%llu %llu", &ran, &waited) != 2)
        waited = 0;
    if (in)
        fclose(in);
    return 1e-9 * (double)waited;
}

/* The first of its threads, which launches and takes part, stands for all. */
static void warn_busy(double begun, double waited)
{
    double share = (waited_for_processor() - waited) / (hd__now() - begun);
    if (share > 0.1)
        hd__log(
            HD_LOG_WARN, NULL,
            "other programs ran meanwhile: this one waited for a processor for %.0f %% of the time, so rates may be "
            "too low: calibrate again while nothing else runs",
            100 * share);
}

static int32_t measure_device(struct calibration *c, struct hd__plugins *plugins, struct hd__arena *arena,
                              struct hd_error *err)
{
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = (int32_t)c->ranks};
    const struct hd__component *device;
    void *settings;
    int32_t rc = hd__bench_find(plugins, HD_KIND_DEVICE, c->device_name, NULL, 0, arena, &device, &settings, err);
    if (rc)
        return rc;
    c->ops = &device->ops.device;
    if ((rc = c->ops->open(hd__store_host_table(), settings, &place, &c->device, err)))
        return rc;
    choose_sizes(c);
    double begun = hd__now(), waited = waited_for_processor();
    rc = make_operands(c, err);
    rc = rc ? rc : measure_memory(c, err);
    rc = rc ? rc : measure_products(c, err);
    rc = rc ? rc : measure_attention(c, err);
    if (!rc)
        warn_busy(begun, waited);
    for (int i = 0; i < OPERANDS; i++)
        if (c->memory[i] && c->ops->alloc)
            c->ops->free(c->device, on_host(c) ? HD_MEM_HOST : HD_MEM_DEVICE, c->memory[i]);
        else
            free(c->memory[i]);
    c->ops->close(c->device);
    return rc;
}

static void add_machine(const struct calibration *c, double memory, struct hd__text *out)
{
    const struct hd__machine *m = &c->result;
    char machine[256], processor[96];
    double wide = c->peak[HD_F32], narrow = 0;
    hd__bench_machine_text(machine);
    hd__cpu_name(processor);
    for (uint32_t dtype = 1; dtype < HD__DTYPE_COUNT; dtype++)
        narrow = hd_dtype_size(dtype) == 2 ? HD__MAX(narrow, c->peak[dtype]) : narrow;
    hd__text_add(out, "# Measured by heddle calibrate: %s\nname: here\ndevice: %s\nranks: %u\n", machine,
                 c->device_name, c->ranks);
    if (on_host(c))
        hd__text_add(out, "threads: %d\n", hd__cpu_share((int)c->ranks, (int)c->ranks)); /* device cpu's own choice */
    if (on_host(c) && *processor && !strchr(processor, '\''))
        hd__text_add(out, "processor: '%s'\n", processor);
    hd__text_add(out, "memory: %.0f\nbandwidth: %.4g\nkernel: %.3g\npeak_fp32: %.4g\n", memory, m->bandwidth, m->kernel,
                 wide);
    if (narrow > 0)
        hd__text_add(out, "peak_16: %.4g\n", narrow);
    hd__text_add(out, "%s: %.0f\nattention: %.3f\nattention_grad: %.3f\n", on_host(c) ? "half" : "units",
                 on_host(c) ? m->half : m->units, HD__MIN(HD__MAX(m->attention, 0.01), 1),
                 HD__MIN(HD__MAX(m->attention_grad, 0.01), 1));
    /* No further than was measured: more ranks share this machine's cores and memory, or are on others. */
    hd__text_add(out, "levels:\n  - {name: %s, ranks: %u, bandwidth: %.4g, latency: %.3g}\n", c->comm_name, c->ranks,
                 HD__MAX(c->busbw * 1e9, 1e6), c->small_us * 1e-6 / (2 * (bench_ranks(c) - 1)));
}

/* A GPU's instructions end behind the host's back: its machine file stays with the rates. */
static int32_t add_jobs(const struct calibration *c, struct hd__text *out, struct hd_error *err)
{
    uint32_t dtypes[2], n = 0;
    for (uint32_t i = 0, dtype; n < HD__COUNT(dtypes) && (dtype = hd__dtype_float_at(i)); i++)
        if (c->peak[dtype] > 0)
            dtypes[n++] = dtype;
    const struct hd__calibrate_jobs jobs = {.machine = out->at,
                                            .device = c->device_name,
                                            .comm = c->comm_name,
                                            .dtypes = dtypes,
                                            .n_dtypes = n,
                                            .ranks = c->ranks,
                                            .steps = c->steps};
    struct hd__text rows = {0};
    int32_t rc = on_host(c) ? hd__calibrate_jobs(&jobs, &rows, err) : HD_OK;
    if (!rc && rows.length)
        hd__text_add(out, "%s", rows.at);
    hd__text_free(&rows);
    return rc;
}

static int run(int argc, char **argv)
{
    struct calibration c = {.device_name = "cpu", .comm_name = "shm"};
    c.result = (struct hd__machine){.product = 1, .memory_share = 1, .tile_m = 128, .tile_n = 256};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__arena arena = {0};
    struct hd__text text = {0};
    const char *ranks_text = "2", *steps_text = "6";
    int64_t ranks = 0, steps = 0;
    struct hd__cli_words words;
    const struct hd__cli_flag flags[] = {{"--device", &c.device_name, NULL},
                                         {"--comm", &c.comm_name, NULL},
                                         {"--ranks", &ranks_text, NULL},
                                         {"--steps", &steps_text, NULL}};
    int code = hd__cli_split(&hd__command_calibrate, argc, argv, flags, HD__COUNT(flags), &words);
    if (!code && words.count)
        code = hd__cli_usage_error(&hd__command_calibrate, "there is no option %s", words.at[0]);
    free(words.at);
    code = code ? code : hd__cli_parse_whole(&hd__command_calibrate, "--ranks", ranks_text, 1, 1024, &ranks);
    code = code ? code : hd__cli_parse_whole(&hd__command_calibrate, "--steps", steps_text, 1, 1000, &steps);
    if (code)
        return code;
    c.ranks = (uint32_t)ranks;
    c.steps = (uint32_t)steps;
    hd__bench_warn_cores("--ranks", ranks, hd__cpu_count());
    struct hd__plugins *plugins = hd__plugins_create(hd__store_host_table());
    int32_t rc = hd__plugins_add_default_folders(plugins, &err);
    rc = rc ? rc : measure_transport(&c, plugins, &arena, &err);
    rc = rc ? rc : measure_device(&c, plugins, &arena, &err);
    if (!rc)
        add_machine(&c, (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / c.ranks, &text);
    rc = rc ? rc : add_jobs(&c, &text, &err);
    if (!rc)
        hd__text_print(&text, stdout);
    else
        fprintf(stderr, "heddle calibrate: %s\n", err.message);
    hd__text_free(&text);
    hd__plugins_destroy(plugins);
    hd__arena_free(&arena);
    return !rc ? HD__EXIT_DONE : rc == HD_E_NOTFOUND || rc == HD_E_UNSUPPORTED ? HD__EXIT_REFUSED : HD__EXIT_FAILED;
}

const struct hd__command hd__command_calibrate = {
    .name = "calibrate",
    .usage = "[--device NAME] [--comm NAME] [--ranks N] [--steps N]",
    .summary = "measure this machine for heddle plan",
    .help =
        "Measures products by shape, attention, memory, a launch, and all_reduce between ranks on this machine, then\n"
        "trains small jobs on so many ranks, to see how much longer each kind of instruction takes among others,\n"
        "and prints a machine file, by which heddle plan then knows it. Takes half a minute; what else runs\n"
        "meanwhile is measured with it. Ranks are taken to share the host's memory: set `memory` by hand for\n"
        "other devices. Not measured: the network, how transfers slow compute, and a GPU's small jobs.\n\n"
        "  --device NAME     cpu, cuda (cpu)\n"
        "  --comm NAME       the transport between the ranks (shm)\n"
        "  --ranks N         of the machine (2)\n"
        "  --steps N         of each small job (6): fewer take less time, and measure less well\n",
    .example = "  heddle calibrate --ranks 4 > here.yaml\n",
    .run = run,
};
