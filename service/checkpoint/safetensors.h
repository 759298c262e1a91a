/* service/checkpoint/safetensors: the weight format of Hugging Face (https://github.com/huggingface/safetensors).
 *
 * A file is: 8 bytes little-endian header length, a JSON header {"name": {"dtype", "shape", "data_offsets"}},
 * the data. The data is row-major, the tensors fill it without gaps or overlaps. A large model is several
 * files and an index, model.safetensors.index.json: {"weight_map": {"name": "file"}}.
 *
 * Reading: open -> find, read ranges with pread (any thread) -> close. Files are untrusted: every
 * offset is checked against the file before it is used, and errors name the file and the tensor. Writing:
 * `layout` computes the header of a file; then any thread can write any range. */
#ifndef HD_SERVICE_CHECKPOINT_SAFETENSORS_H
#define HD_SERVICE_CHECKPOINT_SAFETENSORS_H

#include "core/base/base.h"
#include "heddle/program.h"

struct hd__ckpt_st_tensor {
    const char *name;
    const char *dtype_name; /* as in the file */
    uint32_t dtype;         /* HD_..., 0: not a dtype of heddle */
    uint32_t ndim;
    int64_t shape[HD_MAX_DIMS];
    uint64_t count;         /* elements */
    uint64_t offset, bytes; /* in the file */
    uint32_t file;          /* number of the file, see hd__ckpt_st_file_name */
    uint32_t reserved;
};

struct hd__ckpt_st;

/* `path`: a .safetensors file, an index (.json), or a folder that holds model.safetensors or
 * model.safetensors.index.json: HD_E_INVALID where both are there, and the index has tensors in other files.
 * HD_E_NOTFOUND, HD_E_IO, HD_E_CORRUPT, HD_E_UNSUPPORTED. */
int32_t hd__ckpt_st_open(const char *path, struct hd__ckpt_st **st, struct hd_error *err);
void hd__ckpt_st_close(struct hd__ckpt_st *st); /* NULL is fine */

/* Tensors in the order of their names. */
uint32_t hd__ckpt_st_count(const struct hd__ckpt_st *st);
const struct hd__ckpt_st_tensor *hd__ckpt_st_tensor_at(const struct hd__ckpt_st *st, uint32_t i);
const struct hd__ckpt_st_tensor *hd__ckpt_st_find(const struct hd__ckpt_st *st,
                                                  const char *name); /* NULL if there is none */
const char *hd__ckpt_st_file_name(const struct hd__ckpt_st *st, uint32_t file);

/* [any-thread] Bytes [first, first + bytes) of the tensor, unconverted. */
int32_t hd__ckpt_st_read(const struct hd__ckpt_st *st, const struct hd__ckpt_st_tensor *tensor, uint64_t first,
                         uint64_t bytes, void *out, struct hd_error *err);
/* [any-thread] Elements [first, first + count), converted from F32, BF16, F16 or F64. */
int32_t hd__ckpt_st_read_f32(const struct hd__ckpt_st *st, const struct hd__ckpt_st_tensor *tensor, uint64_t first,
                             uint64_t count, float *out, struct hd_error *err);

/* Parses a header alone: `header` is the JSON (without the length), data_bytes the bytes after it. Calls visit for
 * every tensor in the order of the data; the tensor's strings live as long as the call, its offset counts from the
 * start of the data. `name` is for messages. */
int32_t hd__ckpt_st_parse(const char *name, const char *header, size_t header_bytes, uint64_t data_bytes,
                          void (*visit)(void *user, const struct hd__ckpt_st_tensor *tensor), void *user,
                          struct hd_error *err);

/* ---- writing */
/* The begin of every header: transformers asks for the format. */
#define HD__CKPT_ST_BEGINS "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"heddle\"}"

struct hd__ckpt_st_item {
    const char *name;
    uint32_t dtype; /* HD_... */
    uint32_t ndim;
    const int64_t *shape;
    uint64_t offset, bytes; /* out: in the file */
};

/* Lays the items out in order, the data beginning at a multiple of 4096. Appends the first bytes of the file (length
 * and header) to `head`; *file_bytes is the size of the whole file. */
int32_t hd__ckpt_st_layout(struct hd__ckpt_st_item *items, uint32_t n, struct hd__text *head, uint64_t *file_bytes,
                           struct hd_error *err);
/* HD_F32 for "F32"; 0 for NULL and where heddle does not compute with it. */
uint32_t hd__ckpt_st_dtype(const char *name);

#endif
