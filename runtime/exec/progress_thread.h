/* runtime/exec/progress_thread: makes progress on transports while the step program computes (`comm.progress: thread`).
 *
 * Transports move data in calls of `progress` only. Polling between instructions is enough where these are short; a
 * long one leaves the network idle. The thread calls `progress` while operations are in flight, and backs off where
 * nothing moves or the compute thread polls. All other calls into transports go between lock and unlock, where the
 * compute thread has priority; while that waits inside, it makes progress itself. NULL is a thread that does
 * nothing. */
#ifndef HD_RUNTIME_EXEC_PROGRESS_THREAD_H
#define HD_RUNTIME_EXEC_PROGRESS_THREAD_H

#include "heddle/types.h"

struct hd__progress_thread;

/* `progress`: 1 if anything moved, 0 if not, or an error, after which it is not called again: the operation's wait
 * reports the cause. NULL and a warning where no thread can be created. */
struct hd__progress_thread *hd__exec_progress_start(int32_t (*progress)(void *user, struct hd_error *err), void *user);
void hd__exec_progress_stop(struct hd__progress_thread *thread);
void hd__exec_progress_lock(struct hd__progress_thread *thread);
/* Adds `more` (maybe negative) to the operations in flight. */
void hd__exec_progress_unlock(struct hd__progress_thread *thread, int32_t more);
/* Without the lock, between instructions: as `progress`, and 0 where the thread holds the lock. */
int32_t hd__exec_progress_poll(struct hd__progress_thread *thread, struct hd_error *err);

#endif
