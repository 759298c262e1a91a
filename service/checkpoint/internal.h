/* Internals of checkpoints: layout of files, and work on blocks. */
#ifndef HD_SERVICE_CHECKPOINT_INTERNAL_H
#define HD_SERVICE_CHECKPOINT_INTERNAL_H

#include "service/checkpoint/checkpoint.h"

#define HD__CKPT_BLOCK (UINT64_C(4) << 20)
#define HD__CKPT_INDEX "index.json"
#define HD__CKPT_INDEX_MAX (UINT64_C(1) << 30)

/* The result of a slot of the storage. */
static inline int32_t hd__ckpt_result(int32_t code, const char *slot, struct hd_error *err)
{
    return hd__slot_result(code, "the storage's", slot, err);
}

static inline uint64_t hd__ckpt_run_bytes(const struct hd__ckpt_save *save, uint32_t i)
{
    const struct hd__ckpt_run *run = &save->runs[i];
    return run->tensor < save->n_tensors && run->count > 0
               ? (uint64_t)run->count * hd_dtype_size(save->tensors[run->tensor].dtype)
               : 0;
}

/* ---- layout (layout.c) */
struct hd__ckpt_file {
    const char *name;
    char *header; /* safetensors length and header; only when saving */
    uint64_t header_bytes;
    uint64_t bytes;
    uint64_t first_block, n_blocks; /* numbered over all files */
};

struct hd__ckpt_location {
    uint32_t file;
    uint32_t reserved;
    uint64_t offset, bytes; /* in the file */
};

struct hd__ckpt_layout {
    struct hd__ckpt_file *files;
    struct hd__ckpt_location *locations; /* one per tensor */
    uint32_t n_files, reserved;
    uint64_t n_blocks, bytes;
};

/* Deterministic: the same list gives the same layout on every rank. Names are unique in their group, and groups can
 * be part of a file's name (hd__is_state_name). `layout` is {0}; it lies in the arena. */
int32_t hd__ckpt_layout_make(struct hd__arena *arena, const struct hd__ckpt_tensor *tensors, uint32_t n,
                             uint64_t file_bytes, struct hd__ckpt_layout *layout, struct hd_error *err);
/* Numbers the blocks of files whose bytes are known. */
void hd__ckpt_layout_number_blocks(struct hd__ckpt_layout *layout);
/* The file of a block, and the bytes of the file that it covers. */
uint32_t hd__ckpt_locate_block(const struct hd__ckpt_layout *layout, uint64_t block, uint64_t *begin, uint64_t *bytes);
/* Orders pointers to tensors by group, then by name: for qsort. 0: the same tensor. */
int hd__ckpt_by_name(const void *a, const void *b);

/* ---- pieces: runs cut at the borders of blocks, in the order of the files. */
struct hd__ckpt_piece {
    uint64_t block;
    char *data;
    uint32_t at, bytes; /* in the block */
    uint32_t tensor;    /* UINT32_MAX: a header */
    uint32_t reserved;
};

struct hd__ckpt_pieces {
    struct hd__ckpt_piece *at;
    uint32_t count, room;
    uint64_t *first; /* by block, and one more at the end: index of its first piece */
};

/* `headers`: also the headers of all files. `first` lies in the arena; hd__free_array frees the rest, also after
 * a failure. */
int32_t hd__ckpt_cut(struct hd__arena *arena, const struct hd__ckpt_layout *layout,
                     const struct hd__ckpt_tensor *tensors, uint32_t n_tensors, const struct hd__ckpt_run *runs,
                     uint32_t n_runs, int headers, struct hd__ckpt_pieces *pieces, struct hd_error *err);

/* ---- index.json (index.c) */
struct hd__ckpt {
    struct hd__ckpt_store store;
    char name[32];
    json_t *json;
    struct hd__arena arena;        /* owns the fields below */
    struct hd__ckpt_layout layout; /* locations are those of `tensors` */
    struct hd__ckpt_tensor *tensors;
    const struct hd__ckpt_tensor **sorted; /* by group and name */
    uint64_t *hashes;                      /* by block */
    uint64_t step;
    uint32_t n_tensors;
    uint32_t reserved;
};

/* The text of an index; free it. NULL: the state cannot be written as JSON. */
char *hd__ckpt_index_text(const struct hd__ckpt_save *save, const struct hd__ckpt_layout *layout,
                          const uint64_t *hashes);
/* Fills json, layout, tensors, hashes, step from the text, which is untrusted. */
int32_t hd__ckpt_index_parse(struct hd__ckpt *ckpt, const char *text, size_t bytes, struct hd_error *err);

#endif
