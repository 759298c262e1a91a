/* Overlap of an operation with matmuls: the matmuls alone, the operation alone and both are timed, interleaved. As in
 * the executor, the operation is started, matmuls follow, the transport makes progress after each, and then the
 * operation is waited for. There are as many matmuls as last as long as the operation alone. */
#include <stdlib.h>

#include "cli/bench/rank.h"
#include "runtime/rendezvous/host_store.h"

enum { OPERANDS = 3, TRIES = 5, MOST = 1000000 };

struct hd__bench_compute {
    const struct hd_device_ops *ops;
    struct hd_device *device;
    struct hd_kernel *kernel;
    void *memory[OPERANDS];
    double seconds; /* one product, at best */
};

/* ---- a product */

static uint32_t memory_kind(const struct hd__bench_compute *w)
{
    return w->ops->caps & HD_DEVICE_HOST_MEMORY ? HD_MEM_HOST : HD_MEM_DEVICE;
}

static int32_t alloc_memory(struct hd__bench_compute *w, size_t bytes, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (int i = 0; i < OPERANDS && !rc; i++) {
        if (w->ops->alloc)
            rc = w->ops->alloc(w->device, memory_kind(w), bytes, &w->memory[i], err);
        else if ((w->memory[i] = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)))
            memset(w->memory[i], 0, bytes);
        else
            rc = hd_fail(err, HD_E_NOMEM, "%zu bytes for a product", bytes);
    }
    return rc;
}

/* y[m n] = a[m k] b[k n] */
static int32_t prepare(struct hd__bench_compute *w, int32_t side, struct hd_error *err)
{
    static const char dims[OPERANDS][2] = {"mk", "kn", "mn"};
    struct hd_operand x[OPERANDS];
    for (int i = 0; i < OPERANDS; i++)
        x[i] = (struct hd_operand){.data = w->memory[i],
                                   .dtype = HD_F32,
                                   .ndim = 2,
                                   .extent = {side, side},
                                   .dim = {(uint8_t)dims[i][0], (uint8_t)dims[i][1]}};
    struct hd_instr_desc d = {
        .struct_size = sizeof d, .op = HD_OP_EINSUM, .n_in = 2, .n_out = 1, .in = x, .out = x + 2, .label = "bench"};
    d.attrs.struct_size = sizeof d.attrs;
    d.attrs.scale = 1;
    return w->ops->prepare(w->device, &d, &w->kernel, err);
}

static int32_t run_product(const struct hd__bench_compute *w, struct hd_error *err)
{
    int32_t rc = w->ops->launch(w->device, w->kernel, 0, err);
    return rc || !w->ops->sync ? rc : w->ops->sync(w->device, 0, err);
}

/* ---- life */

int32_t hd__bench_compute_open(struct hd__bench_rank *b)
{
    const struct hd__bench *bench = b->bench;
    struct hd_device_place place = {
        .struct_size = sizeof place, .local_rank = b->rank, .local_ranks = bench->ranks, .threads = 1};
    struct hd__bench_compute *w = b->compute = hd__alloc(sizeof *w);
    int32_t rc;
    w->ops = &bench->device->ops.device;
    if ((rc = w->ops->open(hd__store_host_table(), bench->device_settings, &place, &w->device, b->err)) ||
        (rc = alloc_memory(w, (size_t)bench->product * (size_t)bench->product * sizeof(float), b->err)) ||
        (rc = prepare(w, bench->product, b->err)))
        return rc;
    w->seconds = 1e30;
    rc = run_product(w, b->err);
    for (int i = 0; i < TRIES && !rc; i++) {
        double start = hd__now();
        rc = run_product(w, b->err);
        w->seconds = HD__MIN(w->seconds, hd__now() - start);
    }
    return rc;
}

void hd__bench_compute_close(struct hd__bench_rank *b)
{
    struct hd__bench_compute *w = b->compute;
    if (!w)
        return;
    if (w->kernel)
        w->ops->release(w->device, w->kernel);
    for (int i = 0; i < OPERANDS; i++)
        if (w->ops->alloc && w->memory[i])
            w->ops->free(w->device, memory_kind(w), w->memory[i]);
        else
            free(w->memory[i]);
    w->ops->close(w->device);
    free(w);
    b->compute = NULL;
}

/* ---- measuring */

/* The same number on all ranks: the slowest operation over the slowest product. */
static int32_t count_products(struct hd__bench_rank *b, uint32_t batches, uint32_t *count)
{
    struct hd__bench_timings *mine = &b->timings[b->rank];
    double alone = 0, product = 0;
    int32_t rc;
    mine->alone = 1e30;
    for (uint32_t k = 0; k < batches; k++)
        mine->alone = HD__MIN(mine->alone, mine->batch[k]);
    mine->product = b->compute->seconds;
    if ((rc = hd__bench_barrier(b)))
        return rc;
    for (int32_t r = 0; r < b->bench->ranks; r++) {
        alone = HD__MAX(alone, b->timings[r].alone);
        product = HD__MAX(product, b->timings[r].product);
    }
    *count = (uint32_t)HD__MIN(alone / product + 1, (double)MOST);
    return hd__bench_barrier(b);
}

/* Time of `count` products and of an operation; either may be absent. */
static int32_t time_both(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call, uint32_t count,
                         double *seconds)
{
    hd_request request[2];
    int32_t rc = hd__bench_barrier(b);
    double start = hd__now();
    if (!rc && call)
        rc = hd__bench_start(b, op, call, request);
    for (uint32_t i = 0; i < count && rc >= 0; i++) {
        rc = run_product(b->compute, b->err);
        if (!rc && call)
            rc = b->ops->progress(b->comm, b->err);
    }
    if (rc >= 0 && call)
        rc = hd__bench_finish(b, op, request);
    *seconds = hd__now() - start;
    return HD__MIN(rc, 0);
}

int32_t hd__bench_overlap(struct hd__bench_rank *b, uint32_t op, struct hd_comm_call *call, uint32_t batches)
{
    struct hd__bench_timings *mine = &b->timings[b->rank];
    uint32_t count = 0;
    int32_t rc = count_products(b, batches, &count);
    for (uint32_t k = 0; k < batches && !rc; k++) {
        rc = time_both(b, op, NULL, count, &mine->overlap[HD__BENCH_PRODUCTS][k]);
        if (!rc)
            rc = time_both(b, op, call, 0, &mine->overlap[HD__BENCH_ALONE][k]);
        if (!rc)
            rc = time_both(b, op, call, count, &mine->overlap[HD__BENCH_BOTH][k]);
    }
    mine->products = count;
    return rc;
}
