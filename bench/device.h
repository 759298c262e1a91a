/* How the benchmarks of a device plugin begin: they open it by hand, without the core, so that they need the public headers
 * alone. One source file a program includes this. */
#ifndef HD_BENCH_DEVICE_H
#define HD_BENCH_DEVICE_H

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "heddle/device.h"
#include "heddle/host.h"

#define BENCH_USED __attribute__((unused)) static

struct bench_device {
    const struct hd_device_ops *ops;
    struct hd_device *device;
    _Alignas(16) char settings[256];
};

/* Ends the program, which is named. */
BENCH_USED void __attribute__((noreturn, format(printf, 1, 2))) bench_stop(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
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

/* Whole pages of zeros, for free(). */
BENCH_USED void *bench_zeroed(size_t bytes)
{
    enum { PAGE = 4096 };
    size_t rounded = (bytes + PAGE) / PAGE * PAGE;
    void *p = aligned_alloc(PAGE, rounded);
    return p ? memset(p, 0, rounded) : NULL;
}

static void bench_say(uint32_t level, const char *component, const char *format, ...)
{
    va_list args;
    if (level > HD_LOG_WARN)
        return;
    va_start(args, format);
    fprintf(stderr, "%s: ", component);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static const struct hd_host bench_host = {
    .struct_size = sizeof bench_host, .abi_minor = HD_ABI_MINOR, .log = bench_say, .alloc = bench_zeroed, .free = free};

/* ---- options: numbers, sizes in MiB, choices by name or number, texts, which are kept by address */

static int32_t bench_choice(const struct hd_option *o, const char *value)
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

static void bench_set(const struct hd_option *o, char *settings, const char *value)
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

static void bench_option(const struct hd_component *c, char *settings, const char *word)
{
    size_t n = strcspn(word, "=");
    for (size_t i = 0; i < c->n_options; i++)
        if (word[n] && !strncmp(c->options[i].name, word, n) && !c->options[i].name[n]) {
            bench_set(&c->options[i], settings, word + n + 1);
            return;
        }
    bench_stop("%s: no OPTION=VALUE of %s", word, c->name);
}

/* The plugin's first component, a device, with the defaults of its options and then `words`, OPTION=VALUE and a NULL at the end. */
static void bench_open(struct bench_device *x, const char *path, const char *const *words)
{
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1};
    struct hd_error err = HD_ERROR_INIT;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    hd_plugin_entry entry = library ? (hd_plugin_entry)(uintptr_t)dlsym(library, HD_PLUGIN_SYMBOL) : NULL;
    if (!entry)
        bench_stop("%s", dlerror());
    const struct hd_component *c = entry()->components[0];
    if (c->kind != HD_KIND_DEVICE || c->settings_size > sizeof x->settings)
        bench_stop("%s is no device plugin that this program knows", path);
    for (size_t i = 0; i < c->n_options; i++)
        if (c->options[i].value)
            bench_set(&c->options[i], x->settings, c->options[i].value);
    while (words && *words)
        bench_option(c, x->settings, *words++);
    x->ops = c->ops;
    bench_check(x->ops->open(&bench_host, x->settings, &place, &x->device, &err), &err, path);
}

#endif
