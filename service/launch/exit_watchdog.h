/* service/launch/exit_watchdog: ends this process where the job has ended and a call does not come back.
 *
 * While a rank opens and closes it calls what nobody can interrupt: MPI_Init, MPI_Finalize, a driver. They wait for
 * a rank that died or was stopped for as long as it stays away. A thread watches meanwhile:
 *
 *     enter -> the call -> leave      the job went on, or the call came back soon after its end: nothing happens
 *     enter -> the job ends, and HD__LAUNCH_EXIT_WATCHDOG_SECONDS later the call is not back: the rank says why,
 *     goodbye, and exits with 1, or with 2
 *                                     where another rank refused the job */
#ifndef HD_SERVICE_LAUNCH_EXIT_WATCHDOG_H
#define HD_SERVICE_LAUNCH_EXIT_WATCHDOG_H

#include <pthread.h>

#include "runtime/rendezvous/store.h"
#include "service/report/speaker.h"

#define HD__LAUNCH_EXIT_WATCHDOG_SECONDS 0.4 /* with what liveness takes, less than dead_after */

struct hd__launch_exit_watchdog {
    const struct hd__speaker *speaker;
    struct hd__server *server;
    const char *phase; /* "opening" */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int running, call_returned, exiting; /* a thread watches; the call is back; the thread ends the process */
};

/* A speaker without a store: nobody else is there, nothing happens. `server`: of the rank that serves, which lets the
 * others read why first. */
void hd__launch_exit_watchdog_start(struct hd__launch_exit_watchdog *w, const struct hd__speaker *speaker,
                                    struct hd__server *server, const char *phase);
/* Does not return where the process is being ended. */
void hd__launch_exit_watchdog_stop(struct hd__launch_exit_watchdog *w);

#endif
