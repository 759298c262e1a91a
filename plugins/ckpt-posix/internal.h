/* plugins/ckpt-posix: checkpoints are folders of a directory.
 *
 *     DIR/.tmp-NAME/FILE ...   being written; if left over, removed by the next begin
 *     DIR/NAME/FILE ...        complete: renamed after every file and the folder were fsynced
 *
 * posix.c has the slots, files.c the files of a checkpoint that is being written. */
#ifndef HD_CKPT_POSIX_INTERNAL_H
#define HD_CKPT_POSIX_INTERNAL_H

#include <pthread.h>

#include "heddle/ckpt.h"
#include "heddle/host.h"

enum { POSIX_PAGE = 4096 }; /* alignment that O_DIRECT needs */

struct posix_settings {
    int32_t direct;
    int32_t fsync;
};

struct hd_ckpt {
    const struct hd_host *host;
    const struct posix_settings *settings;
    char *dir;
};

/* An open file with two descriptors: O_DIRECT needs alignment, and unaligned bytes go through the page cache. */
struct posix_file {
    char *name;
    int32_t fd;
    int32_t direct; /* -1: not asked for, or not supported by the filesystem */
};

struct hd_ckpt_tx {
    struct hd_ckpt *ckpt;
    char *name;
    char *folder; /* DIR/.tmp-NAME */
    struct posix_file *files;
    pthread_mutex_t lock; /* guards files */
    uint32_t n_files;
    int32_t folder_fd;
    int32_t leader;
    _Atomic int32_t without_locks; /* that was said */
};

/* Closes all files and frees the tx. */
void posix_tx_free(struct hd_ckpt_tx *tx);
int32_t posix_write(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                    struct hd_error *err);
int32_t posix_read_back(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, void *data, uint64_t bytes,
                        struct hd_error *err);
int32_t posix_flush(struct hd_ckpt_tx *tx, struct hd_error *err);

/* Reads exactly bytes at offset; `path` is for messages. */
int32_t posix_read_at(int fd, const char *folder, const char *file, uint64_t offset, void *data, uint64_t bytes,
                      struct hd_error *err);
/* HD_OK for a name that stays inside its folder and is not hidden. */
int32_t posix_check_name(const char *name, struct hd_error *err);

#endif
