/* In the place of http.c where libcurl is missing. */
#include <stdlib.h>

#include "http.h"

int32_t http_open(const struct hd_host *host, const struct http_settings *settings, const char *url, bool in_order,
                  struct http_file **file, struct hd_error *err)
{
    (void)host, (void)settings, (void)in_order, (void)file;
    char *name = http_printable(url);
    int32_t rc = hd_fail(err, HD_E_UNSUPPORTED,
                         "%s: this heddle was built without libcurl, which reads URLs: install libcurl (7.85 or newer) "
                         "and build it again, or copy the file to this machine",
                         name ? name : "a URL");
    free(name);
    return rc;
}

/* No file is ever open. */
int32_t http_open_sibling(const struct http_file *f, const char *from, const char *to, struct http_file **sibling,
                          struct hd_error *err)
{
    (void)f, (void)from, (void)to, (void)sibling;
    return hd_fail(err, HD_E_INTERNAL, "data-tokens: no URL is open");
}

void http_close(struct http_file *f)
{
    (void)f;
}

uint64_t http_bytes(const struct http_file *f)
{
    (void)f;
    return 0;
}

int32_t http_read(struct http_file *f, uint64_t at, uint64_t bytes, void *out, struct hd_error *err)
{
    (void)f, (void)at, (void)bytes, (void)out;
    return hd_fail(err, HD_E_INTERNAL, "data-tokens: no URL is open");
}
