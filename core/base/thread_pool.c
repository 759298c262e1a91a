#include "core/base/thread_pool.h"

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

struct crew {
    int32_t (*work)(void *user, uint64_t i, char *block, struct hd_error *err);
    void *user;
    uint64_t count;
    size_t block_bytes;
    _Atomic uint64_t next;
    _Atomic int32_t failed; /* the first one to set it owns `error` */
    struct hd_error error;
};

static void *crew_member(void *user)
{
    struct crew *crew = user;
    struct hd_error error = HD_ERROR_INIT;
    void *block = NULL;
    int32_t rc = HD_OK;
    if (posix_memalign(&block, 4096, crew->block_bytes))
        rc = hd_fail(&error, HD_E_NOMEM, "no memory for %zu bytes of a thread", crew->block_bytes);
    while (!rc && !atomic_load(&crew->failed)) {
        uint64_t i = atomic_fetch_add(&crew->next, 1);
        if (i >= crew->count)
            break;
        rc = crew->work(crew->user, i, block, &error);
    }
    if (rc) {
        int32_t none = HD_OK;
        error.code = rc;
        if (atomic_compare_exchange_strong(&crew->failed, &none, rc))
            crew->error = error;
    }
    free(block);
    return NULL;
}

int32_t hd__parallel_for(uint32_t threads, uint64_t count, size_t block_bytes,
                         int32_t (*work)(void *user, uint64_t i, char *block, struct hd_error *err), void *user,
                         struct hd_error *err)
{
    enum { MOST = 64 };
    struct crew crew = {.work = work, .user = user, .count = count, .block_bytes = block_bytes};
    pthread_t thread[MOST];
    uint64_t crowd = HD__MIN(HD__MIN(threads, MOST), count), started = 0;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (started + 1 < crowd && !pthread_create(&thread[started], NULL, crew_member, &crew))
        started++; /* fewer threads are slower, not wrong */
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (count)
        crew_member(&crew);
    for (uint64_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    if (crew.failed && err)
        *err = crew.error;
    return crew.failed;
}
