/* A check of code in conformance/ that fails within a suite of the Check library. */
#include <check.h>
#include <stdarg.h>
#include <stdio.h>

void conf_fail(const char *file, int line, const char *format, ...); /* conformance/check.h, whose macros are Check's */

void conf_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ck_abort_msg("%s:%d: %s", file, line, text);
}
