/* heddle bench --peak: the peak rates of a device. FLOP/s as the device measures or knows them: MFU is a share of
 * that. Bytes/s of three instructions over operands larger than any cache, counted as STREAM does: each operand
 * once. */
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "cli/command.h"
#include "core/base/dtype.h"
#include "runtime/rendezvous/host_store.h"

enum { TRIES = 10 };

static const struct stream_kernel {
    const char *name;
    uint32_t op, n_in;
} streams[] = {{"fill", HD_OP_FILL0, 0}, {"copy", HD_OP_COPY, 1}, {"add", HD_OP_ADD, 2}};

struct peak {
    const struct hd_device_ops *ops;
    struct hd_device *device;
    uint64_t bytes; /* bytes of one operand */
    void *memory[3];
    int json;
    json_t *rows;
};

/* ---- output */

static void print_row(const struct peak *p, const char *what, const char *dtype, double value, const char *unit)
{
    if (p->json)
        json_array_append_new(
            p->rows, json_pack("{s:s, s:s, s:f, s:s}", "what", what, "dtype", dtype, "value", value, "unit", unit));
    else if (value > 0)
        printf("  %-8s %-6s %12.2f %s\n", what, dtype, value, unit);
    else
        printf("  %-8s %-6s %12s\n", what, dtype, "unknown");
    fflush(stdout);
}

/* ---- memory */

static uint32_t memory_kind(const struct peak *p)
{
    return p->ops->caps & HD_DEVICE_HOST_MEMORY ? HD_MEM_HOST : HD_MEM_DEVICE;
}

static int32_t run_once(const struct peak *p, struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = p->ops->launch(p->device, k, 0, err);
    return rc || !p->ops->sync ? rc : p->ops->sync(p->device, 0, err);
}

static int32_t stream_once(const struct peak *p, const struct stream_kernel *s, struct hd_error *err)
{
    struct hd_operand x[3];
    struct hd_kernel *k;
    double seconds = 1e30;
    for (int i = 0; i < 3; i++)
        x[i] = (struct hd_operand){
            .data = p->memory[i], .dtype = HD_F32, .ndim = 1, .dim = {'n'}, .extent = {(int64_t)(p->bytes / 4)}};
    struct hd_instr_desc d = {
        .struct_size = sizeof d, .op = s->op, .n_in = s->n_in, .n_out = 1, .in = x + 1, .out = x, .label = "peak"};
    d.attrs.struct_size = sizeof d.attrs;
    int32_t rc = p->ops->prepare(p->device, &d, &k, err);
    if (rc)
        return rc;
    rc = run_once(p, k, err);
    for (int i = 0; i < TRIES && !rc; i++) {
        double start = hd__now();
        rc = run_once(p, k, err);
        seconds = HD__MIN(seconds, hd__now() - start);
    }
    p->ops->release(p->device, k);
    if (!rc)
        print_row(p, s->name, "fp32", (double)p->bytes * (s->n_in + 1) / seconds / 1e9, "GB/s");
    return rc;
}

/* ---- all */

static int32_t measure(struct peak *p, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t i = 0, dtype; (dtype = hd__dtype_float_at(i)); i++)
        print_row(p, "product", hd_dtype_name(dtype),
                  p->ops->peak_flops ? p->ops->peak_flops(p->device, dtype) / 1e9 : 0, "GFLOP/s");
    for (int i = 0; i < 3 && !rc; i++) {
        if (p->ops->alloc)
            rc = p->ops->alloc(p->device, memory_kind(p), p->bytes, &p->memory[i], err);
        else if (!(p->memory[i] = aligned_alloc(4096, (p->bytes + 4095) & ~UINT64_C(4095))))
            rc = hd_fail(err, HD_E_NOMEM, "no memory for an operand of %llu bytes", (unsigned long long)p->bytes);
    }
    for (size_t i = 0; i < HD__COUNT(streams) && !rc; i++)
        rc = stream_once(p, &streams[i], err);
    for (int i = 0; i < 3; i++)
        if (p->memory[i] && p->ops->alloc)
            p->ops->free(p->device, memory_kind(p), p->memory[i]);
        else
            free(p->memory[i]);
    return rc;
}

static int32_t open_device(struct peak *p, struct hd__plugins *plugins, const char *name, const char *const *set,
                           int sets, struct hd__arena *arena, struct hd_error *err)
{
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1};
    const struct hd__component *c;
    void *settings;
    int32_t rc = hd__bench_find(plugins, HD_KIND_DEVICE, name, set, sets, arena, &c, &settings, err);
    if (rc)
        return rc;
    p->ops = &c->ops.device;
    return p->ops->open(hd__store_host_table(), settings, &place, &p->device, err);
}

int hd__bench_peak(struct hd__plugins *plugins, const char *device, const char *const *set, int sets, uint64_t bytes,
                   int json)
{
    struct peak p = {.bytes = HD__MAX(bytes, 64) & ~UINT64_C(63), .json = json, .rows = json_array()};
    struct hd__arena arena = {0};
    struct hd_error err = HD_ERROR_INIT;
    int code = HD__EXIT_DONE;
    if (open_device(&p, plugins, device, set, sets, &arena, &err)) {
        code = HD__EXIT_REFUSED;
    } else {
        int fits = memory_kind(&p) == HD_MEM_HOST && (double)p.bytes < (double)sysconf(_SC_LEVEL3_CACHE_SIZE);
        if (!json)
            printf("# device %s: best of %d; streams over operands of %llu bytes, each counted once%s\n", device, TRIES,
                   (unsigned long long)p.bytes, fits ? "; these fit the cache, and memory is slower (-e 256M)" : "");
        code = measure(&p, &err) ? HD__EXIT_FAILED : HD__EXIT_DONE;
        if (json && !code) {
            json_t *root =
                json_pack("{s:s, s:I, s:O}", "device", device, "operand_bytes", (json_int_t)p.bytes, "rows", p.rows);
            hd__cli_print_json(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        }
        p.ops->close(p.device);
    }
    if (code)
        fprintf(stderr, "heddle bench: %s\n", err.message);
    json_decref(p.rows);
    hd__arena_free(&arena);
    return code;
}
