/* The rate at which the device moves memory: a copy between operands larger than any cache, in some tens of
 * milliseconds. */
#include <stdlib.h>

#include "runtime/exec/internal.h"

enum { TRIES = 4 };

static int32_t run_once(const struct hd__device *d, struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = d->ops->launch(d->handle, k, HD_STREAM_COMPUTE, err);
    return rc || !d->ops->sync ? rc : d->ops->sync(d->handle, HD_STREAM_COMPUTE, err);
}

static double best_rate(const struct hd__device *d, void *const memory[2], size_t bytes, struct hd_error *err)
{
    struct hd_operand x[2];
    struct hd_kernel *k;
    double best = 0;
    for (int n = 0; n < 2; n++)
        x[n] = (struct hd_operand){
            .data = memory[n], .dtype = HD_F32, .ndim = 1, .dim = {'n'}, .extent = {(int64_t)(bytes / 4)}};
    struct hd_instr_desc desc = {
        .struct_size = sizeof desc, .op = HD_OP_COPY, .n_in = 1, .n_out = 1, .in = x, .out = x + 1, .label = "copy"};
    desc.attrs.struct_size = sizeof desc.attrs;
    if (d->ops->prepare(d->handle, &desc, &k, err))
        return 0;
    int32_t rc = run_once(d, k, err); /* touches the pages */
    for (int n = 0; n < TRIES && !rc; n++) {
        double start = hd__now();
        rc = run_once(d, k, err);
        best = HD__MAX(best, 2 * (double)bytes / (hd__now() - start));
    }
    d->ops->release(d->handle, k);
    return rc ? 0 : best;
}

double hd__exec_copy_rate(struct hd__exec *e, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    uint32_t kind = d->discrete ? HD_MEM_DEVICE : HD_MEM_HOST;
    size_t bytes = (d->discrete ? (size_t)256 : (size_t)32) << 20;
    void *memory[2] = {NULL, NULL};
    double rate = 0;
    int32_t rc = HD_OK;
    for (int n = 0; n < 2 && !rc; n++) {
        if (d->ops->alloc)
            rc = d->ops->alloc(d->handle, kind, bytes, &memory[n], err);
        else if (!(memory[n] = aligned_alloc(4096, bytes)))
            rc = hd_fail(err, HD_E_NOMEM, "no memory for an operand of %zu bytes", bytes);
    }
    if (!rc)
        rate = best_rate(d, memory, bytes, err);
    for (int n = 0; n < 2; n++)
        if (memory[n] && d->ops->alloc)
            d->ops->free(d->handle, kind, memory[n]);
        else
            free(memory[n]);
    return rate;
}
