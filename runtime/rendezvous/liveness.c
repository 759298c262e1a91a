#include "runtime/rendezvous/liveness.h"

#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/base.h"

void hd__store_liveness_init(struct hd__liveness *live)
{
    memset(live, 0, sizeof *live);
    live->rank = -1;
    pthread_mutex_init(&live->lock, NULL);
}

void hd__store_liveness_finish(struct hd__liveness *live)
{
    pthread_mutex_destroy(&live->lock);
}

int32_t hd__store_liveness_check(struct hd__liveness *live, int32_t *rank, struct hd_error *err)
{
    int32_t code = atomic_load_explicit(&live->code, memory_order_acquire);
    if (code == HD_OK)
        return HD_OK;
    if (rank)
        *rank = live->rank; /* written before `code`, never again */
    if (err) {
        err->peer = live->rank;
        err->scope = HD_SCOPE_PROCESS;
        if (err->struct_size >= sizeof *err)
            err->origin = live->origin;
    }
    return hd_fail(err, code, "%s", live->cause);
}

int32_t hd__store_liveness_fault(const struct hd__liveness *live)
{
    return atomic_load_explicit(&live->code, memory_order_acquire) ? live->fault : HD_OK;
}

void hd__store_liveness_record(struct hd__liveness *live, int32_t code, int32_t fault, int32_t rank, uint64_t origin,
                               const char *cause)
{
    pthread_mutex_lock(&live->lock);
    if (atomic_load(&live->code) == HD_OK) {
        live->rank = rank;
        live->fault = fault;
        live->origin = origin;
        snprintf(live->cause, sizeof live->cause, "%s", cause);
        atomic_store_explicit(&live->code, code, memory_order_release);
        if (live->notify)
            live->notify(live->user, live->cause);
    }
    pthread_mutex_unlock(&live->lock);
}

void hd__store_liveness_notify(struct hd__liveness *live, void (*notify)(void *user, const char *cause), void *user)
{
    pthread_mutex_lock(&live->lock);
    live->notify = notify;
    live->user = user;
    if (notify && atomic_load(&live->code) != HD_OK)
        notify(user, live->cause);
    pthread_mutex_unlock(&live->lock);
}

static cpu_set_t cores; /* empty: those of the thread's creator */

void hd__store_keep_cores(void)
{
    if (sched_getaffinity(0, sizeof cores, &cores))
        CPU_ZERO(&cores);
}

int32_t hd__store_thread_id(void)
{
    return (int32_t)syscall(SYS_gettid);
}

void hd__store_favour_thread(void)
{
    enum { FIRST = -10 };
    int error = errno;
    if (CPU_COUNT(&cores))
        sched_setaffinity(0, sizeof cores, &cores);                /* as all below of this thread alone */
    setpriority(PRIO_PROCESS, (id_t)hd__store_thread_id(), FIRST); /* without the right to it, as before */
    errno = error;
}

int hd__store_is_starved(int32_t thread, double silent, double dead_after)
{
    enum { AT_MOST = 4 };
    char path[48], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", thread);
    FILE *f = thread > 0 && silent < AT_MOST * dead_after ? fopen(path, "re") : NULL;
    if (!f)
        return 0;
    const char *name_end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    return name_end && !strncmp(name_end, ") R", 3);
}

double hd__store_heartbeat_seconds(double dead_after)
{
    return HD__MAX(0.02, HD__MIN(1.0, dead_after / 8));
}

double hd__store_silence_seconds(double dead_after)
{
    return 0.9 * dead_after;
}
