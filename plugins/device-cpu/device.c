/* The vtable of device cpu. */
#include "internal.h"
#include "isa.h"
#include <sched.h>
#include <unistd.h>

#if defined __GLIBC__ && !defined CPU_COUNT
#error "sched.h without CPU_COUNT: compile with -D_GNU_SOURCE"
#endif

/* Cores that this process may run on. */
static int32_t allowed_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    return CPU_COUNT(&set);
}

/* The job's option, else what the launcher says, else a fair share of the cores. */
static int32_t choose_threads(const struct cpu_settings *settings, const struct hd_device_place *place)
{
    if (settings->threads > 0)
        return (int32_t)settings->threads;
    if (place && place->threads > 0)
        return place->threads;
    int32_t ranks = place && place->local_ranks > 0 ? place->local_ranks : 1;
    int32_t share = allowed_cores() / ranks;
    return share > 0 ? share : 1;
}

/* With too many they take turns; a rank that heddle binds to its share of the cores may use no others. */
static void warn_threads(const struct hd_device *d, int32_t ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t allowed = allowed_cores();
    ranks = ranks > 0 ? ranks : 1;
    if (cores > 0 && (long)d->threads * ranks > cores)
        d->host->log(HD_LOG_WARN, "device-cpu",
                     ranks > 1 ? "device.threads: %d threads share the %ld cores of this machine, %d of each of its %d "
                                 "ranks: leave it out for an equal share of the cores"
                               : "device.threads: %d threads share the %ld cores of this machine: lower it, or leave "
                                 "it out for all cores",
                     d->threads * ranks, cores, d->threads, ranks);
    else if (d->settings->threads > allowed)
        d->host->log(HD_LOG_WARN, "device-cpu",
                     "device.threads: %d threads share the %d core%s that this process may use (taskset or "
                     "--cpus-per-task leave it no more): lower it, or leave it out for an equal share of them",
                     d->threads, allowed, allowed > 1 ? "s" : "");
}

static int32_t open_device(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                           struct hd_device **device, struct hd_error *err)
{
    const struct cpu_settings *given = settings;
    int has_isa = given->kernels != CPU_KERNELS_REFERENCE || given->isa != CPU_ISA_AUTO;
    int32_t rc = has_isa ? cpu_isa_open(given->isa, err) : HD_OK;
    if (rc)
        return rc;
    struct hd_device *d = host->alloc(sizeof *d);
    if (!d) {
        if (has_isa)
            cpu_isa_close();
        return hd_fail(err, HD_E_NOMEM, "no memory for device cpu");
    }
    d->host = host;
    d->settings = given;
    d->has_isa = has_isa;
    d->threads = choose_threads(d->settings, place);
    if (!(place && place->local_rank))
        warn_threads(d, place && given->threads > 1 ? place->local_ranks : 1);
    host->log(HD_LOG_DEBUG, "device-cpu", "%d threads, %s kernels, %s", d->threads,
              given->kernels == CPU_KERNELS_REFERENCE ? "reference" : "fast", cpu_isa_name(cpu_isa()));
    if (given->isa != CPU_ISA_AUTO && given->kernels != CPU_KERNELS_REFERENCE && !(place && place->local_rank))
        host->log(HD_LOG_INFO, "device-cpu", "kernels for %s, as device.isa says; this machine has %s",
                  cpu_isa_name(cpu_isa()), cpu_isa_name(cpu_isa_best()));
    *device = d;
    return HD_OK;
}

static void close_device(struct hd_device *device)
{
    if (!device)
        return;
    if (device->onednn_close)
        device->onednn_close(device);
    cpu_free_all(device);
    if (device->has_isa)
        cpu_isa_close();
    device->host->free(device);
}

static int32_t supports(struct hd_device *device, uint32_t op, uint32_t dtype)
{
    (void)device;
    return cpu_op(op) && !cpu_op(op)->slower &&
           (dtype == HD_F32 || dtype == HD_BF16 || dtype == HD_F16 || dtype == HD_F64);
}

/* A reference kernel in place of a fast one is slow: say so, once for each op. */
static void note_declined(struct hd_kernel *k, const struct hd_error *why)
{
    uint64_t *word = &k->device->declined[k->d.op / 64], bit = UINT64_C(1) << (k->d.op % 64);
    if (*word & bit)
        return;
    *word |= bit;
    k->device->host->log(HD_LOG_WARN, "device-cpu", "%s runs on the slow reference kernel: %s", k->d.label,
                         why->message);
}

static int32_t choose_kernel(struct hd_kernel *k, struct hd_error *err)
{
    /* The reference checks shapes, whatever runs in the end. */
    int32_t rc = cpu_reference(k->d.op)(k, err);
    if (rc || k->device->settings->kernels == CPU_KERNELS_REFERENCE || !cpu_fast(k->d.op))
        return rc;
    struct hd_kernel reference = *k;
    struct hd_error why = HD_ERROR_INIT;
    k->run = NULL;
    k->release = NULL;
    k->state = NULL;
    rc = cpu_fast(k->d.op)(k, &why);
    if (rc == HD_OK) {
        if (reference.release)
            reference.release(&reference);
        return HD_OK;
    }
    if (k->release)
        k->release(k);
    k->run = reference.run;
    k->release = reference.release;
    k->state = reference.state;
    if (rc != HD_E_UNSUPPORTED)
        return hd_fail(err, rc, "%s", why.message);
    note_declined(k, &why);
    return HD_OK;
}

static int32_t prepare(struct hd_device *device, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                       struct hd_error *err)
{
    struct hd_kernel *k;
    int32_t rc = cpu_kernel_new(device, instr, &k, err);
    if (rc)
        return rc;
    rc = choose_kernel(k, err);
    if (rc) {
        cpu_kernel_free(k);
        return rc;
    }
    *kernel = k;
    return HD_OK;
}

static int32_t launch(struct hd_device *device, struct hd_kernel *kernel, uint32_t stream, struct hd_error *err)
{
    (void)stream;
    kernel->err = err;
    device->onednn_failed = 0;
    kernel->run(kernel);
    if (!kernel->failed && device->onednn_failed)
        return hd_fail(err, HD_E_INTERNAL, "%s: a matrix product of oneDNN failed (status %d): set device.products=own",
                       kernel->d.label, (int)device->onednn_failed);
    return kernel->failed;
}

static void release(struct hd_device *device, struct hd_kernel *kernel)
{
    (void)device;
    cpu_kernel_free(kernel);
}

static const struct hd_device_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_DEVICE_HOST_MEMORY | HD_DEVICE_ADDS_ONCE | HD_DEVICE_PADDED_VOCAB | HD_DEVICE_MASKS |
            HD_DEVICE_DOCUMENTS | HD_DEVICE_IGNORED_LABELS,
    .open = open_device,
    .close = close_device,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .supports = supports,
    .prepare = prepare,
    .launch = launch,
    .release = release,
    .peak_flops = cpu_peak_flops,
};

static const struct hd_option options[] = {
    {.name = "threads",
     .value = "0",
     .unit = "threads",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 4096,
     .help = "compute threads of a rank; 0: an equal share of the cores this process may use",
     .offset = offsetof(struct cpu_settings, threads)},
    {.name = "kernels",
     .value = "fast",
     .type = HD_OPT_ENUM,
     .choices = "fast|reference",
     .flags = HD_OPTION_GLOBAL,
     .help = "reference: plain loops in double precision, slow; to check the fast ones",
     .offset = offsetof(struct cpu_settings, kernels)},
    {.name = "products",
     .value = "own",
     .type = HD_OPT_ENUM,
     .choices = "own|onednn",
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .needs = "kernels=fast",
     .help = "who multiplies matrices; own gives the same bits for any number of threads",
     .offset = offsetof(struct cpu_settings, products)},
    {.name = "isa",
     .value = "auto",
     .type = HD_OPT_ENUM,
     .choices = CPU_ISA_CHOICES,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .needs = "kernels=fast",
     .help = "instructions of kernels; auto: the best of the processor; a lesser one runs what lesser machines run",
     .offset = offsetof(struct cpu_settings, isa)},
    {.name = "logits",
     .value = "64MiB",
     .type = HD_OPT_SIZE,
     .unit = "bytes",
     .min = 0,
     .max = 1e12,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .needs = "kernels=fast",
     .help = "about how much memory the loss may take for a chunk of logits; at least 64 tokens are done at once",
     .offset = offsetof(struct cpu_settings, logits)},
};

HD_PLUGIN("device-cpu", "0.1.0", "Apache-2.0", .kind = HD_KIND_DEVICE, .name = "cpu",
          .summary = "this machine's processors: AMX, AVX-512 and AVX2 matrix products, vectorised kernels, OpenMP",
          HD_OPTIONS(options, struct cpu_settings), .ops = &ops)
