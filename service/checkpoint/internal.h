/* Inside checkpoint*.c: where things lie, and work on blocks. */
#ifndef HD_SERVICE_CHECKPOINT_INTERNAL_H
#define HD_SERVICE_CHECKPOINT_INTERNAL_H

#include "service/checkpoint/checkpoint.h"

#define HD__CKPT_BLOCK (UINT64_C(4) << 20)
#define HD__CKPT_INDEX "index.json"

/* ---- layout (layout.c) */
struct hd__ckpt_file {
    char *name;
    struct hd__text header; /* safetensors length and header; only when saving */
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
    struct hd__ckpt_location *locations; /* one a tensor */
    uint32_t n_files, n_locations;
    uint64_t n_blocks, bytes;
};

/* Deterministic: the same list gives the same layout on every rank. */
int32_t hd__ckpt_layout_make(const struct hd__ckpt_tensor *tensors, uint32_t n, uint64_t file_bytes,
                             struct hd__ckpt_layout *layout, struct hd_error *err);
/* Numbers the blocks of files whose bytes are known. */
void hd__ckpt_layout_number_blocks(struct hd__ckpt_layout *layout);
void hd__ckpt_layout_free(struct hd__ckpt_layout *layout);
uint64_t hd__ckpt_tensor_numel(const struct hd__ckpt_tensor *tensor); /* elements; UINT64_MAX: too many */
/* The file of a block, and the bytes of the file that it covers. */
uint32_t hd__ckpt_locate_block(const struct hd__ckpt_layout *layout, uint64_t block, uint64_t *begin, uint64_t *bytes);

/* ---- pieces: runs as byte ranges of files, sorted, and which block touches which. */
struct hd__ckpt_byte_range {
    uint32_t file, tensor; /* tensor UINT32_MAX: a header */
    uint64_t offset, bytes;
    char *data;
};

struct hd__ckpt_block_ref {
    uint64_t block;
    uint32_t range;
    uint32_t reserved;
};

struct hd__ckpt_byte_ranges {
    struct hd__ckpt_byte_range *list;
    struct hd__ckpt_block_ref *refs; /* sorted by block, then by offset */
    uint64_t *first_ref;             /* first[k]: first touch of the k-th touched block; first[n_blocks] the end */
    uint32_t n;
    uint64_t n_refs, n_blocks;
};

/* `headers`: also the headers of all files. */
int32_t hd__ckpt_byte_ranges_make(const struct hd__ckpt_layout *layout, const struct hd__ckpt_tensor *tensors,
                                  uint32_t n_tensors, const struct hd__ckpt_run *runs, uint32_t n_runs, int headers,
                                  struct hd__ckpt_byte_ranges *pieces, struct hd_error *err);
void hd__ckpt_byte_ranges_free(struct hd__ckpt_byte_ranges *pieces);
/* The part of a piece inside [begin, begin + bytes) of its file: *at in the block, *from in the piece. */
uint64_t hd__ckpt_clip_to_block(const struct hd__ckpt_byte_range *range, uint64_t begin, uint64_t bytes, uint64_t *at,
                                uint64_t *from);

/* hd__parallel_for with blocks of a checkpoint's size; threads 0: two. */
int32_t hd__ckpt_parallel_for(uint32_t threads, uint64_t count,
                              int32_t (*work)(void *user, uint64_t i, char *block, struct hd_error *err), void *user,
                              struct hd_error *err);

/* ---- index.json (index.c) */
struct hd__ckpt {
    struct hd__ckpt_store store;
    char name[32];
    json_t *json;
    struct hd__arena arena;
    struct hd__ckpt_layout layout; /* places are those of `tensors` */
    struct hd__ckpt_tensor *tensors;
    uint32_t *sorted; /* tensors by group and name */
    uint64_t *hashes; /* by block */
    uint64_t step;
    uint32_t n_tensors;
    uint32_t reserved;
};

/* The text of an index; free it. NULL: the state cannot be written as JSON. */
char *hd__ckpt_index_text(const struct hd__ckpt_save *save, const struct hd__ckpt_layout *layout,
                          const uint64_t *hashes);
/* Fills json, layout, tensors, hashes, step from the text. Nothing of it is trusted. */
int32_t hd__ckpt_index_parse(struct hd__ckpt *ckpt, const char *text, size_t bytes, struct hd_error *err);
/* Position in ckpt->tensors, or -1. */
int64_t hd__ckpt_find_tensor(const struct hd__ckpt *ckpt, const char *group, const char *name);
int hd__ckpt_compare_tensors(const struct hd__ckpt_tensor *a, const struct hd__ckpt_tensor *b);

#endif
