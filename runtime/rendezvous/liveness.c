#include "runtime/rendezvous/liveness.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/base.h"

void hd__live_init(struct hd__live *live)
{
    memset(live, 0, sizeof *live);
    live->rank = -1;
    pthread_mutex_init(&live->lock, NULL);
}

void hd__live_finish(struct hd__live *live)
{
    pthread_mutex_destroy(&live->lock);
}

int32_t hd__live_dead(struct hd__live *live, int32_t *rank, struct hd_error *err)
{
    int32_t code = atomic_load_explicit(&live->code, memory_order_acquire);
    if (code == HD_OK)
        return HD_OK;
    if (rank)
        *rank = live->rank; /* written before `code`, never again */
    if (err) {
        err->peer = live->rank;
        err->scope = HD_SCOPE_PROCESS;
    }
    return hd_fail(err, code, "%s", live->cause);
}

int32_t hd__live_fault(const struct hd__live *live)
{
    return atomic_load_explicit(&live->code, memory_order_acquire) ? live->fault : HD_OK;
}

void hd__live_record(struct hd__live *live, int32_t code, int32_t fault, int32_t rank, const char *cause)
{
    pthread_mutex_lock(&live->lock);
    if (atomic_load(&live->code) == HD_OK) {
        live->rank = rank;
        live->fault = fault;
        snprintf(live->cause, sizeof live->cause, "%s", cause);
        atomic_store_explicit(&live->code, code, memory_order_release);
        if (live->notify)
            live->notify(live->user, live->cause);
    }
    pthread_mutex_unlock(&live->lock);
}

void hd__live_notify(struct hd__live *live, void (*notify)(void *user, const char *cause), void *user)
{
    pthread_mutex_lock(&live->lock);
    live->notify = notify;
    live->user = user;
    if (notify && atomic_load(&live->code) != HD_OK)
        notify(user, live->cause);
    pthread_mutex_unlock(&live->lock);
}

void hd__live_hurry(void)
{
    enum { FIRST = -10 };
    int error = errno;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), FIRST); /* of this thread alone; without the right to it, as before */
    errno = error;
}

double hd__live_beat(double dead_after)
{
    return HD__MAX(0.02, HD__MIN(1.0, dead_after / 8));
}

double hd__live_silence(double dead_after)
{
    return 0.9 * dead_after;
}
