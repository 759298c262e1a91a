/* runtime/exec/progress_thread: a thread that keeps transports going while the step program computes (`comm.progress: thread`).
 *
 * Transports move data in calls of `progress` only. Between instructions is often enough where instructions are short;
 * a long one leaves the network idle meanwhile. The thread calls `progress` as long as something is in flight, and naps
 * where nothing moves, or where it was called between instructions meanwhile. All other calls into transports go between
 * enter and leave: one thread at a time is in there, and the one that computes comes first. While it waits inside, it
 * makes progress itself and the thread sleeps. NULL is a pump that does nothing. */
#ifndef HD_RUNTIME_EXEC_PROGRESS_THREAD_H
#define HD_RUNTIME_EXEC_PROGRESS_THREAD_H

#include "heddle/types.h"

struct hd__progress_thread;

/* `progress`: 1 if anything moved, 0 if not, or an error, after which it is not called any more: whoever waits meets
 * the cause itself. NULL and a line in the log where no thread can be made. */
struct hd__progress_thread *hd__exec_progress_start(int32_t (*progress)(void *user, struct hd_error *err), void *user);
void hd__exec_progress_stop(struct hd__progress_thread *thread);
void hd__exec_progress_lock(struct hd__progress_thread *thread);
void hd__exec_progress_unlock(struct hd__progress_thread *thread,
                              int32_t more); /* so many more operations are in flight; fewer: negative */
/* Between instructions, outside: as `progress`; 0 also where the thread is at it. */
int32_t hd__exec_progress_poll(struct hd__progress_thread *thread, struct hd_error *err);

#endif
