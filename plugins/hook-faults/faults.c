/* faults: fault injection: the Nth operation of a rank is delayed, dropped, failed or changed, or kills or stops the
 * rank; or the rank does so where it opens or closes its transport. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "heddle/hook.h"
#include "heddle/host.h"

enum { DELAY = 0, STALL, DROP, FAIL, KILL, STOP, RESET, SIZE, DTYPE, REDOP, ROOT, OP, GROUP, FLIP };
static const char *const kind_names[] = {"delay", "stall", "drop",  "fail", "kill", "stop",  "reset",
                                         "size",  "dtype", "redop", "root", "op",   "group", "flip"};
#define CHOICES "delay|stall|drop|fail|kill|stop|reset|size|dtype|redop|root|op|group|flip"

enum { OPERATION = 0, OPENING, CLOSING };

struct settings {
    int64_t rank, at, every;
    double seconds;
    int32_t kind, when;
};

struct hd_hook {
    const struct hd_host *host;
    const struct hd_hook_place *place;
    const struct settings *settings;
    uint64_t next; /* number of the next operation with a fault */
    uint64_t last; /* number of the last operation */
};

static const struct hd_option options[] = {
    {.name = "rank",
     .value = "0",
     .help = "the rank with the fault",
     .min = 0,
     .max = 1 << 24,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, rank)},
    {.name = "at",
     .value = "1",
     .help = "number of its operation on this transport, from 1; the first from there on that the kind applies to",
     .min = 1,
     .max = 1e15,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, at)},
    {.name = "every",
     .value = "0",
     .help = "repeat after so many operations; 0: once",
     .min = 0,
     .max = 1e15,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, every)},
    {.name = "kind",
     .value = "stall",
     .choices = CHOICES,
     .type = HD_OPT_ENUM,
     .offset = offsetof(struct settings, kind),
     .help =
         "delay, stall (until the job ends), drop, fail; kill, stop, reset: the process, its link to the rendezvous; "
         "flip: a bit of a reduction's result; the others change the call"},
    {.name = "when",
     .value = "operation",
     .choices = "operation|opening|closing",
     .type = HD_OPT_ENUM,
     .offset = offsetof(struct settings, when),
     .help = "opening: before memory and groups exist; closing: after the last operation; for delay, stall, fail "
             "(opening), kill, stop and reset"},
    {.name = "seconds",
     .needs = "kind=delay",
     .value = "1s",
     .help = "how long delay takes",
     .min = 0,
     .max = 1e6,
     .type = HD_OPT_DURATION,
     .offset = offsetof(struct settings, seconds)},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- faults that do not change the call */

static int32_t sleep_for(struct hd_hook *h, double seconds, struct hd_error *err)
{
    double until = now() + seconds;
    h->place->api->retract(h->place); /* not started meanwhile */
    while (now() < until && !h->place->api->aborted(h->place))
        usleep(1000);
    return h->place->api->aborted(h->place)
               ? hd_fail(err, HD_E_CANCELLED, "stalled by comm.hooks: faults until the job ended")
               : HD_OK;
}

static int32_t inject(struct hd_hook *h, const char *what, struct hd_error *err)
{
    switch (h->settings->kind) {
    case DELAY:
        return sleep_for(h, h->settings->seconds, err);
    case STALL:
        return sleep_for(h, 1e9, err);
    case FAIL:
        return hd_fail(err, HD_E_IO, "%s: made to fail by comm.hooks: faults", what);
    case RESET:
        h->place->api->reset_store(h->place);
        return HD_OK;
    default:
        raise(h->settings->kind == KILL ? SIGKILL : SIGSTOP);
        return HD_OK;
    }
}

static int is_injected(int32_t kind)
{
    return kind == DELAY || kind == STALL || kind == FAIL || kind == KILL || kind == STOP || kind == RESET;
}

static int32_t inject_at(struct hd_hook *h, int32_t when, const char *what, struct hd_error *err)
{
    const struct settings *s = h->settings;
    int32_t rank = h->place->world->rank;
    if (s->when != when || s->rank != rank)
        return HD_OK;
    h->host->log(HD_LOG_WARN, "faults", "rank %d, %s: %s, at %.3f s", rank, what, kind_names[s->kind], now());
    return inject(h, what, err);
}

/* ---- faults that change the call: a collective mismatch */

static const struct hd_hook_group *another_group(const struct hd_hook *h, const struct hd_hook_group *g)
{
    const struct hd_hook_api *api = h->place->api;
    for (const struct hd_hook_group *other = api->next_group(h->place, NULL); other;
         other = api->next_group(h->place, other))
        if (other != g && other->n > 1 &&
            (other->n != g->n || memcmp(other->ranks, g->ranks, (size_t)g->n * sizeof *g->ranks)))
            return other;
    return NULL;
}

/* A change never makes a call write more, so that buffers stay large enough. */
static int applies_to(const struct hd_hook *h, const struct hd_hook_op *op, int32_t kind)
{
    const struct hd_comm_call *call = op->call;
    int data = !hd_hook_is_message(op) && call->coll != HD_COLL_BARRIER;
    switch (kind) {
    case SIZE:
        return call->count > 1;
    case DTYPE:
        return data && call->dtype != HD_F64 && call->dtype != HD_U8;
    case FLIP:
        return call->coll == HD_COLL_ALL_REDUCE && call->dtype == HD_F32 && call->count > 1;
    case REDOP:
        return call->coll == HD_COLL_ALL_REDUCE || call->coll == HD_COLL_REDUCE_SCATTER || call->coll == HD_COLL_REDUCE;
    case ROOT:
        return call->coll == HD_COLL_BROADCAST || call->coll == HD_COLL_REDUCE;
    case OP:
        return data;
    case GROUP:
        return call->coll == HD_COLL_ALL_REDUCE && another_group(h, op->group) != NULL;
    default:
        return 1;
    }
}

static void alter_call(const struct hd_hook *h, struct hd_hook_op *op, int32_t kind)
{
    static const uint8_t other_dtype[] = {[HD_F32] = HD_I32, [HD_I32] = HD_F32, [HD_BF16] = HD_F16, [HD_F16] = HD_BF16};
    struct hd_comm_call *call = op->call;
    switch (kind) {
    case SIZE:
        call->count /= 2;
        break;
    case DTYPE:
        call->dtype = other_dtype[call->dtype];
        break;
    case REDOP:
        call->redop = call->redop == HD_MAX ? HD_SUM : HD_MAX;
        break;
    case ROOT:
        call->root = (call->root + 1) % op->group->n;
        break;
    case OP:
        *call = (struct hd_comm_call){.struct_size = sizeof *call, .coll = HD_COLL_BARRIER, .tag = call->tag};
        break;
    case GROUP:
        op->group = another_group(h, op->group);
        break;
    }
}

/* Flips the lowest bit of the exponent of a number in the middle of the result. */
static int32_t faults_end(struct hd_hook *h, struct hd_hook_op *op, int32_t code, struct hd_error *err)
{
    uint8_t *result = op->call->recv;
    (void)h, (void)err;
    if (op->user[0] && !code)
        result[op->call->count / 2 * sizeof(float) + 2] ^= 0x80; /* of the little-endian bytes */
    return code;
}

/* ---- the hook */

static int32_t check_settings(const struct settings *s, int32_t size, struct hd_error *err)
{
    if (s->rank >= size)
        return hd_fail(err, HD_E_INVALID, "comm.hooks: faults.rank: %lld: give a rank from 0 to %d", (long long)s->rank,
                       size - 1);
    if (s->when != OPERATION && (!is_injected(s->kind) || (s->kind == FAIL && s->when == CLOSING)))
        return hd_fail(
            err, HD_E_INVALID,
            "comm.hooks: faults: %s needs when: operation; opening and closing take delay, stall, kill, stop or "
            "reset",
            kind_names[s->kind]);
    return HD_OK;
}

static int32_t faults_check(const struct hd_host *host, const void *settings, const struct hd_check_job *job,
                            struct hd_error *err)
{
    (void)host;
    return check_settings(settings, job->ranks, err);
}

static int32_t faults_open(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                           struct hd_hook **hook, struct hd_error *err)
{
    struct hd_hook *h = calloc(1, sizeof *h);
    int32_t rc;
    if (!h)
        return hd_fail(err, HD_E_NOMEM, "comm.hooks: faults: no memory");
    *h = (struct hd_hook){.host = host, .place = place, .settings = settings};
    h->next = (uint64_t)h->settings->at;
    rc = check_settings(settings, place->world->size, err);
    if (!rc)
        rc = inject_at(h, OPENING, "opening", err);
    if (rc)
        free(h);
    else
        *hook = h;
    return rc;
}

static void faults_close(struct hd_hook *h)
{
    free(h);
}

static void faults_leave(struct hd_hook *h)
{
    const struct settings *s = h->settings;
    if (s->when == OPERATION && s->rank == h->place->world->rank && h->next == (uint64_t)s->at)
        h->host->log(HD_LOG_WARN, "faults",
                     "rank %lld: no %s was injected: comm-%s had %llu operations here, and none from number %lld on "
                     "that it applies to",
                     (long long)s->rank, kind_names[s->kind], h->place->transport, (unsigned long long)h->last,
                     (long long)s->at);
    inject_at(h, CLOSING, "closing", NULL);
}

static int32_t faults_begin(struct hd_hook *h, struct hd_hook_op *op, struct hd_error *err)
{
    const struct settings *s = h->settings;
    const char *name = hd_hook_coll_name(op->call->coll);
    int32_t rank = h->place->world->rank;
    char what[192];
    h->last = op->number;
    if (s->when != OPERATION || s->rank != rank || op->number < h->next || !applies_to(h, op, s->kind))
        return HD_OK;
    h->next = s->every ? op->number + (uint64_t)s->every : UINT64_MAX;
    h->host->log(HD_LOG_WARN, "faults", "rank %d, operation %llu, %s in group %s: %s, at %.3f s", rank,
                 (unsigned long long)op->number, name, op->group->name, kind_names[s->kind], now());
    if (s->kind == DROP)
        return HD_HOOK_HOLD;
    op->user[0] = s->kind == FLIP;
    if (s->kind == FLIP)
        return HD_OK;
    if (is_injected(s->kind)) {
        snprintf(what, sizeof what, "%s of group %s", name, op->group->name);
        return inject(h, what, err);
    }
    alter_call(h, op, s->kind);
    return HD_OK;
}

static const struct hd_hook_ops ops = {
    .struct_size = sizeof ops,
    .open = faults_open,
    .close = faults_close,
    .begin = faults_begin,
    .end = faults_end,
    .leave = faults_leave,
};

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_HOOK,
    .name = "faults",
    .summary = "makes the Nth operation of a rank go wrong",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .option_size = sizeof options[0],
    .settings_size = sizeof(struct settings),
    .ops = &ops,
    .check = faults_check,
};

HD_PLUGIN_ONE("hook-faults", "0.1.0", "Apache-2.0", component)
