/* hook-crash: crashes, or never comes back, as libraries below a transport do: libinfinipath has a handler of SIGSEGV
 * that calls exit(), which waits for a lock that the crashed call holds. Or an operation fails on one rank that the
 * others have ended. For tests. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "heddle/hook.h"

#define NEXT_BEGAN "next-operation-began"

enum { CRASH = 0, HANG, QUIET, EXIT, LEAVE, ALONE };

struct settings {
    int64_t rank, at;
    int32_t kind, closing;
};

struct hd_hook {
    const struct hd_hook_place *place;
    struct settings settings;
};

static void hang(int sig)
{
    (void)sig;
    for (;;)
        pause();
}

/* As that library does, when it is loaded. */
__attribute__((constructor)) static void install(void)
{
    signal(SIGSEGV, hang);
}

static void fault(const struct hd_hook *h)
{
    if (h->settings.rank != h->place->world->rank)
        return;
    if (h->settings.kind == CRASH)
        raise(SIGSEGV);
    if (h->settings.kind == EXIT)
        exit(0);
    if (h->settings.kind == LEAVE)
        _exit(0);
    hang(0);
}

static int32_t crash_open(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                          struct hd_hook **hook, struct hd_error *err)
{
    struct hd_hook *h = calloc(1, sizeof *h);
    (void)host;
    if (!h)
        return hd_fail(err, HD_E_NOMEM, "comm.hooks: crash: no memory");
    *h = (struct hd_hook){.place = place, .settings = *(const struct settings *)settings};
    if (h->settings.kind == QUIET) { /* in a call, and the crash comes later */
        signal(SIGSEGV, hang);
        signal(SIGABRT, hang);
    } else if (!h->settings.closing && h->settings.kind != ALONE)
        fault(h);
    *hook = h;
    return HD_OK;
}

static int32_t crash_begin(struct hd_hook *h, struct hd_hook_op *op, struct hd_error *err)
{
    (void)err;
    if (h->settings.kind == ALONE && h->settings.rank != h->place->world->rank &&
        op->number == (uint64_t)h->settings.at + 1)
        close(open(NEXT_BEGAN, O_CREAT | O_WRONLY, 0600));
    return HD_OK;
}

static int32_t crash_end(struct hd_hook *h, struct hd_hook_op *op, int32_t code, struct hd_error *err)
{
    if (code || h->settings.kind != ALONE || h->settings.rank != h->place->world->rank ||
        op->number != (uint64_t)h->settings.at)
        return code;
    while (access(NEXT_BEGAN, F_OK) && !h->place->api->aborted(h->place))
        usleep(1000);
    return hd_fail(err, HD_E_IO, "made to fail by comm.hooks: crash");
}

static void crash_leave(struct hd_hook *h)
{
    if (h->settings.closing)
        fault(h);
}

static void crash_close(struct hd_hook *h)
{
    free(h);
}

static const struct hd_option options[] = {
    {.name = "rank",
     .value = "1",
     .help = "the rank",
     .max = 1000,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, rank)},
    {.name = "kind",
     .value = "crash",
     .choices = "crash|hang|quiet|exit|leave|alone",
     .help = "what it does; alone: operation `at` fails once another rank has begun the next",
     .type = HD_OPT_ENUM,
     .offset = offsetof(struct settings, kind)},
    {.name = "at",
     .value = "1",
     .help = "number of the operation, for alone",
     .min = 1,
     .max = 1e6,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, at)},
    {.name = "closing",
     .value = "false",
     .help = "when it closes, not when it opens",
     .type = HD_OPT_BOOL,
     .offset = offsetof(struct settings, closing)},
};

static const struct hd_hook_ops ops = {
    .struct_size = sizeof ops,
    .open = crash_open,
    .close = crash_close,
    .begin = crash_begin,
    .end = crash_end,
    .leave = crash_leave,
};

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_HOOK,
    .name = "crash",
    .summary = "crashes or hangs while it opens or closes: for tests",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .option_size = sizeof options[0],
    .settings_size = sizeof(struct settings),
    .ops = &ops,
};

HD_PLUGIN_ONE("hook-crash", "0.1.0", "Apache-2.0", component)
