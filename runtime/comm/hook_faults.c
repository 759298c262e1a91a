/* faults: what can go wrong, on purpose: the Nth operation of a rank is delayed, dropped, refused, changed, or its last; or the
 * rank is late, dead or stopped where it opens or closes its transport. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/dtype.h"
#include "runtime/comm/hook.h"
#include "runtime/rendezvous/store.h"

enum { DELAY = 0, STALL, DROP, FAIL, KILL, STOP, RESET, SIZE, DTYPE, REDOP, ROOT, OP, GROUP };
static const char *const kind_names[] = {"delay", "stall", "drop",  "fail", "kill", "stop", "reset",
                                         "size",  "dtype", "redop", "root", "op",   "group"};
#define KINDS "delay|stall|drop|fail|kill|stop|reset|size|dtype|redop|root|op|group"

enum { OPERATION = 0, OPENING, CLOSING };

struct settings {
    int64_t rank, at, every;
    double seconds;
    int32_t kind, when;
};

struct faults {
    uint64_t next;                 /* number of the operation that it waits for */
    struct hd__flight_op *altered; /* what the recorder says of changed operations */
};

static const struct hd_option options[] = {
    {.name = "rank",
     .value = "0",
     .help = "of the rank that does it",
     .min = 0,
     .max = 1 << 24,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, rank)},
    {.name = "at",
     .value = "1",
     .help = "its operation on this transport, from 1; the first from there on that it fits",
     .min = 1,
     .max = 1e15,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, at)},
    {.name = "every",
     .value = "0",
     .help = "and again after every so many; 0: once",
     .min = 0,
     .max = 1e15,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, every)},
    {.name = "kind",
     .value = "stall",
     .choices = KINDS,
     .type = HD_OPT_ENUM,
     .offset = offsetof(struct settings, kind),
     .help =
         "delay, stall (until the job ends), drop, fail; kill, stop, reset: the process, its link to the rendezvous; "
         "the others change the call"},
    {.name = "when",
     .value = "operation",
     .choices = "operation|opening|closing",
     .type = HD_OPT_ENUM,
     .offset = offsetof(struct settings, when),
     .help = "opening: before it has memory and groups; closing: when nothing is left to do; for delay, stall, fail "
             "(opening), kill, "
             "stop and reset"},
    {.name = "seconds",
     .value = "1s",
     .help = "how long delay takes",
     .min = 0,
     .max = 1e6,
     .type = HD_OPT_DURATION,
     .offset = offsetof(struct settings, seconds)},
};

/* ---- late */

/* The operation does not begin while this lasts: nor does the flight recorder say so. */
static int32_t sleep_before(struct hd__hook *h, double seconds, int recorded, struct hd_error *err)
{
    const struct hd__flight_op *op = recorded && h->context.flight ? hd__comm_flight_retract(h->context.flight) : NULL;
    double until = hd__now() + seconds;
    while (hd__now() < until && !atomic_load(&h->aborted))
        usleep(1000);
    if (op)
        hd__comm_flight_start(h->context.flight, op, hd__now());
    return atomic_load(&h->aborted) ? hd_fail(err, HD_E_CANCELLED, "stalled by comm.hooks: faults until the job ended")
                                    : HD_OK;
}

/* ---- a wrong turn */

static int is_message(const struct hd__hook_op *op)
{
    return op->what == HD__HOOK_SEND || op->what == HD__HOOK_RECV;
}

static struct hd__hook_group *another_group(struct hd__hook *h, const struct hd__hook_group *g)
{
    for (struct hd__hook_group *other = hd__comm_hook_groups(h); other; other = other->next)
        if (other != g && other->n > 1 &&
            (other->n != g->n || memcmp(other->ranks, g->ranks, (size_t)g->n * sizeof *g->ranks)))
            return other;
    return NULL;
}

/* The first other one of the same size; 0: none. */
static uint32_t other_dtype(uint32_t dtype)
{
    for (uint32_t d = 1; d < HD__DTYPE_COUNT; d++)
        if (d != dtype && hd_dtype_size(d) == hd_dtype_size(dtype))
            return d;
    return 0;
}

/* Buffers stay large enough: a change never makes a call write more. */
static int applies_to(struct hd__hook *h, const struct hd__hook_op *op, int32_t kind)
{
    int reduces = op->what == HD_COLL_ALL_REDUCE || op->what == HD_COLL_REDUCE_SCATTER || op->what == HD_COLL_REDUCE;
    switch (kind) {
    case SIZE:
        return op->call.count > 1;
    case DTYPE:
        return !is_message(op) && op->what != HD_COLL_BARRIER && other_dtype(op->call.dtype);
    case REDOP:
        return reduces;
    case ROOT:
        return op->what == HD_COLL_BROADCAST || op->what == HD_COLL_REDUCE;
    case OP:
        return !is_message(op) && op->what != HD_COLL_BARRIER;
    case GROUP:
        return op->what == HD_COLL_ALL_REDUCE && another_group(h, op->group) != NULL;
    default:
        return 1;
    }
}

static void alter_call(struct hd__hook *h, struct hd__hook_op *op, int32_t kind)
{
    switch (kind) {
    case SIZE:
        op->call.count /= 2;
        break;
    case DTYPE:
        op->call.dtype = other_dtype(op->call.dtype);
        break;
    case REDOP:
        op->call.redop = op->call.redop == HD_MAX ? HD_SUM : HD_MAX;
        break;
    case ROOT:
        op->call.root = (op->call.root + 1) % op->group->n;
        break;
    case OP:
        op->call = (struct hd_comm_call){.struct_size = sizeof op->call, .coll = HD_COLL_BARRIER, .tag = op->call.tag};
        op->what = HD_COLL_BARRIER;
        break;
    case GROUP:
        op->group = another_group(h, op->group);
        op->seq = ++op->group->seq;
        break;
    }
}

/* The recorder says what the rank does, not what it was told to do. */
static void replace_flight_op(struct hd__hook *h, struct faults *f, const struct hd__hook_op *op)
{
    const struct hd__flight_op *before = h->context.flight ? hd__comm_flight_retract(h->context.flight) : NULL;
    struct hd__flight_channel *c;
    if (!before)
        return;
    if (!f->altered)
        f->altered = hd__alloc(sizeof *f->altered);
    *f->altered = *before;
    f->altered->dtype = is_message(op) ? before->dtype : op->call.dtype;
    f->altered->redop = op->call.redop;
    f->altered->root = op->what == HD_COLL_BROADCAST || op->what == HD_COLL_REDUCE ? op->call.root : -1;
    f->altered->count = is_message(op) ? op->call.count / hd_dtype_size(before->dtype) : op->call.count;
    f->altered->bytes = is_message(op) ? op->call.count : before->bytes;
    f->altered->name = is_message(op) ? before->name : hd__comm_hook_op_name(op->what);
    for (c = h->context.flight->channels; c; c = c->next)
        if (c->from < 0 && c->n == op->group->n && !strcmp(c->group, op->group->name))
            f->altered->channel = is_message(op) ? before->channel : c;
    hd__comm_flight_hash_op(f->altered);
    hd__comm_flight_start(h->context.flight, f->altered, hd__now());
}

/* ---- the hook */

/* What does not change a call. */
static int32_t inject(struct hd__hook *h, int32_t kind, const char *what, int recorded, struct hd_error *err)
{
    const struct settings *s = h->settings;
    switch (kind) {
    case DELAY:
    case STALL:
        return sleep_before(h, kind == STALL ? 1e9 : s->seconds, recorded, err);
    case FAIL:
        return hd_fail(err, HD_E_IO, "%s: made to fail by comm.hooks: faults", what);
    case RESET:
        hd__store_reset(h->world.store);
        return HD_OK;
    default:
        raise(kind == KILL ? SIGKILL : SIGSTOP);
        return HD_OK;
    }
}

static int is_injected(int32_t kind)
{
    return kind == DELAY || kind == STALL || kind == FAIL || kind == KILL || kind == STOP || kind == RESET;
}

static int32_t inject_at(struct hd__hook *h, int32_t when, const char *what, struct hd_error *err)
{
    const struct settings *s = h->settings;
    if (s->when != when || s->rank != h->world.rank)
        return HD_OK;
    hd__log(HD_LOG_WARN, "faults", "rank %d, %s: %s, at %.3f s", h->world.rank, what, kind_names[s->kind], hd__now());
    return inject(h, s->kind, what, 0, err);
}

static int32_t faults_open(struct hd__hook *h, struct hd_error *err)
{
    const struct settings *s = h->settings;
    struct faults *f = hd__alloc(sizeof *f);
    int32_t rc = HD_OK;
    f->next = (uint64_t)s->at;
    h->state = f;
    if (s->rank >= h->world.size)
        rc = hd_fail(err, HD_E_INVALID, "comm.hooks: faults: rank %lld is not one of 0 to %d", (long long)s->rank,
                     h->world.size - 1);
    else if (s->when != OPERATION && (!is_injected(s->kind) || (s->kind == FAIL && s->when == CLOSING)))
        rc = hd_fail(err, HD_E_INVALID,
                     "comm.hooks: faults: %s is of an operation, not of opening or closing: take delay, stall, kill, "
                     "stop or reset",
                     kind_names[s->kind]);
    if (!rc)
        rc = inject_at(h, OPENING, "opening", err);
    if (rc)
        free(f);
    return rc;
}

static void faults_leave(struct hd__hook *h)
{
    struct hd_error err = HD_ERROR_INIT;
    inject_at(h, CLOSING, "closing", &err);
}

static void faults_close(struct hd__hook *h)
{
    struct faults *f = h->state;
    free(f->altered);
    free(f);
}

static int32_t faults_begin(struct hd__hook *h, struct hd__hook_op *op, struct hd_error *err)
{
    const struct settings *s = h->settings;
    struct faults *f = h->state;
    char what[192];
    if (s->when != OPERATION || s->rank != h->world.rank || op->number < f->next || !applies_to(h, op, s->kind))
        return HD_OK;
    f->next = s->every ? op->number + (uint64_t)s->every : UINT64_MAX;
    hd__log(HD_LOG_WARN, "faults", "rank %d, operation %llu, %s in group %s: %s, at %.3f s", h->world.rank,
            (unsigned long long)op->number, hd__comm_hook_op_name(op->what), op->group->name, kind_names[s->kind],
            hd__now());
    if (s->kind == DROP)
        return HD__HOOK_HOLD;
    if (is_injected(s->kind)) {
        snprintf(what, sizeof what, "%s of group %s", hd__comm_hook_op_name(op->what), op->group->name);
        return inject(h, s->kind, what, 1, err);
    }
    alter_call(h, op, s->kind);
    replace_flight_op(h, f, op);
    return HD_OK;
}

const struct hd__hook_kind hd__comm_hook_faults = {
    .name = "faults",
    .summary = "makes the Nth operation of a rank go wrong",
    .options = options,
    .n_options = HD__COUNT(options),
    .settings_size = sizeof(struct settings),
    .open = faults_open,
    .begin = faults_begin,
    .leave = faults_leave,
    .close = faults_close,
};
