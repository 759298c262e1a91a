/* cli/ranks: the ranks of a job that a command works with, in processes of its own or as one rank of another
 * launcher's. */
#ifndef HD_CLI_RANKS_H
#define HD_CLI_RANKS_H

#include "cli/job.h"
#include "service/launch/launch.h"
#include "service/report/report.h"

/* Ranks that another launcher started; 0: none did. */
int64_t hd__cli_launched_ranks(void);
struct hd__reporter hd__cli_reporter(struct hd__job *job);
/* The launcher that has to start the ranks (mpirun), because a transport of the job needs it; NULL: heddle starts
 * them. */
int hd__cli_find_launcher(const struct hd__cli_job *loaded, const struct hd_comm_launcher **launcher,
                          struct hd_error *err);
/* Before this process starts the ranks: refuses what the environment says to others. */
int32_t hd__cli_check_local(const struct hd__cli_job *loaded, struct hd_error *err);
/* In a rank of a command that has nothing to save: its lines have its number, and signals end it. */
void hd__cli_begin_rank(const struct hd__launch_env *env);
/* Was this process started by a launcher, as a rank of the job's mesh? Prints what is wrong; returns an exit code. */
int hd__cli_detect_launch(const struct hd__cli_job *loaded, struct hd__launch_env *env, int *found);
/* As a rank of another launcher, alone, or in as many processes as the mesh has ranks: calls `body` on each, with
 * `user` as it is now. `argv` is this command, for a launcher that starts it again; `policy`, of zeros for none, has
 * restarts and a deadline. Returns the exit code. */
int hd__cli_run_ranks(struct hd__cli_job *loaded, int argc, char **argv, const struct hd__launch_policy *policy,
                      int (*body)(void *user, const struct hd__launch_env *env), void *user);

#endif
