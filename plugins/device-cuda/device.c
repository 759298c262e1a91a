/* The vtable of device cuda. */
#include "attention/cudnn_attention.h"
#include "op_table.h"
#include "products/blas.h"
#include "products/fp8.h"

static int32_t choose_index(const struct cu_settings *settings, const struct hd_device_place *place, int32_t *index,
                            struct hd_error *err)
{
    int32_t count, rc = cu_count(&count, err);
    if (rc)
        return rc;
    if (settings->index >= count)
        return hd_fail(err, HD_E_INVALID, "device option index: %lld, but there are %d GPUs, from 0",
                       (long long)settings->index, count);
    *index = settings->index >= 0 ? (int32_t)settings->index : place ? place->local_rank % count : 0;
    return HD_OK;
}

/* CUDA takes it from the environment, once, when the driver starts. */
static int32_t set_connections(const struct hd_host *host, int64_t connections, struct hd_error *err)
{
    char text[24];
    if (!connections || host->struct_size < offsetof(struct hd_host, set_variable) + sizeof host->set_variable ||
        !host->set_variable)
        return HD_OK;
    snprintf(text, sizeof text, "%lld", (long long)connections);
    return host->set_variable("CUDA_DEVICE_MAX_CONNECTIONS", text, err);
}

static int32_t read_attributes(struct hd_device *d, struct hd_error *err)
{
    const struct {
        int32_t *to;
        int64_t what;
    } all[] = {
        {&d->major, cudaDevAttrComputeCapabilityMajor},
        {&d->minor, cudaDevAttrComputeCapabilityMinor},
        {&d->processors, cudaDevAttrMultiProcessorCount},
        {&d->shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin},
        {&d->clock, cudaDevAttrClockRate},
    };
    cudaError_t rc = cudaSuccess;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && rc == cudaSuccess; i++)
        rc = cudaDeviceGetAttribute(all[i].to, (enum cudaDeviceAttr)all[i].what, d->index);
    return cu_fail(err, rc, NULL, "device cuda: reading what the GPU is");
}

static void close_device(struct hd_device *d)
{
    if (!d)
        return;
    for (int32_t i = 0; i < HD_STREAM_COUNT; i++)
        if (d->stream[i])
            cudaStreamSynchronize(d->stream[i]);
    cu_attention_close(d);
    cu_blas_close(d);
    cu_memory_close(d);
    cu_streams_close(d);
    d->host->free(d);
}

static int32_t open_device(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                           struct hd_device **device, struct hd_error *err)
{
    struct hd_device *d = host->alloc(sizeof *d);
    if (!d)
        return hd_fail(err, HD_E_NOMEM, "no memory for device cuda");
    d->host = host;
    d->settings = settings;
    int32_t rc = set_connections(host, d->settings->connections, err);
    if (rc == HD_OK)
        rc = choose_index(d->settings, place, &d->index, err);
    if (rc == HD_OK)
        rc = cu_fail(err, cudaSetDevice(d->index), NULL, "device cuda: choosing the GPU");
    if (rc == HD_OK)
        rc = read_attributes(d, err);
    if (rc == HD_OK)
        rc = cu_streams_open(d, err);
    if (rc == HD_OK)
        rc = cu_fp8_check(d, err);
    if (rc == HD_OK)
        rc = cu_attention_check(d, err);
    if (rc) {
        close_device(d);
        return rc;
    }
    host->log(HD_LOG_DEBUG, "device-cuda", "GPU %d, compute capability %d.%d, %d multiprocessors", d->index, d->major,
              d->minor, d->processors);
    *device = d;
    return HD_OK;
}

static int32_t supports(struct hd_device *device, uint32_t op, uint32_t dtype)
{
    const struct cu_op_row *row = cu_op_row(op);
    (void)device;
    return row && dtype < 32 && (row->dtypes & CU_DTYPE(dtype)) != 0;
}

static int32_t check_operand(const struct hd_instr_desc *i, const struct hd_operand *o, const char *side, uint32_t n,
                             struct hd_error *err)
{
    if (!hd_dtype_size(o->dtype) || o->ndim > HD_MAX_DIMS)
        return cu_refuse(err, HD_E_INVALID, i, "%s %u has dtype %u and %u dims", side, n, o->dtype, o->ndim);
    for (uint32_t k = 0; k < o->ndim; k++)
        if (o->extent[k] < 0)
            return cu_refuse(err, HD_E_INVALID, i, "%s %u has a negative extent along dim %u", side, n, k);
    if (!o->data && hd_operand_count(o) > 0)
        return cu_refuse(err, HD_E_INVALID, i, "%s %u has no memory", side, n);
    if (!cu_aligned(o->data, hd_dtype_size(o->dtype)))
        return cu_refuse(err, HD_E_INVALID, i, "%s %u does not begin at a whole element", side, n);
    return HD_OK;
}

static int32_t check(const struct cu_op_row *row, const struct hd_instr_desc *i, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (i->n_in < row->min_in || i->n_in > row->max_in || i->n_out < row->min_out || i->n_out > row->max_out)
        return cu_refuse(err, HD_E_INVALID, i, "op %u wants %u to %u inputs and %u to %u outputs, not %u and %u", i->op,
                         row->min_in, row->max_in, row->min_out, row->max_out, i->n_in, i->n_out);
    for (uint32_t n = 0; n < i->n_in && rc == HD_OK; n++)
        rc = check_operand(i, &i->in[n], "input", n, err);
    for (uint32_t n = 0; n < i->n_out && rc == HD_OK; n++)
        rc = check_operand(i, &i->out[n], "output", n, err);
    return rc;
}

static void release(struct hd_device *device, struct hd_kernel *k)
{
    if (!k)
        return;
    if (k->release)
        k->release(k);
    else
        device->host->free(k->state);
    device->host->free(k);
}

static int32_t prepare(struct hd_device *device, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                       struct hd_error *err)
{
    const struct cu_op_row *row = cu_op_row(instr->op);
    if (!row)
        return cu_refuse(err, HD_E_UNSUPPORTED, instr, "device cuda has no kernel for op %u", instr->op);
    int32_t rc = check(row, instr, err);
    if (rc)
        return rc;
    struct hd_kernel *k = device->host->alloc(sizeof *k);
    if (!k)
        return cu_refuse(err, HD_E_NOMEM, instr, "no memory for a kernel");
    k->device = device;
    k->op = instr->op;
    snprintf(k->label, sizeof k->label, "%.63s", instr->label);
    rc = row->prepare(device, instr, k, err);
    if (rc) {
        release(device, k);
        return rc;
    }
    *kernel = k;
    return HD_OK;
}

static int32_t launch(struct hd_device *device, struct hd_kernel *kernel, uint32_t stream, struct hd_error *err)
{
    return kernel->run(kernel, device->stream[stream], err);
}

static const struct hd_device_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_DEVICE_STREAMS | HD_DEVICE_ADDS_ONCE | HD_DEVICE_PERMUTES | HD_DEVICE_PADDED_VOCAB |
            HD_DEVICE_ZEROED_MEMORY | HD_DEVICE_MASKS | HD_DEVICE_DOCUMENTS | HD_DEVICE_IGNORED_LABELS,
    .open = open_device,
    .close = close_device,
    .alloc = cu_alloc,
    .free = cu_free,
    .supports = supports,
    .prepare = prepare,
    .launch = launch,
    .release = release,
    .sync = cu_sync,
    .peak_flops = cu_peak_flops,
    .event = cu_event,
    .event_free = cu_event_free,
    .record = cu_record,
    .follow = cu_follow,
    .reached = cu_reached,
    .copy = cu_copy,
    .native = cu_native,
    .capture_begin = cu_capture_begin,
    .capture_end = cu_capture_end,
    .replay = cu_replay,
    .captured_free = cu_captured_free,
};

static const struct hd_option options[] = {
    {.name = "index",
     .value = "-1",
     .type = HD_OPT_INT,
     .min = -1,
     .max = 1023,
     .help = "which GPU; -1: the local rank modulo the number of GPUs",
     .offset = offsetof(struct cu_settings, index)},
    {.name = "tf32",
     .needs = "precision.compute=fp32",
     .value = "false",
     .type = HD_OPT_BOOL,
     .flags = HD_OPTION_GLOBAL,
     .help = "matrix products of fp32 in TF32: several times faster, 10 bits of mantissa",
     .offset = offsetof(struct cu_settings, tf32)},
    {.name = "fp8",
     .value = "off",
     .type = HD_OPT_ENUM,
     .choices = "off|e4m3|hybrid",
     .flags = HD_OPTION_GLOBAL,
     .help = "operands of large 16-bit products in fp8, each with one scale; hybrid: gradients in e5m2",
     .offset = offsetof(struct cu_settings, fp8)},
    {.name = "fp8_above",
     .needs = "fp8!=off",
     .value = "1024",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 1e9,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .help = "products [m k] [k n] with m n / (m + n) below it stay out of fp8: casts would cost more than they save",
     .offset = offsetof(struct cu_settings, fp8_above)},
    {.name = "attention",
     .value = "auto",
     .type = HD_OPT_ENUM,
     .choices = "own|wgmma|cudnn|auto",
     .flags = HD_OPTION_GLOBAL,
     .help = "whose attention: heddle's kernels for every GPU; those for Hopper (9.0), or cuDNN's, where they agree "
             "with them; or whichever is fastest at start; with cudnn gradients, with auto all may differ in the last "
             "bits from run to run",
     .offset = offsetof(struct cu_settings, attention)},
    {.name = "attention_above",
     .needs = "attention=auto",
     .value = "16777216",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 1e18,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .help = "attention of fewer scores (batch x heads x queries x keys) is not timed at start: heddle's own takes it",
     .offset = offsetof(struct cu_settings, attention_above)},
    {.name = "cudnn_library",
     .needs = "attention=cudnn|auto",
     .value = "libcudnn.so.9",
     .type = HD_OPT_STRING,
     .level = HD_LEVEL_TUNER,
     .help = "cuDNN, 9.10 or newer: a file, or a name that the dynamic loader finds",
     .offset = offsetof(struct cu_settings, cudnn_library)},
    {.name = "tune",
     .value = "false",
     .type = HD_OPT_BOOL,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .help =
         "true: time cuBLASLt's candidates for each matrix product at start, and whether biases and GELU are faster "
         "in kernels behind it; runs may then differ in the last bits",
     .offset = offsetof(struct cu_settings, tune)},
    {.name = "workspace",
     .value = "64MiB",
     .type = HD_OPT_SIZE,
     .unit = "bytes",
     .min = 0,
     .max = 1e12,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .help = "memory that matrix products may use beside their operands",
     .offset = offsetof(struct cu_settings, workspace)},
    {.name = "logits",
     .value = "576MiB",
     .type = HD_OPT_SIZE,
     .unit = "bytes",
     .min = 0,
     .max = 1e12,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .help = "how much memory the loss may take for a chunk of logits, whose rows are chosen so that matrix products "
             "fill the "
             "GPU; at least 64 tokens are done at once",
     .offset = offsetof(struct cu_settings, logits)},
    {.name = "connections",
     .value = "32",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 32,
     .level = HD_LEVEL_TUNER,
     .help = "queues to the GPU (CUDA_DEVICE_MAX_CONNECTIONS): streams that share one wait for each other, and each "
             "group of ranks has some "
             "over NCCL; 0: what the environment says, else CUDA's 8",
     .offset = offsetof(struct cu_settings, connections)},
    {.name = "threads",
     .value = "0",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 4096,
     .help = "device-cpu's: kernels of a GPU take no threads of the host, so that any number is right; here for jobs "
             "that run on both",
     .offset = offsetof(struct cu_settings, threads)},
};

#ifdef CU_EMULATE
#define NAME "cuda-emulated" /* in tests: beside the real one, and without its aliases */
#define CU_ALIASES
#else
#define NAME "cuda"
static const struct hd_alias aliases[] = {{.name = "gpu", .summary = "the GPUs of this machine"}};
#define CU_ALIASES , HD_ALIASES(aliases)
#endif

HD_PLUGIN("device-" NAME, "0.1.0", "Apache-2.0", .kind = HD_KIND_DEVICE, .name = NAME,
          .summary = "NVIDIA GPUs: cuBLASLt matrix products, own kernels, CUDA graphs",
          HD_OPTIONS(options, struct cu_settings), .probe = cu_probe, .ops = &ops CU_ALIASES)
