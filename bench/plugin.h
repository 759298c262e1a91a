/* How benchmarks open a plugin by hand, without the core, so that they need the public headers alone; and how they
 * end. One source file a program includes this; one of many processes defines BENCH_END before, a statement that
 * ends them all. */
#ifndef HD_BENCH_PLUGIN_H
#define HD_BENCH_PLUGIN_H

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "heddle/host.h"
#include "heddle/plugin.h"

#define BENCH_USED __attribute__((unused)) static

/* Ends the program, which is named. */
BENCH_USED void __attribute__((noreturn, format(printf, 1, 2))) bench_stop(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
#ifdef BENCH_END
    BENCH_END;
#endif
    exit(2);
}

BENCH_USED void bench_check(int32_t rc, const struct hd_error *err, const char *what)
{
    if (rc)
        bench_stop("%s: %s", what, err->message);
}

BENCH_USED double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* As the core's: 64-byte aligned. */
BENCH_USED void *bench_alloc(size_t bytes)
{
    size_t whole = bytes / 64 * 64 + 64;
    void *p = aligned_alloc(64, whole);
    return p ? memset(p, 0, whole) : NULL;
}

static char bench_words[8192]; /* what plugins have said that is worth to know */

BENCH_USED int bench_heard(const char *words)
{
    return strstr(bench_words, words) != NULL;
}

BENCH_USED void bench_say(uint32_t level, const char *component, const char *format, ...)
{
    size_t n = strlen(bench_words);
    va_list args;
    if (level <= HD_LOG_INFO) {
        va_start(args, format);
        vsnprintf(bench_words + n, sizeof bench_words - n, format, args);
        va_end(args);
    }
    if (level > HD_LOG_WARN)
        return;
    va_start(args, format);
    fprintf(stderr, "%s: ", component);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

BENCH_USED const struct hd_host bench_host = {
    .struct_size = sizeof bench_host, .abi_minor = HD_ABI_MINOR, .log = bench_say, .alloc = bench_alloc, .free = free};

/* ---- options: numbers, sizes in MiB, choices by name or number, texts, which are kept by address */

BENCH_USED int32_t bench_choice(const struct hd_option *o, const char *value)
{
    int32_t index = 0;
    size_t n = strlen(value);
    for (const char *c = o->choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL, index++)
        if (!strncmp(c, value, n) && (c[n] == '|' || !c[n]))
            return index;
    if (*value < '0' || *value > '9')
        bench_stop("%s: %s is none of %s", o->name, value, o->choices);
    return atoi(value);
}

BENCH_USED void bench_set(const struct hd_option *o, char *settings, const char *value)
{
    char *unit, *to = settings + o->offset;
    double number = strtod(value, &unit);
    int64_t whole = (int64_t)(strcmp(unit, "MiB") ? number : number * 1048576);
    int32_t choice = o->type == HD_OPT_ENUM ? bench_choice(o, value) : !strcmp(value, "true") || number != 0;
    if (o->type == HD_OPT_INT || o->type == HD_OPT_SIZE)
        memcpy(to, &whole, sizeof whole);
    else if (o->type == HD_OPT_BOOL || o->type == HD_OPT_ENUM)
        memcpy(to, &choice, sizeof choice);
    else if (o->type == HD_OPT_FLOAT)
        memcpy(to, &number, sizeof number);
    else if (o->type == HD_OPT_STRING)
        memcpy(to, &value, sizeof value);
    else
        bench_stop("%s: no value for an option of this type", o->name);
}

BENCH_USED void bench_option(const struct hd_component *c, char *settings, const char *word)
{
    size_t n = strcspn(word, "=");
    for (size_t i = 0; i < c->n_options; i++)
        if (word[n] && !strncmp(c->options[i].name, word, n) && !c->options[i].name[n]) {
            bench_set(&c->options[i], settings, word + n + 1);
            return;
        }
    bench_stop("%s: no OPTION=VALUE of %s", word, c->name);
}

/* The plugin's first component, of this kind; in `settings`, of so many bytes of zeros, the defaults of its options
 * and then `words`, OPTION=VALUE and a NULL at the end, or NULL. */
BENCH_USED const struct hd_component *bench_component(const char *path, uint32_t kind, const char *const *words,
                                                      char *settings, size_t bytes)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    hd_plugin_entry entry = library ? (hd_plugin_entry)(uintptr_t)dlsym(library, HD_PLUGIN_SYMBOL) : NULL;
    if (!entry)
        bench_stop("%s", dlerror());
    const struct hd_component *c = entry()->components[0];
    if (c->kind != kind || c->settings_size > bytes)
        bench_stop("%s is no plugin that this program knows", path);
    for (size_t i = 0; i < c->n_options; i++)
        if (c->options[i].value)
            bench_set(&c->options[i], settings, c->options[i].value);
    while (words && *words)
        bench_option(c, settings, *words++);
    return c;
}

#endif
