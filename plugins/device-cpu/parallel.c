/* The only place that starts OpenMP threads (oneDNN starts its own from the same pool). */
#include "cpu.h"

void cpu_parallel(const struct hd_device *device, int64_t n, int64_t grain, cpu_range_fn fn, void *context)
{
    int64_t pieces = grain > 0 ? n / grain : n;
    if (pieces > device->threads)
        pieces = device->threads;
    if (pieces <= 1) {
        if (n > 0)
            fn(context, 0, n);
        return;
    }
#pragma omp parallel for num_threads((int)pieces) schedule(static, 1)
    for (int64_t i = 0; i < pieces; i++)
        fn(context, n * i / pieces, n * (i + 1) / pieces);
}
