/* A process that has threads of the rendezvous may fork: they hold this lock while they are awake, so that none of them
 * is inside the allocator or OpenSSL when its memory is copied. */
#include <pthread.h>
#include <unistd.h>

#include "runtime/rendezvous/liveness.h"

static pthread_rwlock_t awake = PTHREAD_RWLOCK_INITIALIZER;

void hd__store_thread_wakes(void)
{
    pthread_rwlock_rdlock(&awake);
}

void hd__store_thread_sleeps(void)
{
    pthread_rwlock_unlock(&awake);
}

pid_t hd__store_fork(void)
{
    pthread_rwlock_wrlock(&awake);
    pid_t pid = fork();
    pthread_rwlock_unlock(&awake);
    if (pid == 0)
        pthread_rwlock_init(&awake, NULL); /* the threads that wait for it are the parent's */
    return pid;
}
