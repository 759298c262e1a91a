/* The only place that starts OpenMP threads (oneDNN starts its own from the same pool).
 *
 * OpenMP orders memory by itself. The two counters say so again in terms that the thread sanitizer sees: it does not
 * know OpenMP's barriers, nor the block that carries captured variables to a thread. */
#include "internal.h"
#include <stdatomic.h>

#define NOT_SEEN __attribute__((no_sanitize("thread")))
#define SEEN __attribute__((noinline))

struct job {
    int64_t n, parts;
    cpu_range_fn fn;
    void *context;
    atomic_llong begun, done;
};

SEEN static void begin(struct job *job)
{
    atomic_store_explicit(&job->begun, 1, memory_order_release);
}

SEEN static void end(struct job *job)
{
    (void)atomic_load_explicit(&job->done, memory_order_acquire);
}

SEEN static void run_part(struct job *job, int64_t i)
{
    (void)atomic_load_explicit(&job->begun, memory_order_acquire);
    job->fn(job->context, job->n * i / job->parts, job->n * (i + 1) / job->parts);
    atomic_fetch_add_explicit(&job->done, 1, memory_order_release);
}

NOT_SEEN static void run_parts(struct job *job, int64_t parts)
{
    begin(job);
#pragma omp parallel for num_threads((int)parts) schedule(static, 1)
    for (int64_t i = 0; i < parts; i++)
        run_part(job, i);
    end(job);
}

void cpu_parallel(const struct hd_device *device, int64_t n, int64_t grain, cpu_range_fn fn, void *context)
{
    int64_t parts = grain > 0 ? n / grain : n;
    if (parts > device->threads)
        parts = device->threads;
    if (parts <= 1) {
        if (n > 0)
            fn(context, 0, n);
        return;
    }
    struct job job = {.n = n, .parts = parts, .fn = fn, .context = context};
    run_parts(&job, parts);
}
