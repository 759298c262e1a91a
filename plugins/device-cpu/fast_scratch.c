/* plugins/device-cpu/fast_scratch.c: the scratch memory that fast kernels of one device share. */
#include "fast.h"

#include <stdlib.h>

struct cpu_fast *cpu_fast_state(struct hd_device *d)
{
    if (!d->onednn)
        d->onednn = calloc(1, sizeof(struct cpu_fast));
    d->onednn_close = cpu_fast_close;
    return d->onednn;
}

int32_t cpu_scratch_reserve(struct hd_device *d, size_t bytes, struct hd_error *err)
{
    struct cpu_fast *fast = cpu_fast_state(d);
    void *memory;
    bytes = (bytes + 4095) & ~(size_t)4095;
    if (!fast)
        return hd_fail(err, HD_E_NOMEM, "no memory for the state of a device");
    if (bytes <= fast->scratch_bytes)
        return HD_OK;
    memory = aligned_alloc(4096, bytes);
    if (!memory)
        return hd_fail(err, HD_E_NOMEM, "no memory for %zu bytes of kernel scratch: use fewer threads or a smaller "
                       "micro-batch", bytes);
    memset(memory, 0, bytes);
    free(fast->scratch);
    fast->scratch = memory;
    fast->scratch_bytes = bytes;
    return HD_OK;
}

void *cpu_scratch(struct hd_device *d)
{
    struct cpu_fast *fast = d->onednn;
    return fast ? fast->scratch : NULL;
}

void cpu_fast_close(struct hd_device *d)
{
    struct cpu_fast *fast = d->onednn;
    if (!fast)
        return;
    cpu_gemm_onednn_close(fast->engine);
    free(fast->scratch);
    free(fast);
    d->onednn = NULL;
}
