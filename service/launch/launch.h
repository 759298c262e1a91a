/* service/launch/launch: processes of a job on this machine, and what another launcher told us. */
#ifndef HD_SERVICE_LAUNCH_LAUNCH_H
#define HD_SERVICE_LAUNCH_LAUNCH_H

#include "core/base/base.h"
#include "heddle/comm.h"
#include "runtime/rendezvous/store.h"

/* Ranks that were started again: the one before this round ended so. */
struct hd__launch_restart {
    const char *event; /* "restart"; "shrink" or "grow": with fewer ranks or more */
    int32_t round;     /* from 1: the round that it began */
    int32_t ranks;     /* that train from then on */
    int32_t n_lost;
    const int32_t *lost; /* ranks that died or failed by themselves, ascending */
    double since;        /* hd__now() when they did */
};

/* Memory of the launcher and all of its ranks, over all rounds: what a round tells the launcher and the next one. */
struct hd__launch_progress {
    char run[32];        /* id of the run, once it has begun: a restart goes on with it; "": it has not */
    int64_t saved;       /* step of its newest checkpoint */
    int64_t copied;      /* the same of checkpoint.peers, in memory; 0: none */
    int64_t failed_step; /* of this round, by a fault of the job's own; 0: there was none */
    int32_t stopping;    /* the ranks agreed on the end */
    int32_t logged;      /* restarts that are in the metrics */
    double busy_until;   /* hd__now() up to which ranks are let live that save what is left after a fault */
    double peak_flops;   /* of rank 0's device, once it was measured; 0: it was not */
    int32_t grow;        /* machines have come: the round ends with its next checkpoint */
};

/* The state after this step is on disk. NULL: another launcher started the ranks. */
static inline void hd__launch_note_saved(struct hd__launch_progress *p, int64_t step)
{
    if (p)
        p->saved = HD__MAX(p->saved, step);
}

/* Step of the newest state that a round may go on from. */
static inline int64_t hd__launch_newest(const struct hd__launch_progress *p)
{
    return HD__MAX(p->saved, p->copied);
}

struct hd__launch_env {
    int32_t rank, size, local_rank, local_size;
    struct hd__store_options store;      /* where the rendezvous is; used where size > 1 */
    int32_t serves_rendezvous;           /* this process serves the rendezvous itself (rank 0 under another launcher) */
    int32_t knows_machine;               /* another launcher said which ranks are on this machine */
    int32_t agents;                      /* each machine has one, which looks for a notice */
    int32_t launched_by_heddle;          /* heddle train started all ranks: who reads one reads all */
    const struct hd__reporter *reporter; /* NULL: nobody writes reports */
    double deadline;                     /* hd__now() at which the job is to have ended; 0: none */
    struct hd__launch_progress *progress; /* NULL: another launcher started the ranks */
    const struct hd__launch_restart *restarts;
    int32_t n_restarts; /* those so far */
    const int *copies;  /* files of memory that outlive the ranks of this machine; NULL: policy.copies is not set */
    /* not empty: all ranks are on this machine and find the rendezvous by this id, which they have in common */
    char discovery_id[128];
};

/* detect.c. Reads the variables of torchrun, mpirun, mpiexec or srun. *found = 0 where none is set. A job that others
 * could join, since its ranks meet at an address and have no secret, is refused. Where this rank is refused and *found
 * is 1, the others can be told. */
int32_t hd__launch_detect(struct hd__launch_env *env, int *found, struct hd_error *err);

/* detect.c. For a job that this process alone would train, in ranks of its own: refused where the environment says that
 * it is one of several machines or pods, each of which would train a whole one. */
int32_t hd__launch_check_alone(struct hd_error *err);

/* detect.c. For ranks that this process starts itself, without mpirun: where the environment has a place to meet, or a
 * secret or certificates that could not be used, somebody meant another job. */
int32_t hd__launch_check_local(struct hd_error *err);

/* detect.c. Variables HEDDLE_... that nothing reads: a warning, or an error where they are about security. Those of
 * ranks in a process that is none: an error. */
int32_t hd__launch_check_names(struct hd_error *err);

/* secret.c. HEDDLE_SECRET, or the file that HEDDLE_SECRET_FILE names. *given: there is one. */
int32_t hd__launch_read_secret(uint8_t secret[HD__SECRET_BYTES], int *given, struct hd_error *err);
/* secret.c. `key` says where the processes of several machines meet; on this one its name is a loopback address. */
void hd__launch_warn_loopback(const char *key, const char *host);

/* detect.c. Does the environment say that ranks may run on other machines? */
int hd__launch_names_machines(void);

/* detect.c. For a rank that was refused before it came to the rendezvous: where others have come, the job ends and all
 * learn `why`. Returns 1 if it was told, 0 where nobody serves (rank 0 was refused too) within a few seconds. */
int hd__launch_report_refusal(const struct hd__launch_env *env, const char *why);

/* Runs body in `n` forked processes, pinned to cores in turn, and waits for them. A rank that ends badly ends the
 * others within seconds; SIGTERM, SIGINT, SIGHUP and SIGUSR1 are passed on. Returns the exit code of the job: of the
 * rank that failed first. */
struct hd__launch_policy {
    int64_t restarts; /* in a row, without a newer checkpoint in between; 0: none */
    double pause;     /* seconds before the first; doubled for each further one */
    double deadline;  /* hd__launch_env.deadline */
    int copies;       /* files of memory for the copies of hd__launch_env.copies are opened */
};
/* Each rank of this machine has two for its own state, and two for that of a peer on another machine. */
enum { HD__COPIES_OWN, HD__COPIES_HELD = 2, HD__COPIES = 4 };
/* ... With restarts all ranks are started again as another round when the job has failed, unless it was refused or
 * stopped, or the same step failed twice by a fault of the job's own. */
int hd__launch_local(int32_t n, double dead_after, const struct hd__reporter *reporter,
                     const struct hd__launch_policy *policy, int (*body)(void *user, const struct hd__launch_env *env),
                     void *user);
/* hd__now() at which a job that starts now is to have ended: after `limit` seconds (0: none), and before the end of
 * its allocation, which Slurm says. 0: there is no such end. */
double hd__launch_deadline(double limit);

/* Runs `words` (the program first, NULL at the end) in `n` ranks by the command that their transport works with, and
 * waits. This process serves their rendezvous, unless MASTER_ADDR says where it is: such a command kills all ranks
 * when one has failed, and somebody has to write the report. Signals are passed on as SIGUSR1, which
 * such commands hand to the ranks and do not heed themselves. Returns the exit code of the job; 2 if the command
 * cannot be started. */
int hd__launch_command(const struct hd_comm_launcher *launcher, int32_t n, double dead_after,
                       const struct hd__reporter *reporter, const char *const *words);
/* detect.c. What tells the ranks of such a command where the rendezvous is, and its secret: "PORT SECRET". */
#define HD__LAUNCH_RENDEZVOUS_ENV "HEDDLE_RENDEZVOUS"
/* For a rank of another launcher: settles down as one of ours would, if we started the launcher. */
void hd__launch_setup_rank(const struct hd__launch_env *env);

/* Are there descriptors for so many ranks that connect to this process? A soft limit that is too low is raised. */
int32_t hd__launch_check_files(int32_t ranks, struct hd_error *err);

/* Seconds of processor time after which the kernel kills a process (ulimit -t); 0: none. */
int64_t hd__launch_processor_limit(void);

/* How long a server waits for ranks that do not come, which the job says. */
void hd__launch_set_timeouts(struct hd__server_options *options, const struct hd__reporter *reporter);

/* detect.c. Connects this rank to the rendezvous, trying again for `seconds` while rank 0 is not there yet. *server is
 * for the rank that serves, NULL elsewhere. */
int32_t hd__launch_connect(const struct hd__launch_env *env, double seconds, struct hd_store **store,
                           struct hd__server **server, struct hd_error *err);

#endif
