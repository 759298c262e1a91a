#include "runtime/cpu/parallel_for.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

int32_t hd__cpu_count(void)
{
    cpu_set_t mine;
    return sched_getaffinity(0, sizeof mine, &mine) ? 1 : CPU_COUNT(&mine);
}

struct job {
    int32_t (*work)(void *user, uint64_t i, char *block, struct hd_error *err);
    void *user;
    uint64_t count;
    size_t block_bytes;
    _Atomic uint64_t next;
    _Atomic int32_t failed; /* the thread that sets it owns `error` */
    struct hd_error error;
};

static void *worker_main(void *user)
{
    struct job *job = user;
    struct hd_error error = HD_ERROR_INIT;
    void *block = NULL;
    int32_t rc = HD_OK;
    if (posix_memalign(&block, 4096, job->block_bytes))
        rc = hd_fail(&error, HD_E_NOMEM, "no memory for a thread's block of %zu bytes", job->block_bytes);
    while (!rc && !atomic_load(&job->failed)) {
        uint64_t i = atomic_fetch_add(&job->next, 1);
        if (i >= job->count)
            break;
        rc = job->work(job->user, i, block, &error);
    }
    if (rc) {
        int32_t none = HD_OK;
        error.code = rc;
        if (atomic_compare_exchange_strong(&job->failed, &none, rc))
            job->error = error;
    }
    free(block);
    return NULL;
}

int32_t hd__parallel_for(uint32_t threads, uint64_t count, size_t block_bytes,
                         int32_t (*work)(void *user, uint64_t i, char *block, struct hd_error *err), void *user,
                         struct hd_error *err)
{
    enum { MAX_THREADS = 64 };
    struct job job = {.work = work, .user = user, .count = count, .block_bytes = block_bytes};
    pthread_t thread[MAX_THREADS];
    uint64_t wanted = HD__MIN(HD__MIN(threads, MAX_THREADS), count), started = 0;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (started + 1 < wanted && !pthread_create(&thread[started], NULL, worker_main, &job))
        started++; /* fewer threads are slower, not wrong */
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (count)
        worker_main(&job);
    for (uint64_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    if (job.failed && err)
        *err = job.error;
    return job.failed;
}
