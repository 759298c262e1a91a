/* service/launch/notice: word that this machine is about to be taken away (a spot instance, maintenance).
 *
 * A process beside rank 0 looks for a file, or runs a command that exits with 0 when there is a notice, and then sends
 * SIGUSR1 to the launcher of all ranks, or to rank 0 where another started it: the job saves and ends, as for any other
 * signal. It ends with its rank. */
#ifndef HD_SERVICE_LAUNCH_NOTICE_H
#define HD_SERVICE_LAUNCH_NOTICE_H

#include <sys/types.h>

/* One of file and command; the other is NULL. Looks at once, and then every so many seconds. -1: it cannot be started,
 * which was logged. */
pid_t hd__launch_notice_start(pid_t tell, const char *file, const char *command, double every);
void hd__launch_notice_stop(pid_t watcher); /* not above 0: there is none */

#endif
