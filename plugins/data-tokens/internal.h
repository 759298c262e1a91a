/* data-tokens: a file of tokens, memory-mapped, or read by ranges where it lies behind HTTP. */
#ifndef DATA_TOKENS_INTERNAL_H
#define DATA_TOKENS_INTERNAL_H

#include <stdbool.h>

#include "heddle/data.h"
#include "heddle/host.h"
#include "http.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read as they lie"
/* ---- loss.c */
/* Maps NAME.loss of a parsed file. */
int32_t tokens_open_loss(struct hd_data *f, struct hd_error *err);
/* hd_data_ops.labels: the token after each, where that is marked. */
int32_t tokens_labels(struct hd_data *f, uint64_t first, uint64_t count, int64_t *labels, struct hd_error *err);

/* ---- plugin.c */
int32_t tokens_read(struct hd_data *f, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err);

#endif

/* The choices of `format`, of `token_dtype` and of `loss`, in the order of the options table. */
enum { TOKENS_AUTO, TOKENS_BYTES, TOKENS_LLMC, TOKENS_NANOGPT, TOKENS_MEGATRON, TOKENS_NPY };
enum { TOKENS_DTYPE_UINT16, TOKENS_DTYPE_UINT32 };
enum { TOKENS_LOSS_ALL, TOKENS_LOSS_COMPLETION };
enum { TOKENS_NO_LABEL = -100 }; /* PyTorch's ignore_index */

/* X(constant, value, C type, NumPy descr, code of Megatron's index; 0: none): the signed ones are last. */
#define TOKENS_TYPES(X)                  \
    X(TOKENS_U8, 0, uint8_t, "|u1", 1)   \
    X(TOKENS_U16, 1, uint16_t, "<u2", 8) \
    X(TOKENS_U32, 2, uint32_t, "<u4", 0) \
    X(TOKENS_I16, 3, int16_t, "<i2", 3)  \
    X(TOKENS_I32, 4, int32_t, "<i4", 4)  \
    X(TOKENS_I64, 5, int64_t, "<i8", 5)

enum {
#define TOKENS_TYPE_ENUM(constant, value, type, descr, code) constant = value,
    TOKENS_TYPES(TOKENS_TYPE_ENUM)
#undef TOKENS_TYPE_ENUM
};

struct tokens_settings {
    int32_t format;      /* TOKENS_AUTO, ... */
    int32_t token_dtype; /* TOKENS_DTYPE_...: of nanogpt files */
    int32_t loss;        /* TOKENS_LOSS_... */
    int32_t reserved;
    int64_t eod; /* below 0: none */
    struct http_settings http;
};

struct hd_data {
    char *path;             /* for messages */
    const void *map;        /* the whole file; of one behind HTTP the first TOKENS_HEAD bytes, in memory of its own */
    uint64_t map_bytes;     /* of the whole file */
    struct http_file *http; /* NULL: mapped */
    int64_t vocab;          /* 0: not known */
    const uint8_t *at;      /* the first token */
    uint64_t count;
    uint32_t type; /* TOKENS_U8, ... */
    uint32_t reserved;
    const uint8_t *loss; /* NAME.loss; NULL: all tokens count */
    uint64_t loss_bytes;
    int64_t eod;
    const uint8_t *idx; /* Megatron's index; NULL: none */
    uint64_t idx_bytes;
};

enum { TOKENS_HEAD = 1 << 17 }; /* bytes that hold any header and a sample of the tokens behind it */
enum { TOKENS_SAMPLE = 4096, TOKENS_SAMPLE_LEAST = 64 }; /* tokens, or bytes, that say how a file lies */
enum { TOKENS_LLMC_MAGIC = 20240520, TOKENS_LLMC_MAGIC_LLAMA3 = 20240801 };
#define TOKENS_NPY_MAGIC "\x93NUMPY"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Unaligned little-endian fields of headers. */
static inline uint64_t read_le(const uint8_t *p, uint32_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

/* ---- detect.c */
/* The format of a mapped file, for `auto`; refuses one that is none. */
int32_t tokens_guess(const struct hd_data *f, uint32_t *format, struct hd_error *err);
/* Archives, compressed files, images: refused by name where no header says that tokens follow. */
int32_t tokens_refuse_container(const struct hd_data *f, struct hd_error *err);
bool tokens_is_text(const struct hd_data *f);

/* ---- formats.c */
/* NAME.bin, "idx" -> NAME.idx, in new memory; NULL: out of memory. */
char *tokens_beside(const char *path, const char *suffix);
/* All of the file NAME.idx or NAME.loss beside NAME.bin, mapped, or read where it lies behind HTTP; tokens_unload ends
 * its life. HD_E_NOTFOUND where there is none. */
int32_t tokens_load_beside(const struct hd_data *f, const char *suffix, const uint8_t **at, uint64_t *bytes,
                           struct hd_error *err);
void tokens_unload(const struct hd_data *f, const uint8_t *at, uint64_t bytes);
uint64_t tokens_width(uint32_t type); /* bytes of a token */
/* Is there a Megatron index beside NAME.bin? */
int32_t tokens_has_index(const struct hd_data *f, bool *has, struct hd_error *err);
/* Maps the file, or the head of one behind HTTP. Sets map, map_bytes and http. */
int32_t tokens_map(struct hd_data *f, const struct hd_host *host, const struct tokens_settings *settings,
                   const struct hd_data_source *source, struct hd_error *err);
/* Validates the header of a mapped file and sets at, count and type. */
/* The end of a token's document by Megatron's index, at most `limit`. */
uint64_t tokens_indexed_end(const struct hd_data *f, uint64_t token, uint64_t limit);
/* "first" or "last": those tokens are all 0; NULL: they are not. The end of a file behind HTTP is not looked at. */
const char *tokens_unwritten(const struct hd_data *f);
int32_t tokens_parse(struct hd_data *f, const struct tokens_settings *settings, struct hd_error *err);

/* ---- loss.c */
/* Maps NAME.loss of a parsed file. */
int32_t tokens_open_loss(struct hd_data *f, struct hd_error *err);
/* hd_data_ops.labels: the token after each, where that is marked. */
int32_t tokens_labels(struct hd_data *f, uint64_t first, uint64_t count, int64_t *labels, struct hd_error *err);

/* ---- plugin.c */
int32_t tokens_read(struct hd_data *f, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err);

#endif
