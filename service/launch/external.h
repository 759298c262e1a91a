/* service/launch/external: ranks that are started by a command which their transport names (struct
 * hd_comm_launcher), because it works in no others: mpirun. Who started them and they share memory, for what a rank
 * cannot be told by its parent. */
#ifndef HD_SERVICE_LAUNCH_EXTERNAL_H
#define HD_SERVICE_LAUNCH_EXTERNAL_H

#include <sys/types.h>

#include "heddle/comm.h"

/* In the environment of its ranks: "terminal" or "file", what the caller prints to. */
#define HD__LAUNCHED_ENV "HEDDLE_LAUNCHED"

/* Starts the command with n ranks, each of them `words` (the program first, NULL at the end). The environment is the
 * caller's, with what the launcher asks for. *pid is a process that starts the command and ends with its exit code;
 * both have a process group of their own. SIGTERM, SIGINT and SIGUSR1 to *pid reach the command, and when the caller
 * dies it gets one SIGTERM. */
int32_t hd__launch_external_start(const struct hd_comm_launcher *launcher, int32_t n, const char *const *words,
                                  pid_t *pid, struct hd_error *err);
/* The program that runs here, for `words`. */
const char *hd__launch_self_path(char path[4096]);

/* In a rank: was this process started so? Then it ends when the command does, and this returns 1. */
int hd__launch_join_external(void);

/* Zeroed memory for this process and those that are told its path; NULL if there is none. Gone when the last has
 * ended. */
void *hd__launch_share_memory(size_t bytes, char path[64]);
void *hd__launch_attach_memory(const char *path, size_t bytes); /* NULL: it cannot be */

#endif
