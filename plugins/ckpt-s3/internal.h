/* plugins/ckpt-s3: checkpoints as objects of a bucket. Objects cannot be written at offsets, so each rank packs its
 * writes into segments and keeps a table of what lies where.
 *
 *     PREFIX/pending/NAME                      there while NAME is written or removed; its text is the attempt's token
 *     PREFIX/segments/NAME/ATTEMPT/RANK-N      bytes, in the order in which a rank wrote them
 *     PREFIX/segments/NAME/ATTEMPT/RANK.table  where the bytes of a rank belong; gone after the commit
 *     PREFIX/segments/NAME/ATTEMPT/all.table   those of all ranks in one, where bytes are read back; gone with them
 *     PREFIX/commits/NAME                      the table of all: with this one PUT the checkpoint is there
 *
 * s3.c has the slots, location.c the address and the credentials, request.c a request with its retries, answer.c
 * what servers say in XML, table.c the tables, write.c a checkpoint that is being written. */
#ifndef HD_CKPT_S3_INTERNAL_H
#define HD_CKPT_S3_INTERNAL_H

#include <pthread.h>

#include "heddle/ckpt.h"
#include "heddle/host.h"

enum { S3_TOKEN = 24, S3_HANDLES = 32, S3_AT_ONCE = 16 };

enum { S3_AUTO, S3_TRUE, S3_FALSE }; /* path_style */

struct s3_settings {
    const char *endpoint, *region, *ca;
    int64_t retries;
    int64_t segment;
    double timeout;
    int32_t path_style;
    int32_t reserved;
};

/* ---- tables */

struct s3_extent {
    uint64_t offset, bytes; /* of the file */
    uint64_t position;      /* in the segment */
    uint32_t file, segment;
};

struct s3_table {
    char **files, **segments; /* names; a segment's is ATTEMPT/RANK-N */
    struct s3_extent *extents;
    uint32_t n_files, n_segments;
    uint64_t n, room;
    uint64_t ordered; /* so many at the beginning are by file and offset */
};

void s3_table_free(struct s3_table *t);
/* Adds a name: its number; UINT32_MAX: no memory. */
uint32_t s3_table_add_name(char ***names, uint32_t *n, const char *name);
/* The number of a file, which is added where it is new; UINT32_MAX: no memory. */
uint32_t s3_table_file(struct s3_table *t, const char *name);
/* Adds an extent, or makes the last one longer that it goes on from. */
int32_t s3_table_add(struct s3_table *t, const struct s3_extent *e, struct hd_error *err);
/* As text in new memory, with a checksum at its end. */
int32_t s3_table_print(const struct s3_table *t, const char *attempt, char **text, size_t *bytes, struct hd_error *err);
/* Adds what the text has; `key` is for messages. HD_E_CORRUPT. */
int32_t s3_table_parse(struct s3_table *t, const char *key, char *text, size_t bytes, char attempt[S3_TOKEN],
                       struct hd_error *err);
/* By file and offset: a byte is found by bisection. */
void s3_table_order(struct s3_table *t);
/* The same, neighbours joined. HD_E_INVALID where extents overlap, HD_E_CORRUPT where a file has a hole. */
int32_t s3_table_sort(struct s3_table *t, const char *name, struct hd_error *err);
/* The extent with a byte of a file; NULL. */
const struct s3_extent *s3_table_find(const struct s3_table *t, const char *file, uint64_t offset);
/* The bytes of a file in a sorted table; 0: there is none. */
uint64_t s3_table_bytes(const struct s3_table *t, const char *file);

/* ---- a store */

struct s3_commit {
    struct s3_commit *next;
    char *name;
    struct s3_table table;
    char attempt[S3_TOKEN];
    char etag[72];
};

struct hd_ckpt {
    const struct hd_host *host;
    const struct s3_settings *settings;
    char *location;        /* s3://BUCKET/PREFIX, for messages */
    char *bucket, *prefix; /* "" or "a/b/": keys begin with it */
    char *base;            /* URL before the key, with a slash at its end */
    char *region, *signing, *ca;
    char *key_id, *secret, *session; /* session: NULL without one */
    struct s3_commit *commits;       /* those that were read */
    pthread_mutex_t lock;            /* guards commits and idle */
    void *idle[S3_HANDLES];          /* curl handles, each with its connection */
    uint32_t n_idle;
    uint32_t reserved;
};

int32_t s3_locate(struct hd_ckpt *ckpt, const char *location, struct hd_error *err);
char *s3_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
int32_t s3_no_memory(struct hd_error *err);
int32_t s3_token(char out[S3_TOKEN], struct hd_error *err);
/* HD_OK for what may be a component of a key. */
int32_t s3_check_name(const char *name, struct hd_error *err);

/* ---- requests */

struct s3_request {
    const char *method, *key; /* key: behind the prefix; NULL: of the bucket */
    const char *query;        /* sorted and encoded; NULL */
    const char *header;       /* one more; NULL */
    const void *body;
    size_t bytes;
    void *into; /* a 206's body, of exactly `room` bytes; NULL */
    size_t room;
};

struct s3_answer {
    char *text; /* the body, with a zero behind it; caller frees */
    size_t bytes, room;
    long status;
    char etag[72];
    char region[32];
    char reserved[8];
};

/* HD_OK for 2xx and 304. HD_E_NOTFOUND where there is no such object; other errors have their cause and remedy in the
 * message. What may pass is tried again until settings.timeout. */
int32_t s3_send(struct hd_ckpt *ckpt, const struct s3_request *request, struct s3_answer *answer, struct hd_error *err);
int32_t s3_put(struct hd_ckpt *ckpt, const char *key, const void *data, size_t bytes, struct hd_error *err);
int32_t s3_get(struct hd_ckpt *ckpt, const char *key, struct s3_answer *answer, struct hd_error *err);
int32_t s3_get_range(struct hd_ckpt *ckpt, const char *key, uint64_t first, void *data, uint64_t bytes,
                     struct hd_error *err);
int32_t s3_delete(struct hd_ckpt *ckpt, const char *key, struct hd_error *err);
/* Calls `one` for 0 to n - 1, several at a time. After an error, which is that of the first, no more begin. */
int32_t s3_each(size_t n, int32_t (*one)(void *user, size_t i, struct hd_error *err), void *user, struct hd_error *err);
/* Keys that begin with `under`, without the store's prefix, all pages, in order. *keys and each are the caller's. */
int32_t s3_keys(struct hd_ckpt *ckpt, const char *under, char ***keys, size_t *n, struct hd_error *err);
void s3_keys_free(char **keys, size_t n);
int s3_keys_have(char **keys, size_t n, const char *key);
void s3_handles_close(struct hd_ckpt *ckpt);

/* Calls on_text for each element without children of an XML text. 0, or -1 where it is not well formed. */
int s3_xml_read(const char *text, size_t bytes, void (*on_text)(void *user, const char *element, const char *text),
                void *user);
/* The code of an error's answer, "" without one; `message` what it says. */
void s3_error_read(const struct s3_answer *a, char code[64], char message[200]);
int32_t s3_explain(const struct hd_ckpt *ckpt, const struct s3_request *r, const struct s3_answer *a,
                   struct hd_error *err);

/* ---- slots that more than one file has */

/* The committed table; `fresh`: as it is now. With ckpt->lock not held. */
int32_t s3_commit_read(struct hd_ckpt *ckpt, const char *name, int fresh, struct hd_error *err);
void s3_commit_forget(struct hd_ckpt *ckpt, const char *name);
/* Removes what belongs to no commit of this name, and its mark in pending/. */
int32_t s3_clean(struct hd_ckpt *ckpt, const char *name, struct hd_error *err);

int32_t s3_begin(struct hd_ckpt *ckpt, const char *name, int32_t leader, struct hd_ckpt_tx **tx, struct hd_error *err);
int32_t s3_write(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, const void *data, uint64_t bytes,
                 struct hd_error *err);
int32_t s3_flush(struct hd_ckpt_tx *tx, struct hd_error *err);
int32_t s3_commit(struct hd_ckpt_tx *tx, struct hd_error *err);
void s3_cancel(struct hd_ckpt_tx *tx);
int32_t s3_read_back(struct hd_ckpt_tx *tx, const char *file, uint64_t offset, void *data, uint64_t bytes,
                     struct hd_error *err);

#endif
