/* Files behind HTTP or HTTPS, read by ranges: blocks are kept in memory, and those that follow in order are fetched
 * ahead. Files are opened and closed by one thread at a time. */
#ifndef DATA_TOKENS_HTTP_H
#define DATA_TOKENS_HTTP_H

#include <stdbool.h>

#include "heddle/host.h"

struct http_settings {
    int64_t block;      /* bytes of one request */
    int64_t cache;      /* bytes kept of all files, at least four blocks */
    int64_t read_ahead; /* blocks that are fetched before they are asked for; 0: none */
    int64_t retries;    /* of one request, after which the error is returned */
    double timeout;     /* seconds without a byte until a request counts as failed */
};

struct http_file;

bool http_is_url(const char *path); /* http:// or https:// */
/* A copy for messages, without what may be secret: user, password, query, fragment. NULL: out of memory. */
char *http_printable(const char *url);

/* Asks for the first block, and learns the file's size; the first file's settings are those of all. HD_E_NOTFOUND
 * (404, 410), HD_E_UNSUPPORTED (the server answers no ranges), HD_E_IO; messages begin with the URL. `in_order`:
 * fetch ahead. */
int32_t http_open(const struct hd_host *host, const struct http_settings *settings, const char *url, bool in_order,
                  struct http_file **file, struct hd_error *err);
/* Opens the URL whose path has another ending. HD_E_INVALID where it has not the ending `from`. */
int32_t http_open_sibling(const struct http_file *file, const char *from, const char *to, struct http_file **sibling,
                          struct hd_error *err);
void http_close(struct http_file *file); /* NULL is fine; no read is under way */
uint64_t http_bytes(const struct http_file *file);
/* Any thread. The bytes [at, at + bytes), which lie within the file. HD_E_CORRUPT where the server's file is another
 * than that which was opened. */
int32_t http_read(struct http_file *file, uint64_t at, uint64_t bytes, void *out, struct hd_error *err);

#endif
