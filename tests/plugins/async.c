/* The vtable of device async: see async.h. */
#include "tests/plugins/async.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heddle/host.h"
#include "tests/plugins/absent.h"
#include "tests/plugins/inner.h"

struct settings {
    int64_t seed, refuse, voided;
    char cpu[256]; /* device-cpu's own */
};

struct area {
    struct area *next;
    char *face, *memory; /* what the core is given, and where it can be touched */
    size_t bytes;
    uint32_t kind, reserved;
};

struct hd_device {
    const struct hd_host *host;
    const struct settings *settings;
    const struct hd_device_ops *cpu_ops;
    struct hd_device *cpu;
    struct async_streams *streams;
    struct async_stream native[HD_STREAM_COUNT];
    struct area *areas;
};

struct hd_kernel {
    struct hd_kernel *cpu; /* NULL: a copy whose dims stand in another order */
    struct hd_operand from, to;
    struct hd_custom_op custom; /* with the function that it has for this device */
};

enum { POISON = 0xff }; /* all bytes: NaN in every floating dtype */

/* ---- memory */

static void *reach(const struct hd_device *d, const void *memory)
{
    const char *at = memory;
    for (const struct area *a = d->areas; a; a = a->next)
        if (at >= a->face && at < a->face + a->bytes)
            return a->memory + (at - a->face);
    return (void *)(uintptr_t)memory;
}

static void free_area(struct area *a)
{
    if (a->kind == HD_MEM_DEVICE) {
        munmap(a->face, a->bytes);
        munmap(a->memory, a->bytes);
    } else {
        free(a->face);
    }
    free(a);
}

static int32_t map_twice(struct area *a, struct hd_error *err)
{
    int file = memfd_create("device-async", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)a->bytes))
        return hd_fail(err, HD_E_NOMEM, "device async has no %zu bytes", a->bytes);
    a->face = mmap(NULL, a->bytes, PROT_NONE, MAP_SHARED, file, 0);
    a->memory = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (a->face == MAP_FAILED || a->memory == MAP_FAILED)
        return hd_fail(err, HD_E_NOMEM, "device async cannot map %zu bytes", a->bytes);
    return HD_OK;
}

static int32_t async_alloc(struct hd_device *d, uint32_t kind, size_t bytes, void **memory, struct hd_error *err)
{
    struct area *a = calloc(1, sizeof *a);
    int32_t rc = HD_OK;
    a->kind = kind;
    a->bytes = (bytes + 4095) & ~(size_t)4095;
    if (kind == HD_MEM_DEVICE)
        rc = map_twice(a, err);
    else
        a->face = a->memory = aligned_alloc(4096, a->bytes);
    if (rc || !a->memory) {
        free(a);
        return rc ? rc : hd_fail(err, HD_E_NOMEM, "device async has no %zu bytes", bytes);
    }
    memset(a->memory, POISON, a->bytes);
    a->next = d->areas;
    d->areas = a;
    *memory = a->face;
    return HD_OK;
}

static void async_free(struct hd_device *d, uint32_t kind, void *memory)
{
    (void)kind;
    for (struct area **at = &d->areas; *at; at = &(*at)->next)
        if ((*at)->face == (char *)memory) {
            struct area *a = *at;
            *at = a->next;
            memset(a->memory, POISON, a->bytes);
            free_area(a);
            return;
        }
}

/* ---- life */

static int32_t call(struct async_stream *stream, async_call fn, const void *user, size_t bytes, struct hd_error *err)
{
    struct async_op *op = calloc(1, sizeof *op);
    op->kind = ASYNC_CALL;
    op->stream = stream->stream;
    op->call = fn;
    op->bytes = bytes;
    op->user = malloc(bytes);
    memcpy(op->user, user, bytes);
    return async_enqueue(stream->device->streams, op, err);
}

static void *reach_from(struct async_stream *stream, const void *memory)
{
    return reach(stream->device, memory);
}

static void close_device(struct hd_device *d)
{
    if (!d)
        return;
    async_streams_close(d->streams);
    while (d->areas) {
        struct area *a = d->areas;
        d->areas = a->next;
        free_area(a);
    }
    if (d->cpu)
        d->cpu_ops->close(d->cpu);
    free(d);
}

static int32_t open_cpu(struct hd_device *d, const struct hd_device_place *place, struct hd_error *err)
{
    d->cpu_ops = inner_component(DEVICE_CPU)->ops;
    return d->cpu_ops->open(d->host, d->settings->cpu, place, &d->cpu, err);
}

static int32_t open_device(const struct hd_host *host, const void *settings, const struct hd_device_place *place,
                           struct hd_device **device, struct hd_error *err)
{
    struct hd_device *d = calloc(1, sizeof *d);
    int32_t rc = absent("last-device", err);
    if (rc && place->local_rank == place->local_ranks - 1) {
        free(d);
        return rc;
    }
    d->host = host;
    d->settings = settings;
    for (uint32_t s = 0; s < HD_STREAM_COUNT; s++)
        d->native[s] = (struct async_stream){.device = d, .stream = s, .call = call, .reach = reach_from};
    d->streams = async_streams_open(d, (uint64_t)d->settings->seed * 1000 + (uint64_t)place->local_rank,
                                    (struct async_refusal){d->settings->refuse, d->settings->voided});
    rc = d->streams ? open_cpu(d, place, err) : hd_fail(err, HD_E_NOMEM, "device async has no thread");
    if (rc) {
        close_device(d);
        return rc;
    }
    *device = d;
    return HD_OK;
}

/* ---- kernels and copies */

static int32_t supports(struct hd_device *d, uint32_t op, uint32_t dtype)
{
    const struct hd_component *cpu = inner_component(DEVICE_CPU);
    return cpu && ((const struct hd_device_ops *)cpu->ops)->supports(d ? d->cpu : NULL, op, dtype);
}

static int permutes(const struct hd_instr_desc *i)
{
    return i->op == HD_OP_COPY && i->in[0].ndim == 3 && i->in[0].dim[0] != i->out[0].dim[0];
}

/* [a b c] -> [b a c] */
static void permute(const struct hd_operand *from, const struct hd_operand *to)
{
    int64_t a = from->extent[0], b = from->extent[1], bytes = from->extent[2] * (int64_t)hd_dtype_size(from->dtype);
    for (int64_t i = 0; i < a; i++)
        for (int64_t k = 0; k < b; k++)
            memcpy((char *)to->data + (k * a + i) * bytes, (const char *)from->data + (i * b + k) * bytes,
                   (size_t)bytes);
}

static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                       struct hd_error *err)
{
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    struct hd_instr_desc here = *instr;
    struct hd_kernel *k = calloc(1, sizeof *k);
    int32_t rc;
    for (uint32_t i = 0; i < instr->n_in; i++) {
        in[i] = instr->in[i];
        in[i].data = reach(d, in[i].data);
    }
    for (uint32_t i = 0; i < instr->n_out; i++) {
        out[i] = instr->out[i];
        out[i].data = reach(d, out[i].data);
    }
    here.in = in;
    here.out = out;
    if (instr->custom) {
        k->custom = *instr->custom;
        k->custom.run = NULL;
        here.custom = &k->custom;
    }
    for (uint64_t n = 0; instr->custom && n < instr->custom->n_kernels; n++)
        if (!strcmp(instr->custom->kernels[n].device, "async"))
            k->custom.run = instr->custom->kernels[n].run;
    if (permutes(instr)) {
        k->from = in[0];
        k->to = out[0];
        *kernel = k;
        return HD_OK;
    }
    rc = d->cpu_ops->prepare(d->cpu, &here, &k->cpu, err);
    if (rc) {
        free(k);
        return rc;
    }
    *kernel = k;
    return HD_OK;
}

static void release(struct hd_device *d, struct hd_kernel *kernel)
{
    if (kernel->cpu)
        d->cpu_ops->release(d->cpu, kernel->cpu);
    free(kernel);
}

int32_t async_do(struct hd_device *d, const struct async_op *op, struct hd_error *err)
{
    if (op->kind == ASYNC_LAUNCH && !op->kernel->cpu) {
        permute(&op->kernel->from, &op->kernel->to);
        return HD_OK;
    }
    if (op->kind == ASYNC_LAUNCH)
        return d->cpu_ops->launch(d->cpu, op->kernel->cpu, 0, err);
    memmove(op->to, op->from, op->bytes);
    return HD_OK;
}

static int32_t launch(struct hd_device *d, struct hd_kernel *kernel, uint32_t stream, struct hd_error *err)
{
    struct async_op *op = calloc(1, sizeof *op);
    op->kind = ASYNC_LAUNCH;
    op->stream = stream;
    op->kernel = kernel;
    return async_enqueue(d->streams, op, err);
}

static int32_t copy(struct hd_device *d, uint32_t stream, void *to, const void *from, size_t bytes,
                    struct hd_error *err)
{
    struct async_op *op = calloc(1, sizeof *op);
    op->kind = ASYNC_COPY;
    op->stream = stream;
    op->to = reach(d, to);
    op->from = reach(d, from);
    op->bytes = bytes;
    return async_enqueue(d->streams, op, err);
}

/* ---- streams and events */

static int32_t sync_stream(struct hd_device *d, uint32_t stream, struct hd_error *err)
{
    return async_sync(d->streams, stream, err);
}

static int32_t event_new(struct hd_device *d, struct hd_event **event, struct hd_error *err)
{
    (void)d;
    *event = calloc(1, sizeof **event);
    return *event ? HD_OK : hd_fail(err, HD_E_NOMEM, "no memory for an event");
}

static void event_free(struct hd_device *d, struct hd_event *event)
{
    async_unmark(d->streams, event);
    free(event);
}

static int32_t record(struct hd_device *d, struct hd_event *event, uint32_t stream, struct hd_error *err)
{
    return async_record(d->streams, event, stream, err);
}

static int32_t follow(struct hd_device *d, uint32_t stream, struct hd_event *event, struct hd_error *err)
{
    return async_follow(d->streams, stream, event, err);
}

static int32_t reached(struct hd_device *d, struct hd_event *event, int32_t *done, struct hd_error *err)
{
    return async_reached(d->streams, event, done, err);
}

static void *native(struct hd_device *d, uint32_t stream)
{
    return &d->native[stream];
}

static void set_capturing(struct hd_device *d, uint32_t capturing)
{
    for (uint32_t s = 0; s < HD_STREAM_COUNT; s++)
        d->native[s].capturing = capturing;
}

static int32_t capture_begin(struct hd_device *d, struct hd_error *err)
{
    int32_t rc = async_capture_begin(d->streams, err);
    set_capturing(d, !rc);
    return rc;
}

static int32_t capture_end(struct hd_device *d, struct hd_captured **captured, struct hd_error *err)
{
    set_capturing(d, 0);
    return async_capture_end(d->streams, captured, err);
}

static int32_t replay(struct hd_device *d, struct hd_captured *captured, struct hd_error *err)
{
    return async_replay(d->streams, captured, err);
}

static void captured_free(struct hd_device *d, struct hd_captured *captured)
{
    async_captured_free(d->streams, captured);
}

static struct hd_device_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_DEVICE_STREAMS | HD_DEVICE_PERMUTES, /* and what device-cpu's kernels can */
    .open = open_device,
    .close = close_device,
    .alloc = async_alloc,
    .free = async_free,
    .supports = supports,
    .prepare = prepare,
    .launch = launch,
    .release = release,
    .sync = sync_stream,
    .event = event_new,
    .event_free = event_free,
    .record = record,
    .follow = follow,
    .reached = reached,
    .copy = copy,
    .native = native,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .replay = replay,
    .captured_free = captured_free,
};

static struct hd_option options[32] = {
    {.name = "seed",
     .value = "1",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 1e9,
     .help = "of the order in which streams go on",
     .offset = offsetof(struct settings, seed)},
    {.name = "refuse",
     .value = "0",
     .type = HD_OPT_INT,
     .min = -2,
     .max = 1e9,
     .offset = offsetof(struct settings, refuse),
     .help = "what of a captured piece is not possible: -1 its beginning, -2 its end, or the so manyth thing in it; 0: "
             "all is"},
    {.name = "voided",
     .value = "0",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 1,
     .offset = offsetof(struct settings, voided),
     .help = "1: nor is what comes after that, and its end"},
};

static int32_t probe(const struct hd_host *host, struct hd_error *err)
{
    (void)host;
    return absent("device-async", err);
}

static struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_DEVICE,
    .name = "async",
    .summary = "device-cpu behind streams, with memory that the host cannot touch: for tests",
    .options = options,
    .n_options = 3,
    .option_size = sizeof options[0],
    .settings_size = sizeof(struct settings),
    .ops = &ops,
    .probe = probe,
};

HD_PLUGIN_DESCRIPTOR(plugin, "device-async", "0.1.0", "Apache-2.0", component);

/* Its options are device-cpu's, and three more. */
__attribute__((visibility("default"))) const struct hd_plugin *HD_PLUGIN_ENTRY(void);
const struct hd_plugin *HD_PLUGIN_ENTRY(void)
{
    const struct hd_component *cpu = inner_component(DEVICE_CPU);
    if (!cpu ||
        !inner_options(&component, options, 3, sizeof options / sizeof *options, cpu, offsetof(struct settings, cpu)))
        return NULL;
    ops.caps |= ((const struct hd_device_ops *)cpu->ops)->caps & ~HD_DEVICE_HOST_MEMORY;
    return &plugin;
}
