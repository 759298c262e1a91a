#include "runtime/rendezvous/liveness.h"

#include <errno.h>
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

void hd__store_raise_priority(void)
{
    enum { FIRST = -10 };
    int error = errno;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid),
                FIRST); /* of this thread alone; without the right to it, as before */
    errno = error;
}

double hd__store_heartbeat_seconds(double dead_after)
{
    return HD__MAX(0.02, HD__MIN(1.0, dead_after / 8));
}

double hd__store_silence_seconds(double dead_after)
{
    return 0.9 * dead_after;
}
