/* URLs as they are told from paths, and as messages print them. */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "http.h"

bool http_is_url(const char *path)
{
    return !strncasecmp(path, "http://", 7) || !strncasecmp(path, "https://", 8);
}

char *http_printable(const char *url)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    size_t authority = strcspn(host, "/?#"), scheme = (size_t)(host - url);
    const char *at = memchr(host, '@', authority);
    const char *rest = at ? at + 1 : host;
    int shown = (int)strcspn(rest, "?#");
    char *out;
    return asprintf(&out, "%.*s%.*s", (int)scheme, url, shown, rest) < 0 ? NULL : out;
}
