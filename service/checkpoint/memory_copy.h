/* service/checkpoint/memory_copy: the state of one rank at one step in a file of memory (memfd_create), which the
 * processes that have it open share, and which outlives the rank. It is whole once it is sealed:
 *
 *     header (256 bytes, checksums of itself and of what follows), runs of global tensors, JSON, data of the runs
 *
 * A set is the copies of all ranks of one step of one round. Its runs cover every tensor exactly once, so another mesh
 * can take its own runs out of it, as of a checkpoint. */
#ifndef HD_SERVICE_CHECKPOINT_MEMORY_COPY_H
#define HD_SERVICE_CHECKPOINT_MEMORY_COPY_H

#include "core/program/program.h"
#include "service/checkpoint/checkpoint.h"

enum { HD__COPY_HEADER = 256 };

struct hd__copy_header {
    char magic[8];
    char run[32];
    int64_t round, step; /* the launcher's count of rounds */
    uint64_t round_id;   /* that no other round has, of any launcher */
    int32_t rank, ranks; /* in that round */
    uint64_t tensors;    /* checksum of the list of tensors but for those of single ranks, group "strategy-ranks" */
    uint64_t all_tensors;
    uint64_t n_runs, state_bytes, data_bytes; /* the runs begin behind the header */
    uint64_t body_hash, hash;                 /* XXH3 of what follows the header; of the fields before this one */
};

/* A run in a copy: elements [first, first + count) of a tensor, at byte `offset` of the file. */
struct hd__copy_run {
    uint32_t tensor, reserved;
    int64_t first, count;
    uint64_t offset;
};

/* A file that copies are written to, with its memory, mapped by the first; {.fd = ...} before. */
struct hd__copy_file {
    int fd;
    char *at;
    uint64_t bytes;
};

/* Bytes of the file; UINT64_MAX for a header that is none. */
uint64_t hd__copy_bytes(const struct hd__copy_header *header);

/* Bytes of a rank's copy, but for its JSON: before any memory is there. */
uint64_t hd__copy_planned_bytes(struct hd_program *const *stages, int32_t n_stages, const char *const *state_names,
                                int32_t rank);

/* Replaces what the file has by the state in `save` (tensors, runs, state, step, run), unsealed. `header` gives round,
 * round_id, rank and ranks, and gets the rest. */
int32_t hd__copy_write(struct hd__copy_file *file, const struct hd__ckpt_save *save, struct hd__copy_header *header,
                       struct hd_error *err);
/* [any-thread] Adds the checksums: it is whole now. */
void hd__copy_seal(struct hd__copy_file *file, struct hd__copy_header *header);
void hd__copy_unmap(struct hd__copy_file *file);
/* Makes it none. */
void hd__copy_clear(int fd);
/* 1 where the file has a sealed copy, by its header: then that. */
int hd__copy_read_header(int fd, struct hd__copy_header *header);
/* 1 where what follows the header is what was sealed: reads all of it. */
int hd__copy_is_whole(int fd, const struct hd__copy_header *header);

/* Checksums of a list of tensors, for the header. */
void hd__copy_hash_tensors(const struct hd__ckpt_tensor *tensors, uint32_t n, uint64_t *most, uint64_t *all);

/* The copies of a set, and how bytes of them are read: `source` is the index into `of`. What has NULL for its runs is
 * left out. */
struct hd__copy_set {
    const struct hd__copy_header *of;
    struct hd__copy_run **runs; /* each copy's n_runs */
    int32_t n, reserved;
    int32_t (*read)(void *user, int32_t source, uint64_t offset, void *data, uint64_t bytes, struct hd_error *err);
    void *user;
};

/* Fills the runs. HD_E_CORRUPT names elements that no copy has. */
int32_t hd__copy_load(const struct hd__copy_set *set, const struct hd__ckpt_tensor *tensors, uint32_t n_tensors,
                      const struct hd__ckpt_run *runs, uint32_t n_runs, struct hd_error *err);

#endif
