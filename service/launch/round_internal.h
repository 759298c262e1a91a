/* service/launch/round_internal: rounds of ranks: this machine's processes from their start to their end, and whether
 * there is to be another.
 *   spawn.c   the processes of one round
 *   rounds.c  what is counted over rounds; those of a job that is on this machine alone
 *   agent.c, agent_lead.c   those of several machines */
#ifndef HD_SERVICE_LAUNCH_ROUND_INTERNAL_H
#define HD_SERVICE_LAUNCH_ROUND_INTERNAL_H

#include <signal.h>

#include "service/launch/launch.h"
#include "service/report/report.h"

/* How a round ended. The caller gives room: `lost` for all ranks of the job, `ended` for those of this machine. */
struct hd__launch_outcome {
    int32_t code, stopped; /* of the job, as far as this machine knows; this process was asked to stop */
    int32_t culprit;       /* the rank that ended the job, where this process serves the rendezvous; -1: unknown */
    int32_t killed;        /* the lost were killed or crashed */
    int32_t n_lost;
    int32_t *lost;  /* ranks here that were killed, else the one that the job ended by */
    int32_t *ended; /* exit code of each; below 0: the signal that somebody killed it by */
    double since;   /* the first failure */
};

struct hd__launch_round {
    int32_t n, first; /* ranks of this machine, and the first of them */
    double dead_after;
    const struct hd__server_options *serve; /* NULL: the rendezvous is another process', at env.store */
    int (*body)(void *user, const struct hd__launch_env *env);
    void *user;
    /* Now and then, with the server if there is one; 1: the round is over, and ranks that do not end are killed. */
    int (*tick)(void *user, struct hd__server *server);
    void *tick_user;
    sigset_t signals;
    struct hd__launch_env env; /* of the ranks */
};

/* Starts the ranks of this machine and waits for their end. Returns 0, or an exit code where they cannot be started. */
int hd__launch_run_round(struct hd__launch_round *round, struct hd__launch_outcome *out);
/* Signals that ask for the end of the job, and SIGCHLD, are taken by sigtimedwait from now on. */
void hd__launch_block_signals(sigset_t *signals);
int hd__launch_asks_to_stop(int sig);
int hd__launch_fail_start(const char *what);
struct hd__server_options hd__launch_server_options(int32_t n, double dead_after, const struct hd__reporter *reporter);

/* Counts over all rounds. */
struct hd__launch_tally {
    const struct hd__launch_policy *policy;
    struct hd__launch_progress *progress; /* shared with the ranks */
    int32_t in_a_row;
    int64_t best, failed_step; /* the newest checkpoint, and the step that failed, as of the round before */
    HD__ARRAY(struct hd__launch_restart) restarts;
    HD__ARRAY(int) copies; /* of hd__launch_env */
};
/* 0, or -1. `ranks`: of this machine. */
int hd__launch_tally_open(struct hd__launch_tally *tally, const struct hd__launch_policy *policy, int32_t ranks);
void hd__launch_tally_close(struct hd__launch_tally *tally);
/* Is there to be another round? Says why not. `free`: this one's end is nobody's fault, and is not counted. */
int hd__launch_may_restart(struct hd__launch_tally *tally, const struct hd__launch_outcome *out, int free);
double hd__launch_pause(const struct hd__launch_tally *tally);
/* Returns 0 where this process was asked to stop meanwhile. */
int hd__launch_wait(double seconds, const sigset_t *signals);
/* Notes how the round ended, for the metrics of the next; `event` of struct hd__launch_restart. */
void hd__launch_note_restart(struct hd__launch_tally *tally, const char *event, const struct hd__launch_outcome *out,
                             struct hd__launch_env *env);
/* "step 40", or "the beginning, since ...". */
const char *hd__launch_from(const struct hd__launch_tally *tally, char text[96]);

#endif
