/* The log: one line a call, one write() a line, so that lines of several ranks never mix. */
#include <stdlib.h>
#include <unistd.h>

#include "core/base/base.h"

static uint32_t log_level = HD_LOG_INFO;
static char log_prefix[64];

void hd__log_setup(uint32_t level, const char *prefix)
{
    log_level = level;
    snprintf(log_prefix, sizeof log_prefix, "%s", prefix ? prefix : "");
}

void hd__log(uint32_t level, const char *component, const char *format, ...)
{
    static const char *const word[] = {"error: ", "warning: ", "", "debug: "};
    char line[2048];
    va_list args;
    if (level > log_level)
        return;
    int n = snprintf(line, sizeof line, "%s%s%s%s", log_prefix, component ? component : "", component ? ": " : "",
                     word[level & 3]);
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    n = HD__MIN(n, (int)sizeof line - 2);
    hd__printable(line);
    line[n++] = '\n';
    for (char *p = line; n > 0;) {
        ssize_t done = write(STDERR_FILENO, p, (size_t)n);
        if (done <= 0)
            return;
        p += done;
        n -= (int)done;
    }
}
