/* Recording, and sending to rank 0. */
#include "service/train/trace/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "core/base/file.h"
#include "runtime/rendezvous/kv.h"

enum { AFTER = 2, STEPS = 3 }; /* where the job names no steps: the third to fifth */
enum { EVENTS_A_CHUNK = 65536 / sizeof(struct hd__trace_event) };

/* The value that a rank puts under trace/RANK before the chunks trace/RANK/0, 1, ... */
struct header {
    double offset;
    uint32_t count, dropped;
};

static int is_recorded(const struct hd__job *job, int32_t rank)
{
    int found = !job->trace.n_ranks;
    for (uint64_t i = 0; i < job->trace.n_ranks; i++)
        found |= job->trace.ranks[i] == rank;
    return found;
}

/* Steps of a cycle of the schedule; 0: there is none, or the job ends before. */
static int set_cycle(const struct hd__job *job, int64_t cycle, struct hd__train_trace *t)
{
    int64_t length = job->trace.wait + job->trace.warmup + job->trace.active;
    t->cycle = cycle;
    t->warm = job->trace.skip_first + cycle * length + job->trace.wait + 1;
    t->first = t->warm + job->trace.warmup;
    t->last = t->first + job->trace.active - 1;
    if ((!job->trace.repeat || cycle < job->trace.repeat) && t->last <= job->steps)
        return 1;
    t->first = t->last = 0;
    return 0;
}

/* A schedule has a file a cycle: NAME-20-24.json. */
static const char *file_of(const struct hd__train_trace *t, char *out, size_t room)
{
    const char *file = t->session->compiled->job->trace.file, *end = strrchr(file, '.');
    if (!t->session->compiled->job->trace.active)
        return file;
    if (!end || strchr(end, '/'))
        end = file + strlen(file);
    snprintf(out, room, "%.*s-%" PRId64 "-%" PRId64 "%s", (int)(end - file), file, t->first, t->last, end);
    return out;
}

int32_t hd__train_trace_check(const struct hd__compiled *c, struct hd_error *err)
{
    struct hd__job *job = c->job;
    struct hd_error why = HD_ERROR_INIT;
    if (!job->trace.file)
        return HD_OK;
    if (job->trace.last > job->steps && job->steps) /* of epochs they may not be known yet */
        return hd__job_fail(job, "metrics.trace", err,
                            "metrics.trace: step %" PRId64 " is after the job's last, %" PRId64 ": name earlier steps",
                            job->trace.last, job->steps);
    struct hd__train_trace cycle;
    if (job->trace.active && job->steps && !set_cycle(job, 0, &cycle))
        return hd__job_fail(job, "metrics.trace", err,
                            "metrics.trace: the first cycle of its schedule ends at step %" PRId64
                            ", after the job's last, %" PRId64 ": make it shorter",
                            job->trace.skip_first + job->trace.wait + job->trace.warmup + job->trace.active,
                            job->steps);
    for (uint64_t i = 0; i < job->trace.n_ranks; i++)
        if (job->trace.ranks[i] >= c->mesh.ranks)
            return hd__job_fail(job, "metrics.trace", err,
                                "metrics.trace: there is no rank %" PRId64 ": the job has ranks 0 to %d",
                                job->trace.ranks[i], c->mesh.ranks - 1);
    struct stat there; /* else its folders are made with it */
    int32_t rc = lstat(job->trace.file, &there) ? HD_OK : hd__output_check(job->trace.file, HD__TRACE_BEGINS, &why);
    return rc ? hd__job_fail(job, "metrics.trace", err, "metrics.trace: %s", why.message) : HD_OK;
}

void hd__train_trace_init(struct hd__train_trace *t, struct hd__train_session *session, int64_t done)
{
    const struct hd__job *job = session->compiled->job;
    int64_t skipped = job->steps - done > AFTER ? AFTER : 0;
    *t = (struct hd__train_trace){.session = session};
    if (!job->trace.file || done >= job->steps)
        return;
    if (session->env->rank == 0 && !job->trace.active)
        hd__train_session_warn_replaced(session, "metrics.trace", job->trace.file);
    t->recorded = is_recorded(job, session->env->rank);
    /* half of what the rendezvous holds, shared by all that are recorded */
    uint64_t sharing = job->trace.n_ranks ? job->trace.n_ranks : (uint64_t)session->compiled->mesh.ranks;
    t->trace.limit =
        session->store ? (uint32_t)(HD__KV_MAX / 2 / sizeof(struct hd__trace_event) / sharing) : UINT32_MAX;
    if (job->trace.active) { /* a cycle that the run does not have from its warm-up on is left out */
        for (int64_t k = 0; set_cycle(job, k, t) && t->warm <= done; k++)
            continue;
        if (!t->last && session->env->rank == 0)
            hd__log(HD_LOG_WARN, NULL, "metrics.trace: no cycle of its schedule begins after step %" PRId64, done);
        return;
    }
    t->first = HD__MAX(job->trace.first ? job->trace.first : done + skipped + 1, done + 1);
    t->last = job->trace.last ? job->trace.last : HD__MIN(t->first + STEPS - 1, job->steps);
    t->warm = t->first;
    if (t->last > done + AFTER)
        return;
    if (session->env->rank == 0 && t->last > done && (job->trace.first || job->steps > done + AFTER))
        hd__log(HD_LOG_WARN, NULL,
                "metrics.trace: only the first two steps of a run are traced, which are slow: name later ones");
    if (t->last > done)
        return;
    if (session->env->rank == 0)
        hd__log(HD_LOG_WARN, NULL,
                "metrics.trace: steps %" PRId64 " to %" PRId64 " were trained before this run goes on: nothing is "
                "traced",
                job->trace.first, job->trace.last);
    t->first = t->last = 0;
}

void hd__train_trace_begin(struct hd__train_trace *t, int64_t step)
{
    if (!t->last || step < t->warm)
        return;
    hd__exec_replay_no_comm(t->session->exec);
    if (!t->recorded)
        return;
    t->trace.step = (uint32_t)step;
    t->began = hd__now();
    hd__exec_set_trace(t->session->exec, &t->trace);
}

/* ---- sending */

static int32_t put_events(struct hd__train_trace *t, struct hd_error *err)
{
    struct hd_store *store = t->session->store;
    struct header header = {.count = t->trace.events.count, .dropped = t->trace.dropped};
    char key[64];
    int32_t rank = t->session->env->rank, rc = hd__store_clock_offset(store, &header.offset, err);
    snprintf(key, sizeof key, "trace/%d", rank);
    if (!rc)
        rc = hd__store_put(store, key, &header, sizeof header, err);
    for (uint32_t from = 0; from < header.count && !rc; from += EVENTS_A_CHUNK) {
        uint32_t n = HD__MIN((uint32_t)EVENTS_A_CHUNK, header.count - from);
        snprintf(key, sizeof key, "trace/%d/%u", rank, from);
        rc = hd__store_put(store, key, t->trace.events.at + from, n * sizeof *t->trace.events.at, err);
    }
    return rc;
}

static int32_t take(struct hd_store *store, const char *key, void *value, size_t bytes, double deadline,
                    struct hd_error *err)
{
    size_t got = bytes;
    int32_t rc = hd__store_get(store, key, value, &got, deadline, err);
    if (!rc && got != bytes)
        rc = hd_fail(err, HD_E_INVALID, "store value %s has %zu bytes, not %zu", key, got, bytes);
    return rc ? rc : hd__store_remove(store, key, err);
}

static int32_t get_events(struct hd__train_trace *t, struct hd__trace_rank *r, double deadline, struct hd_error *err)
{
    struct hd_store *store = t->session->store;
    struct header header;
    char key[64];
    snprintf(key, sizeof key, "trace/%d", r->rank);
    int32_t rc = take(store, key, &header, sizeof header, deadline, err);
    if (rc)
        return rc;
    struct hd__trace_event *events = hd__alloc(header.count * sizeof *events);
    r->offset = header.offset;
    r->dropped = header.dropped;
    r->events = events;
    for (uint32_t n; r->count < header.count && !rc; r->count += n) {
        n = HD__MIN((uint32_t)EVENTS_A_CHUNK, header.count - r->count);
        snprintf(key, sizeof key, "trace/%d/%u", r->rank, r->count);
        rc = take(store, key, events + r->count, n * sizeof *events, deadline, err);
    }
    return rc;
}

/* ---- writing */

static void warn_dropped(const struct hd__trace_rank *ranks, uint32_t n)
{
    uint64_t dropped = 0;
    for (uint32_t i = 0; i < n; i++)
        dropped += ranks[i].dropped;
    if (dropped)
        hd__log(HD_LOG_WARN, NULL,
                "metrics.trace: %" PRIu64 " instructions found no room in it: name fewer steps or ranks", dropped);
}

static int32_t gather(struct hd__train_trace *t, struct hd__trace_rank *ranks, uint32_t *n, struct hd_error *err)
{
    const struct hd__compiled *c = t->session->compiled;
    double mine = 0, deadline = hd__now() + c->job->comm_timeout;
    int32_t rc = t->session->store ? hd__store_clock_offset(t->session->store, &mine, err) : HD_OK;
    for (int32_t r = 0; r < c->mesh.ranks && !rc; r++) {
        struct hd__trace_rank *rank = &ranks[*n];
        if (!is_recorded(c->job, r))
            continue;
        *rank = (struct hd__trace_rank){
            .events = t->trace.events.at, .count = t->trace.events.count, .dropped = t->trace.dropped, .rank = r};
        ++*n;
        if (!r)
            continue;
        rank->events = NULL;
        rank->count = 0;
        rc = get_events(t, rank, deadline, err);
        rank->offset -= mine;
    }
    return rc;
}

static int32_t write_trace(struct hd__train_trace *t, const char *file, struct hd_error *err)
{
    const struct hd__compiled *c = t->session->compiled;
    struct hd__trace_rank *ranks = hd__alloc((size_t)c->mesh.ranks * sizeof *ranks);
    uint32_t n = 0;
    int32_t rc = gather(t, ranks, &n, err);
    if (!rc)
        rc = hd__trace_write(c, ranks, n, file, err);
    if (!rc)
        warn_dropped(ranks, n);
    for (uint32_t i = 0; i < n; i++)
        if (ranks[i].rank)
            free((void *)(uintptr_t)ranks[i].events);
    free(ranks);
    return rc;
}

static int32_t finish(struct hd__train_trace *t, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    const struct hd__job *job = t->session->compiled->job;
    char name[4096];
    const char *file = file_of(t, name, sizeof name);
    int leads = t->session->env->rank == 0;
    double since = hd__now();
    int32_t rc = leads ? write_trace(t, file, &why) : t->recorded ? put_events(t, &why) : HD_OK;
    if (rc && job->trace.ends)
        return hd_fail(err, rc, "metrics.trace: %s", why.message);
    if (rc)
        hd__log(HD_LOG_WARN, NULL, "metrics.trace: %s", why.message);
    else if (leads)
        hd__log(HD_LOG_INFO, NULL,
                "metrics.trace: %s, gathered and written in %.2g s: `heddle trace %s` sums it up, "
                "https://ui.perfetto.dev shows it",
                file, hd__now() - since, file);
    hd__free_array(&t->trace.events);
    t->trace.dropped = 0;
    t->steps = 0;
    if (job->trace.active)
        set_cycle(job, t->cycle + 1, t);
    else
        t->first = t->last = 0;
    return HD_OK;
}

int32_t hd__train_trace_end(struct hd__train_trace *t, int64_t step, struct hd_error *err)
{
    if (!t->last || step < t->warm)
        return HD_OK;
    if (t->recorded && step < t->first) {
        hd__exec_set_trace(t->session->exec, NULL);
        t->trace.events.count = t->trace.dropped = 0;
    }
    if (step < t->first)
        return HD_OK;
    t->steps++;
    if (t->recorded) {
        hd__exec_set_trace(t->session->exec, NULL);
        hd__trace_add(&t->trace, HD__TRACE_STEP, 0, 0, t->began, hd__now());
    }
    return step >= t->last ? finish(t, err) : HD_OK;
}

int32_t hd__train_trace_finish(struct hd__train_trace *t, struct hd_error *err)
{
    return t->last && t->steps ? finish(t, err) : HD_OK;
}

void hd__train_trace_free(struct hd__train_trace *t)
{
    hd__free_array(&t->trace.events);
}
