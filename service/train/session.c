/* Opening and closing one rank of a job. */
#include "service/train/session.h"

#include <stdlib.h>

#include "runtime/rendezvous/liveness.h"
#include "service/checkpoint/param_init.h"
#include "service/report/report.h"

static int32_t feed(void *user, int32_t labels, int32_t *out, int64_t count, struct hd_error *err)
{
    struct hd__session *s = user;
    if (s->other_feed)
        return s->other_feed(s->other_user, labels, out, count, err);
    return hd__feed_next(s->feeding, labels, out, count, err);
}

void hd__session_feed(struct hd__session *s,
                      int32_t (*other)(void *user, int32_t labels, int32_t *out, int64_t count, struct hd_error *err), void *user)
{
    s->other_feed = other;
    s->other_user = user;
}

/* From the thread that listens to the rendezvous, also while this rank still opens: another died or gave up. */
static void on_death(void *user, const char *cause)
{
    struct hd__session *s = user;
    hd__exec_abort(s->exec, cause);
}

/* ---- what this rank is doing, for those who ask; from any thread */

static size_t tell(void *user, char *out, size_t room)
{
    struct hd__session *s = user;
    char at[128];
    return hd__report_part(hd__exec_flight(s->exec), s->place->rank, hd__exec_where(s->exec, at), out, room);
}

static double waited(void *user)
{
    struct hd__session *s = user;
    return hd__flight_waited(hd__exec_flight(s->exec));
}

static void witness(struct hd__session *s)
{
    /* All are asked early, since a wrong turn that the transport does not see is found then; the log is told later. */
    struct hd__witness w = {.user = s, .tell = tell, .waited = waited, .ask_after = s->compiled->job->late_after / 8};
    hd__live_notify(hd__store_live(s->store), on_death, s);
    hd__store_witness(s->store, &w);
}

/* Who serves the rendezvous would put the report together: where it is gone, each rank writes its own part. */
static void report_alone(struct hd__session *s)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t rank = -1, served_by = hd__store_server_rank(s->store);
    char *part = hd__alloc(65536);
    if (s->place->reporter && served_by >= 0 && hd__live_dead(hd__store_live(s->store), &rank, &err) == HD_E_PEER && rank == served_by) {
        tell(s, part, 65536);
        hd__report_alone(s->place->reporter, s->place->rank, s->place->size, part, rank, err.message);
    }
    free(part);
}

/* ---- opening and closing */

int32_t hd__session_open(struct hd__session *s, struct hd__compiled *compiled, const struct hd__place_in_job *place,
                         struct hd_error *err)
{
    struct hd__exec_config config = {.compiled = compiled, .rank = place->rank, .local_rank = place->local_rank,
                                     .local_ranks = place->local_size, .feed = feed, .user = s};
    int32_t rc;
    *s = (struct hd__session){.compiled = compiled, .place = place};
    rc = hd__launch_connect(place, &s->store, &s->server, err);
    config.store = s->store;
    config.operations = (int32_t)compiled->job->flight_operations;
    if (rc)
        return rc;
    s->exec = hd__exec_create(&config);
    if (s->store)
        witness(s);
    hd__way_out_enter(&s->way_out, s->store, s->server, 0);
    rc = hd__exec_open(s->exec, err);
    hd__way_out_leave(&s->way_out);
    if (!rc)
        hd__init_zeros(hd__exec_program(s->exec), hd__exec_coord(s->exec), hd__exec_arena(s->exec));
    return rc;
}

void hd__session_fail(struct hd__session *s, int32_t code, const char *reason)
{
    if (!s->store || s->failed)
        return;
    s->failed = 1;
    hd__live_notify(hd__store_live(s->store), NULL, NULL);
    hd__store_fail(s->store, code, reason);
}

void hd__session_close(struct hd__session *s, int32_t failed, const char *reason)
{
    if (failed)
        hd__session_fail(s, failed, reason);
    if (s->store) {
        hd__live_notify(hd__store_live(s->store), NULL, NULL);
        hd__store_witness(s->store, NULL);
        if (failed && s->exec)
            report_alone(s);
    }
    hd__feed_close(s->train);
    hd__feed_close(s->held_out);
    if (!failed)
        hd__way_out_enter(&s->way_out, s->store, s->server, 1);
    hd__exec_close(s->exec);
    if (!failed)
        hd__way_out_leave(&s->way_out);
    hd__store_close(s->store);
    if (s->server) /* others read why; after a failure some may be gone, or have never come */
        hd__server_drain(s->server, hd__now() + (failed ? 2 : 10));
    hd__server_close(s->server);
    *s = (struct hd__session){0};
}

/* The job has ended already: by rank 0, or by another in the same words. */
static int ended_before(struct hd__session *s, const struct hd_error *err)
{
    struct hd_error end = HD_ERROR_INIT;
    int32_t rank = -1;
    if (hd__live_dead(hd__store_live(s->store), &rank, &end) != HD_E_CANCELLED || rank < 0 || rank == s->place->rank)
        return 0;
    return err->code == HD_E_CANCELLED ? rank == 0 : strstr(end.message, err->message) != NULL;
}

int hd__session_said(struct hd__session *s, const struct hd_error *err)
{
    int alike = err->code == HD_E_INVALID || err->code == HD_E_UNSUPPORTED || err->code == HD_E_NOTFOUND ||
                err->code == HD_E_MISMATCH || err->code == HD_E_CORRUPT;
    char first[sizeof err->message] = "";
    size_t bytes = sizeof first - 1;
    if (!s->store || !s->place->ours)
        return 0;
    if (s->place->rank == 0 && alike)
        hd__store_put(s->store, "refused", err->message, strlen(err->message), NULL);
    if (s->place->rank == 0)
        return 0;
    if (alike && !hd__store_get(s->store, "refused", first, &bytes, hd__now() + 1, NULL) && !strcmp(first, err->message))
        return 1;
    return ended_before(s, err);
}

int32_t hd__session_initialise(struct hd__session *s, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(s->exec);
    const int32_t *coord = hd__exec_coord(s->exec);
    void *arena = hd__exec_arena(s->exec);
    int32_t rc = s->compiled->info.weights ? hd__init_from_files(p, coord, arena, s->compiled->info.weights, err)
                                           : hd__init_parameters(p, coord, arena, (uint64_t)s->compiled->job->seed, err);
    if (!rc)
        rc = hd__exec_push_state(s->exec, err);
    hd__exec_forget(s->exec);
    return rc;
}

int32_t hd__session_scalars(struct hd__session *s, const hd_tensor *scalars, uint32_t n, double *values, struct hd_error *err)
{
    int32_t rc = hd__exec_pull(s->exec, scalars, n, err);
    for (uint32_t k = 0; k < n && !rc; k++) {
        const void *data = hd__exec_data(s->exec, scalars[k]);
        values[k] = hd__tc(hd__exec_program(s->exec), scalars[k])->dtype == HD_F64 ? *(const double *)data : *(const float *)data;
    }
    return rc;
}

int32_t hd__session_evaluate(struct hd__session *s, int64_t batches, double *loss, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(s->exec);
    struct hd__feed *before = s->feeding;
    double sum = 0;
    int32_t rc = HD_OK;
    if (!s->held_out)
        rc = hd__feed_open(s->compiled, s->place->rank, 1, &s->held_out, err);
    if (!rc)
        rc = hd__feed_seek(s->held_out, 0, err);
    s->feeding = s->held_out;
    if (!rc && p->gathers_late)
        rc = hd__exec_section(s->exec, "restore", err);
    if (!rc)
        rc = hd__exec_section(s->exec, "begin", err);
    for (int64_t n = 0; n < batches * p->accumulation && !rc; n++)
        rc = hd__exec_section(s->exec, "eval", err);
    if (!rc)
        rc = hd__exec_section(s->exec, "eval_end", err);
    s->feeding = before;
    if (!rc)
        rc = hd__session_scalars(s, &p->loss_sum, 1, &sum, err);
    if (!rc)
        *loss = sum / (double)batches;
    return rc;
}
