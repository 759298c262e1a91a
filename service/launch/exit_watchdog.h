/* service/launch/exit_watchdog: ends this process where the job has ended and a call does not come back.
 *
 * While a rank opens and closes it calls what nobody can interrupt: MPI_Init, MPI_Finalize, a driver. They wait for a rank that
 * died or was stopped for as long as it stays away. A thread watches meanwhile:
 *
 *     enter -> the call -> leave      the job went on, or the call came back soon after its end: nothing happens
 *     enter -> the job ends, and HD__WAY_OUT_SECONDS later the call is not back: the rank says why, goodbye, and exits with 1, or with 2
 *                                     where another rank refused the job
 */
#ifndef HD_SERVICE_LAUNCH_EXIT_WATCHDOG_H
#define HD_SERVICE_LAUNCH_EXIT_WATCHDOG_H

#include <pthread.h>

#include "runtime/rendezvous/store.h"

#define HD__WAY_OUT_SECONDS 0.4 /* with what liveness takes, less than dead_after */

struct hd__way_out {
    struct hd_store *store;
    struct hd__server *server;
    const char *inside; /* "opening" */
    pthread_mutex_t lock;
    pthread_cond_t left;
    pthread_t thread;
    int closing, on, back, taken; /* it closes; a thread watches; the call is back; the thread ends the process */
};

/* NULL store: nobody else is there, nothing happens. `server`: of the rank that serves, which lets the others read why first. */
void hd__way_out_enter(struct hd__way_out *w, struct hd_store *store, struct hd__server *server, int closing);
/* Does not return where the process is being ended. */
void hd__way_out_leave(struct hd__way_out *w);

#endif
