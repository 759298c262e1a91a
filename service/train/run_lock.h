/* service/train/run_lock: the identity of a run, and the locks on the folders that it writes into. */
#ifndef HD_SERVICE_TRAIN_RUN_LOCK_H
#define HD_SERVICE_TRAIN_RUN_LOCK_H

#include "core/job/job.h"

enum { HD__RUN_ID = 17 }; /* bytes of an id: 16 hexadecimal digits and a zero */

/* A new random id. */
int32_t hd__run_id(char id[HD__RUN_ID], struct hd_error *err);

/* Folders of a job are locked for it: runs/NAME where its metrics have their default place, and checkpoint.dir. */
struct hd__run_locks {
    int fd[2]; /* -1: not locked */
    const char *folder[2];
};

/* The lock is on FOLDER/.heddle-lock, whose text says who has it. It is the kernel's, on the open file: it ends with
 * the process and those that it forked, and the file stays. HD_E_INVALID where another process has it, by name. On a
 * file system without locks there is a warning. */
int32_t hd__run_locks_take(struct hd__job *job, struct hd__run_locks *locks, struct hd_error *err);
/* The one on a folder; its file is created where it is missing. *fd stays -1 on a file system without locks, and for
 * a URL. */
int32_t hd__run_lock_folder(const char *folder, int *fd, struct hd_error *err);
/* Adds the run's id to the texts. */
void hd__run_locks_name(const struct hd__run_locks *locks, const char *run);
/* Before a save: are the folders still those that were locked? One that is gone is made and locked again; HD_E_IO where
 * another is in its place. */
int32_t hd__run_locks_check(struct hd__run_locks *locks, const char *run, struct hd_error *err);
void hd__run_locks_release(struct hd__run_locks *locks);

#endif
