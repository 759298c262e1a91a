/* service/launch/launch: processes of a job on this machine, and what another launcher told us. */
#ifndef HD_SERVICE_LAUNCH_LAUNCH_H
#define HD_SERVICE_LAUNCH_LAUNCH_H

#include "core/base/base.h"
#include "heddle/comm.h"
#include "runtime/rendezvous/store.h"

struct hd__launch_env {
    int32_t rank, size, local_rank, local_size;
    struct hd__store_options store;      /* where the rendezvous is; used where size > 1 */
    int32_t serves_rendezvous;           /* this process serves the rendezvous itself (rank 0 under another launcher) */
    int32_t launched_by_heddle;          /* heddle train started all ranks: who reads one reads all */
    const struct hd__reporter *reporter; /* NULL: nobody writes reports */
    /* not empty: all ranks are on this machine and find the rendezvous by this id, which they have in common */
    char discovery_id[128];
};

/* detect.c. Reads the variables of torchrun, mpirun, mpiexec or srun. *found = 0 where none is set. A job that others
 * could join, since its ranks meet at an address and have no secret, is refused. Where this rank is refused and *found
 * is 1, the others can be told. */
int32_t hd__launch_detect(struct hd__launch_env *env, int *found, struct hd_error *err);

/* detect.c. Does the environment say that ranks may run on other machines? */
int hd__launch_names_machines(void);

/* detect.c. For a rank that was refused before it came to the rendezvous: where others have come, the job ends and all
 * learn `why`. Returns 1 if it was told, 0 where nobody serves (rank 0 was refused too) within a few seconds. */
int hd__launch_report_refusal(const struct hd__launch_env *env, const char *why);

/* Runs body in `n` forked processes, pinned to cores in turn, and waits for them. A rank that ends badly ends the
 * others within seconds; SIGTERM, SIGINT, SIGHUP and SIGUSR1 are passed on. Returns the exit code of the job: of the
 * rank that failed first. */
int hd__launch_local(int32_t n, double dead_after, const struct hd__reporter *reporter,
                     int (*body)(void *user, const struct hd__launch_env *env), void *user);

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

/* Are there descriptors for the ranks of this machine? A soft limit that is too low is raised. */
int32_t hd__launch_check_files(int32_t local_ranks, struct hd_error *err);

/* How long a server waits for ranks that do not come, which the job says. */
void hd__launch_set_timeouts(struct hd__server_options *options, const struct hd__reporter *reporter);

/* detect.c. Connects this rank to the rendezvous, trying again for `seconds` while rank 0 is not there yet. *server is
 * for the rank that serves, NULL elsewhere. */
int32_t hd__launch_connect(const struct hd__launch_env *env, double seconds, struct hd_store **store,
                           struct hd__server **server, struct hd_error *err);

#endif
