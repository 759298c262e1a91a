/* heddle/ckpt.h: checkpoint storage. It stores named files of bytes, atomically; what is in them (safetensors, an
 * index) is the core's business. A checkpoint is visible only after commit, whole or not at all.
 *
 * Life: open -> begin -> write, write, ... (any rank, any order, disjoint ranges) -> commit (after all ranks'
 * `flush`) ; list / read / remove at any time -> close. */
#ifndef HEDDLE_CKPT_H
#define HEDDLE_CKPT_H

#include "heddle/plugin.h"

/* Names of checkpoints and files have letters, digits, '-', '_' and '.': no folders. Offsets and sizes are bytes. */
struct hd_ckpt;    /* the plugin's own */
struct hd_ckpt_tx; /* a checkpoint that is being written */

struct hd_ckpt_ops {
    size_t struct_size;
    uint64_t caps;
    /* [control] mandatory. `location` is the job's checkpoint.dir: a folder, which need not exist, or a URL. The plugin
     * ckpt-NAME stores what lies at NAME://..., if the job does not say `use`. */
    int32_t (*open)(const struct hd_host *host, const void *settings, const char *location, struct hd_ckpt **ckpt,
                    struct hd_error *err);
    void (*close)(struct hd_ckpt *ckpt); /* [control] mandatory; NULL is fine */
    /* [any-thread] mandatory. Starts (rank `leader` != 0) or joins a checkpoint called `name` ("step-00000100"). The
     * leader removes leftovers of an interrupted attempt. Joining ranks call it after the leader's begin returned. */
    int32_t (*begin)(struct hd_ckpt *ckpt, const char *name, int32_t leader, struct hd_ckpt_tx **tx,
                     struct hd_error *err);
    /* [any-thread] mandatory. Writes bytes at offset of `file`: by several threads of a rank at once, in any order. No
     * byte is written twice. */
    int32_t (*write)(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                     struct hd_error *err);
    /* [any-thread] mandatory. This rank's data is on stable storage when it returns. */
    int32_t (*flush)(struct hd_ckpt_tx *tx, struct hd_error *err);
    /* [any-thread] mandatory. The leader makes it visible, durably; the others only free the tx. It is freed where this
     * fails, too: no cancel follows. */
    int32_t (*commit)(struct hd_ckpt_tx *tx, struct hd_error *err);
    void (*cancel)(struct hd_ckpt_tx *tx); /* [any-thread] mandatory; frees the tx, the leader removes the data */
    /* [any-thread] mandatory. Calls visit(name) for every complete checkpoint, oldest first: in the order of
     * commits, or of names, whose numbers rise with them. */
    int32_t (*list)(struct hd_ckpt *ckpt, void (*visit)(void *user, const char *name), void *user,
                    struct hd_error *err);
    /* [any-thread] mandatory. Size of a file of a checkpoint; HD_E_NOTFOUND. */
    int32_t (*size)(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t *bytes, struct hd_error *err);
    /* [any-thread] mandatory. Reads exactly bytes at offset. */
    int32_t (*read)(struct hd_ckpt *ckpt, const char *name, const char *file, uint64_t offset, void *data,
                    uint64_t bytes, struct hd_error *err);
    int32_t (*remove)(struct hd_ckpt *ckpt, const char *name, struct hd_error *err); /* [any-thread] mandatory */
    /* [any-thread] mandatory. Reads exactly bytes at offset of a file that is being written: what this rank wrote, and
     * what other ranks wrote before their `flush` returned. Checksums of blocks that several ranks wrote need it. Once
     * all have flushed, the leader reads back first. */
    int32_t (*read_back)(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, void *data, uint64_t bytes,
                         struct hd_error *err);
    /* [any-thread] optional. Moves a complete checkpoint to another location of the same kind, under the same name:
     * that of another run, which is in the way of a new one. */
    int32_t (*move)(struct hd_ckpt *ckpt, const char *name, const char *location, struct hd_error *err);
};

#endif
